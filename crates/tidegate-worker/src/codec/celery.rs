//! Celery's message protocol 2 with the JSON serializer: what its producers send, what its workers answer, and what follows a
//! task (callbacks, chains). Pure functions: nothing here knows of a connection.
//!
//! What stands beside the body is in the envelope's headers: Celery's own by their names, the AMQP properties as `amqp.…`.
//! Values that JSON has no form for stay as Celery wraps them, `{"__type__": "datetime", "__value__": "…"}`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::native::DecodeError;
use crate::broker::TaskError;
use crate::task::{Envelope, Task, TaskId};

/// A task as Celery sent it, with everything that is to happen after it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// For the handler.
    pub task: Task,
    /// Where the result goes, and by which id it is known there; `None` if nobody waits for it.
    pub reply: Option<Reply>,
    /// Nobody wants the result, whatever `reply` says.
    pub ignore_result: bool,
    /// The first task of all this.
    pub root_id: Option<String>,
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
    queue: String,
    priority: u8,
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

/// The task in this envelope, for its handler; see [`read`] for the rest.
///
/// # Errors
/// When the body is not protocol 2 in JSON; the message says what does not fit.
pub fn decode(envelope: &Envelope, retries: u32) -> Result<Task, DecodeError> {
    read(envelope, retries).map(|message| message.task)
}

/// Everything in this envelope. `retries` is what the broker counted; Celery's own count is added to it.
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
    let body: Value = match serde_json::from_slice(&envelope.body) {
        Ok(body) => body,
        Err(error) => return fail(format!("the body is not JSON: {error}")),
    };
    let Value::Array(parts) = body else { return fail("the body is not [args, kwargs, embed]") };
    let Ok([args, kwargs, embed]) = <[Value; 3]>::try_from(parts) else {
        return fail("the body is not [args, kwargs, embed]");
    };
    let (Value::Array(args), Value::Object(kwargs)) = (args, kwargs) else {
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
        task: Task { id, name, args, kwargs, retries: retries.saturating_add(own), soft_limit, hard_limit },
        reply: reply.map(|queue| Reply { queue, correlation_id }),
        ignore_result: headers.get("ignore_result").and_then(Value::as_bool).unwrap_or(false),
        root_id: string("root_id"),
        callbacks,
        errbacks,
        chain,
        chord: embed.remove("chord").filter(|chord| !chord.is_null()),
        group: string("group"),
        queue: envelope.queue.clone(),
        priority: envelope.priority,
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
    /// The first task of all this; itself, unless set.
    pub root_id: Option<String>,
    /// The task it follows from.
    pub parent_id: Option<String>,
    /// The group it is part of.
    pub group: Option<String>,
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
    put("shadow", Value::Null);
    put("eta", json!(extras.eta.map(|at| at.to_string())));
    put("expires", json!(extras.expires.map(|at| at.to_string())));
    put("group", json!(extras.group));
    put("group_index", Value::Null);
    put("retries", json!(task.retries));
    put("timelimit", json!([seconds(task.hard_limit), seconds(task.soft_limit)]));
    put("root_id", json!(extras.root_id.as_deref().unwrap_or(id)));
    put("parent_id", json!(extras.parent_id));
    put("argsrepr", json!(shortened(&Value::Array(task.args.clone()).to_string())));
    put("kwargsrepr", json!(shortened(&Value::Object(task.kwargs.clone()).to_string())));
    put("origin", json!("tidegate"));
    put("ignore_result", json!(extras.reply_to.is_none()));
    put("replaced_task_nesting", json!(0));
    put("stamped_headers", Value::Null);
    put("stamps", json!({}));
    put("amqp.content_type", json!("application/json"));
    put("amqp.content_encoding", json!("utf-8"));
    put("amqp.correlation_id", json!(id));
    if let Some(reply_to) = &extras.reply_to {
        put("amqp.reply_to", json!(reply_to));
    }
    let body = json!([task.args, task.kwargs, embed]).to_string().into_bytes();
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

/// Only shown by tools, and Celery cuts it too.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(1024)]
}

