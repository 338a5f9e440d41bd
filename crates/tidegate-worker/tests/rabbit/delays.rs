//! Delayed tasks and retries: none is lost whatever is full, and those of earlier versions arrive.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tidegate_amqp::{Connection, Exchange, Message, Queue};
use tidegate_loop::timeout;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Consumer, Delivery, Incoming, QueueStats, Settled, Settlement, Verdict};

use crate::support::{body, ctl, deliveries, envelope, host, name, on_loop, one, open, open_with, settle, subscribe};

/// Far longer than any delay here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A broker whose queues are of this kind unless stated otherwise.
async fn open_kind(kind: QueueKind) -> RabbitBroker {
    let mut options = Options::default();
    options.kind = kind;
    open_with(options).await
}

async fn raw() -> Connection {
    let uri = format!("amqp://{}", host()).parse().unwrap();
    Connection::open(&uri, &tidegate_amqp::Options::default()).await.unwrap()
}

/// Declares the queue and limits its length, as an operator would.
async fn limited(broker: &RabbitBroker, queue: &str, length: usize) {
    broker.publish(vec![envelope(queue, "first")]).await.unwrap();
    let definition = format!(r#"{{"max-length": {length}, "overflow": "reject-publish"}}"#);
    ctl(&["set_policy", queue, &format!("^{queue}$"), &definition, "--apply-to", "queues"]);
}

/// Makes the delay queues, which takes longer than the delays here.
async fn delays_ready(broker: &RabbitBroker, queue: &str) {
    let mut late = envelope(queue, "late");
    late.eta = Some(broker.now() + Duration::from_secs(3600));
    broker.publish(vec![late]).await.unwrap();
}

/// Publishes until the queue takes no more.
async fn fill(queue: &str) {
    let connection = raw().await;
    while let Ok(()) = connection.publish(&Message::to_queue(queue, b"filler".to_vec())).await.unwrap().await {}
    connection.close().await;
}

async fn stats(broker: &RabbitBroker, queue: &str) -> QueueStats {
    broker.inspect().await.unwrap().into_iter().find(|stats| stats.queue == queue).unwrap()
}

/// Receives and acknowledges until `count` different bodies that begin with `prefix` were seen.
async fn drain(consumer: &Rc<dyn Consumer>, prefix: &str, count: usize) {
    let mut seen = HashSet::new();
    let drained = timeout(PATIENCE, async {
        while seen.len() < count {
            let mut done = Vec::new();
            for incoming in consumer.recv_all().await.unwrap() {
                let Incoming::Delivery(delivery) = incoming else { continue };
                if body(&delivery).starts_with(prefix) {
                    seen.insert(body(&delivery).to_owned());
                }
                done.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
            }
            consumer.settle(done).await.unwrap();
        }
    });
    let drained = drained.await;
    assert!(drained.is_ok(), "{} of {count} tasks came", seen.len());
}

fn none_is_lost_where_the_queue_is_full(kind: QueueKind) {
    on_loop(async move {
        let broker = open_kind(kind).await;
        let queue = name("full-delay");
        limited(&broker, &queue, 50).await;
        delays_ready(&broker, &queue).await;
        fill(&queue).await;
        let at = broker.now() + Duration::from_secs(1);
        let mut tasks: Vec<_> = (0..200).map(|number| envelope(&queue, &format!("task {number}"))).collect();
        tasks.iter_mut().for_each(|task| task.eta = Some(at));
        broker.publish(tasks).await.unwrap();
        let bell = name("bell");
        let mut task = envelope(&bell, "all are due");
        task.eta = Some(at + Duration::from_secs(1));
        broker.publish(vec![task]).await.unwrap();
        one(&subscribe(&broker, &[&bell], 1).await).await;
        // The queue was full when they became due.
        drain(&subscribe(&broker, &[&queue], 20).await, "task", 200).await;
        broker.close().await.unwrap();
    });
}

#[test]
fn no_delayed_task_is_lost_where_a_classic_queue_is_full() {
    none_is_lost_where_the_queue_is_full(QueueKind::Classic);
}

#[test]
fn no_delayed_task_is_lost_where_a_quorum_queue_is_full() {
    none_is_lost_where_the_queue_is_full(QueueKind::Quorum);
}

/// Foreign workers consume the task queue alone, so due tasks go there; RabbitMQ repeats what it refuses.
#[test]
fn no_delayed_task_is_lost_where_a_foreign_queue_is_full() {
    // Instead of every three minutes; read when a queue is declared.
    ctl(&["eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000)."]);
    none_is_lost_where_the_queue_is_full(QueueKind::Plain);
    none_is_lost_where_the_queue_is_full(QueueKind::Dramatiq);
}

fn no_retry_is_lost_where_the_queue_is_full(kind: QueueKind) {
    on_loop(async move {
        let broker = open_kind(kind).await;
        let queue = name("full-retry");
        limited(&broker, &queue, 50).await;
        let tasks = (0..49).map(|number| envelope(&queue, &format!("task {number}"))).collect();
        broker.publish(tasks).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 50).await;
        let taken: Vec<Delivery> = timeout(PATIENCE, deliveries(&consumer, 50)).await.unwrap();
        fill(&queue).await;
        // Half of them at once, the other half after a delay.
        let (now, later) = (broker.now(), broker.now() + Duration::from_millis(300));
        let retries = taken.iter().enumerate().map(|(number, delivery)| {
            let verdict = Verdict::Retry { at: if number % 2 == 0 { now } else { later } };
            Settlement { tag: delivery.tag, verdict, result: None }
        });
        let mut retries: Vec<Settlement> = retries.collect();
        while !retries.is_empty() {
            let mut settled = consumer.settle(retries.clone()).await.unwrap().into_iter();
            retries.retain(|_| match settled.next() {
                Some(Settled::Pending) => true,
                settled => {
                    assert_eq!(settled, Some(Settled::Done));
                    false
                }
            });
        }
        drain(&consumer, "task", 49).await;
        broker.close().await.unwrap();
    });
}

