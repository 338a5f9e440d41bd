//! What is kept, for how long, and what can be seen of it.

use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::broker::{BrokerError, Published, Selection, TaskResult, TaskState};
use crate::json;
use crate::task::{TaskId, Unique};

/// Delays live in the broker, not in the worker's memory.
pub async fn delayed_tasks_come_at_their_time_and_take_no_prefetch(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let reader = consumer(&broker, 1).await;
    // By itself: a broker may need a while to prepare for the first delayed task, and the others must not be due by then.
    let mut never = tasks(&["never here"]);
    never[0].eta = Some(after(&broker, Duration::from_secs(3_600)));
    broker.publish(never).await.unwrap();
    let mut batch = tasks(&["third", "second", "first"]);
    batch[0].eta = Some(after(&broker, subject.unit() * 4));
    batch[1].eta = Some(after(&broker, subject.unit() * 2));
    let etas: Vec<_> = batch.iter().map(|envelope| envelope.eta).collect();
    broker.publish(batch).await.unwrap();
    for (expected, eta) in [("first", None), ("second", etas[1]), ("third", etas[0])] {
        let got = delivery(&reader).await;
        assert_eq!(name(&got), expected);
        assert!(eta.is_none_or(|eta| broker.now() >= eta), "{expected} came early");
        settle(&reader, &got, Verdict::Ack).await;
    }
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed), (0, 1));
}