/// How a run is reported to who waits for it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Status<'a> {
    /// It runs.
    Started,
    /// It returned this.
    Success(&'a Value),
    /// It failed for good.
    Failure(&'a TaskError),
    /// It failed, and is tried again.
    Retry(&'a TaskError),
    /// It was revoked.
    Revoked,
}

impl Message {
    /// The message for who waits on `rpc://`: where it goes, and its body. `None` if nobody does.
    pub fn answer(&self, status: Status<'_>, now: Timestamp) -> Option<(Reply, Vec<u8>)> {
        let reply = self.reply.clone().filter(|_| !self.ignore_result)?;
        let (name, result, traceback) = match status {
            Status::Started => ("STARTED", Value::Null, None),
            Status::Success(value) => ("SUCCESS", value.clone(), None),
            Status::Failure(error) => ("FAILURE", exception(error), error.traceback.as_deref()),
            Status::Retry(error) => ("RETRY", exception(error), error.traceback.as_deref()),
            Status::Revoked => {
                let revoked = json!({
                    "exc_type": "TaskRevokedError",
                    "exc_message": ["revoked"],
                    "exc_module": "celery.exceptions",
                });
                ("REVOKED", revoked, None)
            }
        };
        let done = !matches!(status, Status::Started | Status::Retry(_));
        let body = json!({
            "task_id": self.task.id.as_str(),
            "status": name,
            "result": result,
            "traceback": traceback,
            "children": [],
            "date_done": done.then(|| now.to_string()),
        });
        Some((reply, body.to_string().into_bytes()))
    }

    /// What follows a task that returned `value`: its callbacks, then the next of its chain.
    ///
    /// # Errors
    /// When a signature cannot be read.
    pub fn after_success(&self, value: &Value) -> Result<Vec<Envelope>, DecodeError> {
        let mut following = Vec::new();
        for callback in &self.callbacks {
            following.push(self.follow(callback, std::slice::from_ref(value), &[])?);
        }
        if let Some((next, rest)) = self.chain.split_last() {
            following.push(self.follow(next, std::slice::from_ref(value), rest)?);
        }
        Ok(following)
    }

    /// What follows a task that has failed for good.
    ///
    /// # Errors
    /// When a signature cannot be read.
    pub fn after_failure(&self) -> Result<Vec<Envelope>, DecodeError> {
        let id = json!(self.task.id.as_str());
        self.errbacks.iter().map(|errback| self.follow(errback, std::slice::from_ref(&id), &[])).collect()
    }

    /// A signature as a message; `first` goes before its own arguments, unless it is immutable.
    fn follow(&self, signature: &Value, first: &[Value], chain: &[Value]) -> Result<Envelope, DecodeError> {
        let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let Some(name) = text(signature, "task") else { return fail("a signature names no task") };
        let list = |of: &Value, name: &str| match of.get(name) {
            Some(Value::Array(list)) => list.clone(),
            Some(one @ Value::Object(_)) => vec![one.clone()],
            _ => Vec::new(),
        };
        let immutable = signature.get("immutable").and_then(Value::as_bool).unwrap_or(false);
        let mut args = if immutable { Vec::new() } else { first.to_vec() };
        args.extend(list(signature, "args"));
        let kwargs = match signature.get("kwargs") {
            Some(Value::Object(kwargs)) => kwargs.clone(),
            _ => Map::new(),
        };
        let nothing = json!({});
        let options = signature.get("options").unwrap_or(&nothing);
        let queue = text(options, "queue").or_else(|| text(options, "routing_key"));
        let mut task = Task::new(&name);
        if let Some(id) = text(options, "task_id") {
            task.id = TaskId::from(id.as_str());
        }
        (task.args, task.kwargs) = (args, kwargs);
        let limit = |name: &str| options.get(name).and_then(Value::as_f64).map(Duration::try_from_secs_f64);
        task.soft_limit = limit("soft_time_limit").and_then(Result::ok).filter(|limit| !limit.is_zero());
        task.hard_limit = limit("time_limit").and_then(Result::ok).filter(|limit| !limit.is_zero());
        let priority = options.get("priority").and_then(Value::as_u64).and_then(|priority| u8::try_from(priority).ok());
        let extras = Extras {
            priority: priority.unwrap_or(self.priority),
            reply_to: text(options, "reply_to").or_else(|| self.reply.as_ref().map(|reply| reply.queue.clone())),
            root_id: text(options, "root_id").or_else(|| self.root_id.clone()),
            parent_id: Some(self.task.id.to_string()),
            group: text(options, "group_id"),
            callbacks: list(options, "link"),
            errbacks: list(options, "link_error"),
            chain: if chain.is_empty() { list(options, "chain") } else { chain.to_vec() },
            chord: options.get("chord").filter(|chord| !chord.is_null()).cloned(),
            ..Extras::default()
        };
        Ok(encode(&task, queue.as_deref().unwrap_or(&self.queue), &extras))
    }
}

/// As Celery's JSON backend writes an exception.
fn exception(error: &TaskError) -> Value {
    let (module, kind) = error.kind.rsplit_once('.').unwrap_or(("builtins", error.kind.as_str()));
    json!({ "exc_type": kind, "exc_message": [error.message], "exc_module": module })
}

#[cfg(test)]
#[path = "celery_tests.rs"]
mod tests;