#[test]
fn no_retry_is_lost_where_a_classic_queue_is_full() {
    no_retry_is_lost_where_the_queue_is_full(QueueKind::Classic);
}

#[test]
fn no_retry_is_lost_where_a_quorum_queue_is_full() {
    no_retry_is_lost_where_the_queue_is_full(QueueKind::Quorum);
}

#[test]
fn due_tasks_are_counted_peeked_and_purged_as_ready_ones() {
    on_loop(async {
        let broker = open().await;
        let queue = name("due");
        delays_ready(&broker, &queue).await;
        let mut soon = envelope(&queue, "soon");
        soon.eta = Some(broker.now() + Duration::from_secs(1));
        broker.publish(vec![envelope(&queue, "ready"), soon]).await.unwrap();
        let counted = timeout(PATIENCE, async {
            while stats(&broker, &queue).await.ready < 2 {}
            stats(&broker, &queue).await
        });
        let counted = counted.await.unwrap();
        assert_eq!((counted.ready, counted.delayed), (2, 1));
        for _ in 0..2 {
            let peeked = broker.peek(&queue, 10).await.unwrap();
            let bodies: Vec<&[u8]> = peeked.iter().map(|envelope| envelope.body.as_slice()).collect();
            assert_eq!(bodies, [b"soon".as_slice(), b"ready"]);
        }
        assert_eq!(broker.peek(&queue, 1).await.unwrap().len(), 1);
        assert_eq!(broker.purge(&queue).await.unwrap(), 3);
        broker.close().await.unwrap();
    });
}

#[test]
fn a_crash_with_a_due_task_is_counted_though_the_queue_is_full() {
    on_loop(async {
        let broker = open_kind(QueueKind::Classic).await;
        let queue = name("due-crash");
        limited(&broker, &queue, 1).await;
        delays_ready(&broker, &queue).await;
        fill(&queue).await;
        let mut soon = envelope(&queue, "soon");
        soon.eta = Some(broker.now() + Duration::from_secs(1));
        broker.publish(vec![soon]).await.unwrap();
        let first = subscribe(&broker, &[&queue], 2).await;
        timeout(PATIENCE, deliveries(&first, 2)).await.unwrap();
        // As a process that dies.
        drop(first);
        let second = subscribe(&broker, &[&queue], 2).await;
        let again = timeout(PATIENCE, deliveries(&second, 2)).await.unwrap();
        for delivery in again {
            assert_eq!(delivery.crashes, 1, "{}", body(&delivery));
            settle(&second, delivery.tag, Verdict::Ack).await;
        }
        broker.close().await.unwrap();
    });
}

