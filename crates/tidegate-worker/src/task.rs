//! A task as the worker knows it, and as a broker carries it. Codecs turn one into the other; nobody else looks into a body.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::retry::Backoff;

/// The name of one task, unique for as long as anybody asks for it. Time-ordered where we make it ourselves.
///
/// ```
/// use tidegate_worker::TaskId;
///
/// assert_ne!(TaskId::new(), TaskId::new());
/// assert_eq!(TaskId::from("invoice-7").as_str(), "invoice-7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(from = "Box<str>")]
pub struct TaskId(Arc<str>);

impl TaskId {
    /// A new one; later ids sort behind earlier ones.
    #[expect(clippy::new_without_default, reason = "two defaults that differ would surprise")]
    pub fn new() -> TaskId {
        TaskId(uuid::Uuid::now_v7().to_string().into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl From<Box<str>> for TaskId {
    fn from(text: Box<str>) -> TaskId {
        TaskId(text.into())
    }
}

impl From<&str> for TaskId {
    fn from(text: &str) -> TaskId {
        TaskId(text.into())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a broker stores and hands out: where it goes, when, and a body it does not read.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Which task this is.
    pub id: TaskId,
    /// Where it waits.
    pub queue: String,
    /// 0 to 9, higher first; equal ones in the order they were published.
    pub priority: u8,
    /// Not before this instant.
    pub eta: Option<Timestamp>,
    /// Not after this instant: what is still waiting then is dropped, and counted as expired.
    pub expires: Option<Timestamp>,
    /// At most one task with this key at a time.
    pub unique: Option<Unique>,
    /// Properties beside the body, as Celery's protocol needs them.
    pub headers: BTreeMap<String, Value>,
    /// The task itself, in its codec's form.
    pub body: Vec<u8>,
}

impl Envelope {
    /// One for `queue` with this body, a new id and nothing special asked for.
    ///
    /// ```
    /// let envelope = tidegate_worker::Envelope::new("mail", b"{}".to_vec());
    /// assert_eq!((envelope.queue.as_str(), envelope.priority), ("mail", 0));
    /// ```
    pub fn new(queue: &str, body: Vec<u8>) -> Envelope {
        Envelope::with(TaskId::new(), queue, body)
    }

    fn with(id: TaskId, queue: &str, body: Vec<u8>) -> Envelope {
        Envelope {
            id,
            queue: queue.to_owned(),
            priority: 0,
            eta: None,
            expires: None,
            unique: None,
            headers: BTreeMap::new(),
            body,
        }
    }

    /// One that carries `task` under the task's own id.
    pub fn of(task: &Task, queue: &str, body: Vec<u8>) -> Envelope {
        Envelope::with(task.id.clone(), queue, body)
    }
}

/// One task a key: a second publish with the same key is answered with the first one's id, until the first has left the queue
/// (done, dead, dropped) or `hold` is over, whichever comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// What must not repeat.
    pub key: String,
    /// For how long at most.
    pub hold: Duration,
    /// The key stays taken for all of `hold`, even when the task has long been settled: for schedules, whose every tick is
    /// published by several workers and must run once.
    #[serde(default)]
    pub past_settle: bool,
}

/// A task as handlers see it: a name, arguments, and what was asked for beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Which one.
    pub id: TaskId,
    /// The handler's name.
    pub name: String,
    /// By position.
    pub args: Vec<Value>,
    /// By name.
    pub kwargs: Map<String, Value>,
    /// How often it was tried and failed before.
    pub retries: u32,
    /// After this long the handler is told to come to an end.
    pub soft_limit: Option<Duration>,
    /// After this long it is ended.
    pub hard_limit: Option<Duration>,
    /// How often it is tried again if it fails, where it says so itself.
    pub retries_max: Option<u32>,
    /// And when.
    pub backoff: Option<Backoff>,
}

impl Task {
    /// One of this name with a new id and no arguments.
    pub fn new(name: &str) -> Task {
        Task {
            id: TaskId::new(),
            name: name.to_owned(),
            args: Vec::new(),
            kwargs: Map::new(),
            retries: 0,
            soft_limit: None,
            hard_limit: None,
            retries_max: None,
            backoff: None,
        }
    }

    /// With one more argument by position.
    pub fn arg(mut self, value: impl Into<Value>) -> Task {
        self.args.push(value.into());
        self
    }

    /// With an argument by name.
    pub fn kwarg(mut self, name: &str, value: impl Into<Value>) -> Task {
        self.kwargs.insert(name.to_owned(), value.into());
        self
    }
}
