//! Two nodes: the one a worker is connected to dies, and it goes on at the other; or the other dies, and what is left is no
//! majority. Three nodes: one dies and stays away, and nothing of a quorum queue is lost.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_loop::{spawn, timeout};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{
    Broker, Consumer, Delivery, Incoming, Published, Settled, Settlement, TaskResult, TaskState, Verdict,
};

use crate::keys::keyed;
use crate::support::{
    body, deliveries, envelope, host, name, node, node_at, on_loop, one, script, settle, subscribe, variable,
};

/// Far longer than a queue needs to elect another leader.
const PATIENCE: Duration = Duration::from_secs(300);

/// Delayed tasks are in the delay queues while a node is killed: 1,023 units, all of the ten lowest.
const DELAY: Duration = Duration::from_millis(10_230);

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
        self.variable("TIDEGATE_RABBIT_PLAIN")
    }

    fn variable(&self, name: &str) -> String {
        let environment = std::fs::read_to_string(self.dir.join("env")).unwrap();
        let mut variables = environment.split_whitespace().filter_map(|word| word.split_once('='));
        variables.find(|(of, _)| *of == name).unwrap().1.to_owned()
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

/// The node that leads a queue: where it is, for a classic one.
fn leader(at: &Node, queue: &str) -> String {
    let words = ["list_queues", "--no-table-headers", "name", "pid"];
    let output = script().arg("ctl").arg(&at.dir).args(words).output().unwrap();
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = listed.lines().find(|line| line.split_whitespace().next() == Some(queue));
    line.unwrap_or_else(|| panic!("{queue} is not in {listed}")).to_owned()
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
        // Queues are on the node where they are made: one on the first, the other and a key on the second.
        let (queue, beside, key) = (name("cluster"), name("cluster-keyed"), name("key"));
        let near = RabbitBroker::open(&format!("amqp://{}", host()), options.clone()).await.unwrap();
        near.publish(vec![envelope(&beside, "first")]).await.unwrap();
        near.close().await.unwrap();
        let home = RabbitBroker::open(&format!("amqp://{other}"), options.clone()).await.unwrap();
        home.publish((0..100).map(|number| envelope(&queue, &number.to_string())).collect()).await.unwrap();
        let kept = keyed(&beside, "kept", &key);
        home.publish(vec![kept.clone()]).await.unwrap();
        home.close().await.unwrap();

        let both = format!("amqp://{},{other}?heartbeat=2", host());
        let broker = Rc::new(RabbitBroker::open(&both, options).await.unwrap());
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
        // The holder of a key is not known while the key's node is away.
        let publishing = spawn({
            let (broker, again) = (broker.clone(), keyed(&beside, "again", &key));
            async move { broker.publish(vec![again]).await }
        });
        node_at("start", &second.dir, None).await;
        drain(&consumer, 1).await;
        assert_eq!(publishing.await.unwrap().unwrap(), [Published::Duplicate(kept.id)]);
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

/// Tasks that are ready, delayed, to be tried again, dead, ended, and keys: led by the node that is lost, and kept by the others.
#[test]
fn nothing_of_a_quorum_queue_is_lost_with_a_node_that_stays_away() {
    on_loop(async {
        let lost = Node::start("rabbit-lost", None).await;
        let (second, third) =
            (Node::start("rabbit-2", Some(&lost.dir)).await, Node::start("rabbit-3", Some(&lost.dir)).await);
        let mut options = Options::default();
        options.kind = QueueKind::Quorum;
        options.publish_patience = PATIENCE;
        let all = format!("amqp://{},{},{}?heartbeat=5", lost.host(), second.host(), third.host());
        let broker = RabbitBroker::open(&all, options.clone()).await.unwrap();
        let (queue, bell) = (name("replicated"), name("bell"));
        let tasks = |what: &str, count: usize| -> Vec<_> {
            (0..count).map(|number| envelope(&queue, &format!("{what} {number}"))).collect()
        };
        // The first delayed task makes the delay queues, which takes longer than the others have.
        for queue in [&queue, &bell] {
            let mut late = envelope(queue, "late");
            late.eta = Some(broker.now() + Duration::from_secs(3_600));
            broker.publish(vec![late]).await.unwrap();
        }

        let early = [tasks("retried", 20), tasks("dead", 5), vec![envelope(&queue, "ended")]].concat();
        broker.publish(early).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 50).await;
        let began = deliveries(&consumer, 26).await;
        let due = broker.now() + DELAY;
        let settled = consumer.settle(began.iter().map(|delivery| verdict(delivery, due)).collect()).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Done), "{settled:?}");
        consumer.close().await.unwrap();
        let mut delayed = tasks("delayed", 200);
        delayed.iter_mut().for_each(|task| task.eta = Some(due));
        let key = |what: &str| format!("{queue}-{what}");
        let kept = keyed(&queue, "keyed", &key("kept"));
        broker.publish([delayed, tasks("ready", 20), vec![kept.clone()]].concat()).await.unwrap();
        let mut ring = envelope(&bell, "now");
        ring.eta = Some(due - DELAY / 2);
        broker.publish(vec![ring]).await.unwrap();
        for led in [queue.clone(), format!("tidegate.delay2.{queue}.9"), format!("tidegate.due.{queue}")] {
            assert!(leader(&lost, &led).contains(&lost.variable("RABBITMQ_NODENAME")), "{led} is led by another node");
        }

        let bells = subscribe(&broker, &[&bell], 1).await;
        one(&bells).await;
        node_at("kill", &lost.dir, None).await;
        // A second publisher that knows nothing yet, and the first one.
        let both = format!("amqp://{},{}?heartbeat=5", second.host(), third.host());
        let other = RabbitBroker::open(&both, options).await.unwrap();
        let again = keyed(&queue, "again", &key("kept"));
        for broker in [&other, &broker] {
            let published = timeout(PATIENCE, broker.publish(vec![again.clone()])).await.unwrap().unwrap();
            assert_eq!(published, [Published::Duplicate(kept.id.clone())]);
        }
        let consumer = subscribe(&other, &[&queue], 50).await;
        // Those that were tried before, were delayed or ready, and the one with the key.
        timeout(PATIENCE, drain(&consumer, 20 + 200 + 20 + 1)).await.unwrap();
        let mut dead: Vec<_> = other.dead(Some(&queue), 100).await.unwrap();
        dead.sort_by(|one, other| one.envelope.body.cmp(&other.envelope.body));
        dead.dedup_by(|one, other| one.envelope.id == other.envelope.id);
        assert_eq!(dead.len(), 5, "{dead:?}");
        let ended = began.iter().find(|delivery| body(delivery) == "ended").unwrap();
        let result = timeout(PATIENCE, other.wait_result(&ended.envelope.id)).await.unwrap().unwrap();
        assert_eq!(result.value, json!("kept"));

        // Its task has ended, so the key is free; delays, retries and keys go on with two nodes.
        let mut next = keyed(&queue, "next", &key("kept"));
        next.eta = Some(other.now() + Duration::from_millis(100));
        // The key is deleted after the acknowledgement, which takes RabbitMQ seconds while one of its nodes is away.
        let freed = timeout(PATIENCE, async {
            while broker.publish(vec![next.clone()]).await.unwrap() != [Published::Stored] {}
        });
        freed.await.unwrap();
        let came = timeout(PATIENCE, one(&consumer)).await.unwrap();
        settle(&consumer, came.tag, Verdict::Retry { at: other.now() + Duration::from_millis(100) }).await;
        let came = timeout(PATIENCE, one(&consumer)).await.unwrap();
        assert_eq!((body(&came), came.retries), ("next", 1));
        settle(&consumer, came.tag, Verdict::Ack).await;
        let stats = other.inspect().await.unwrap();
        let stats = stats.iter().find(|stats| stats.queue == queue).unwrap();
        assert_eq!((stats.ready, stats.delayed), (0, 1), "the late one is left");
        other.close().await.unwrap();
        broker.close().await.unwrap();
        node_at("stop", &third.dir, None).await;
        node_at("stop", &second.dir, None).await;
    });
}

/// By its body: to be tried again, dead, or ended with a result.
fn verdict(delivery: &Delivery, at: jiff::Timestamp) -> Settlement {
    let (tag, body) = (delivery.tag, body(delivery));
    if body.starts_with("retried") {
        return Settlement { tag, verdict: Verdict::Retry { at }, result: None };
    }
    if body.starts_with("dead") {
        let verdict = Verdict::Dead { reason: "the test says so".to_owned(), traceback: None };
        return Settlement { tag, verdict, result: None };
    }
    let (id, value, ttl) = (delivery.envelope.id.clone(), json!("kept"), Duration::from_secs(3_600));
    let result = TaskResult { id, state: TaskState::Succeeded, value, error: None, ttl };
    Settlement { tag, verdict: Verdict::Ack, result: Some(result) }
}
