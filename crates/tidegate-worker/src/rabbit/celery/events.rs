//! Events as Celery's monitors read them: what happened, as messages to a topic exchange. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tidegate_amqp::Message;
use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldTable};

use crate::broker::TaskError;
use crate::codec::celery;
use crate::task::{Envelope, Task};

/// Who sends events, and with which logical clock.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) hostname: String,
    pub(super) exchange: String,
    pub(super) pid: u32,
    /// Lamport's: one more with everything sent, never behind what was heard.
    clock: u64,
}

impl Sender {
    pub(super) fn new(hostname: String, exchange: String, pid: u32) -> Sender {
        Sender { hostname, exchange, pid, clock: 0 }
    }

    /// The clock for the next message.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// Somebody else's clock was heard.
    pub(super) fn adjust(&mut self, other: u64) {
        self.clock = self.clock.max(other).saturating_add(1);
    }

    /// An event of this kind. Without an offset to UTC: monitors take the time as it is then.
    pub(super) fn event(&mut self, kind: &str, mut fields: Map<String, Value>, now: Timestamp) -> Value {
        let clock = self.tick();
        for (name, value) in [
            ("type", json!(kind)),
            ("hostname", json!(self.hostname)),
            ("pid", json!(self.pid)),
            ("clock", json!(clock)),
            ("timestamp", json!(seconds(now))),
        ] {
            fields.insert(name.to_owned(), value);
        }
        Value::Object(fields)
    }

    /// Events as messages: those about tasks together, which is how Celery buffers them, the others one by one.
    pub(super) fn messages(&self, events: Vec<Value>) -> Vec<Message> {
        let is_task = |event: &Value| event["type"].as_str().is_some_and(|kind| kind.starts_with("task-"));
        let (tasks, others): (Vec<Value>, Vec<Value>) = events.into_iter().partition(is_task);
        let mut messages: Vec<Message> = others
            .iter()
            .map(|event| self.message(&event["type"].as_str().unwrap_or_default().replace('-', "."), event))
            .collect();
        if !tasks.is_empty() {
            messages.push(self.message("task.multi", &Value::Array(tasks)));
        }
        messages
    }

    fn message(&self, key: &str, body: &Value) -> Message {
        let mut headers = FieldTable::default();
        headers.insert("hostname".into(), AMQPValue::LongString(self.hostname.as_str().into()));
        let properties = json_properties().with_headers(headers);
        Message::new(self.exchange.as_str(), key, body.to_string().into()).properties(&properties)
    }
}

/// Of everything that goes to monitors and askers: JSON, and not worth a disk.
pub(super) fn json_properties() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_delivery_mode(1)
        .with_priority(0)
}

pub(super) fn seconds(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// What a worker says of itself while it lives.
pub(super) fn heartbeat(interval_s: f64, active: u64, processed: u64, load: [f64; 3]) -> Map<String, Value> {
    fields(json!({
        "freq": interval_s,
        "active": active,
        "processed": processed,
        "loadavg": load,
        "sw_ident": "tidegate",
        "sw_ver": env!("CARGO_PKG_VERSION"),
        "sw_sys": "Linux",
    }))
}

/// A task has come.
pub(super) fn received(envelope: &Envelope, task: &Task) -> Map<String, Value> {
    let header = |name: &str| envelope.headers.get(name).cloned().unwrap_or(Value::Null);
    let shown = |name: &str, otherwise: String| match header(name) {
        Value::String(text) => text,
        _ => otherwise,
    };
    fields(json!({
        "uuid": envelope.id.as_str(),
        "name": celery::shown_name(envelope, &task.name),
        "args": shown("argsrepr", celery::arguments(&task.args)),
        "kwargs": shown("kwargsrepr", celery::keywords(&task.kwargs)),
        "root_id": header("root_id"),
        "parent_id": header("parent_id"),
        "retries": task.retries,
        "eta": envelope.eta.map(|eta| eta.to_string()),
        "expires": envelope.expires.map(|expires| expires.to_string()),
        "queue": envelope.queue,
        "routing_key": envelope.queue,
    }))
}

/// About the task of this id and nothing else.
pub(super) fn about(id: &str) -> Map<String, Value> {
    fields(json!({ "uuid": id }))
}

pub(super) fn succeeded(id: &str, result: &str, runtime_s: f64) -> Map<String, Value> {
    fields(json!({ "uuid": id, "result": result, "runtime": runtime_s }))
}

/// For failures and retries.
pub(super) fn failed(id: &str, error: &TaskError) -> Map<String, Value> {
    let told = format!("{}({})", error.kind, celery::repr(&json!(error.message)));
    fields(json!({ "uuid": id, "exception": told, "traceback": error.traceback }))
}

pub(super) fn revoked(id: &str, terminated: bool, expired: bool) -> Map<String, Value> {
    fields(json!({ "uuid": id, "terminated": terminated, "signum": Value::Null, "expired": expired }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_events_go_together_and_others_by_their_name() {
        let mut sender = Sender::new("a@b".into(), "celeryev".into(), 7);
        let events = vec![
            sender.event("task-started", about("t1"), Timestamp::UNIX_EPOCH),
            sender.event("worker-heartbeat", heartbeat(2.0, 1, 5, [0.0; 3]), Timestamp::UNIX_EPOCH),
            sender.event("task-succeeded", succeeded("t1", "3", 0.5), Timestamp::UNIX_EPOCH),
        ];
        let messages = sender.messages(events);
        let keys: Vec<_> = messages.iter().map(|message| message.routing_key.as_str()).collect();
        assert_eq!(keys, ["worker.heartbeat", "task.multi"]);
        let tasks: Value = serde_json::from_slice(&messages[1].body).unwrap();
        assert_eq!((&tasks[0]["type"], &tasks[1]["clock"]), (&json!("task-started"), &json!(3)));
        assert_eq!((&tasks[1]["hostname"], &tasks[1]["runtime"]), (&json!("a@b"), &json!(0.5)));
    }

    #[test]
    fn the_clock_never_falls_behind_what_was_heard() {
        let mut sender = Sender::new("a@b".into(), "celeryev".into(), 7);
        sender.adjust(40);
        assert_eq!(sender.tick(), 42);
        sender.adjust(3);
        assert_eq!(sender.clock(), 43);
    }

    #[test]
    fn a_shadow_is_shown_in_the_place_of_the_name() {
        let task = Task::new("shop.add");
        let named = |shadow: Option<&str>| {
            let extras = celery::Extras { shadow: shadow.map(ToOwned::to_owned), ..celery::Extras::default() };
            received(&celery::encode(&task, "q", &extras), &task)["name"].clone()
        };
        assert_eq!([named(None), named(Some("")), named(Some("add for Ada"))], ["shop.add", "shop.add", "add for Ada"]);
    }

    #[test]
    fn an_exception_is_shown_as_python_shows_it() {
        let error = TaskError { kind: "ValueError".into(), message: "it's".into(), traceback: None };
        assert_eq!(failed("t", &error)["exception"], json!("ValueError(\"it's\")"));
    }
}