/// A caller that waits for the result learns that the task expired.
pub async fn expired_tasks_are_dropped_told_and_known_as_expired(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch = tasks(&["stale", "fresh"]);
    batch[0].expires = Some(after(&broker, subject.unit()));
    batch[1].expires = Some(after(&broker, Duration::from_secs(3_600)));
    let stale = batch[0].id.clone();
    broker.publish(batch).await.unwrap();
    pass(&broker, subject.unit() * 2).await;
    let reader = consumer(&broker, 10).await;
    let (mut expired, mut fresh) = (Vec::new(), Vec::new());
    while fresh.is_empty() {
        for incoming in reader.recv_all().await.unwrap() {
            match incoming {
                Incoming::Expired(id) => expired.push(id),
                Incoming::Delivery(delivery) => fresh.push(name(&delivery)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((expired, fresh), (vec![stale.clone()], vec!["fresh".to_owned()]));
    assert_eq!(broker.wait_result(&stale).await.unwrap().state, TaskState::Expired);
    assert_eq!(stats(&broker).await.ready, 0);
}

/// Python's integers have any size.
pub async fn results_keep_integers_of_any_size(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a"])).await.unwrap();
    let reader = consumer(&broker, 1).await;
    let got = delivery(&reader).await;
    let text = "[1000000000000000000000000000001,-18446744073709551616]";
    let value = json::from_slice(text.as_bytes()).unwrap();
    let id = got.envelope.id.clone();
    let result =
        TaskResult { id: id.clone(), state: TaskState::Succeeded, value, error: None, ttl: Duration::from_secs(60) };
    let settlement = Settlement { tag: got.tag, verdict: Verdict::Ack, result: Some(result) };
    reader.settle(vec![settlement]).await.unwrap();
    assert_eq!(json::to_string(&subject.connect().await.wait_result(&id).await.unwrap().value), text);
}

/// With reason and traceback, oldest first.
pub async fn dead_letters_are_kept_listed_retried_and_dropped(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let batch = tasks(&["a", "b", "c"]);
    let ids: Vec<TaskId> = batch.iter().map(|envelope| envelope.id.clone()).collect();
    broker.publish(batch.clone()).await.unwrap();
    broker.publish(vec![Envelope::new("elsewhere", b"z".to_vec())]).await.unwrap();
    let reader = consumer_of(&broker, &[QUEUE, "elsewhere"], 10).await;
    for got in deliveries(&reader, 4).await {
        let dead = Verdict::Dead { reason: format!("no {}", name(&got)), traceback: Some("line 1\nline 2".into()) };
        settle(&reader, &got, dead).await;
    }
    assert_eq!(broker.dead(None, 100).await.unwrap().len(), 4);
    let letters = broker.dead(Some(QUEUE), 2).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0].envelope, batch[0]);
    assert_eq!(letters[0].reason, "no a");
    assert_eq!(letters[0].traceback.as_deref(), Some("line 1\nline 2"));
    assert_eq!(stats(&broker).await.dead, 3);

    let some = Selection::Ids(vec![ids[1].clone(), ids[1].clone(), TaskId::from("unknown")]);
    assert_eq!(broker.dead_retry(some).await.unwrap(), 1);
    let again = delivery(&reader).await;
    assert_eq!((again.envelope.id.clone(), again.retries, again.crashes), (ids[1].clone(), 0, 0));
    settle(&reader, &again, Verdict::Ack).await;

    assert_eq!(broker.dead_drop(Selection::Queue(QUEUE.into())).await.unwrap(), 2);
    assert_eq!(stats(&broker).await.dead, 0);
    assert_eq!(broker.dead_retry(Selection::All).await.unwrap(), 1);
    assert_eq!(names(&reader, 1).await, ["z"]);
}

fn unique(name: &str, hold: Duration, past_settle: bool) -> Envelope {
    let mut envelope = task(name);
    envelope.unique = Some(Unique { key: "the key".into(), hold, past_settle });
    envelope
}

const LONG: Duration = Duration::from_secs(3_600);

/// Waiting and running; settled, it is free.
pub async fn a_unique_key_is_held_while_its_task_lives(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let first = unique("first", LONG, false);
    let duplicate = Published::Duplicate(first.id.clone());
    let twice = vec![first.clone(), unique("twice", LONG, false)];
    assert_eq!(broker.publish(twice).await.unwrap(), [Published::Stored, duplicate.clone()]);
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    assert_eq!(*got.envelope, first);
    let meanwhile = broker.publish(vec![unique("while it runs", LONG, false)]).await.unwrap();
    assert_eq!(meanwhile[0], duplicate);
    settle(&reader, &got, Verdict::Retry { at: broker.now() }).await;
    let got = delivery(&reader).await;
    assert_eq!(broker.publish(vec![unique("while it is retried", LONG, false)]).await.unwrap(), [duplicate]);
    settle(&reader, &got, Verdict::Ack).await;
    assert_eq!(broker.publish(vec![unique("next", LONG, false)]).await.unwrap(), [Published::Stored]);
    let got = delivery(&reader).await;
    settle(&reader, &got, Verdict::Dead { reason: "given up".into(), traceback: None }).await;
    assert_eq!(broker.publish(vec![unique("after a death", LONG, false)]).await.unwrap(), [Published::Stored]);
    broker.purge(QUEUE).await.unwrap();
}

/// Even if the task is still there.
pub async fn a_unique_key_is_free_again_after_its_time(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(vec![unique("first", subject.unit(), false)]).await.unwrap();
    pass(&broker, subject.unit() * 2).await;
    assert_eq!(broker.publish(vec![unique("second", LONG, false)]).await.unwrap(), [Published::Stored]);
    assert_eq!(names(&consumer(&broker, 10).await, 2).await, ["first", "second"]);
}

/// For schedules: an occurrence was run, and a slow worker publishes it again.
pub async fn a_unique_key_may_outlast_its_task(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let first = unique("tick", LONG, true);
    broker.publish(vec![first.clone()]).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    assert_eq!(*got.envelope, first);
    settle(&reader, &got, Verdict::Ack).await;
    let late = broker.publish(vec![unique("tick", LONG, true)]).await.unwrap();
    assert_eq!(late, [Published::Duplicate(first.id)]);
}

/// So a publish may be repeated when it is not known whether it arrived.
pub async fn the_same_id_is_stored_once(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let envelope = task("once");
    broker.publish(vec![envelope.clone()]).await.unwrap();
    let again = broker.publish(vec![envelope.clone(), task("other")]).await.unwrap();
    let reader = consumer(&broker, 10).await;
    if broker.capabilities().remembers_ids {
        assert_eq!(again, [Published::Duplicate(envelope.id), Published::Stored]);
        assert_eq!(names(&reader, 2).await, ["once", "other"]);
    } else {
        assert_eq!(again, [Published::Stored, Published::Stored]);
        assert_eq!(names(&reader, 3).await, ["once", "once", "other"]);
    }
}

/// Running tasks and dead letters stay.
pub async fn purging_drops_what_waits_and_nothing_else(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["dead", "running"])).await.unwrap();
    let reader = consumer(&broker, 2).await;
    let got = deliveries(&reader, 2).await;
    reader.stop().await.unwrap();
    settle(&reader, &got[0], Verdict::Dead { reason: "no".into(), traceback: None }).await;
    let mut batch = tasks(&["a", "b", "delayed"]);
    batch[2].eta = Some(after(&broker, LONG));
    broker.publish(batch).await.unwrap();
    broker.publish(vec![Envelope::new("elsewhere", Vec::new())]).await.unwrap();
    assert_eq!(broker.purge(QUEUE).await.unwrap(), 3);
    assert_eq!(broker.purge("no such queue").await.unwrap(), 0);
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed, now.running, now.dead), (0, 0, 1, 1));
    settle(&reader, &got[1], Verdict::Ack).await;
    assert_eq!(broker.peek("elsewhere", 10).await.unwrap().len(), 1);
}

