//! The native form: a JSON object.
//!
//! ```json
//! {"task": "mail.send", "args": [7], "kwargs": {"to": "a@example.org"}, "soft_limit": 10, "hard_limit": 12.5}
//! ```
//!
//! Only `task` must be there; limits are seconds. The id, the queue, the times and the counts are the envelope's, so they are
//! not repeated here. Members that are not known are ignored: a newer producer may say more than an older worker reads.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json;
use crate::task::{Envelope, Task};

#[derive(Serialize)]
struct Written<'a> {
    task: &'a str,
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    args: &'a [Value],
    #[serde(skip_serializing_if = "Map::is_empty")]
    kwargs: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    soft_limit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hard_limit: Option<f64>,
}

#[derive(Deserialize)]
struct Read {
    task: String,
    #[serde(default)]
    args: Option<Vec<Value>>,
    #[serde(default)]
    kwargs: Option<Map<String, Value>>,
    #[serde(default)]
    soft_limit: Option<f64>,
    #[serde(default)]
    hard_limit: Option<f64>,
}

/// The body for this task.
///
/// ```
/// use tidegate_worker::codec::native;
/// use tidegate_worker::{Envelope, Task};
///
/// let task = Task::new("mail.send").arg(7).kwarg("to", "a@example.org");
/// let envelope = Envelope::of(&task, "default", native::encode(&task));
/// assert_eq!(native::decode(&envelope, 0).unwrap(), task);
/// ```
pub fn encode(task: &Task) -> Vec<u8> {
    let written = Written {
        task: &task.name,
        args: &task.args,
        kwargs: &task.kwargs,
        soft_limit: task.soft_limit.map(|limit| limit.as_secs_f64()),
        hard_limit: task.hard_limit.map(|limit| limit.as_secs_f64()),
    };
    json::to_vec(&written).expect("JSON values are JSON")
}

/// The task in this envelope; `retries` is what the delivery says.
pub fn decode(envelope: &Envelope, retries: u32) -> Result<Task, DecodeError> {
    let read: Read = json::from_slice(&envelope.body)
        .map_err(|error| DecodeError { message: format!("the body is no task: {error}") })?;
    if read.task.is_empty() {
        return Err(DecodeError { message: "the body is no task: its \"task\" is empty".into() });
    }
    if read.kwargs.as_ref().is_some_and(json::is_integer) {
        return Err(DecodeError { message: "the body is no task: its \"kwargs\" are a number".into() });
    }
    Ok(Task {
        id: envelope.id.clone(),
        name: read.task,
        args: read.args.unwrap_or_default(),
        kwargs: read.kwargs.unwrap_or_default(),
        retries,
        soft_limit: limit("soft_limit", read.soft_limit)?,
        hard_limit: limit("hard_limit", read.hard_limit)?,
        retries_max: None,
        backoff: None,
    })
}

fn limit(name: &str, seconds: Option<f64>) -> Result<Option<Duration>, DecodeError> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
        _ => Err(DecodeError {
            message: format!("the body is no task: \"{name}\" must be seconds above zero, not {seconds}"),
        }),
    }
}

/// A body that is no task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// What does not fit.
    pub message: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(body: &str) -> String {
        decode(&Envelope::new("q", body.as_bytes().to_vec()), 0).unwrap_err().message
    }

    #[test]
    fn what_is_no_task_says_why() {
        assert!(reason("nonsense").starts_with("the body is no task: expected"), "{}", reason("nonsense"));
        assert!(reason("[1]").contains("no task"));
        assert!(reason(r#"{"args":[]}"#).contains("missing field `task`"));
        assert!(reason(r#"{"task":""}"#).contains("empty"));
        assert!(reason(r#"{"task":"a","args":{}}"#).contains("expected a sequence"));
        for limit in ["-1", "0", "1e300"] {
            assert!(reason(&format!(r#"{{"task":"a","soft_limit":{limit}}}"#)).contains("soft_limit"));
        }
    }

    #[test]
    fn integers_of_any_size_come_back_as_they_were() {
        let body = r#"{"task":"a","args":[1000000000000000000000000000001,[-18446744073709551616]],"kwargs":{"n":36893488147419103233}}"#;
        let task = decode(&Envelope::new("q", body.into()), 0).unwrap();
        assert_eq!(String::from_utf8(encode(&task)).unwrap(), body);
        assert!(reason(r#"{"task":"a","kwargs":1000000000000000000000000000001}"#).contains("number"));
    }

    #[test]
    fn null_and_unknown_members_are_no_trouble() {
        let body = r#"{"task":"a","args":null,"kwargs":null,"hard_limit":null,"later":1}"#;
        let task = decode(&Envelope::new("q", body.into()), 3).unwrap();
        assert_eq!((task.name.as_str(), task.args.len(), task.retries), ("a", 0, 3));
    }

    #[test]
    fn limits_and_arguments_come_back_as_they_were() {
        let mut task = Task::new("a").arg(1).arg(vec!["x"]).kwarg("deep", serde_json::json!({"k": [null, 1.5]}));
        task.soft_limit = Some(Duration::from_millis(1_500));
        task.hard_limit = Some(Duration::from_secs(7));
        assert_eq!(decode(&Envelope::of(&task, "q", encode(&task)), 0).unwrap(), task);
    }
}