/// The ladder of version 0.1.0, with as many rungs as the test needs.
pub(crate) async fn old_ladder(connection: &Connection, queue: &str) {
    let exchange = |level: u32| format!("tidegate.delay.{level}");
    let below = |level: u32| level.checked_sub(1).map_or_else(|| "tidegate.due".to_owned(), exchange);
    let words = |count: u32| "*.".repeat(count as usize);
    connection.declare_exchange(&Exchange::durable("tidegate.due", "topic")).await.unwrap();
    connection.bind(queue, "tidegate.due", &format!("{}{queue}", words(24))).await.unwrap();
    for level in 0..24 {
        connection.declare_exchange(&Exchange::durable(exchange(level), "topic")).await.unwrap();
        let skip = format!("{}0.#", words(23 - level));
        connection.bind_exchange(&below(level), &exchange(level), &skip).await.unwrap();
        let rung = Queue::durable(format!("{queue}.delay.{level}"))
            .argument("x-message-ttl", 10_i64 << level)
            .argument("x-dead-letter-exchange", below(level).as_str());
        connection.declare(&rung).await.unwrap();
        let key = format!("{}1.{}{queue}", words(23 - level), words(level));
        connection.bind(&rung.name, &exchange(level), &key).await.unwrap();
    }
}

/// Publishes as version 0.1.0 does, to wait for `units` of 10 ms.
async fn publish_old(connection: &Connection, queue: &str, units: u32, body: &str) {
    let bits: String = (0..24).rev().map(|level| if units >> level & 1 == 1 { "1." } else { "0." }).collect();
    let exchange = format!("tidegate.delay.{}", units.ilog2());
    let message = Message::new(exchange, format!("{bits}{queue}"), body.into()).mandatory(true);
    connection.publish(&message).await.unwrap().await.unwrap();
}

