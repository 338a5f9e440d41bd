//! Two nodes: the one a worker is connected to dies, and it goes on at the other.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tidegate_worker::rabbit::{Options, RabbitBroker};
use tidegate_worker::{Broker, Consumer, Incoming, Settled, Settlement, Verdict};

use crate::support::{envelope, host, name, node, node_at, on_loop, one, settle, subscribe, variable};

/// Everything of a queue, acknowledged; returns once `count` different ones came.
async fn drain(consumer: &Rc<dyn Consumer>, count: usize) {
    let mut seen = std::collections::HashSet::new();
    while seen.len() < count {
        let mut done = Vec::new();
        for incoming in consumer.recv_all().await.unwrap() {
            let Incoming::Delivery(delivery) = incoming else { continue };
            seen.insert(delivery.envelope.id.clone());
            done.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
        }
        consumer.settle(done).await.unwrap();
    }
}

#[test]
fn a_worker_goes_on_at_the_other_node_and_waits_for_the_one_its_queue_is_on() {
    on_loop(async {
        let first = PathBuf::from(variable("TIDEGATE_RABBIT_DIR"));
        let second = first.with_file_name("rabbit-second");
        node_at("make", &second, Some(&first)).await;
        node_at("start", &second, None).await;
        node_at("join", &second, Some(&first)).await;
        let environment = std::fs::read_to_string(second.join("env")).unwrap();
        let other =
            environment.split_whitespace().find_map(|word| word.strip_prefix("TIDEGATE_RABBIT_PLAIN=")).unwrap();

        let mut options = Options::default();
        options.publish_patience = Duration::from_secs(120);
        // The queue is on the second node, because it is made there.
        let queue = name("cluster");
        let home = RabbitBroker::open(&format!("amqp://{other}"), options.clone()).await.unwrap();
        home.publish((0..100).map(|number| envelope(&queue, &number.to_string())).collect()).await.unwrap();
        home.close().await.unwrap();

        let both = format!("amqp://{},{other}?heartbeat=2", host());
        let broker = RabbitBroker::open(&both, options).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let held = one_of(&consumer).await;
        node("kill").await;
        // Those that were held are lost, and all come at the other node.
        drain(&consumer, 100).await;
        assert_eq!(settle(&consumer, held, Verdict::Ack).await, Settled::Lost);

        node("start").await;
        broker.publish(vec![envelope(&queue, "more")]).await.unwrap();
        let more = one(&consumer).await;
        settle(&consumer, more.tag, Verdict::Ack).await;
        broker.publish(vec![envelope(&queue, "while its node is away")]).await.unwrap();
        node_at("stop", &second, None).await;
        node_at("start", &second, None).await;
        drain(&consumer, 1).await;
        broker.close().await.unwrap();
        node_at("leave", &second, Some(&first)).await;
        node_at("stop", &second, None).await;
    });
}

async fn one_of(consumer: &Rc<dyn Consumer>) -> tidegate_worker::Tag {
    match consumer.recv_all().await.unwrap().first() {
        Some(Incoming::Delivery(delivery)) => delivery.tag,
        other => panic!("unexpected: {other:?}"),
    }
}
