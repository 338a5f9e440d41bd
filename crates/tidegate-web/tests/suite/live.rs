//! Topics over real connections: what is sent when, to how many, and at what cost.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::sleep;
use tidegate_web::Site;
use tidegate_web::live::{Source, Values};

use crate::support::{Running, Wire, loopback, on_loop, serve};

/// A site with a number that the test changes, and a count of how often it was asked for.
async fn numbers() -> (Running, Rc<Cell<u64>>, Rc<Cell<u64>>) {
    let (number, asked) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(0)));
    let mut site = Site::new();
    let source = {
        let (number, asked) = (Rc::clone(&number), Rc::clone(&asked));
        move || {
            asked.set(asked.get() + 1);
            let mut values = Values::new();
            values.text("number", number.get().to_string());
            values.text("constant", "c");
            values
        }
    };
    let source = Rc::new(source);
    let own = Rc::clone(&source);
    site.topic("number", move || own());
    site.topics("job", move |id| (id == "7").then(|| Rc::clone(&source) as Source));
    (serve(site, loopback()).await, number, asked)
}

async fn listen(site: &Running, on: &str, last: Option<&str>) -> Wire {
    let mut wire = Wire::open(site.address).await;
    let last = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
    let text = format!("GET /live?on={on} HTTP/1.1\r\nhost: {}\r\n{last}\r\n", site.address);
    wire.send(text.as_bytes()).await;
    wire
}

fn last_id(text: &str) -> String {
    text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap().trim().to_owned()
}

#[test]
fn a_listener_gets_everything_then_what_changes() {
    on_loop(async {
        let (site, number, _) = numbers().await;
        let mut wire = listen(&site, "number", None).await;
        let first = wire.read_until(|text| text.contains("event: whole")).await;
        assert!(first.contains("content-type: text/event-stream"), "{first}");
        assert!(first.contains(r#"data: {"text":{"constant":"c","number":"1"}}"#), "{first}");
        number.set(2);
        let next = wire.read_until(|text| text.contains(r#""number""#)).await;
        assert!(next.contains(r#"data: {"text":{"number":"2"}}"#), "{next}");
        assert!(wire.read_until(|text| text.contains("event: beat")).await.contains("event: beat"));
    });
}

#[test]
fn who_reconnects_gets_what_was_missed_and_no_more() {
    on_loop(async {
        let (site, number, _) = numbers().await;
        // Keeps the topic open.
        let _other = listen(&site, "number", None).await;
        let mut wire = listen(&site, "number", None).await;
        let id = last_id(&wire.read_until(|text| text.contains("event: whole\ndata: {}\n\n")).await);
        drop(wire);
        number.set(2);
        let mut wire = listen(&site, "number", Some(&id)).await;
        let text = wire.read_until(|text| text.contains(r#""number":"2""#)).await;
        assert!(!text.contains("constant"), "only the update: {text}");
    });
}

#[test]
fn an_id_of_another_process_or_of_a_closed_topic_gets_everything() {
    on_loop(async {
        let (site, number, _) = numbers().await;
        let mut wire = listen(&site, "job/7", Some("123abc.4")).await;
        let text = wire.read_until(|text| text.contains("event: whole\ndata: {}\n\n")).await;
        assert!(text.contains(r#""constant":"c""#), "{text}");
        let id = last_id(&text);
        drop(wire);
        // Without a listener the topic is closed; what changed meanwhile has no number.
        sleep(Duration::from_millis(400)).await;
        number.set(9);
        let mut wire = listen(&site, "job/7", Some(&id)).await;
        let text = wire.read_until(|text| text.contains("event: whole")).await;
        assert!(text.contains(r#""number":"9""#), "{text}");
    });
}

#[test]
fn a_hundred_listeners_cost_one_look_per_update_and_none_afterwards() {
    on_loop(async {
        let (site, number, asked) = numbers().await;
        let mut wires = Vec::new();
        for _ in 0..100 {
            let mut wire = listen(&site, "number", None).await;
            wire.read_until(|text| text.contains("event: whole")).await;
            wires.push(wire);
        }
        let before = asked.get();
        number.set(2);
        for wire in &mut wires {
            wire.read_until(|text| text.contains(r#""number":"2""#)).await;
        }
        let looks = asked.get() - before;
        assert!(looks <= 20, "{looks} looks for one update to 100 listeners");
        drop(wires);
        // The connections' tasks notice that their peers are gone.
        while asked.get() > 0 {
            asked.set(0);
            sleep(Duration::from_millis(600)).await;
        }
        assert_eq!(asked.get(), 0);
    });
}

#[test]
fn stopping_ends_the_streams() {
    on_loop(async {
        let (site, _, _) = numbers().await;
        let mut wire = listen(&site, "number", None).await;
        wire.read_until(|text| text.contains("event: whole")).await;
        site.stopper.stop();
        let stopped = site.task.await.unwrap().unwrap();
        assert_eq!(stopped.cut, 0, "no stream had to be cut");
    });
}
