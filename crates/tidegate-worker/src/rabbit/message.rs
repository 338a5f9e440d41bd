//! An envelope as an AMQP message, and back. Pure.
//!
//! What only tidegate needs travels in headers that begin with `tg-`; everything else of a message is the envelope's, so a
//! producer that knows nothing of tidegate is read as well: headers that begin with `amqp.` stand for the properties of that
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Number, Value};
use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldArray, FieldTable, ShortString};
use tidegate_amqp::{Delivery, Field, Glance, Message, PROPERTIES_BYTES_MAX, RawProperties};

use crate::codec::{celery, dramatiq};
use crate::task::{Envelope, TaskId, Unique};

/// Above all that can be asked for: what was returned goes out before everything else.
pub(super) const PRIORITY_RETURNED: u8 = 10;

/// A header's frame has 128 KiB; a traceback is the only thing in it that grows by itself.
const TRACEBACK_BYTES_MAX: usize = 32 * 1024;

/// Longest quotation of a text from outside.
const EXCERPT_BYTES_MAX: usize = 1024;

/// Raw properties of at most this length are kept in a header.
const RAW_BYTES_MAX: usize = 64 * 1024;

/// An envelope with its history.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    /// Shared with the worker that has it.
    pub(super) envelope: Arc<Envelope>,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) published: Timestamp,
    pub(super) dead: Option<Box<Death>>,
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

/// The properties of a dead letter that has no room for all of them: reason and traceback are shortened, and the longest headers
/// are left out and named.
pub(super) fn fitting(stored: &Stored, priority: u8) -> BasicProperties {
    let mut stored = stored.clone();
    let mut reason = String::new();
    if let Some(death) = &mut stored.dead {
        death.traceback = None;
        death.reason = excerpt(&death.reason).to_owned();
        reason.clone_from(&death.reason);
    }
    let mut left_out = Vec::new();
    while !fits(&stored) {
        let envelope = Arc::make_mut(&mut stored.envelope);
        let longest = envelope.headers.iter().max_by_key(|(name, value)| name.len() + value.to_string().len());
        let Some(name) = longest.map(|(name, _)| name.clone()) else {
            // A key of that length has no room in any message.
            envelope.unique = None;
            break;
        };
        let bytes = envelope.headers.remove(&name).map_or(0, |value| value.to_string().len());
        left_out.push(format!("{} ({bytes} bytes)", excerpt(&name)));
        if let Some(death) = &mut stored.dead {
            death.reason = format!("{reason}; headers without room: {}", left_out.join(", "));
        }
    }
    if !left_out.is_empty() {
        let (id, headers) = (excerpt(stored.envelope.id.as_str()), left_out.join(", "));
        tracing::error!(task.id = id, headers, "a dead letter has no room for these headers: they are left out");
    }
    properties(&stored, priority)
}

/// Returns `true` if the task's properties have room in a message.
pub(super) fn fits(stored: &Stored) -> bool {
    let written = properties(stored, PRIORITY_RETURNED);
    RawProperties::from(&written).as_bytes().len() <= PROPERTIES_BYTES_MAX
}

/// The beginning of a text that others wrote.
pub(super) fn excerpt(text: &str) -> &str {
    cut(text, EXCERPT_BYTES_MAX)
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

/// What a message says of itself where tidegate wrote it.
#[derive(Default)]
struct Own<'a> {
    published: Option<i64>,
    retries: Option<i64>,
    crashes: Option<i64>,
    priority: Option<i64>,
    eta: Option<i64>,
    expires: Option<i64>,
    unique: Option<&'a [u8]>,
    unique_hold_ms: Option<i64>,
    unique_past_settle: bool,
    dead_at: Option<i64>,
    dead_reason: Option<&'a [u8]>,
    dead_traceback: Option<&'a [u8]>,
    /// The broker's: why it put the message aside, and how often a quorum queue has handed it out before.
    first_death_reason: Option<&'a [u8]>,
    delivery_count: Option<i64>,
}

