//! Tasks come in and go out.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_loop::{spawn, timeout};

use super::*;
use crate::broker::{BrokerError, Published};

/// Every field of an envelope survives the way through the queue.
pub async fn what_is_published_arrives_as_it_was(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let before = broker.now();
    let mut envelope = task("x");
    envelope.body = (0..=255).collect();
    envelope.priority = 3;
    envelope.expires = Some(after(&broker, Duration::from_secs(3_600)));
    envelope.headers.insert("lang".into(), json!("py"));
    envelope.headers.insert("timelimit".into(), json!([null, 1.5]));
    assert_eq!(broker.publish(vec![envelope.clone()]).await.unwrap(), [Published::Stored]);
    let got = delivery(&consumer(&broker, 10).await).await;
    assert_eq!(*got.envelope, envelope);
    assert_eq!((got.retries, got.crashes), (0, 0));
    assert!(got.published >= rounded(before) && got.published <= broker.now());
}

/// All or none.
pub async fn a_batch_with_one_bad_task_is_refused_whole(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch = tasks(&["good", "bad", "good too"]);
    batch[1].priority = 10;
    let error = broker.publish(batch).await.unwrap_err();
    assert!(matches!(error, BrokerError::Refused { .. }), "{error:?}");
    assert_eq!(stats(&broker).await.ready, 0);
}

/// Settling one lets one more out.
pub async fn no_more_than_the_prefetch_is_out_at_a_time(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b", "c", "d", "e"])).await.unwrap();
    let reader = consumer(&broker, 2).await;
    let first = deliveries(&reader, 2).await;
    pass(&broker, subject.unit()).await;
    assert_eq!(stats(&broker).await.running, 2);
    settle(&reader, &first[0], Verdict::Ack).await;
    assert_eq!(names(&reader, 1).await, ["c"]);
    assert_eq!(stats(&broker).await.running, 2);
}

/// 9 before 0; first come, first served within, or over all where there are no priorities.
pub async fn higher_priorities_come_first_and_equal_ones_in_order(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch = tasks(&["low 1", "high 1", "mid", "low 2", "high 2"]);
    for (envelope, priority) in batch.iter_mut().zip([0, 9, 5, 0, 9]) {
        envelope.priority = priority;
    }
    broker.publish(batch).await.unwrap();
    let got = names(&consumer(&broker, 10).await, 5).await;
    match broker.capabilities().priorities {
        true => assert_eq!(got, ["high 1", "high 2", "mid", "low 1", "low 2"]),
        false => assert_eq!(got, ["low 1", "high 1", "mid", "low 2", "high 2"]),
    }
}

/// A long queue does not keep a short one waiting.
pub async fn several_queues_are_served_side_by_side(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut batch: Vec<Envelope> = (0..100).map(|n| Envelope::new("long", n.to_string().into_bytes())).collect();
    batch.extend((0..3).map(|n| Envelope::new("short", n.to_string().into_bytes())));
    broker.publish(batch).await.unwrap();
    let reader = consumer_of(&broker, &["long", "short"], 10).await;
    // Where tasks are sent ahead, what has arrived is shared out, so the short queue's have to be there. Each look is an
    // answer of the broker's.
    if !broker.capabilities().counts_running {
        let arrived = async || {
            let all = broker.inspect().await.unwrap();
            all.iter().find(|stats| stats.queue == "short").map_or(0, |stats| stats.running)
        };
        while arrived().await < 3 {}
    }
    let got = deliveries(&reader, 10).await;
    let short = got.iter().filter(|delivery| delivery.envelope.queue == "short").count();
    assert_eq!(short, 3);
}

/// Not even when they ask at the same time, over connections of their own.
pub async fn two_consumers_never_get_the_same_task(subject: Rc<dyn Subject>) {
    const TASKS: usize = 60;
    let brokers = [subject.connect().await, subject.connect().await];
    let mut readers = Vec::new();
    for broker in &brokers {
        readers.push(consumer(broker, 7).await);
    }
    let drains: Vec<_> = readers
        .iter()
        .map(|reader| {
            let reader = Rc::clone(reader);
            spawn(async move {
                let mut seen = Vec::new();
                while let Ok(batch) = reader.recv_all().await {
                    for incoming in batch {
                        let Incoming::Delivery(delivery) = incoming else { panic!("{incoming:?}") };
                        seen.push(name(&delivery));
                        settle(&reader, &delivery, Verdict::Ack).await;
                    }
                }
                seen
            })
        })
        .collect();
    for n in 0..TASKS {
        broker_of(&brokers, n).publish(vec![task(&n.to_string())]).await.unwrap();
    }
    while stats(&brokers[0]).await.ready + stats(&brokers[0]).await.running > 0 {
        pass(&brokers[0], subject.unit()).await;
    }
    for reader in &readers {
        reader.close().await.unwrap();
    }
    let mut seen = Vec::new();
    for drain in drains {
        seen.extend(drain.await.unwrap());
    }
    assert_eq!(seen.len(), TASKS);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), TASKS);
}

fn broker_of(brokers: &[Rc<dyn Broker>; 2], n: usize) -> &Rc<dyn Broker> {
    &brokers[n % 2]
}

/// A receive that is dropped loses no delivery.
pub async fn cancelling_a_receive_loses_nothing(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let reader = consumer(&broker, 10).await;
    for n in 0..20 {
        let publish = {
            let broker = Rc::clone(&broker);
            spawn(async move { broker.publish(vec![task(&n.to_string())]).await.unwrap() })
        };
        // Whether it is over before, while or after the task comes is left to chance.
        let got = match timeout(Duration::from_micros(n * 50), reader.recv_all()).await {
            Ok(batch) => match batch.unwrap().pop() {
                Some(Incoming::Delivery(delivery)) => delivery,
                other => panic!("{other:?}"),
            },
            Err(_) => delivery(&reader).await,
        };
        assert_eq!(name(&got), n.to_string());
        settle(&reader, &got, Verdict::Ack).await;
        publish.await.unwrap();
    }
}

/// Also when it is another connection that publishes.
pub async fn a_receiver_that_waits_is_woken_by_a_publish(subject: Rc<dyn Subject>) {
    let (broker, other) = (subject.connect().await, subject.connect().await);
    let reader = consumer(&broker, 10).await;
    let waiting = {
        let reader = Rc::clone(&reader);
        spawn(async move { names(&reader, 1).await })
    };
    pass(&other, subject.unit()).await;
    other.publish(tasks(&["late"])).await.unwrap();
    assert_eq!(waiting.await.unwrap(), ["late"]);
}