/// As they would run; delayed ones behind.
pub async fn peeking_shows_the_order_and_takes_nothing(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch = tasks(&["later", "low", "high"]);
    batch[0].eta = Some(after(&broker, LONG));
    batch[2].priority = 9;
    broker.publish(batch.clone()).await.unwrap();
    let can = broker.capabilities();
    let (first, second) = if can.priorities { (2, 1) } else { (1, 2) };
    let mut expected = vec![batch[first].clone(), batch[second].clone()];
    if can.peeks_delayed {
        expected.push(batch[0].clone());
    }
    assert_eq!(broker.peek(QUEUE, 10).await.unwrap(), expected);
    assert_eq!(broker.peek(QUEUE, 1).await.unwrap(), expected[..1]);
    assert!(broker.peek("no such queue", 10).await.unwrap().is_empty());
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed), (2, 1));
}

/// Ready, delayed, running, dead, consumers, the age of the oldest.
pub async fn inspecting_counts_every_place(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["running", "dead", "ready 1", "ready 2"])).await.unwrap();
    let mut later = task("later");
    later.eta = Some(after(&broker, LONG));
    broker.publish(vec![later]).await.unwrap();
    let reader = consumer(&broker, 2).await;
    let got = deliveries(&reader, 2).await;
    reader.stop().await.unwrap();
    settle(&reader, &got[1], Verdict::Dead { reason: "no".into(), traceback: None }).await;
    let second = consumer_of(&broker, &["another queue"], 1).await;
    pass(&broker, subject.unit()).await;
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed, now.running, now.dead), (2, 1, 1, 1));
    match broker.capabilities().knows_age {
        true => assert!(now.oldest_ms >= subject.unit().as_millis() as u64, "{now:?}"),
        false => assert_eq!(now.oldest_ms, 0),
    }
    let all = broker.inspect().await.unwrap();
    let other = all.iter().find(|stats| stats.queue == "another queue").expect("subscribing makes a queue");
    assert_eq!((other.consumers, other.ready), (1, 0));
    assert!(all.is_sorted_by_key(|stats| stats.queue.clone()), "by name");
    second.close().await.unwrap();
}

/// The message names the task, the size and the limit.
pub async fn large_bodies_pass_and_larger_ones_are_refused_by_name(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut large = task("");
    large.body = vec![7; 1 << 20];
    broker.publish(vec![large.clone()]).await.unwrap();
    assert_eq!(delivery(&consumer(&broker, 1).await).await.envelope.as_ref(), &large);
    let mut larger = task("");
    larger.body = vec![7; 100_000_000];
    let error = broker.publish(vec![larger.clone()]).await.unwrap_err();
    let BrokerError::Refused { message } = &error else { panic!("{error:?}") };
    assert!(message.contains(larger.id.as_str()) && message.contains("95 MiB"), "{message}");
}

/// Before anything is stored.
pub async fn names_and_priorities_that_cannot_be_are_refused(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let refused = async |change: fn(&mut Envelope)| {
        let mut envelope = task("x");
        change(&mut envelope);
        match broker.publish(vec![envelope]).await {
            Err(BrokerError::Refused { message }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(|it| it.queue.clear()).await.contains("queue name"));
    assert!(refused(|it| it.queue = "a\nb".into()).await.contains("queue name"));
    assert!(refused(|it| it.queue = "x".repeat(256)).await.contains("queue name"));
    assert!(refused(|it| it.id = TaskId::from("")).await.contains("task id"));
    assert!(refused(|it| it.priority = 10).await.contains("priority 10"));
    let what = Subscription { queues: vec![String::new()], prefetch: 1, consumer: "suite".into() };
    assert!(matches!(broker.subscribe(what).await, Err(BrokerError::Refused { .. })));
}
