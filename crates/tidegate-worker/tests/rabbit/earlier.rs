//! What version 0.1.0 has left in RabbitMQ is used as it is. `0.1.0.json` has the queues that its program declared, except the
//! delay queues, and messages that it published, as the broker gave them back; when entries of logs end was taken out.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldTable};
use tidegate_amqp::{Connection, Message, Queue};
use tidegate_loop::timeout;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Published, Selection, TaskState, Verdict};

use crate::delays::{PATIENCE, old_ladder};
use crate::keys::keyed;
use crate::support::{ctl, deliveries, host, name, on_loop, one, settle, subscribe};

fn left_behind() -> Value {
    serde_json::from_str(include_str!("0.1.0.json")).unwrap()
}

fn items<'a>(of: &'a Value, name: &str) -> &'a Vec<Value> {
    of[name].as_array().unwrap()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn queue(entry: &Value) -> Queue {
    let arguments = entry["arguments"].as_object().unwrap();
    arguments.iter().fold(Queue::durable(text(entry, "name")), |queue, (name, value)| match value {
        Value::String(value) => queue.argument(name.as_str(), value.as_str()),
        value => queue.argument(name.as_str(), value.as_i64().unwrap()),
    })
}

fn header(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(value) => AMQPValue::LongLongInt(value.as_i64().unwrap()),
        Value::String(value) => AMQPValue::LongString(value.as_str().into()),
        Value::Array(values) => AMQPValue::FieldArray(values.iter().map(header).collect::<Vec<_>>().into()),
        Value::Object(values) => AMQPValue::FieldTable(table(values)),
    }
}

fn table(values: &serde_json::Map<String, Value>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in values {
        table.insert(name.as_str().into(), header(value));
    }
    table
}

fn properties(entry: &Value) -> BasicProperties {
    let mut properties = BasicProperties::default();
    for (name, value) in entry["properties"].as_object().unwrap() {
        let (short, byte) = (value.as_str().unwrap_or_default().into(), value.as_u64().unwrap_or_default() as u8);
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(short),
            "content_encoding" => properties.with_content_encoding(short),
            "correlation_id" => properties.with_correlation_id(short),
            "message_id" => properties.with_message_id(short),
            "delivery_mode" => properties.with_delivery_mode(byte),
            "priority" => properties.with_priority(byte),
            "headers" => properties.with_headers(table(value.as_object().unwrap())),
            other => panic!("{other} is not known here"),
        };
    }
    properties
}

fn message(entry: &Value) -> Message {
    let (queue, mut body) = (text(entry, "queue"), text(entry, "body").to_owned());
    if queue.starts_with("tidegate.") {
        let mut log: Value = serde_json::from_str(&body).unwrap();
        let hour = jiff::Timestamp::now() + Duration::from_secs(3_600);
        log["until"] = json!(hour.as_millisecond());
        body = log.to_string();
    }
    let message = match entry["routing_key"].as_str() {
        // Delayed ones enter at the exchange of their highest unit.
        Some(key) => {
            let level = 23 - key.split('.').position(|word| word == "1").unwrap();
            Message::new(format!("tidegate.delay.{level}"), key, body.into())
        }
        None => Message::to_queue(queue, body.into()),
    };
    message.properties(&properties(entry)).mandatory(true)
}

/// Declares and publishes what version 0.1.0 did.
async fn make(connection: &Connection) {
    let left = left_behind();
    for entry in items(&left, "queues") {
        connection.declare(&queue(entry)).await.unwrap();
    }
    for kind in QueueKind::ALL {
        old_ladder(connection, &format!("old-{kind}")).await;
    }
    for entry in items(&left, "messages") {
        connection.publish(&message(entry)).await.unwrap().await.unwrap();
    }
}

/// Whether the key of a queue's unique task is there.
async fn is_held(connection: &Connection, kind: QueueKind) -> bool {
    let holder = format!("{kind}-unique");
    let left = left_behind();
    let is_its = |entry: &&Value| entry["arguments"]["x-dead-letter-routing-key"] == holder.as_str();
    let key = items(&left, "queues").iter().find(is_its).unwrap();
    let held = connection.declare(&Queue::passive(text(key, "name"))).await.is_ok();
    connection.try_recv_all();
    held
}

