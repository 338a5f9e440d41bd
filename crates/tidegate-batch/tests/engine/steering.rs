use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tidegate_batch::jsonl::EndedEarly;
use tidegate_batch::{Change, ItemState, RetryError};
use tidegate_limit::{Cost, Gate, Limit};
use tidegate_loop::sleep;
use tidegate_rehearsal::{Fault, Latency, Server};

use crate::support::{
    LATENCY, Place, STEP, check_figures, in_virtual_time, keep_time, line, secs, sleep_until, start, time,
};

fn gate(global: u64, rpm: u64) -> Gate {
    Gate::builder().limit(Limit::concurrency("global", global)).limit(Limit::rpm(rpm)).build().unwrap()
}

#[test]
fn a_paused_run_finishes_what_is_in_flight_and_admits_nothing_until_it_is_resumed() {
    let place = Place::new();
    let batch = place.batch("a", 40);
    in_virtual_time(async move {
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
        let gate = gate(5, 20);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        check_figures(&control, &gate);
        let running = start(batch, &gate, &server);
        while server.stats().in_flight < 5 {
            sleep(STEP).await;
        }
        let began = time();
        sleep_until(began + secs(1)).await;
        let progress = control.progress();
        assert_eq!((progress.in_flight, progress.done), (5, 0), "{progress:?}");
        assert!(progress.blocked > 0 && progress.remaining.is_some(), "{progress:?}");
        assert!(control.pause() && !control.pause());
        let progress = control.progress();
        assert!(progress.paused && progress.remaining.is_none(), "{progress:?}");

        sleep_until(began + secs(200)).await;
        let progress = control.progress();
        assert_eq!((progress.done, progress.in_flight, progress.blocked, progress.waiting), (5, 0, 0, 35));
        assert_eq!((server.stats().arrived, gate.stats().waiting), (5, 0), "none stands in line");

        let resumed = time();
        assert!(control.resume() && !control.resume());
        assert_eq!(running.await.unwrap().unwrap().answered, 40);
        let took = time() - resumed;
        assert!((secs(60)..secs(75)).contains(&took), "20 in the first minute, 15 in the second: {took:?}");
        assert_eq!((server.stats().arrived, server.stats().refused.total()), (40, 0));
        clock.cancel();
    });
}

#[test]
fn a_paused_run_can_be_stopped() {
    let place = Place::new();
    let batch = place.batch("a", 10);
    in_virtual_time(async move {
        let server = Server::builder().start().await.unwrap();
        let gate = gate(5, 20);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        control.pause();
        let running = start(batch, &gate, &server);
        sleep(secs(10)).await;
        assert!(control.finish("enough"));
        let summary = running.await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.ended_early), (0, Some(EndedEarly::Stopped)));
        assert_eq!(server.stats().arrived, 0);
        assert!(control.is_ended() && control.progress().waiting == 10);
        assert_eq!(control.retry(line(1)), Err(RetryError::Ended));
        clock.cancel();
    });
}

#[test]
fn a_run_that_is_stopped_leaves_the_gate_to_the_others() {
    let place = Place::new();
    let (first, second) = (place.batch("a", 60), place.batch("b", 60));
    in_virtual_time(async move {
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
        let gate = gate(10, 30);
        let clock = keep_time(&gate, &server);
        let (stopped, goes_on) = (first.control(), second.control());
        check_figures(&goes_on, &gate);
        let (first, second) = (start(first, &gate, &server), start(second, &gate, &server));
        sleep(secs(10)).await;
        let in_flight = stopped.progress().in_flight;
        assert!(goes_on.progress().blocked > 0 && stopped.progress().blocked > 0);
        stopped.finish("cancelled");
        let summary = first.await.unwrap().unwrap();
        assert_eq!(summary.ended_early, Some(EndedEarly::Stopped));
        assert!(summary.answered >= in_flight && summary.answered < 60, "{summary:?}");
        assert!(!gate.is_closed());
        let summary = second.await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.ended_early), (60, None));
        assert_eq!((gate.stats().current, gate.stats().waiting), (0, 0));
        clock.cancel();
        assert!(gate.enter(gate.unscoped(), Cost::nothing()).await.is_ok(), "the gate is open to other runs");
    });
}

