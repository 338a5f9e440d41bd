//! Messages that no worker can run are kept, whatever the arguments of their queue, and their producers get an answer.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldTable};
use tidegate_amqp::{Connection, Consume, Delivery, Incoming, Message, Queue};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Selection, Settled, Settlement, TaskError, TaskResult, TaskState, Verdict};

use crate::proxy::Proxy;
use crate::support::{body, connect, envelope, host, name, on_loop, one, open_kind, settle, subscribe};

/// Beyond the 16 MiB that a worker takes unless it is told otherwise.
const LARGE: usize = 20_000_000;

async fn publish(connection: &Connection, message: Message) {
    connection.publish(&message.mandatory(true)).await.unwrap().await.unwrap();
}

/// The next message of a queue.
async fn next(connection: &Connection, queue: &str) -> Delivery {
    connection.consume(&Consume::from(queue)).await.unwrap();
    for incoming in connection.recv_all().await.unwrap() {
        if let Incoming::Delivery(delivery) = incoming {
            return delivery;
        }
    }
    panic!("there is no message in {queue}");
}

/// As Celery's producers send it; `answers` is where they wait.
fn of_celery(queue: &str, id: &str, answers: &str, body: Vec<u8>) -> Message {
    let mut headers = FieldTable::default();
    for (name, value) in [("task", "shop.add"), ("id", id)] {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_headers(headers)
        .with_reply_to(answers.into())
        .with_correlation_id(id.into());
    Message::to_queue(queue, body).properties(&properties)
}

fn told(answer: &Delivery) -> (Value, Value, Value) {
    let told: Value = serde_json::from_slice(&answer.body).unwrap();
    (told["task_id"].clone(), told["status"].clone(), told["result"]["exc_type"].clone())
}

#[test]
fn a_message_that_is_too_large_is_kept_as_it_is_and_its_producer_gets_a_failure() {
    on_loop(async {
        for kind in [QueueKind::Plain, QueueKind::Classic, QueueKind::Quorum] {
            let (broker, connection) = (open_kind(kind).await, connect().await);
            let (queue, answers) = (name("large"), name("answers"));
            connection.declare(&Queue::exclusive(&answers)).await.unwrap();
            let consumer = subscribe(&broker, &[&queue], 10).await;
            let mut large = vec![7; LARGE];
            large[..3].copy_from_slice(b"abc");
            publish(&connection, of_celery(&queue, "large-task", &answers, large.clone())).await;
            publish(&connection, Message::to_queue(&queue, b"small".to_vec())).await;
            // The worker goes on behind it.
            let small = one(&consumer).await;
            assert_eq!(body(&small), "small");
            assert_eq!(settle(&consumer, small.tag, Verdict::Ack).await, Settled::Done);
            let answer = next(&connection, &answers).await;
            assert_eq!(told(&answer), (json!("large-task"), json!("FAILURE"), json!("InvalidTaskError")));
            // The answer comes before the copy; a close waits for all of it.
            consumer.close().await.unwrap();
            let letters = broker.dead(Some(&queue), 10).await.unwrap();
            assert_eq!(letters.len(), 1, "{kind}");
            assert!(letters[0].envelope.body == large, "{kind}: all of its bytes");
            assert!(letters[0].reason.contains("it has 20000000 bytes"), "{}", letters[0].reason);
            assert_eq!(connection.declare(&Queue::passive(&queue)).await.unwrap().messages, 0);
            broker.dead_drop(Selection::Queue(queue.clone())).await.unwrap();
            broker.close().await.unwrap();
        }
    });
}

#[test]
fn a_message_whose_properties_cannot_be_read_is_kept_with_its_bytes() {
    on_loop(async {
        let (broker, connection) = (open_kind(QueueKind::Plain).await, connect().await);
        let queue = name("unreadable");
        let mut deep = AMQPValue::Boolean(true);
        for _ in 0..200 {
            let mut table = FieldTable::default();
            table.insert("deeper".into(), deep);
            deep = AMQPValue::FieldTable(table);
        }
        let mut headers = FieldTable::default();
        headers.insert("deep".into(), deep);
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let properties = BasicProperties::default().with_headers(headers);
        publish(&connection, Message::to_queue(&queue, b"odd".to_vec()).properties(&properties)).await;
        publish(&connection, Message::to_queue(&queue, b"small".to_vec())).await;
        let small = one(&consumer).await;
        assert_eq!(body(&small), "small");
        settle(&consumer, small.tag, Verdict::Ack).await;
        consumer.close().await.unwrap();
        let letters = broker.dead(Some(&queue), 10).await.unwrap();
        let (reason, kept) = (&letters[0].reason, &letters[0].envelope.body);
        assert_eq!((letters.len(), reason.as_str(), &kept[..]), (1, "its properties cannot be read", &b"odd"[..]));
        let letter = next(&connection, &format!("{queue}.dead")).await;
        let properties = letter.properties.read().unwrap();
        match properties.headers().as_ref().unwrap().inner().get("tg-raw-properties") {
            Some(AMQPValue::LongString(raw)) => assert!(raw.as_bytes().windows(6).any(|bytes| bytes == b"deeper")),
            other => panic!("unexpected: {other:?}"),
        }
        broker.close().await.unwrap();
    });
}

#[test]
fn a_message_for_a_consumer_that_is_not_known_is_kept_with_its_bytes() {
    on_loop(async {
        let (proxy, queue) = (Proxy::to(&host()).await, name("stray"));
        let broker = RabbitBroker::open(&format!("amqp://{}", proxy.host), Options::default()).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        // The tag of the task queue's consumer, in the broker's deliveries.
        proxy.rename("queue-0", "queue-9");
        let connection = connect().await;
        publish(&connection, Message::to_queue(&queue, b"stray".to_vec())).await;
        let dead = format!("{queue}.dead");
        while connection.declare(&Queue::passive(&dead)).await.unwrap().messages == 0 {}
        proxy.rename("queue-0", "queue-0");
        publish(&connection, Message::to_queue(&queue, b"known".to_vec())).await;
        let known = one(&consumer).await;
        assert_eq!(body(&known), "known");
        settle(&consumer, known.tag, Verdict::Ack).await;
        consumer.close().await.unwrap();
        let letters = broker.dead(Some(&queue), 10).await.unwrap();
        assert_eq!((letters.len(), &letters[0].envelope.body[..]), (1, &b"stray"[..]));
        assert!(letters[0].reason.contains(r#""queue-9" that is not known"#), "{}", letters[0].reason);
        assert_eq!(connection.declare(&Queue::passive(&queue)).await.unwrap().messages, 0);
        broker.close().await.unwrap();
    });
}

#[test]
fn the_producer_of_a_body_that_cannot_be_read_gets_a_failure() {
    on_loop(async {
        let (broker, connection) = (open_kind(QueueKind::Plain).await, connect().await);
        let (queue, answers) = (name("nonsense"), name("answers"));
        connection.declare(&Queue::exclusive(&answers)).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        publish(&connection, of_celery(&queue, "nonsense-task", &answers, b"\x1f\x8b not JSON".to_vec())).await;
        let delivery = one(&consumer).await;
        // What a worker makes of it.
        let reason = "the body is not JSON".to_owned();
        let error = TaskError { kind: "Rejected".into(), message: reason.clone(), traceback: None };
        let (id, ttl) = (delivery.envelope.id.clone(), Duration::ZERO);
        let result = TaskResult { id, state: TaskState::Failed, value: Value::Null, error: Some(error), ttl };
        let verdict = Verdict::Dead { reason, traceback: None };
        let settlement = Settlement { tag: delivery.tag, verdict, result: Some(result) };
        assert_eq!(consumer.settle(vec![settlement]).await.unwrap(), [Settled::Done]);
        let answer = next(&connection, &answers).await;
        assert_eq!(told(&answer), (json!("nonsense-task"), json!("FAILURE"), json!("InvalidTaskError")));
        assert_eq!(broker.dead(Some(&queue), 10).await.unwrap().len(), 1);
        // Nothing else is kept back.
        broker.publish(vec![envelope(&queue, "next")]).await.unwrap();
        assert_eq!(body(&one(&consumer).await), "next");
        broker.close().await.unwrap();
    });
}

/// A message whose headers nearly fill a frame of 128 KiB, as another program publishes it.
fn with_long_header(queue: &str) -> Message {
    let mut headers = FieldTable::default();
    headers.insert("long".into(), AMQPValue::LongString("x".repeat(131_000).into()));
    let properties = BasicProperties::default().with_headers(headers).with_message_id("long".into());
    Message::to_queue(queue, b"long".to_vec()).properties(&properties)
}

#[test]
fn a_message_whose_headers_leave_no_room_for_more_holds_up_no_other() {
    on_loop(async {
        for kind in [QueueKind::Plain, QueueKind::Classic, QueueKind::Quorum] {
            let (broker, connection) = (open_kind(kind).await, connect().await);
            let (queue, aside) = (name("long"), name("aside"));
            let consumer = subscribe(&broker, &[&queue], 10).await;
            // The broker's own dead-lettering adds to the headers: they come in a frame that is larger than was agreed.
            let aside = Queue::durable(&aside)
                .argument("x-message-ttl", 1_i64)
                .argument("x-expires", 60_000_i64)
                .argument("x-dead-letter-exchange", "")
                .argument("x-dead-letter-routing-key", queue.as_str());
            connection.declare(&aside).await.unwrap();
            publish(&connection, with_long_header(&aside.name)).await;
            let verdicts = [
                Verdict::Retry { at: broker.now() },
                Verdict::Dead { reason: "x".repeat(100_000), traceback: Some("line\n".repeat(10_000)) },
            ];
            for verdict in verdicts {
                let long = one(&consumer).await;
                assert_eq!((body(&long), long.envelope.headers.len()), ("long", 1), "{kind}");
                assert_eq!(settle(&consumer, long.tag, verdict).await, Settled::Done, "{kind}");
                publish(&connection, with_long_header(&queue)).await;
            }
            let last = one(&consumer).await;
            assert_eq!(settle(&consumer, last.tag, Verdict::Ack).await, Settled::Done);
            consumer.close().await.unwrap();
            let letters = broker.dead(Some(&queue), 10).await.unwrap();
            let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
            assert_eq!(letters.len(), 2, "{kind}: {reasons:?}");
            assert!(
                reasons.iter().all(|reason| reason.ends_with("headers without room: long (131002 bytes)")),
                "{reasons:?}"
            );
            assert!(letters.iter().all(|letter| letter.envelope.body == b"long"));
            broker.dead_drop(Selection::Queue(queue.clone())).await.unwrap();
            broker.close().await.unwrap();
        }
    });
}
