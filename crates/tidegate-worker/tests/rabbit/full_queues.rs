//! Queues with a length limit that refuse what does not fit.

use std::time::Duration;

use serde_json::json;
use tidegate_amqp::{Connection, Queue};
use tidegate_loop::spawn;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Published, Settled, Settlement, TaskResult, TaskState, Verdict};

use crate::support::{body, connect, deliveries, envelope, host, name, on_loop, one, open_with, settle, subscribe};

/// A queue of somebody else's, with room for `most` messages.
pub(crate) async fn limited(queue: &str, most: i32) -> Connection {
    let connection = connect().await;
    let limited = Queue::durable(queue).argument("x-max-length", most).argument("x-overflow", "reject-publish");
    connection.declare(&limited).await.unwrap();
    connection
}

pub(crate) async fn waiting(connection: &Connection, queue: &str) -> u32 {
    connection.declare(&Queue::passive(queue)).await.unwrap().messages
}

pub(crate) async fn open_patient(patience: Duration) -> RabbitBroker {
    let mut options = Options::default();
    options.kind = QueueKind::Plain;
    options.publish_patience = patience;
    open_with(options).await
}

#[test]
fn each_task_of_a_batch_that_half_fits_says_what_became_of_it() {
    on_loop(async {
        let broker = open_patient(Duration::from_secs(1)).await;
        let queue = name("half");
        let connection = limited(&queue, 500).await;
        let published =
            broker.publish((0..1_000).map(|number| envelope(&queue, &number.to_string())).collect()).await.unwrap();
        let stored = published.iter().filter(|published| **published == Published::Stored).count();
        let full = |published: &&Published| matches!(published, Published::Refused { reason } if *reason == format!("queue {queue} is full"));
        assert_eq!(published.iter().filter(full).count(), 1_000 - stored, "{:?}", published.last());
        assert!(stored >= 500);
        assert_eq!(waiting(&connection, &queue).await as usize, stored);
        connection.delete(&queue).await.unwrap();
        broker.close().await.unwrap();
    });
}

#[test]
fn a_full_queue_is_waited_for_and_nothing_is_stored_twice() {
    on_loop(async {
        let broker = open_patient(Duration::from_secs(600)).await;
        let queue = name("room");
        let connection = limited(&queue, 10).await;
        let tasks = (0..40).map(|number| envelope(&queue, &number.to_string())).collect();
        let other = open_patient(Duration::from_secs(600)).await;
        let publishing = spawn(async move {
            let published = other.publish(tasks).await.unwrap();
            other.close().await.unwrap();
            published
        });
        let consumer = subscribe(&broker, &[&queue], 5).await;
        let mut seen = Vec::new();
        while seen.len() < 40 {
            for delivery in deliveries(&consumer, 1).await {
                seen.push(body(&delivery).parse::<u32>().unwrap());
                settle(&consumer, delivery.tag, Verdict::Ack).await;
            }
        }
        assert_eq!(publishing.await.unwrap(), vec![Published::Stored; 40]);
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<u32>>());
        // Nothing comes behind them but this.
        broker.publish(vec![envelope(&queue, "last")]).await.unwrap();
        assert_eq!(body(&one(&consumer).await), "last");
        broker.close().await.unwrap();
        connection.delete(&queue).await.unwrap();
    });
}

