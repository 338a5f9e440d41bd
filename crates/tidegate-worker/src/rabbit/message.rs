//! An envelope as an AMQP message, and back. Pure.
//!
//! What only tidegate needs travels in headers that begin with `tg-`; everything else of a message is the envelope's, so a
//! producer that knows nothing of tidegate is read as well: headers that begin with `amqp.` stand for the properties of that
//! name.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Number, Value};
use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldArray, FieldTable, ShortString};

use crate::codec::{celery, dramatiq};
use crate::task::{Envelope, TaskId, Unique};

/// Above all that can be asked for: what was returned goes out before everything else.
pub(super) const PRIORITY_RETURNED: u8 = 10;

/// A header's frame has 128 KiB; a traceback is the only thing in it that grows by itself.
const TRACEBACK_BYTES_MAX: usize = 32 * 1024;

/// An envelope with its history.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    pub(super) envelope: Envelope,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) published: Timestamp,
    pub(super) dead: Option<Death>,
}

/// Why a task was given up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Death {
    pub(super) at: Timestamp,
    pub(super) reason: String,
    pub(super) traceback: Option<String>,
}

fn nanos(at: Timestamp) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX))
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// At most so many bytes, cut between characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The properties of a stored task; `priority` is what the queue sorts by.
pub(super) fn properties(stored: &Stored, priority: u8) -> BasicProperties {
    let Stored { envelope, retries, crashes, published, dead } = stored;
    let mut headers = FieldTable::default();
    let mut put = |name: &str, value: AMQPValue| {
        headers.insert(ShortString::from(name), value);
    };
    put("tg-published", nanos(*published));
    for (name, count) in [("tg-retries", *retries), ("tg-crashes", *crashes)] {
        if count > 0 {
            put(name, AMQPValue::LongLongInt(count.into()));
        }
    }
    if priority != envelope.priority {
        put("tg-priority", AMQPValue::LongLongInt(envelope.priority.into()));
    }
    for (name, at) in [("tg-eta", envelope.eta), ("tg-expires", envelope.expires)] {
        if let Some(at) = at {
            put(name, nanos(at));
        }
    }
    if let Some(unique) = &envelope.unique {
        put("tg-unique", text(&unique.key));
        let hold = i64::try_from(unique.hold.as_millis()).unwrap_or(i64::MAX);
        put("tg-unique-hold-ms", AMQPValue::LongLongInt(hold));
        put("tg-unique-past-settle", AMQPValue::Boolean(unique.past_settle));
    }
    if let Some(death) = dead {
        put("tg-dead-at", nanos(death.at));
        put("tg-dead-reason", text(cut(&death.reason, TRACEBACK_BYTES_MAX)));
        if let Some(traceback) = &death.traceback {
            put("tg-dead-traceback", text(cut(traceback, TRACEBACK_BYTES_MAX)));
        }
    }
    let mut properties = BasicProperties::default().with_delivery_mode(2).with_priority(priority);
    if let Ok(id) = ShortString::try_new(envelope.id.as_str()) {
        properties = properties.with_message_id(id);
    }
    for (name, value) in &envelope.headers {
        match (name.strip_prefix("amqp."), value) {
            (Some(property), Value::String(value)) => properties = with_property(properties, property, value),
            _ => {
                if let Ok(name) = ShortString::try_new(name.as_str()) {
                    headers.insert(name, to_amqp(value));
                }
            }
        }
    }
    properties.with_headers(headers)
}

fn with_property(properties: BasicProperties, name: &str, value: &str) -> BasicProperties {
    let Ok(value) = ShortString::try_new(value) else { return properties };
    match name {
        "content_type" => properties.with_content_type(value),
        "content_encoding" => properties.with_content_encoding(value),
        "correlation_id" => properties.with_correlation_id(value),
        "reply_to" => properties.with_reply_to(value),
        _ => properties,
    }
}

