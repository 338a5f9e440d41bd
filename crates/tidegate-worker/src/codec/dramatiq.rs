//! dramatiq's messages: a JSON object with everything in it. Pure functions.
//!
//! Delayed messages lie in `QUEUE.DQ` with `options.eta` in milliseconds and are for `QUEUE`; dead letters lie in
//! `QUEUE.XQ`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::native::DecodeError;
use crate::broker::TaskError;
use crate::json as exact;
use crate::moment;
use crate::retry::Backoff;
use crate::task::{Envelope, Task, TaskId};

/// A message as dramatiq has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Where it lies: `QUEUE` or `QUEUE.DQ`.
    pub queue_name: String,
    /// The handler's name.
    pub actor_name: String,
    /// By position.
    pub args: Vec<Value>,
    /// By name.
    pub kwargs: Map<String, Value>,
    /// `eta`, `retries`, `traceback`, `pipe_target`, …
    pub options: Map<String, Value>,
    /// Which one.
    pub message_id: String,
    /// When it was published, in milliseconds.
    pub message_timestamp: i64,
}

/// dramatiq's default delays between attempts.
const BACKOFF_MIN: Duration = Duration::from_secs(15);
const BACKOFF_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Ends the name of the queue that delayed messages lie in.
const DELAYED: &str = ".DQ";

/// The queue a message is for, wherever it lies.
pub fn canonical(queue: &str) -> &str {
    queue.strip_suffix(DELAYED).or_else(|| queue.strip_suffix(".XQ")).unwrap_or(queue)
}

/// The task in this envelope, for its handler; see [`read`] for the rest.
///
/// # Errors
/// When the body is none of dramatiq's; the message says what does not fit.
pub fn decode(envelope: &Envelope, retries: u32) -> Result<Task, DecodeError> {
    let message = read(envelope)?;
    let mut task = Task::new(&message.actor_name);
    task.id = TaskId::from(message.message_id.as_str());
    task.retries = retries.max(message.retries());
    let limit = message.options.get("time_limit").and_then(Value::as_u64).filter(|ms| *ms > 0);
    task.hard_limit = limit.map(Duration::from_millis);
    (task.retries_max, task.backoff) = (message.retries_max(), message.backoff());
    (task.args, task.kwargs) = (message.args, message.kwargs);
    Ok(task)
}

/// Everything in this envelope.
///
/// ```
/// use tidegate_worker::codec::dramatiq;
/// use tidegate_worker::Task;
///
/// let task = Task::new("add").arg(1).arg(2);
/// let envelope = dramatiq::encode(&task, "default", None, jiff::Timestamp::now());
/// assert_eq!(dramatiq::decode(&envelope, 0).unwrap(), task);
/// ```
///
/// # Errors
/// As [`decode`].
pub fn read(envelope: &Envelope) -> Result<Message, DecodeError> {
    let message: Message = exact::from_slice(&envelope.body)
        .map_err(|error| DecodeError { message: format!("the body is none of dramatiq's: {error}") })?;
    if exact::is_integer(&message.kwargs) {
        return Err(DecodeError { message: "the body is none of dramatiq's: its kwargs are a number".into() });
    }
    if message.actor_name.is_empty() || message.message_id.is_empty() {
        return Err(DecodeError { message: "the body is none of dramatiq's: it names no actor, or no id".into() });
    }
    Ok(message)
}

/// A message a dramatiq worker understands. A delayed one is for its delay queue, where dramatiq's workers wait with it.
pub fn encode(task: &Task, queue: &str, eta: Option<Timestamp>, now: Timestamp) -> Envelope {
    let mut options = Map::new();
    if let Some(limit) = task.hard_limit {
        options.insert("time_limit".into(), json!(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)));
    }
    if task.retries > 0 {
        options.insert("retries".into(), json!(task.retries));
    }
    let queue_name = match eta {
        Some(eta) => {
            options.insert("eta".into(), json!(eta.as_millisecond()));
            format!("{queue}{DELAYED}")
        }
        None => queue.to_owned(),
    };
    Message {
        queue_name,
        actor_name: task.name.clone(),
        args: task.args.clone(),
        kwargs: task.kwargs.clone(),
        options,
        message_id: task.id.to_string(),
        message_timestamp: now.as_millisecond(),
    }
    .envelope()
}

