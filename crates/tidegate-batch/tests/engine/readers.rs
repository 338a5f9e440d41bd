use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_batch::{Change, Control, Event, ItemId, ItemState};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::spawn;
use tidegate_rehearsal::{Fault, Latency, Server};

use crate::support::{LATENCY, Place, in_virtual_time, keep_time, start};

/// A state by its name: the limit and the instant of a blocked item change without an event.
fn name(state: &ItemState) -> &'static str {
    match state {
        ItemState::Waiting => "waiting",
        ItemState::Blocked { .. } => "blocked",
        ItemState::InFlight => "in flight",
        ItemState::Done => "done",
        ItemState::Cached => "cached",
        ItemState::Failed { .. } => "failed",
        _ => "skipped",
    }
}

type States = BTreeMap<ItemId, &'static str>;

fn states(control: &Control) -> States {
    control.items().iter().map(|item| (item.item, name(&item.state))).collect()
}

fn apply(states: &mut States, event: &Event) {
    if let Change::Item { item, state, .. } = &event.change {
        states.insert(*item, name(state));
    }
}

#[test]
fn a_reader_that_missed_events_catches_up_by_their_numbers() {
    let place = Place::new();
    let batch = place.batch("a", 60);
    in_virtual_time(async move {
        let script = (0..60).map(|at| (at % 9 == 0).then_some(Fault::Internal));
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).script(script).start().await.unwrap();
        let gate = Gate::builder().limit(Limit::concurrency("global", 7)).limit(Limit::rpm(30)).build().unwrap();
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        let running = start(batch, &gate, &server);
        let all: Rc<RefCell<Vec<Event>>> = Rc::default();
        let noted = Rc::clone(&all);
        control.on_event(move |event| noted.borrow_mut().push(event.clone()));
        let reader = spawn({
            let control = control.clone();
            async move {
                let (mut seen, mut known, mut looks) = (0, States::new(), 0);
                while !control.is_ended() {
                    // Away for a while, by a different number of events each time.
                    control.changed(seen + looks % 5 * 15).await;
                    let missed = control.events_after(seen).expect("all of them are kept");
                    assert!(missed.iter().zip(seen + 1..).all(|(event, seq)| event.seq == seq), "no gap");
                    missed.iter().for_each(|event| apply(&mut known, event));
                    seen = missed.last().map_or(seen, |event| event.seq);
                    assert_eq!(seen, control.progress().seq);
                    let real: States = states(&control);
                    for (item, state) in &real {
                        assert_eq!(known.get(item).unwrap_or(&"waiting"), state, "{item}");
                    }
                    looks += 1;
                }
                looks
            }
        });
        let summary = running.await.unwrap().unwrap();
        assert!(summary.failed > 0 && summary.answered + summary.failed == 60, "{summary:?}");
        let looks = reader.await.unwrap();
        assert!(looks > 5, "{looks}");
        let all = all.borrow();
        assert_eq!(control.events_after(0).as_deref(), Some(&all[..]));
        assert_eq!(all.last().unwrap().change, Change::Ended);
        assert_eq!(control.events_after(all.len() as u64 + 1), None, "another run's number");
        clock.cancel();
    });
}

#[test]
fn events_and_states_have_the_names_of_the_glossary_in_json() {
    let place = Place::new();
    let batch = place.batch("a", 3);
    in_virtual_time(async move {
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
        let gate = Gate::builder().limit(Limit::concurrency("global", 1)).build().unwrap();
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        start(batch, &gate, &server).await.unwrap().unwrap();
        let events = control.events_after(0).unwrap();
        let lines: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let is_there = |text: &str| assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
        is_there(r#""event":"item","line":2,"name":"a-2","state":"blocked","limit":"global","until":null"#);
        is_there(r#""line":1,"name":"a-1","state":"in_flight""#);
        is_there(r#""state":"done","usage":{"input_tokens":"#);
        is_there(r#""event":"ended""#);
        let progress = serde_json::to_value(control.progress()).unwrap();
        assert_eq!(
            (&progress["unit"], &progress["total"], &progress["done"]),
            (&"requests".into(), &3.into(), &3.into())
        );
        clock.cancel();
    });
}