/// Reads a message of `queue`. `found` is when it was, for a producer that does not say when it published.
pub(super) fn read(queue: &str, properties: &BasicProperties, body: Vec<u8>, found: Timestamp) -> Stored {
    let table = properties.headers().as_ref().map(FieldTable::inner);
    let own = |name: &str| table.and_then(|table| table.get(name));
    let mut headers = BTreeMap::new();
    for (name, value) in table.into_iter().flatten() {
        let name = name.as_str();
        let brokers = matches!(name, "x-death" | "x-delivery-count") || name.starts_with("x-first-death-");
        if !brokers && !name.starts_with("tg-") {
            headers.insert(name.to_owned(), to_json(value));
        }
    }
    for (name, value) in [
        ("amqp.content_type", properties.content_type()),
        ("amqp.content_encoding", properties.content_encoding()),
        ("amqp.correlation_id", properties.correlation_id()),
        ("amqp.reply_to", properties.reply_to()),
    ] {
        if let Some(value) = value {
            headers.insert(name.to_owned(), Value::String(value.to_string()));
        }
    }
    let number = |name: &str| own(name).and_then(integer);
    let at = |name: &str| number(name).and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok());
    let string = |name: &str| match own(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    let count = |name: &str| number(name).and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    let unique = string("tg-unique").map(|key| Unique {
        key,
        hold: Duration::from_millis(number("tg-unique-hold-ms").and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)),
        past_settle: matches!(own("tg-unique-past-settle"), Some(AMQPValue::Boolean(true))),
    });
    let priority = number("tg-priority").and_then(|priority| u8::try_from(priority).ok());
    let priority = priority.or(*properties.priority()).unwrap_or(0).min(9);
    let id = properties.message_id().as_ref().or(properties.correlation_id().as_ref());
    let id = id.map(ShortString::as_str).filter(|id| !id.is_empty());
    // Foreign producers write theirs where their own workers look, and publish to the queue at once.
    let foreign = match (headers.get("task"), id) {
        (Some(Value::String(_)), id) => foreign_of_celery(&headers, id),
        (_, Some(id)) => Foreign { id: Some(TaskId::from(id)), ..Foreign::default() },
        // dramatiq's have no properties at all.
        (_, None) => dramatiq::glance(&body).map(foreign_of_dramatiq).unwrap_or_default(),
    };
    let id = foreign.id.unwrap_or_else(TaskId::new);
    let (eta, expires) = (at("tg-eta").or(foreign.eta), at("tg-expires").or(foreign.expires));
    let dead = at("tg-dead-at").map(|at| Death {
        at,
        reason: string("tg-dead-reason").unwrap_or_default(),
        traceback: string("tg-dead-traceback"),
    });
    let dead = dead.or_else(|| broker_death(properties, found));
    Stored {
        envelope: Envelope { id, queue: queue.to_owned(), priority, eta, expires, unique, headers, body },
        retries: count("tg-retries").max(foreign.retries),
        crashes: count("tg-crashes"),
        published: at("tg-published").unwrap_or(found),
        dead,
    }
}

/// What a message that is none of ours says of itself.
#[derive(Default)]
struct Foreign {
    id: Option<TaskId>,
    eta: Option<Timestamp>,
    expires: Option<Timestamp>,
    retries: u32,
}

fn foreign_of_celery(headers: &BTreeMap<String, Value>, id: Option<&str>) -> Foreign {
    let (eta, expires) = celery::times(headers);
    let own = headers.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    let retries = headers.get("retries").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
    Foreign { id: own.or(id).map(TaskId::from), eta, expires, retries: retries.unwrap_or(0) }
}

fn foreign_of_dramatiq(glance: dramatiq::Glance) -> Foreign {
    Foreign { id: Some(glance.id), eta: glance.eta, expires: glance.expires, retries: glance.retries }
}

/// A message that the broker itself put aside, in words.
fn broker_death(properties: &BasicProperties, found: Timestamp) -> Option<Death> {
    let reason = properties.headers().as_ref()?.inner().get("x-first-death-reason")?;
    let AMQPValue::LongString(reason) = reason else { return None };
    let reason = match reason.to_string().as_str() {
        "delivery_limit" => "it was delivered as often as its queue allows, and never settled".to_owned(),
        "rejected" => "it was rejected: its properties cannot be read, or it is larger than allowed".to_owned(),
        other => format!("the broker put it aside: {other}"),
    };
    Some(Death { at: found, reason, traceback: None })
}

/// How often a quorum queue has handed it out before.
pub(super) fn delivery_count(properties: &BasicProperties) -> u32 {
    let count = properties.headers().as_ref().and_then(|headers| headers.inner().get("x-delivery-count"));
    count.and_then(integer).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

pub(super) fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(number) => (*number).into(),
        AMQPValue::ShortShortUInt(number) => (*number).into(),
        AMQPValue::ShortInt(number) => (*number).into(),
        AMQPValue::ShortUInt(number) => (*number).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongUInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => *number,
        _ => return None,
    })
}