#[test]
fn what_0_1_0_has_left_is_listed_run_kept_and_freed() {
    on_loop(async {
        let vhost = name("earlier");
        ctl(&["add_vhost", &vhost]);
        ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"]);
        let address = format!("amqp://{}/{vhost}", host());
        let connection = Connection::open(&address.parse().unwrap(), &tidegate_amqp::Options::default()).await.unwrap();
        make(&connection).await;

        // Its queues are listed with their kinds, so looking needs no options.
        let looking = RabbitBroker::open(&address, Options::default()).await.unwrap();
        let stats = looking.inspect().await.unwrap();
        for kind in QueueKind::ALL {
            let queue = format!("old-{kind}");
            let of_queue = stats.iter().find(|stats| stats.queue == queue).unwrap_or_else(|| panic!("{stats:?}"));
            assert_eq!((of_queue.dead, of_queue.delayed > 0), (1, true), "{of_queue:?}");
            assert!(!looking.peek(&queue, 10).await.unwrap().is_empty());
        }
        for kind in QueueKind::ALL {
            let done = looking.result(&format!("{kind}-done").as_str().into()).await.unwrap().unwrap();
            assert_eq!((done.state, &done.value["args"]), (TaskState::Succeeded, &json!([7])));
        }
        looking.close().await.unwrap();

        for kind in QueueKind::ALL {
            let mut options = Options::default();
            options.kind = kind;
            let broker = RabbitBroker::open(&address, options).await.unwrap();
            let queue = format!("old-{kind}");
            // Keys of 0.1.0 are not read by publishers.
            let second = keyed(&queue, "second", &format!("key-{kind}"));
            assert_eq!(broker.publish(vec![second.clone()]).await.unwrap(), [Published::Stored]);
            assert!(is_held(&connection, kind).await);
            // It goes through delay queues of today, which are made beside those of 0.1.0.
            let mut soon = crate::support::envelope(&queue, "soon");
            soon.eta = Some(broker.now() + Duration::from_millis(100));
            broker.publish(vec![soon.clone()]).await.unwrap();

            let consumer = subscribe(&broker, &[&queue], 10).await;
            let came = timeout(PATIENCE, deliveries(&consumer, 5)).await.unwrap();
            let ids: BTreeSet<&str> = came.iter().map(|delivery| delivery.envelope.id.as_str()).collect();
            let old = ["delayed", "ready", "unique"].map(|what| format!("{kind}-{what}"));
            let all = old.iter().map(String::as_str).chain([second.id.as_str(), soon.id.as_str()]);
            assert_eq!(ids, all.collect::<BTreeSet<_>>());
            assert!(came.iter().all(|delivery| delivery.crashes == 0 && delivery.retries == 0), "{came:?}");
            for delivery in &came {
                settle(&consumer, delivery.tag, Verdict::Ack).await;
            }
            let revoked = timeout(PATIENCE, broker.wait_result(&format!("{kind}-revoked").as_str().into()));
            assert_eq!(revoked.await.unwrap().unwrap().state, TaskState::Revoked);
            // Publishers of 0.1.0 would take their next task for a duplicate.
            timeout(PATIENCE, async { while is_held(&connection, kind).await {} }).await.unwrap();

            let dead = broker.dead(Some(&queue), 10).await.unwrap();
            assert_eq!(dead.len(), 1, "{dead:?}");
            assert!(dead[0].reason.contains("exit code 1"), "{dead:?}");
            assert_eq!(broker.dead_retry(Selection::Queue(queue.clone())).await.unwrap(), 1);
            let revived = timeout(PATIENCE, one(&consumer)).await.unwrap();
            assert_eq!(revived.envelope.id.as_str(), format!("{kind}-dead"));
            settle(&consumer, revived.tag, Verdict::Ack).await;

            assert_eq!(broker.purge(&queue).await.unwrap(), 1, "the late one");
            assert_eq!(broker.upgrade(&queue).await.unwrap().deleted, 24);
            broker.close().await.unwrap();
        }
        connection.close().await;
        ctl(&["delete_vhost", &vhost]);
    });
}
