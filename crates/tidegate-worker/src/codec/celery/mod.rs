//! Celery's message protocol 2 with the JSON serializer: what its producers send (`mod.rs`), what follows a task: callbacks,
//! chains, groups (`signature.rs`), chords (`chord.rs`), and the answers for callers (`answer.rs`). Pure functions without
//! a connection.
//!
//! What stands beside the body is in the envelope's headers: Celery's own by their names, the AMQP properties as `amqp.…`.
//! Values that JSON has no form for stay as Celery wraps them, `{"__type__": "datetime", "__value__": "…"}`.

mod answer;
mod chord;
mod repr;
mod signature;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::native::DecodeError;
use crate::json as exact;
use crate::task::{Envelope, Task, TaskId};

pub use answer::{Answer, Following, Status};
use chord::End;
pub use chord::{Begun, Chords, Part, Returned};
#[cfg(feature = "amqp")]
pub(crate) use repr::{arguments, keywords, repr};

/// A task as Celery sent it, with everything that is to happen after it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// For the handler.
    pub task: Task,
    /// Where the result goes, and its id there; `None` if no caller waits for it.
    pub reply: Option<Reply>,
    /// The result is not wanted, whatever `reply` says.
    pub ignore_result: bool,
    /// The first task of all this.
    pub root_id: Option<String>,
    /// The task it follows from.
    pub parent_id: Option<String>,
    /// Called with the result.
    pub callbacks: Vec<Value>,
    /// Called with this task's id when it has failed.
    pub errbacks: Vec<Value>,
    /// What comes after it, the next one last.
    pub chain: Vec<Value>,
    /// The body of a chord this task is part of.
    pub chord: Option<Value>,
    /// The group it is part of.
    pub group: Option<String>,
    /// Its place in that group.
    pub group_index: Option<u64>,
    queue: String,
}

/// Where a result goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The queue.
    pub queue: String,
    /// The request it answers.
    pub correlation_id: String,
}

fn fail<T>(message: impl Into<String>) -> Result<T, DecodeError> {
    Err(DecodeError { message: message.into() })
}

/// Whether this is one of Celery's: protocol 2 is known by the header `task`.
pub fn is_celery(envelope: &Envelope) -> bool {
    envelope.headers.get("task").is_some_and(Value::is_string)
}

/// The name by which monitors know a task: the header `shadow` if it has one, otherwise the task's own.
#[cfg(feature = "amqp")]
pub(crate) fn shown_name<'a>(envelope: &'a Envelope, name: &'a str) -> &'a str {
    envelope.headers.get("shadow").and_then(Value::as_str).filter(|shadow| !shadow.is_empty()).unwrap_or(name)
}

/// The task in this envelope, for its handler; see [`read`] for the rest.
///
/// # Errors
/// When the body is not protocol 2 in JSON, or the task is part of a chord, which would never come to its end here; the message
/// says what does not fit.
pub fn decode(envelope: &Envelope, retries: u32) -> Result<Task, DecodeError> {
    let message = read(envelope, retries)?;
    if message.chord.is_some() {
        return fail(
            "the task is part of a chord, whose parts only a result backend can count: name Celery's with --result-backend \
             redis://HOST",
        );
    }
    Ok(message.task)
}

/// Everything in this envelope. `retries` is what the broker counted; where the message says more, that counts.
///
/// ```
/// use tidegate_worker::codec::celery;
/// use tidegate_worker::{Envelope, Task};
///
/// let task = Task::new("add").arg(1).arg(2);
/// let envelope = celery::encode(&task, "celery", &celery::Extras::default());
/// assert_eq!(celery::read(&envelope, 0).unwrap().task, task);
/// ```
///
/// # Errors
/// As [`decode`].
pub fn read(envelope: &Envelope, retries: u32) -> Result<Message, DecodeError> {
    let headers = &envelope.headers;
    let string = |name: &str| headers.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let Some(name) = string("task").filter(|name| !name.is_empty()) else {
        return fail("the message is none of Celery's protocol 2: the header \"task\" is missing");
    };
    if let Some(kind) = string("amqp.content_type").filter(|kind| kind != "application/json") {
        return fail(format!(
            "the message is serialised as {kind}; have the producer use JSON: app.conf.task_serializer = 'json'"
        ));
    }
    let body: Value = match exact::from_slice(&envelope.body) {
        Ok(body) => body,
        Err(error) => return fail(format!("the body is not JSON: {error}")),
    };
    let Value::Array(parts) = body else { return fail("the body is not [args, kwargs, embed]") };
    let Ok([args, kwargs, embed]) = <[Value; 3]>::try_from(parts) else {
        return fail("the body is not [args, kwargs, embed]");
    };
    let (Value::Array(args), Some(Value::Object(kwargs))) =
        (args, Some(kwargs).filter(|kwargs| exact::integer(kwargs).is_none()))
    else {
        return fail("the body's args are no list, or its kwargs no object");
    };
    let Value::Object(mut embed) = embed else { return fail("the body's third part is no object") };
    let (hard_limit, soft_limit) = limits(headers)?;
    let mut list = |name: &str| match embed.remove(name) {
        Some(Value::Array(list)) => list,
        // One alone may stand without a list.
        Some(one @ Value::Object(_)) => vec![one],
        _ => Vec::new(),
    };
    let (callbacks, errbacks, chain) = (list("callbacks"), list("errbacks"), list("chain"));
    let id = string("id").map_or_else(|| envelope.id.clone(), |id| TaskId::from(id.as_str()));
    let own = headers.get("retries").and_then(Value::as_u64).and_then(|own| u32::try_from(own).ok()).unwrap_or(0);
    let correlation_id = string("amqp.correlation_id").unwrap_or_else(|| id.to_string());
    let reply = string("amqp.reply_to").filter(|queue| !queue.is_empty());
    Ok(Message {
        task: Task {
            id,
            name,
            args,
            kwargs,
            retries: retries.max(own),
            soft_limit,
            hard_limit,
            retries_max: None,
            backoff: None,
        },
        reply: reply.map(|queue| Reply { queue, correlation_id }),
        ignore_result: headers.get("ignore_result").and_then(Value::as_bool).unwrap_or(false),
        root_id: string("root_id"),
        parent_id: string("parent_id"),
        callbacks,
        errbacks,
        chain,
        chord: embed.remove("chord").filter(|chord| !chord.is_null()),
        group: string("group"),
        group_index: headers.get("group_index").and_then(Value::as_u64),
        queue: envelope.queue.clone(),
    })
}