fn to_amqp(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => AMQPValue::LongLongInt(number),
            (None, Some(number)) => AMQPValue::Double(number),
            (None, None) => AMQPValue::Void,
        },
        Value::String(value) => text(value),
        Value::Array(values) => AMQPValue::FieldArray(FieldArray::from(values.iter().map(to_amqp).collect::<Vec<_>>())),
        Value::Object(values) => {
            let mut table = FieldTable::default();
            for (name, value) in values {
                if let Ok(name) = ShortString::try_new(name.as_str()) {
                    table.insert(name, to_amqp(value));
                }
            }
            AMQPValue::FieldTable(table)
        }
    }
}

fn to_json(value: &AMQPValue) -> Value {
    if let Some(number) = integer(value) {
        return number.into();
    }
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::Float(number) => Number::from_f64((*number).into()).map_or(Value::Null, Value::Number),
        AMQPValue::Double(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
        AMQPValue::ShortString(text) => text.to_string().into(),
        AMQPValue::LongString(text) => text.to_string().into(),
        AMQPValue::Timestamp(seconds) => (*seconds).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(to_json).collect(),
        AMQPValue::FieldTable(table) => {
            let values = table.inner().iter().map(|(name, value)| (name.to_string(), to_json(value)));
            Value::Object(values.collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(nanos: i128) -> Timestamp {
        Timestamp::from_nanosecond(nanos).unwrap()
    }

    #[test]
    fn everything_of_an_envelope_comes_back() {
        let mut envelope = Envelope::new("mail", b"body".to_vec());
        envelope.priority = 7;
        envelope.eta = Some(at(1_794_770_724_582_123_456));
        envelope.expires = Some(at(1_794_770_999_000_000_001));
        envelope.unique = Some(Unique { key: "k".into(), hold: Duration::from_secs(90), past_settle: true });
        envelope.headers.insert("task".into(), json!("add"));
        envelope.headers.insert("timelimit".into(), json!([null, 20, 1.5]));
        envelope.headers.insert("stamps".into(), json!({"a": {"b": true}}));
        envelope.headers.insert("amqp.reply_to".into(), json!("answers"));
        let death = Death { at: at(5), reason: "too often".into(), traceback: Some("line 1".into()) };
        for dead in [None, Some(death)] {
            let stored = Stored {
                envelope: envelope.clone(),
                retries: 3,
                crashes: 2,
                published: at(1_700_000_000_000_000_007),
                dead,
            };
            for priority in [7, PRIORITY_RETURNED] {
                let written = properties(&stored, priority);
                assert_eq!(written.reply_to().as_ref().unwrap().as_str(), "answers");
                assert_eq!(read("mail", &written, b"body".to_vec(), at(0)), stored);
            }
        }
    }

    #[test]
    fn a_foreign_message_is_read_by_what_it_says() {
        let properties = BasicProperties::default().with_correlation_id("5530f881".into()).with_priority(200);
        let stored = read("cel", &properties, b"[]".to_vec(), at(9));
        assert_eq!((stored.envelope.id.as_str(), stored.envelope.priority), ("5530f881", 9));
        assert_eq!((stored.published, stored.retries, stored.dead), (at(9), 0, None));
    }

    #[test]
    fn celerys_times_are_the_tasks_and_a_retrys_come_before_them() {
        let mut headers = FieldTable::default();
        headers.insert("task".into(), text("add"));
        headers.insert("eta".into(), text("2026-11-15T19:25:24.520952+00:00"));
        headers.insert("expires".into(), AMQPValue::Void);
        let properties = BasicProperties::default().with_headers(headers.clone());
        let mut stored = read("cel", &properties, Vec::new(), at(9));
        assert_eq!(stored.envelope.eta, Some(at(1_794_770_724_520_952_000)));
        assert_eq!(stored.envelope.expires, None);
        stored.envelope.eta = Some(at(1_794_770_999_000_000_000));
        let again = read("cel", &super::properties(&stored, 0), Vec::new(), at(9));
        assert_eq!(again.envelope.eta, stored.envelope.eta);
    }

    #[test]
    fn a_traceback_is_cut_to_fit_between_characters() {
        let mut stored = read("q", &BasicProperties::default(), Vec::new(), at(0));
        let traceback = Some("ä".repeat(TRACEBACK_BYTES_MAX));
        stored.dead = Some(Death { at: at(1), reason: String::new(), traceback });
        let again = read("q", &properties(&stored, 0), Vec::new(), at(0));
        assert_eq!(again.dead.unwrap().traceback.unwrap().len(), TRACEBACK_BYTES_MAX);
    }
}
