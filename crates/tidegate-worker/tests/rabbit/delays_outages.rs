//! The broker is killed while tasks climb down the delay queues.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_loop::timeout;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Incoming, Settlement, Verdict};

use crate::support::{body, envelope, host, name, node, on_loop, one, soak, subscribe};

/// 255 units: all of the eight lowest rungs.
const DELAY: Duration = Duration::from_millis(2_550);

/// When the broker is killed, from when the tasks were published.
const MOMENTS: [Duration; 3] =
    [Duration::from_millis(2_500), Duration::from_millis(1_500), Duration::from_millis(2_000)];

fn every_task_arrives(kind: QueueKind) {
    on_loop(async move {
        let (rounds, count) = if soak() { (9, 5_000) } else { (1, 500) };
        let mut options = Options::default();
        options.kind = kind;
        options.publish_patience = Duration::from_secs(120);
        for round in 0..rounds {
            let broker = RabbitBroker::open(&format!("amqp://{}", host()), options.clone()).await.unwrap();
            let (queue, bell) = (name("climb"), name("bell"));
            let mut first = envelope(&bell, "now");
            let bells = subscribe(&broker, &[&bell], 1).await;
            let mut tasks: Vec<_> = (0..count).map(|number| envelope(&queue, &number.to_string())).collect();
            let now = broker.now();
            tasks.iter_mut().for_each(|task| task.eta = Some(now + DELAY));
            first.eta = Some(now + MOMENTS[round % MOMENTS.len()]);
            broker.publish(tasks).await.unwrap();
            broker.publish(vec![first]).await.unwrap();
            one(&bells).await;
            node("kill").await;
            node("start").await;
            let consumer = subscribe(&broker, &[&queue], 500).await;
            let mut seen: HashMap<String, u32> = HashMap::new();
            let drained = timeout(Duration::from_secs(300), async {
                while seen.len() < count {
                    let mut done = Vec::new();
                    for incoming in consumer.recv_all().await.unwrap() {
                        let Incoming::Delivery(delivery) = incoming else { continue };
                        *seen.entry(body(&delivery).to_owned()).or_default() += 1;
                        done.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
                    }
                    consumer.settle(done).await.unwrap();
                }
            });
            let drained = drained.await;
            let twice = seen.values().filter(|runs| **runs > 1).count();
            println!("{kind}, round {round}: {} of {count} tasks arrived, {twice} of them twice", seen.len());
            assert!(drained.is_ok());
            broker.close().await.unwrap();
        }
    });
}

#[test]
fn no_delayed_task_is_lost_with_a_killed_broker() {
    every_task_arrives(QueueKind::Classic);
}

#[test]
fn no_delayed_task_of_a_quorum_queue_is_lost_with_a_killed_broker() {
    every_task_arrives(QueueKind::Quorum);
}