/// `timelimit` is hard, then soft; seconds.
fn limits(headers: &BTreeMap<String, Value>) -> Result<(Option<Duration>, Option<Duration>), DecodeError> {
    let Some(Value::Array(limits)) = headers.get("timelimit") else { return Ok((None, None)) };
    let limit = |at: usize| match limits.get(at).filter(|limit| !limit.is_null()) {
        None => Ok(None),
        Some(limit) => match limit.as_f64().map(Duration::try_from_secs_f64) {
            Some(Ok(limit)) if !limit.is_zero() => Ok(Some(limit)),
            _ => fail(format!("timelimit is [hard, soft] in seconds, not {limit}")),
        },
    };
    Ok((limit(0)?, limit(1)?))
}

/// When Celery wants it to run, and until when; its producers write both into headers, in ISO 8601.
pub fn times(headers: &BTreeMap<String, Value>) -> (Option<Timestamp>, Option<Timestamp>) {
    let at = |name: &str| headers.get(name).and_then(Value::as_str).and_then(parse_time);
    (at("eta"), at("expires"))
}

/// With an offset, or without one in UTC.
fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| {
        let plain: jiff::civil::DateTime = text.parse().ok()?;
        plain.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    })
}

/// What else is said of a task that is sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extras {
    /// Not before.
    pub eta: Option<Timestamp>,
    /// Not after.
    pub expires: Option<Timestamp>,
    /// 0 to 9.
    pub priority: u8,
    /// Where the result goes.
    pub reply_to: Option<String>,
    /// Whether the result is not wanted; `None` leaves that to the task's worker.
    pub ignore_result: Option<bool>,
    /// The name that monitors show in the place of the task's own.
    pub shadow: Option<String>,
    /// The first task of all this; itself, unless set.
    pub root_id: Option<String>,
    /// The task it follows from.
    pub parent_id: Option<String>,
    /// The group it is part of.
    pub group: Option<String>,
    /// Its place in that group.
    pub group_index: Option<u64>,
    /// Called with the result.
    pub callbacks: Vec<Value>,
    /// Called when it has failed.
    pub errbacks: Vec<Value>,
    /// What comes after it, the next one last.
    pub chain: Vec<Value>,
    /// The body of a chord it is part of.
    pub chord: Option<Value>,
}

/// A message a Celery worker understands.
pub fn encode(task: &Task, queue: &str, extras: &Extras) -> Envelope {
    let id = task.id.as_str();
    let none_if_empty = |list: &[Value]| if list.is_empty() { Value::Null } else { Value::Array(list.to_vec()) };
    let embed = json!({
        "callbacks": none_if_empty(&extras.callbacks),
        "errbacks": none_if_empty(&extras.errbacks),
        "chain": none_if_empty(&extras.chain),
        "chord": extras.chord,
    });
    let seconds = |limit: Option<Duration>| limit.map(|limit| limit.as_secs_f64());
    let mut headers = BTreeMap::new();
    let mut put = |name: &str, value: Value| {
        headers.insert(name.to_owned(), value);
    };
    put("lang", json!("py"));
    put("task", json!(task.name));
    put("id", json!(id));
    put("shadow", json!(extras.shadow));
    put("eta", json!(extras.eta.map(|at| at.to_string())));
    put("expires", json!(extras.expires.map(|at| at.to_string())));
    put("group", json!(extras.group));
    put("group_index", json!(extras.group_index));
    put("retries", json!(task.retries));
    put("timelimit", json!([seconds(task.hard_limit), seconds(task.soft_limit)]));
    put("root_id", json!(extras.root_id.as_deref().unwrap_or(id)));
    put("parent_id", json!(extras.parent_id));
    put("argsrepr", json!(repr::arguments(&task.args)));
    put("kwargsrepr", json!(repr::keywords(&task.kwargs)));
    put("origin", json!("tidegate"));
    put("ignore_result", json!(extras.ignore_result));
    put("replaced_task_nesting", json!(0));
    put("stamped_headers", Value::Null);
    put("stamps", json!({}));
    put("amqp.content_type", json!("application/json"));
    put("amqp.content_encoding", json!("utf-8"));
    put("amqp.correlation_id", json!(id));
    if let Some(reply_to) = &extras.reply_to {
        put("amqp.reply_to", json!(reply_to));
    }
    let body = exact::to_string(&json!([task.args, task.kwargs, embed])).into_bytes();
    Envelope {
        id: task.id.clone(),
        queue: queue.to_owned(),
        priority: extras.priority.min(9),
        eta: extras.eta,
        expires: extras.expires,
        unique: None,
        headers,
        body,
    }
}

#[cfg(test)]
mod tests;
