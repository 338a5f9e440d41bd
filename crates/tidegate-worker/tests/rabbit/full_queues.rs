//! Queues with a length limit that refuse what does not fit.

use std::time::Duration;

use tidegate_amqp::{Connection, Queue};
use tidegate_loop::spawn;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Published, Verdict};

use crate::support::{body, connect, deliveries, envelope, name, on_loop, one, open_with, settle, subscribe};

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