#[test]
fn tasks_that_wait_in_the_layout_of_0_1_0_arrive_are_counted_and_its_queues_go() {
    on_loop(async {
        let broker = open().await;
        let queue = name("old-layout");
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let connection = raw().await;
        old_ladder(&connection, &queue).await;
        publish_old(&connection, &queue, 3, "soon").await;
        publish_old(&connection, &queue, 1 << 20, "late").await;
        let mut new = envelope(&queue, "new");
        new.eta = Some(broker.now() + Duration::from_secs(3600));
        broker.publish(vec![new]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let came = timeout(PATIENCE, deliveries(&consumer, 2)).await.unwrap();
        assert_eq!(came.iter().map(body).collect::<Vec<_>>(), ["first", "soon"]);
        for delivery in came {
            settle(&consumer, delivery.tag, Verdict::Ack).await;
        }
        assert_eq!(stats(&broker, &queue).await.delayed, 2);
        // A task waits in rung 20, and would pass all below.
        let upgrade = broker.upgrade(&queue).await.unwrap();
        assert_eq!((upgrade.deleted, upgrade.left), (3, 21));
        assert_eq!(broker.purge(&queue).await.unwrap(), 2);
        let upgrade = broker.upgrade(&queue).await.unwrap();
        assert_eq!((upgrade.deleted, upgrade.left), (21, 0));
        let upgrade = broker.upgrade(&queue).await.unwrap();
        assert_eq!((upgrade.deleted, upgrade.left), (0, 0));
        connection.close().await;
        broker.close().await.unwrap();
    });
}

#[test]
fn classic_rungs_of_an_older_broker_are_used_until_they_are_upgraded() {
    on_loop(async {
        let broker = open().await;
        let queue = name("old-broker");
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let connection = raw().await;
        for level in 0..24 {
            let rung = Queue::durable(format!("tidegate.delay2.{queue}.{level}"))
                .argument("x-message-ttl", 10_i64 << level)
                .argument("x-dead-letter-exchange", format!("tidegate.delay2.{level}").as_str());
            connection.declare(&rung).await.unwrap();
        }
        let consumer = subscribe(&broker, &[&queue], 10).await;
        one(&consumer).await;
        for body in ["through classic rungs", "through quorum rungs"] {
            let mut soon = envelope(&queue, body);
            soon.eta = Some(broker.now() + Duration::from_millis(50));
            broker.publish(vec![soon]).await.unwrap();
            let came = timeout(PATIENCE, one(&consumer)).await.unwrap();
            assert_eq!(crate::support::body(&came), body);
            let upgrade = broker.upgrade(&queue).await.unwrap();
            let deleted = if body == "through classic rungs" { 24 } else { 0 };
            assert_eq!((upgrade.deleted, upgrade.left), (deleted, 0), "{body}");
        }
        connection.close().await;
        // A new one, because the broker closes connections whose heartbeats are late on a busy machine.
        let connection = raw().await;
        let looked = connection.declare(&Queue::passive(format!("tidegate.delay2.{queue}.23"))).await;
        assert!(looked.is_ok(), "rungs of the better kind stay: {looked:?}");
        assert_eq!(broker.upgrade(&queue).await.unwrap().deleted, 0);
        connection.close().await;
        broker.close().await.unwrap();
    });
}

#[test]
fn rungs_of_an_older_broker_that_are_left_of_an_upgrade_are_used() {
    on_loop(async {
        let broker = open().await;
        let queue = name("half-upgraded");
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let connection = raw().await;
        for level in 0..10 {
            let rung = Queue::durable(format!("tidegate.delay2.{queue}.{level}"))
                .argument("x-message-ttl", 10_i64 << level)
                .argument("x-dead-letter-exchange", format!("tidegate.delay2.{level}").as_str());
            connection.declare(&rung).await.unwrap();
        }
        connection.close().await;
        let mut soon = envelope(&queue, "soon");
        soon.eta = Some(broker.now() + Duration::from_millis(50));
        broker.publish(vec![soon]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let came = timeout(PATIENCE, deliveries(&consumer, 2)).await.unwrap();
        let bodies: HashSet<&str> = came.iter().map(body).collect();
        assert_eq!(bodies, HashSet::from(["first", "soon"]));
        for deleted in [10, 0] {
            let upgrade = broker.upgrade(&queue).await.unwrap();
            assert_eq!((upgrade.deleted, upgrade.left), (deleted, 0));
        }
        broker.close().await.unwrap();
    });
}

/// Publishes what passes the rungs 7, 4, 2 and 1, and no others, whatever the machine is busy with: 150 units, not an instant.
async fn publish_through_four_rungs(connection: &Connection, target: &str, body: &str) {
    let bits: String = (0..24).rev().map(|level| if 150 >> level & 1 == 1 { "1." } else { "0." }).collect();
    let message = Message::new("tidegate.delay2.24", format!("{bits}{target}"), body.into()).mandatory(true);
    connection.publish(&message).await.unwrap().await.unwrap();
}

#[test]
fn a_worker_restores_the_parts_of_a_ladder_that_were_deleted() {
    // What waits for a missing queue is tried again after this time, instead of three minutes.
    ctl(&["eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000)."]);
    on_loop(async {
        let but_the_first: Vec<u32> = (0..24).filter(|level| *level != 7).collect();
        for deleted in [&[2][..], &[0, 1, 2, 3, 4, 5], &but_the_first] {
            let broker = open().await;
            let queue = name("deleted");
            delays_ready(&broker, &queue).await;
            // The task that waits for an hour.
            assert_eq!(broker.purge(&queue).await.unwrap(), 1);
            let connection = raw().await;
            connection.delete(&format!("tidegate.due.{queue}")).await.unwrap();
            for level in deleted {
                connection.delete(&format!("tidegate.delay2.{queue}.{level}")).await.unwrap();
            }
            publish_through_four_rungs(&connection, &format!("tidegate.due.{queue}"), "soon").await;
            connection.close().await;
            broker.close().await.unwrap();
            let worker = open().await;
            let consumer = subscribe(&worker, &[&queue], 10).await;
            let came = timeout(PATIENCE, one(&consumer)).await;
            assert_eq!(body(&came.unwrap_or_else(|_| panic!("without the rungs {deleted:?}"))), "soon");
            worker.close().await.unwrap();
        }
    });
}

#[test]
fn tasks_in_a_ladder_without_its_lowest_rung_are_counted_and_purged() {
    on_loop(async {
        let broker = open().await;
        let queue = name("gap");
        delays_ready(&broker, &queue).await;
        let connection = raw().await;
        connection.delete(&format!("tidegate.delay2.{queue}.0")).await.unwrap();
        connection.close().await;
        assert_eq!(stats(&broker, &queue).await.delayed, 1);
        assert_eq!(broker.purge(&queue).await.unwrap(), 1);
        assert_eq!(stats(&broker, &queue).await.delayed, 0);
        broker.close().await.unwrap();
    });
}