/// How often each task waits, and that none is counted as crashed.
async fn all_once(broker: &RabbitBroker, queue: &str, count: usize) {
    let consumer = subscribe(broker, &[queue], 100).await;
    let all = deliveries(&consumer, count).await;
    assert!(all.iter().all(|delivery| delivery.crashes == 0), "{all:?}");
    let mut ids: Vec<&str> = all.iter().map(|delivery| delivery.envelope.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((all.len(), ids.len()), (count, count), "each once");
    consumer.close().await.unwrap();
}

#[test]
fn neither_a_stop_nor_a_look_doubles_tasks_of_a_full_queue() {
    on_loop(async {
        let (broker, other) =
            (open_patient(Duration::from_secs(30)).await, open_patient(Duration::from_secs(30)).await);
        let queue = name("stop-full");
        let connection = limited(&queue, 15).await;
        let tasks = |count: u32| (0..count).map(|number| envelope(&queue, &number.to_string())).collect();
        broker.publish(tasks(15)).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 14).await;
        let running = deliveries(&consumer, 14).await;
        other.publish(tasks(14)).await.unwrap();
        assert_eq!(waiting(&connection, &queue).await, 15);
        // One is returned by the worker, the others by the stop.
        assert_eq!(settle(&consumer, running[3].tag, Verdict::Return).await, Settled::Done);
        consumer.close().await.unwrap();
        for _ in 0..3 {
            assert_eq!(other.peek(&queue, 20).await.unwrap().len(), 20);
            assert_eq!(waiting(&connection, &queue).await, 29);
        }
        all_once(&other, &queue, 29).await;
        assert_eq!(waiting(&connection, &queue).await, 29);
        broker.close().await.unwrap();
        other.close().await.unwrap();
        connection.delete(&queue).await.unwrap();
    });
}

#[test]
fn a_retry_is_stored_once_however_long_results_cannot_be_written() {
    on_loop(async {
        let (vhost, queue) = (name("blocked"), name("retry-once"));
        crate::support::ctl(&["add_vhost", &vhost]);
        crate::support::ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"]);
        let address = format!("amqp://{}/{vhost}", host());
        let connection = Connection::open(&address.parse().unwrap(), &tidegate_amqp::Options::default()).await.unwrap();
        // In the place of the log: a queue that refuses everything.
        let results = "tidegate.results";
        let full = Queue::durable(results).argument("x-max-length", 0).argument("x-overflow", "reject-publish");
        connection.declare(&full).await.unwrap();
        let mut options = Options::default();
        options.publish_patience = Duration::from_millis(300);
        let broker = RabbitBroker::open(&address, options).await.unwrap();
        broker.publish(vec![envelope(&queue, "x"), envelope(&queue, "y")]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let running = deliveries(&consumer, 2).await;
        let settlement = |number: usize, verdict: Verdict| {
            let (id, value, ttl) = (running[number].envelope.id.clone(), json!(null), Duration::from_secs(60));
            let result = TaskResult { id, state: TaskState::Retrying, value, error: None, ttl };
            Settlement { tag: running[number].tag, verdict, result: Some(result) }
        };
        let retry = || settlement(0, Verdict::Retry { at: broker.now() });
        // The one that leaves nothing there is not held up by the other.
        let plain = Settlement { tag: running[1].tag, verdict: Verdict::Ack, result: None };
        let settled = consumer.settle(vec![retry(), plain]).await.unwrap();
        assert_eq!(settled, [Settled::Pending, Settled::Done]);
        for _ in 0..2 {
            assert_eq!(consumer.settle(vec![retry()]).await.unwrap(), [Settled::Pending]);
        }
        connection.delete(results).await.unwrap();
        let mut settled = Settled::Pending;
        while settled == Settled::Pending {
            settled = consumer.settle(vec![retry()]).await.unwrap()[0];
        }
        assert_eq!(settled, Settled::Done);
        let again = one(&consumer).await;
        assert_eq!((again.retries, again.crashes, body(&again)), (1, 0, "x"));
        settle(&consumer, again.tag, Verdict::Ack).await;
        // Counted by name: the log that lists queues is new in this vhost and may not have this one yet.
        for name in [queue.clone(), format!("tidegate.due.{queue}"), format!("{queue}.dead")] {
            assert_eq!(waiting(&connection, &name).await, 0, "{name}");
        }
        broker.close().await.unwrap();
        crate::support::ctl(&["delete_vhost", &vhost]);
    });
}