impl Message {
    /// How often it was tried and failed.
    pub fn retries(&self) -> u32 {
        self.options.get("retries").and_then(Value::as_u64).and_then(|retries| u32::try_from(retries).ok()).unwrap_or(0)
    }

    /// How often it may be tried again, if it says so itself; there need not be an end.
    pub fn retries_max(&self) -> Option<u32> {
        let most = self.options.get("max_retries")?;
        if most.is_null() {
            return Some(u32::MAX);
        }
        most.as_u64().map(|most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// How long to wait in between, if it says so itself.
    pub fn backoff(&self) -> Option<Backoff> {
        let ms = |name: &str| self.options.get(name).and_then(Value::as_u64).map(Duration::from_millis);
        let (min, max) = (ms("min_backoff"), ms("max_backoff"));
        (min.is_some() || max.is_some()).then(|| {
            let max = max.unwrap_or(BACKOFF_MAX).min(BACKOFF_MAX);
            Backoff { min: min.unwrap_or(BACKOFF_MIN).min(max), max }
        })
    }

    /// Not before.
    pub fn eta(&self) -> Option<Timestamp> {
        self.options.get("eta").and_then(Value::as_i64).and_then(|ms| Timestamp::from_millisecond(ms).ok())
    }

    /// For the queue it is for: where it waits until its time is the broker's business.
    pub fn envelope(&self) -> Envelope {
        let body = exact::to_vec(self).expect("JSON values are JSON");
        let mut envelope = Envelope::new(canonical(&self.queue_name), body);
        envelope.id = TaskId::from(self.message_id.as_str());
        envelope.eta = self.eta();
        envelope
    }

    /// The same message, which is not run after this instant: dramatiq counts its age from when it was published.
    #[must_use]
    pub fn expiring(mut self, at: Timestamp) -> Message {
        let age = at.as_millisecond().saturating_sub(self.message_timestamp).max(0);
        self.options.insert("max_age".into(), json!(age));
        self
    }

    /// The same message for its next try, the one after `retries` earlier ones, as dramatiq's workers put it: counted, with why,
    /// and to be delayed.
    pub fn retried(&self, retries: u32, error: Option<&TaskError>, at: Timestamp) -> Message {
        let mut next = self.clone();
        if let Some(error) = error {
            let told = error.traceback.clone().unwrap_or_else(|| format!("{}: {}", error.kind, error.message));
            next.options.insert("traceback".into(), json!(told));
        }
        next.options.insert("retries".into(), json!(retries));
        next.options.insert("requeue_timestamp".into(), next.message_timestamp.into());
        next.options.insert("eta".into(), json!(at.as_millisecond()));
        next.queue_name = format!("{}{DELAYED}", canonical(&self.queue_name));
        next
    }

    /// The next of a pipeline, which gets this one's result behind its own arguments; `None` if there is none.
    ///
    /// # Errors
    /// When the next message cannot be read.
    pub fn after_success(&self, value: &Value, now: Timestamp) -> Result<Option<Envelope>, DecodeError> {
        let Some(target) = self.options.get("pipe_target").filter(|target| !target.is_null()) else { return Ok(None) };
        let mut next: Message = serde_json::from_value(target.clone())
            .map_err(|error| DecodeError { message: format!("the next of the pipeline cannot be read: {error}") })?;
        if !next.options.get("pipe_ignore").and_then(Value::as_bool).unwrap_or(false) {
            next.args.push(value.clone());
        }
        let delay = next.options.get("delay").and_then(Value::as_u64).map(Duration::from_millis);
        if let Some(delay) = delay {
            next.options.insert("eta".into(), json!(moment::after(now, delay).as_millisecond()));
            next.queue_name = format!("{}{DELAYED}", canonical(&next.queue_name));
        }
        Ok(Some(next.envelope()))
    }
}

/// What a broker must know of a message; the rest of it is skipped.
#[cfg(any(feature = "amqp", test))]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Glance {
    pub(crate) id: TaskId,
    pub(crate) eta: Option<Timestamp>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) retries: u32,
}