#[test]
fn a_request_that_failed_is_asked_again_while_the_run_goes_on() {
    let place = Place::new();
    let batch = place.batch_to_file("a", 30);
    let results = place.results();
    in_virtual_time(async move {
        // The first request fails, and so does the first attempt to ask it again.
        let script = (0..30).map(|at| (at == 0 || at == 5).then_some(Fault::Internal));
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).script(script).start().await.unwrap();
        let gate = gate(5, 1_000);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        check_figures(&control, &gate);
        let failures = Rc::new(Cell::new(0));
        let (retrying, counted) = (control.clone(), Rc::clone(&failures));
        control.on_event(move |event| {
            if let Change::Item { item, state: ItemState::Failed { code, .. }, .. } = &event.change {
                assert_eq!(code, "unavailable");
                counted.set(counted.get() + 1);
                retrying.retry(*item).unwrap();
                assert_eq!(retrying.item(*item), Some(ItemState::Waiting));
                assert_eq!(retrying.retry(*item), Err(RetryError::Busy));
            }
        });
        let running = start(batch, &gate, &server);
        let summary = running.await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.failed, summary.ended_early), (30, 0, None));
        assert_eq!(failures.get(), 2);
        let progress = control.progress();
        assert_eq!((progress.done, progress.failed, progress.total), (30, 0, 30));
        clock.cancel();
    });
    let text = std::fs::read_to_string(results).unwrap();
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let result: Value = serde_json::from_str(line).unwrap();
        assert_eq!(result["error"], Value::Null, "what failed was replaced: {line}");
        assert!(lines.insert(result["custom_id"].to_string(), ()).is_none(), "one line each");
    }
    assert_eq!(lines.len(), 30);
}

#[test]
fn what_cannot_be_asked_again_is_refused_with_its_reason() {
    let place = Place::new();
    let batch = place.batch("a", 3);
    in_virtual_time(async move {
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
        let gate = gate(1, 1_000);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        assert_eq!(control.retry(line(0)), Err(RetryError::Unknown), "lines begin with 1");
        let running = start(batch, &gate, &server);
        while control.progress().done < 1 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(control.retry(line(1)), Err(RetryError::NotKept), "its answer is in the results");
        assert_eq!(control.retry(line(2)), Err(RetryError::Busy));
        assert_eq!(control.retry(line(9)), Err(RetryError::Unknown));
        assert_eq!(control.reload(line(1)), Err(RetryError::NotKept));
        running.await.unwrap().unwrap();
        assert_eq!(control.retry(line(1)), Err(RetryError::Ended));
        clock.cancel();
    });
}

#[test]
fn requests_of_an_earlier_run_are_asked_again_if_they_failed_and_were_chosen_before_the_run_begins() {
    let place = Place::new();
    let (first, second) = (place.batch_to_file("a", 4), place.batch_to_file("a", 4));
    let results = place.results();
    tidegate_loop::run(async move {
        // Lines are sent one after the other and not again: 1 and 2 fail.
        let script = [Some(Fault::Internal), Some(Fault::Internal)];
        let server = Server::builder().script(script).start().await.unwrap();
        let gate = gate(1, 10_000);
        let summary = start(first, &gate, &server).await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.failed), (2, 2));

        let (control, lines) = (second.control(), Rc::new(Cell::new(0)));
        let seen = Rc::clone(&lines);
        let second = second.on_result(move |item, text| {
            assert_eq!((item, text.last()), (line(2), Some(&b'\n')));
            seen.set(seen.get() + 1);
        });
        assert_eq!(control.retry(line(2)), Ok(()));
        assert_eq!(control.retry(line(3)), Ok(()), "it was answered: it is left alone");
        assert_eq!(control.retry(tidegate_batch::ItemId::Page { file: 0, page: 1 }), Err(RetryError::Unknown));
        let summary = start(second, &gate, &server).await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.cached, summary.cached_failed), (1, 3, 1));
        assert_eq!((server.stats().arrived, lines.get()), (5, 1));
        let text = std::fs::read_to_string(results).unwrap();
        assert_eq!(text.lines().count(), 4, "one result for each request: {text}");
        assert_eq!(text.matches("\"error\":null").count(), 3, "{text}");
    })
    .unwrap();
}
