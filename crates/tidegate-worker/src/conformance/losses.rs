//! Revokes, results, and what happens when a consumer goes away.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_loop::spawn;

use super::*;
use crate::broker::{Tag, TaskError, TaskResult, TaskState};
use crate::task::TaskId;

const LONG: Duration = Duration::from_secs(3_600);

/// Ready or delayed; its result says what happened.
pub async fn revoking_a_waiting_task_drops_it(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch = tasks(&["ready", "delayed", "stays"]);
    if !broker.capabilities().revokes_waiting {
        return revoked_in_their_turn(subject, broker, batch).await;
    }
    batch[1].eta = Some(after(&broker, LONG));
    broker.publish(batch.clone()).await.unwrap();
    for envelope in &batch[..2] {
        broker.revoke(&envelope.id).await.unwrap();
        assert_eq!(broker.wait_result(&envelope.id).await.unwrap().state, TaskState::Revoked);
    }
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed), (1, 0));
    assert_eq!(names(&consumer(&broker, 10).await, 1).await, ["stays"]);
}

async fn revoked_in_their_turn(subject: Rc<dyn Subject>, broker: Rc<dyn Broker>, mut batch: Vec<Envelope>) {
    batch[1].eta = Some(after(&broker, subject.unit()));
    broker.publish(batch.clone()).await.unwrap();
    for envelope in &batch[..2] {
        broker.revoke(&envelope.id).await.unwrap();
    }
    let reader = consumer(&broker, 10).await;
    assert_eq!(names(&reader, 1).await, ["stays"]);
    for envelope in &batch[..2] {
        assert_eq!(broker.wait_result(&envelope.id).await.unwrap().state, TaskState::Revoked);
    }
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed, now.running), (0, 0, 1));
}

/// Whatever the worker then says, the task does not come back.
pub async fn revoking_a_running_task_tells_its_worker_and_ends_it(subject: Rc<dyn Subject>) {
    let (broker, other) = (subject.connect().await, subject.connect().await);
    let batch = tasks(&["a", "b"]);
    let ids: Vec<TaskId> = batch.iter().map(|envelope| envelope.id.clone()).collect();
    broker.publish(batch).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = deliveries(&reader, 2).await;
    // By another connection, and by its own.
    other.revoke(&ids[0]).await.unwrap();
    broker.revoke(&ids[1]).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 2 {
        for incoming in reader.recv_all().await.unwrap() {
            let Incoming::Revoked(id) = incoming else { panic!("{incoming:?}") };
            told.push(id);
        }
    }
    told.sort();
    assert_eq!(told, ids);
    settle(&reader, &got[0], Verdict::Retry { at: broker.now() }).await;
    settle(&reader, &got[1], Verdict::Return).await;
    for id in &ids {
        assert_eq!(other.wait_result(id).await.unwrap().state, TaskState::Revoked);
    }
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.delayed, now.running), (0, 0, 0));
}

/// A revoke may overtake its task.
pub async fn revoking_a_task_to_come_drops_it_on_arrival(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let early = task("revoked");
    broker.revoke(&early.id).await.unwrap();
    let reader = consumer(&broker, 10).await;
    broker.publish(vec![early.clone(), task("next")]).await.unwrap();
    assert_eq!(names(&reader, 1).await, ["next"]);
    assert_eq!(broker.wait_result(&early.id).await.unwrap().state, TaskState::Revoked);
    assert_eq!(stats(&broker).await.ready, 0);
}

fn result(id: &TaskId, state: TaskState, ttl: Duration) -> TaskResult {
    TaskResult { id: id.clone(), state, value: json!({"n": [1, 2.5, null, "ü"]}), error: None, ttl }
}