/// A quick look at a body; `None` if it is none of dramatiq's.
#[cfg(any(feature = "amqp", test))]
pub(crate) fn glance(body: &[u8]) -> Option<Glance> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        message_id: std::borrow::Cow<'a, str>,
        #[serde(rename = "actor_name")]
        _actor_name: serde::de::IgnoredAny,
        message_timestamp: i64,
        #[serde(default)]
        options: Options,
    }
    #[derive(Default, Deserialize)]
    struct Options {
        eta: Option<f64>,
        max_age: Option<f64>,
        retries: Option<u32>,
    }
    let head: Head<'_> = serde_json::from_slice(body).ok()?;
    let at = |ms: f64| Timestamp::from_millisecond(ms as i64).ok();
    Some(Glance {
        id: TaskId::from(&*head.message_id),
        eta: head.options.eta.and_then(at),
        expires: head.options.max_age.and_then(|age| at(head.message_timestamp as f64 + age)),
        retries: head.options.retries.unwrap_or(0),
    })
    .filter(|glance| !glance.id.as_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = r#"{"queue_name":"dq","actor_name":"add","args":[1,2],"kwargs":{"x":1},"options":{},"message_id":"63a4ff8f-bb25-48a3-a3de-99c00aceccf3","message_timestamp":1794770714570}"#;
    const DELAYED_10_S: &str = r#"{"queue_name":"dq.DQ","actor_name":"add","args":[1,2],"kwargs":{"x":1},"options":{"eta":1794770724582},"message_id":"4e5b784f-2fc6-4bd4-8392-dc01f4f19c7a","message_timestamp":1794770714582}"#;

    fn captured(body: &str) -> Envelope {
        Envelope::new("dq", body.into())
    }

    #[test]
    fn captured_messages_are_read_and_written_byte_for_byte() {
        let task = decode(&captured(SENT), 0).unwrap();
        assert_eq!((task.id.as_str(), task.name.as_str()), ("63a4ff8f-bb25-48a3-a3de-99c00aceccf3", "add"));
        assert_eq!((&task.args, task.kwargs.get("x")), (&vec![json!(1), json!(2)], Some(&json!(1))));
        let message = read(&captured(DELAYED_10_S)).unwrap();
        assert_eq!(message.eta().unwrap().as_millisecond(), message.message_timestamp + 10_000);
        assert_eq!(canonical(&message.queue_name), "dq");
        for body in [SENT, DELAYED_10_S] {
            assert_eq!(String::from_utf8(read(&captured(body)).unwrap().envelope().body).unwrap(), body);
        }
    }

    #[test]
    fn an_age_is_a_time_until_which_it_may_run() {
        let now = Timestamp::from_millisecond(1_794_770_714_582).unwrap();
        let until = moment::after(now, Duration::from_secs(30));
        let message = read(&encode(&Task::new("a"), "dq", None, now)).unwrap().expiring(until);
        assert_eq!(message.options["max_age"], json!(30_000));
        assert_eq!(glance(&message.envelope().body).unwrap().expires, Some(until));
    }

    #[test]
    fn ours_are_as_theirs() {
        let now = Timestamp::from_millisecond(1_794_770_714_582).unwrap();
        let mut task = decode(&captured(DELAYED_10_S), 0).unwrap();
        let eta = Some(Timestamp::from_millisecond(1_794_770_724_582).unwrap());
        assert_eq!(encode(&task, "dq", eta, now).body, DELAYED_10_S.as_bytes());
        task.hard_limit = Some(Duration::from_secs(2));
        task.retries = 3;
        assert_eq!(decode(&encode(&task, "dq", None, now), 0).unwrap(), task);
    }

    #[test]
    fn a_retry_is_counted_and_delayed() {
        let message = read(&captured(SENT)).unwrap();
        let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: None };
        let at = Timestamp::from_millisecond(1_794_770_800_000).unwrap();
        let first = message.retried(1, Some(&error), at);
        let second = first.retried(2, Some(&error), at);
        assert_eq!((second.retries(), second.queue_name.as_str(), second.eta()), (2, "dq.DQ", Some(at)));
        assert_eq!(second.options["traceback"], json!("ValueError: bad"));
        assert_eq!(second.message_id, message.message_id);
    }

    #[test]
    fn a_pipeline_hands_its_result_on() {
        let mut message = read(&captured(SENT)).unwrap();
        let now = Timestamp::from_millisecond(1_794_770_700_000).unwrap();
        assert_eq!(message.after_success(&json!(3), now).unwrap(), None);
        let target: Value = serde_json::from_str(DELAYED_10_S).unwrap();
        message.options.insert("pipe_target".into(), target.clone());
        let next = message.after_success(&json!(3), now).unwrap().unwrap();
        assert_eq!(read(&next).unwrap().args, [json!(1), json!(2), json!(3)]);
        assert_eq!((next.queue.as_str(), next.eta.unwrap().as_millisecond()), ("dq", 1_794_770_724_582));
        message.options["pipe_target"]["options"]["pipe_ignore"] = json!(true);
        message.options["pipe_target"]["options"]["delay"] = json!(5000);
        let next = message.after_success(&json!(3), now).unwrap().unwrap();
        assert_eq!(read(&next).unwrap().args, [json!(1), json!(2)]);
        assert_eq!(next.eta, Some(now + Duration::from_secs(5)));
    }

    #[test]
    fn a_message_says_itself_how_often_it_is_tried() {
        let task = |options: Value| {
            let mut message = read(&captured(SENT)).unwrap();
            message.options = options.as_object().unwrap().clone();
            decode(&message.envelope(), 0).unwrap()
        };
        assert_eq!((task(json!({})).retries_max, task(json!({})).backoff), (None, None));
        assert_eq!(task(json!({"max_retries": 0})).retries_max, Some(0));
        assert_eq!(task(json!({"max_retries": null})).retries_max, Some(u32::MAX));
        let backoff = task(json!({"min_backoff": 50, "max_backoff": 200})).backoff.unwrap();
        assert_eq!((backoff.min, backoff.max), (Duration::from_millis(50), Duration::from_millis(200)));
        assert_eq!(task(json!({"max_backoff": 200})).backoff.unwrap().min, Duration::from_millis(200));
    }

    #[test]
    fn a_glance_sees_what_a_broker_must_know() {
        let seen = glance(DELAYED_10_S.as_bytes()).unwrap();
        assert_eq!(seen.id.as_str(), "4e5b784f-2fc6-4bd4-8392-dc01f4f19c7a");
        assert_eq!((seen.eta.unwrap().as_millisecond(), seen.expires, seen.retries), (1_794_770_724_582, None, 0));
        let mut message = read(&captured(SENT)).unwrap();
        message.options = Map::from_iter([("max_age".to_owned(), json!(1000)), ("retries".to_owned(), json!(4))]);
        let seen = glance(&message.envelope().body).unwrap();
        assert_eq!((seen.expires.unwrap().as_millisecond(), seen.retries), (1_794_770_715_570, 4));
        assert_eq!(glance(b"[]"), None);
        assert_eq!(glance(br#"{"message_id": ""}"#), None);
    }

    #[test]
    fn integers_of_any_size_stay_through_retries_and_pipelines() {
        let long = SENT.replace("[1,2]", "[1000000000000000000000000000001]");
        let mut message = read(&captured(&long)).unwrap();
        assert_eq!(String::from_utf8(message.envelope().body).unwrap(), long);
        let now = Timestamp::from_millisecond(1_794_770_700_000).unwrap();
        let retried = String::from_utf8(message.retried(1, None, now).envelope().body).unwrap();
        assert!(retried.contains("[1000000000000000000000000000001]"), "{retried}");
        let result: Value = exact::from_slice(b"-99999999999999999999").unwrap();
        message.options.insert("pipe_target".into(), serde_json::from_str(SENT).unwrap());
        let next = String::from_utf8(message.after_success(&result, now).unwrap().unwrap().body).unwrap();
        assert!(next.contains("[1,2,-99999999999999999999]"), "{next}");
        let number = SENT.replace(r#"{"x":1}"#, "1000000000000000000000000000001");
        assert!(decode(&captured(&number), 0).unwrap_err().message.contains("number"));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for body in ["nonsense", "{}", "[]", r#"{"queue_name":"q"}"#] {
            assert!(decode(&captured(body), 0).unwrap_err().message.contains("none of dramatiq's"), "{body}");
        }
    }
}
