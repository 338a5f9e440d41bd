//! Two nodes: the one a worker is connected to dies, and it goes on at the other; or the other dies, and what is left is no
//! majority.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::spawn;
use tidegate_worker::rabbit::{Options, RabbitBroker};
use tidegate_worker::{Broker, Consumer, Incoming, Published, Settled, Settlement, Verdict};

use crate::support::{envelope, host, name, node, node_at, on_loop, one, script, settle, subscribe, variable};

/// A node beside the one that all tests share; it does not outlive its test.
struct Node {
    dir: PathBuf,
}

impl Node {
    /// In a cluster with `peer`, if there is one.
    async fn start(name: &str, peer: Option<&Path>) -> Node {
        let node = Node { dir: Path::new(&variable("TIDEGATE_RABBIT_DIR")).with_file_name(name) };
        node_at("make", &node.dir, peer).await;
        node_at("start", &node.dir, None).await;
        if peer.is_some() {
            node_at("join", &node.dir, peer).await;
        }
        node
    }

    fn host(&self) -> String {
        let environment = std::fs::read_to_string(self.dir.join("env")).unwrap();
        let host = environment.split_whitespace().find_map(|word| word.strip_prefix("TIDEGATE_RABBIT_PLAIN="));
        host.unwrap().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One that was stopped in order has taken this file along.
        if self.dir.join("pid").exists() {
            let _ = script().arg("kill").arg(&self.dir).output();
        }
    }
}

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
        let second = Node::start("rabbit-second", Some(&first)).await;
        let other = second.host();

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
        node_at("stop", &second.dir, None).await;
        node_at("start", &second.dir, None).await;
        drain(&consumer, 1).await;
        broker.close().await.unwrap();
        node_at("leave", &second.dir, Some(&first)).await;
        node_at("stop", &second.dir, None).await;
    });
}

#[test]
fn tasks_go_on_while_the_log_of_queues_has_lost_its_majority() {
    on_loop(async {
        let left = Node::start("rabbit-left", None).await;
        let gone = Node::start("rabbit-gone", Some(&left.dir)).await;
        let mut options = Options::default();
        options.publish_patience = Duration::from_secs(20);
        let broker = Rc::new(RabbitBroker::open(&format!("amqp://{}", left.host()), options).await.unwrap());
        let queue = name("cluster");
        // The log is made with its first entry, on both nodes.
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        node_at("stop", &gone.dir, None).await;

        // More queues, and so more entries, than the broker takes from a connection before it reads nothing more of it.
        let crowd: Vec<_> = (0..400)
            .map(|number| {
                let (broker, task) = (broker.clone(), envelope(&format!("{queue}-{number}"), "one of many"));
                spawn(async move { broker.publish(vec![task]).await })
            })
            .collect();
        for published in crowd {
            assert_eq!(published.await.unwrap().unwrap(), [Published::Stored]);
        }
        broker.publish(vec![envelope(&queue, "second")]).await.unwrap();
        drain(&subscribe(&broker, &[&queue], 10).await, 2).await;
        broker.close().await.unwrap();
        node_at("stop", &left.dir, None).await;
    });
}

async fn one_of(consumer: &Rc<dyn Consumer>) -> tidegate_worker::Tag {
    match consumer.recv_all().await.unwrap().first() {
        Some(Incoming::Delivery(delivery)) => delivery.tag,
        other => panic!("unexpected: {other:?}"),
    }
}