/// Value and error are kept as they were; an unknown task has no result.
pub async fn results_are_kept_with_the_settlement(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["good", "bad"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = deliveries(&reader, 2).await;
    let good = result(&got[0].envelope.id, TaskState::Succeeded, LONG);
    let mut bad = result(&got[1].envelope.id, TaskState::Failed, LONG);
    bad.value = json!(null);
    bad.error = Some(TaskError { kind: "ValueError".into(), message: "no".into(), traceback: Some("line 1".into()) });
    assert_eq!(broker.result(&good.id).await.unwrap(), None);
    let batch = vec![
        Settlement { tag: got[0].tag, verdict: Verdict::Ack, result: Some(good.clone()) },
        Settlement {
            tag: got[1].tag,
            verdict: Verdict::Dead { reason: "no".into(), traceback: None },
            result: Some(bad.clone()),
        },
    ];
    settle_all(&reader, batch).await;
    for expected in [good, bad] {
        let found = broker.result(&expected.id).await.unwrap().expect("it was stored");
        assert_eq!((found.state, &found.value, &found.error), (expected.state, &expected.value, &expected.error));
    }
    assert_eq!(broker.result(&TaskId::from("unknown")).await.unwrap(), None);
}

/// A retry in between is not a result; the caller may wait on another connection.
pub async fn waiting_for_a_result_ends_with_the_last_one(subject: Rc<dyn Subject>) {
    let (broker, other) = (subject.connect().await, subject.connect().await);
    let envelope = task("twice");
    let id = envelope.id.clone();
    broker.publish(vec![envelope]).await.unwrap();
    let waiting = {
        let id = id.clone();
        spawn(async move { other.wait_result(&id).await.unwrap() })
    };
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    let retrying = Some(result(&id, TaskState::Retrying, LONG));
    let retry = Settlement { tag: got.tag, verdict: Verdict::Retry { at: broker.now() }, result: retrying };
    settle_all(&reader, vec![retry]).await;
    assert_eq!(broker.result(&id).await.unwrap().map(|result| result.state), Some(TaskState::Retrying));
    let got = delivery(&reader).await;
    pass(&broker, subject.unit()).await;
    let last = Some(result(&id, TaskState::Succeeded, LONG));
    let ack = Settlement { tag: got.tag, verdict: Verdict::Ack, result: last };
    assert_eq!(reader.settle(vec![ack]).await.unwrap(), [Settled::Done]);
    assert_eq!(waiting.await.unwrap().state, TaskState::Succeeded);
}

/// For ever would be a leak.
pub async fn results_are_forgotten_after_their_time(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    let short = result(&got.envelope.id, TaskState::Succeeded, subject.unit());
    let ack = Settlement { tag: got.tag, verdict: Verdict::Ack, result: Some(short.clone()) };
    reader.settle(vec![ack]).await.unwrap();
    pass(&broker, subject.unit() * 2).await;
    assert_eq!(broker.result(&short.id).await.unwrap(), None);
}

/// Each delivery is lost once: its consumer is notified, and the next one sees the count.
pub async fn lost_deliveries_are_told_and_go_to_somebody_else(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = deliveries(&reader, 2).await;
    reader.stop().await.unwrap();
    subject.lose_leases().await;
    let mut lost: Vec<Tag> = Vec::new();
    while lost.len() < 2 {
        for incoming in reader.recv_all().await.unwrap() {
            let Incoming::Lost(tag) = incoming else { panic!("{incoming:?}") };
            lost.push(tag);
        }
    }
    lost.sort();
    let mut tags: Vec<Tag> = got.iter().map(|delivery| delivery.tag).collect();
    tags.sort();
    assert_eq!(lost, tags);
    let next = consumer(&broker, 10).await;
    let again = deliveries(&next, 2).await;
    assert!(again.iter().all(|delivery| (delivery.retries, delivery.crashes) == (0, 1)), "{again:?}");
    let late = got.iter().map(|delivery| verdict(delivery, Verdict::Ack)).collect();
    assert_eq!(reader.settle(late).await.unwrap(), [Settled::Lost; 2]);
    assert_eq!(stats(&broker).await.running, 2);
}

/// The same consumer gets the same task again under another tag; the old one is void.
pub async fn tags_of_before_a_loss_settle_nothing(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let first = delivery(&reader).await;
    subject.lose_leases().await;
    let (mut lost, mut second) = (0, None);
    while lost == 0 || second.is_none() {
        for incoming in reader.recv_all().await.unwrap() {
            match incoming {
                Incoming::Lost(tag) => {
                    assert_eq!(tag, first.tag);
                    lost += 1;
                }
                Incoming::Delivery(delivery) => second = Some(delivery),
                other => panic!("{other:?}"),
            }
        }
    }
    let second = second.unwrap();
    assert_ne!(first.tag, second.tag);
    assert_eq!(reader.settle(vec![verdict(&first, Verdict::Ack)]).await.unwrap(), [Settled::Lost]);
    assert_eq!(stats(&broker).await.running, 1);
    settle(&reader, &second, Verdict::Ack).await;
}

/// As when its process is killed: after the lease, not before, and counted.
pub async fn a_consumer_that_vanishes_gives_its_tasks_back_counted(subject: Rc<dyn Subject>) {
    let (broker, other) = (subject.connect().await, subject.connect().await);
    broker.publish(tasks(&["a", "b"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    deliveries(&reader, 2).await;
    let next = consumer(&other, 10).await;
    drop(reader);
    drop(broker);
    let again = deliveries(&next, 2).await;
    assert!(again.iter().all(|delivery| (delivery.retries, delivery.crashes) == (0, 1)), "{again:?}");
}