impl<'a> Own<'a> {
    /// Whether the header is tidegate's or the broker's.
    fn hear(&mut self, name: &[u8], field: Field<'a>) -> bool {
        let integer = || if let Field::Integer(number) = field { Some(number) } else { None };
        let text = || if let Field::Text(text) = field { Some(text) } else { None };
        match name {
            b"tg-published" => self.published = integer(),
            b"tg-retries" => self.retries = integer(),
            b"tg-crashes" => self.crashes = integer(),
            b"tg-priority" => self.priority = integer(),
            b"tg-eta" => self.eta = integer(),
            b"tg-expires" => self.expires = integer(),
            b"tg-unique" => self.unique = text(),
            b"tg-unique-hold-ms" => self.unique_hold_ms = integer(),
            b"tg-unique-past-settle" => self.unique_past_settle = matches!(field, Field::Boolean(true)),
            b"tg-dead-at" => self.dead_at = integer(),
            b"tg-dead-reason" => self.dead_reason = text(),
            b"tg-dead-traceback" => self.dead_traceback = text(),
            b"x-first-death-reason" => self.first_death_reason = text(),
            b"x-delivery-count" => self.delivery_count = integer(),
            _ => return name.starts_with(b"tg-") || name == b"x-death" || name.starts_with(b"x-first-death-"),
        }
        true
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn count(number: Option<i64>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

fn instant(nanos: Option<i64>) -> Option<Timestamp> {
    nanos.and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok())
}

/// Reads a message of `queue`. `found` is when it was, for a producer that does not say when it published. A `counted` queue is
/// one whose broker counts crashes. `memory` is that of an envelope nobody needs any more.
pub(super) fn read(
    queue: &str,
    properties: &Glance<'_>,
    body: Vec<u8>,
    found: Timestamp,
    counted: bool,
    memory: Option<Arc<Envelope>>,
) -> Stored {
    let (mut own, mut headers) = (Own::default(), BTreeMap::new());
    for (name, field) in properties.headers {
        if !own.hear(name, field) {
            headers.insert(lossy(name), to_json(field));
        }
    }
    for (name, value) in [
        ("amqp.content_type", properties.content_type),
        ("amqp.content_encoding", properties.content_encoding),
        ("amqp.correlation_id", properties.correlation_id),
        ("amqp.reply_to", properties.reply_to),
    ] {
        if let Some(value) = value {
            headers.insert(name.to_owned(), Value::String(value.to_owned()));
        }
    }
    let unique = own.unique.map(|key| Unique {
        key: lossy(key),
        hold: Duration::from_millis(own.unique_hold_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)),
        past_settle: own.unique_past_settle,
    });
    let priority = own.priority.and_then(|priority| u8::try_from(priority).ok());
    let priority = priority.or(properties.priority).unwrap_or(0).min(9);
    let id = properties.message_id.or(properties.correlation_id).filter(|id| !id.is_empty());
    // Foreign producers write theirs where their own workers look, and publish to the queue at once.
    let foreign = match (headers.get("task"), id) {
        (Some(Value::String(_)), id) => foreign_of_celery(&headers, id),
        (_, Some(id)) => Foreign { id: Some(TaskId::from(id)), ..Foreign::default() },
        // dramatiq's have no properties at all.
        (_, None) => dramatiq::glance(&body).map(foreign_of_dramatiq).unwrap_or_default(),
    };
    let id = foreign.id.unwrap_or_else(TaskId::new);
    let (eta, expires) = (instant(own.eta).or(foreign.eta), instant(own.expires).or(foreign.expires));
    let dead = instant(own.dead_at).map(|at| Death {
        at,
        reason: own.dead_reason.map(lossy).unwrap_or_default(),
        traceback: own.dead_traceback.map(lossy),
    });
    let dead = dead.or_else(|| own.first_death_reason.map(|reason| broker_death(reason, found)));
    let handed_out = if counted { count(own.delivery_count) } else { 0 };
    let envelope = placed(memory, queue, |queue| Envelope { id, queue, priority, eta, expires, unique, headers, body });
    Stored {
        envelope,
        retries: count(own.retries).max(foreign.retries),
        crashes: count(own.crashes).saturating_add(handed_out),
        published: instant(own.published).unwrap_or(found),
        dead: dead.map(Box::new),
    }
}

/// The dead letter of a message whose properties cannot be read: its body, and the properties as they came, with the reason.
pub(super) fn raw_letter(place: String, delivery: Delivery, death: &Death) -> Message {
    let Delivery { properties, body, .. } = delivery;
    let raw = properties.as_bytes();
    if (RAW_BYTES_MAX..=PROPERTIES_BYTES_MAX).contains(&raw.len()) {
        // There is no room for more beside them in one frame.
        return Message::to_queue(place, body).raw_properties(&properties).mandatory(true);
    }
    let mut headers = FieldTable::default();
    headers.insert("tg-dead-at".into(), nanos(death.at));
    let mut reason = cut(&death.reason, TRACEBACK_BYTES_MAX).to_owned();
    if raw.len() > PROPERTIES_BYTES_MAX {
        tracing::error!(
            bytes = raw.len(),
            "a dead letter has no room for properties of this length: they are left out"
        );
        reason += &format!("; its properties have {} bytes and are left out", raw.len());
    } else {
        headers.insert("tg-raw-properties".into(), AMQPValue::LongString(raw.to_vec().into()));
    }
    headers.insert("tg-dead-reason".into(), text(&reason));
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    Message::to_queue(place, body).properties(&properties).mandatory(true)
}

/// How often a quorum queue has delivered a message before.
pub(super) fn delivery_count(delivery: &Delivery) -> u32 {
    let Ok(properties) = delivery.properties.glance() else { return 0 };
    let mut headers = properties.headers;
    count(headers.find_map(|header| match header {
        (b"x-delivery-count", Field::Integer(number)) => Some(number),
        _ => None,
    }))
}

/// An envelope of this queue, in the memory of another if nobody else has that.
fn placed(memory: Option<Arc<Envelope>>, queue: &str, envelope: impl FnOnce(String) -> Envelope) -> Arc<Envelope> {
    let Some(mut memory) = memory else { return Arc::new(envelope(queue.to_owned())) };
    let Some(place) = Arc::get_mut(&mut memory) else { return Arc::new(envelope(queue.to_owned())) };
    let mut name = std::mem::take(&mut place.queue);
    if name != queue {
        queue.clone_into(&mut name);
    }
    *place = envelope(name);
    memory
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
fn broker_death(reason: &[u8], found: Timestamp) -> Death {
    let reason = match reason {
        b"delivery_limit" => "it was delivered as often as its queue allows, and never settled".to_owned(),
        b"rejected" => "it was rejected: its properties cannot be read, or it is larger than allowed".to_owned(),
        other => format!("the broker put it aside: {}", lossy(other)),
    };
    Death { at: found, reason, traceback: None }
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

fn to_json(field: Field<'_>) -> Value {
    match field {
        Field::Boolean(value) => value.into(),
        Field::Integer(number) => number.into(),
        Field::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        Field::Text(text) => lossy(text).into(),
        Field::Timestamp(seconds) => seconds.into(),
        Field::Array(fields) => fields.map(to_json).collect(),
        Field::Table(headers) => {
            let values = headers.map(|(name, field)| (lossy(name), to_json(field)));
            Value::Object(values.collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(queue: &str, properties: &BasicProperties, body: Vec<u8>, found: Timestamp) -> Stored {
        super::read(queue, &RawProperties::from(properties).glance().unwrap(), body, found, false, None)
    }

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
        for dead in [None, Some(Box::new(death))] {
            let stored = Stored {
                envelope: Arc::new(envelope.clone()),
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
    fn a_dead_letter_without_room_for_all_headers_names_those_it_leaves_out() {
        let death =
            |reason: String| Some(Box::new(Death { at: at(5), reason, traceback: Some("line\n".repeat(9_000)) }));
        let stored = |headers: &[(&str, usize)], reason: String| {
            let mut envelope = Envelope::new("mail", b"body".to_vec());
            envelope.headers =
                headers.iter().map(|(name, bytes)| ((*name).to_owned(), json!("x".repeat(*bytes)))).collect();
            Stored { envelope: Arc::new(envelope), retries: 1, crashes: 0, published: at(1), dead: death(reason) }
        };
        let written = |stored: &Stored| read("mail", &fitting(stored, 0), b"body".to_vec(), at(0));

        let named = stored(&[("task", 100_000)], format!("there is no handler for {}", "x".repeat(100_000)));
        assert!(!fits(&named));
        let letter = written(&named);
        assert_eq!(letter.envelope.headers, named.envelope.headers, "only the reason is shortened");
        let reason = letter.dead.unwrap().reason;
        assert!(reason.starts_with("there is no handler for x") && reason.len() <= 1_024, "{reason}");

        let full = stored(&[("task", 130_900), ("id", 36)], "rejected".into());
        let letter = written(&full);
        assert_eq!(letter.envelope.headers.keys().collect::<Vec<_>>(), ["id"]);
        assert_eq!(letter.dead.unwrap().reason, "rejected; headers without room: task (130902 bytes)");
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
        Arc::make_mut(&mut stored.envelope).eta = Some(at(1_794_770_999_000_000_000));
        let again = read("cel", &super::properties(&stored, 0), Vec::new(), at(9));
        assert_eq!(again.envelope.eta, stored.envelope.eta);
    }

    #[test]
    fn a_traceback_is_cut_to_fit_between_characters() {
        let mut stored = read("q", &BasicProperties::default(), Vec::new(), at(0));
        let traceback = Some("ä".repeat(TRACEBACK_BYTES_MAX));
        stored.dead = Some(Box::new(Death { at: at(1), reason: String::new(), traceback }));
        let again = read("q", &properties(&stored, 0), Vec::new(), at(0));
        assert_eq!(again.dead.unwrap().traceback.unwrap().len(), TRACEBACK_BYTES_MAX);
    }
}
