//! Unique keys on a real broker: refused publishes, publishers that die, queues of every kind.

use std::time::Duration;

use tidegate_amqp::{Connection, Consume, Queue};
use tidegate_loop::{sleep, spawn, timeout};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, BrokerError, Envelope, Published, Unique, Verdict};

use crate::full_queues::{limited, open_patient, waiting};
use crate::proxy::Proxy;
use crate::support::{
    body, connect, ctl, ctl_aside, deliveries, envelope, host, name, on_loop, one, open, open_kind, settle, subscribe,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn keyed(queue: &str, body: &str, key: &str) -> Envelope {
    let mut envelope = envelope(queue, body);
    envelope.unique = Some(Unique { key: key.to_owned(), hold: Duration::from_secs(3_600), past_settle: false });
    envelope
}

/// Publishes a task, and again where a busy machine used up the patience before anything was sent.
async fn publish(broker: &RabbitBroker, task: &Envelope) -> Published {
    loop {
        match broker.publish(vec![task.clone()]).await {
            Ok(mut published) => return published.remove(0),
            Err(BrokerError::Retry { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_key_whose_task_a_full_queue_refused_is_free() {
    on_loop(async {
        let broker = open_patient(Duration::from_millis(300)).await;
        let (queue, key) = (name("full-key"), name("key"));
        let connection = limited(&queue, 1).await;
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let task = keyed(&queue, "task", &key);
        for _ in 0..2 {
            let refused = publish(&broker, &task).await;
            assert!(matches!(refused, Published::Refused { .. }), "{refused:?}");
        }
        connection.purge(&queue).await.unwrap();
        // By another process, under another id.
        let other = open_patient(Duration::from_millis(300)).await;
        let (mine, its) = (publish(&other, &keyed(&queue, "next", &key)).await, publish(&broker, &task).await);
        assert_eq!(mine, Published::Stored);
        assert!(matches!(its, Published::Duplicate(_)), "{its:?}");
        assert_eq!(waiting(&connection, &queue).await, 1);
        connection.delete(&queue).await.unwrap();
    });
}

/// A publisher that has taken a key and is held up: its task waits for a full queue.
async fn held_up(queue: &str, key: &str) -> (Connection, RabbitBroker, tidegate_loop::JoinHandle<()>) {
    let connection = limited(queue, 1).await;
    let broker = open_patient(PATIENCE).await;
    broker.publish(vec![envelope(queue, "first")]).await.unwrap();
    let publisher = open_patient(PATIENCE).await;
    let task = keyed(queue, "held up", key);
    let publishing = spawn(async move {
        let _ = publisher.publish(vec![task]).await;
    });
    (connection, broker, publishing)
}

/// Returns once another publisher, with little patience, has found the key in use.
async fn in_use(queue: &str, key: &str) {
    let other = open_patient(Duration::from_millis(200)).await;
    let found = timeout(PATIENCE, async {
        loop {
            match publish(&other, &keyed(queue, "second", key)).await {
                Published::Refused { reason } if reason.contains("another process") => break,
                // It was faster than the first; that gives up its key then.
                Published::Refused { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    });
    found.await.unwrap();
}

#[test]
fn a_publisher_that_dies_with_a_key_is_succeeded_by_the_next() {
    on_loop(async {
        let (queue, key) = (name("dying"), name("key"));
        let (connection, broker, publishing) = held_up(&queue, &key).await;
        in_use(&queue, &key).await;
        publishing.cancel();
        let _ = publishing.await;
        connection.purge(&queue).await.unwrap();
        let published = broker.publish(vec![keyed(&queue, "third", &key)]).await.unwrap();
        assert_eq!(published, [Published::Stored]);
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let came = timeout(PATIENCE, one(&consumer)).await.unwrap();
        assert_eq!(body(&came), "third");
        connection.delete(&queue).await.unwrap();
    });
}

#[test]
fn a_key_is_released_by_the_worker_and_only_for_its_own_task() {
    on_loop(async {
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            let broker = open_kind(kind).await;
            let (queue, key) = (name("release"), name("key"));
            let long = |body: &str| {
                let mut task = keyed(&queue, body, &key);
                // No room for both in a refusal.
                task.id = format!("{body}-{}", "long-id".repeat(7)).as_str().into();
                task
            };
            let (first, second) = (long("first"), long("second"));
            assert_eq!(broker.publish(vec![first.clone()]).await.unwrap(), [Published::Stored]);
            assert_eq!(broker.publish(vec![second.clone()]).await.unwrap(), [Published::Duplicate(first.id.clone())]);
            let consumer = subscribe(&broker, &[&queue], 10).await;
            let came = one(&consumer).await;
            settle(&consumer, came.tag, Verdict::Ack).await;
            assert_eq!(broker.publish(vec![second.clone()]).await.unwrap(), [Published::Stored]);
            // A second copy of the first task, whose end must not free the key of the second.
            let mut copy = first.clone();
            copy.unique = None;
            broker.publish(vec![copy]).await.unwrap();
            let came = deliveries(&consumer, 2).await;
            assert_eq!(came.iter().map(body).collect::<Vec<_>>(), ["second", "first"]);
            settle(&consumer, came[1].tag, Verdict::Ack).await;
            assert_eq!(broker.publish(vec![long("third")]).await.unwrap(), [Published::Duplicate(second.id)]);
            broker.close().await.unwrap();
        }
    });
}

#[test]
fn keys_and_delays_of_quorum_queues_are_quorum_queues() {
    on_loop(async {
        let broker = open_kind(QueueKind::Quorum).await;
        let (queue, key) = (name("replicated"), name("key"));
        let mut late = keyed(&queue, "late", &key);
        late.eta = Some(broker.now() + Duration::from_secs(3_600));
        broker.publish(vec![late]).await.unwrap();
        broker.close().await.unwrap();
        // They exist with these arguments: others would be refused.
        let connection = connect().await;
        let quorum = |name: String| Queue::durable(name).argument("x-queue-type", "quorum");
        let dead = format!("{queue}.dead");
        let tasks = |name: String| {
            quorum(name)
                .argument("x-delivery-limit", 50)
                .argument("x-dead-letter-exchange", "")
                .argument("x-dead-letter-routing-key", dead.as_str())
        };
        let rung = quorum(format!("tidegate.delay2.{queue}.5"))
            .argument("x-dead-letter-strategy", "at-least-once")
            .argument("x-overflow", "reject-publish")
            .argument("x-message-ttl", 320_i64)
            .argument("x-dead-letter-exchange", "tidegate.delay2.5");
        for queue in [tasks(queue.clone()), tasks(format!("tidegate.due.{queue}")), rung, quorum(dead.clone())] {
            assert!(connection.declare(&Queue::passive(&queue.name)).await.is_ok(), "{} is not there", queue.name);
            connection.declare(&queue).await.unwrap();
        }
        // The key, by a publisher of classic queues.
        let classic = open().await;
        let other = keyed(&name("classic"), "other", &key);
        assert!(matches!(&classic.publish(vec![other]).await.unwrap()[..], [Published::Duplicate(_)]));
        classic.close().await.unwrap();
        connection.close().await;
    });
}

/// A broker on a busy machine answers late. Given up, the task would be published again under the same key, and run twice.
#[test]
fn a_unique_task_whose_answer_comes_after_the_patience_is_stored_once() {
    on_loop(async {
        let (patience, queue, key) = (Duration::from_secs(5), name("late-answer"), name("key"));
        let proxy = Proxy::to(&host()).await;
        let mut options = Options::default();
        options.publish_patience = patience;
        let broker = RabbitBroker::open(&format!("amqp://{}", proxy.host), options).await.unwrap();
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let task = keyed(&queue, "the only one with this body", &key);
        proxy.silence_after("the only one with this body");
        let publishing = spawn({
            let task = task.clone();
            async move { broker.publish(vec![task]).await }
        });
        timeout(PATIENCE, proxy.is_silent()).await.unwrap();
        sleep(patience + Duration::from_millis(500)).await;
        proxy.silence(false);
        assert_eq!(publishing.await.unwrap().unwrap(), [Published::Stored]);
        let other = open().await;
        assert_eq!(other.publish(vec![task.clone()]).await.unwrap(), [Published::Duplicate(task.id)]);
        other.close().await.unwrap();
    });
}

#[test]
fn a_key_that_is_taken_over_is_held_for_the_time_of_the_one_who_takes_it() {
    on_loop(async {
        let (queue, key) = (name("taken-over"), name("key"));
        let (connection, broker, publishing) = held_up(&queue, &key).await;
        in_use(&queue, &key).await;
        publishing.cancel();
        let _ = publishing.await;
        connection.purge(&queue).await.unwrap();
        let brief = |body: &str| {
            let mut task = keyed(&queue, body, &key);
            task.unique.as_mut().unwrap().hold = Duration::from_secs(2);
            task
        };
        let published = broker.publish(vec![brief("third")]).await.unwrap();
        assert_eq!(published, [Published::Stored]);
        connection.purge(&queue).await.unwrap();
        // The one that died had it for an hour.
        let free = timeout(PATIENCE, async {
            while broker.publish(vec![brief("fourth")]).await.unwrap() != [Published::Stored] {}
        });
        free.await.unwrap();
        connection.delete(&queue).await.unwrap();
    });
}

/// The queue that shows a publisher's channel expires while nothing consumes it, here after half a second. What the publisher
/// sends behind its declaration does not arrive until that is over.
#[test]
fn a_broker_that_is_slower_than_a_publisher_s_queues_live_stores_its_task() {
    on_loop(async {
        let (vhost, queue) = (name("slow"), name("slow-key"));
        ctl(&["add_vhost", &vhost]);
        ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"]);
        let (pattern, definition) = (r"^tidegate\.pending\..*\.alive$", r#"{"expires": 500}"#);
        ctl(&["set_policy", "-p", &vhost, "brief", pattern, definition, "--apply-to", "queues"]);
        let proxy = Proxy::to(&host()).await;
        // Without heartbeats: they would end a connection on which nothing passes.
        let address = format!("amqp://{}/{vhost}?heartbeat=0", proxy.host);
        let mut options = Options::default();
        options.publish_patience = PATIENCE;
        let broker = RabbitBroker::open(&address, options).await.unwrap();
        // Makes the queue and all connections.
        let first = keyed(&queue, "first", &name("key"));
        assert_eq!(broker.publish(vec![first]).await.unwrap(), [Published::Stored]);
        // The type of a queue: only that queue's declaration has this one.
        proxy.hold_after("classic");
        let task = keyed(&queue, "second", &name("key"));
        let publishing = spawn(async move {
            let published = broker.publish(vec![task]).await;
            (broker, published)
        });
        timeout(PATIENCE, proxy.holds_some()).await.unwrap();
        // It is consumed, or has expired.
        let unconsumed = async || {
            let queues = ctl_aside(&["list_queues", "-p", &vhost, "--no-table-headers", "name", "consumers"]).await;
            queues.lines().any(|line| line.contains(".alive") && line.ends_with("\t0"))
        };
        timeout(PATIENCE, async { while unconsumed().await {} }).await.unwrap();
        proxy.release();
        let (broker, published) = timeout(PATIENCE, publishing).await.unwrap().unwrap();
        assert_eq!(published.unwrap(), [Published::Stored]);
        broker.close().await.unwrap();
        ctl(&["delete_vhost", &vhost]);
    });
}

/// What the protocol builds on: the queue that shows a publisher's channel ends with the channel, without a word.
#[test]
fn a_consumed_queue_ends_with_the_channel_that_consumes_it() {
    on_loop(async {
        let (holder, looker) = (connect().await, connect().await);
        let mut alive = Queue::durable(name("alive"));
        alive.auto_delete = true;
        holder.declare(&alive).await.unwrap();
        holder.consume(&Consume::from(&alive.name)).await.unwrap();
        assert!(looker.declare(&Queue::passive(&alive.name)).await.is_ok());
        drop(holder);
        let gone = timeout(PATIENCE, async { while looker.declare(&Queue::passive(&alive.name)).await.is_ok() {} });
        gone.await.unwrap();
        looker.close().await;
    });
}
