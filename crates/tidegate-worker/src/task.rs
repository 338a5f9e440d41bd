//! A task as handlers see it, and its envelope as brokers carry it. Only codecs read the body.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::retry::Backoff;

/// The id of one task. Ids made by [`TaskId::new`] are ordered by time.
///
/// ```
/// use tidegate_worker::TaskId;
///
/// assert_ne!(TaskId::new(), TaskId::new());
/// assert_eq!(TaskId::from("invoice-7").as_str(), "invoice-7");
/// ```
#[derive(Clone, Deserialize)]
#[serde(from = "Box<str>")]
pub struct TaskId(Text);

/// Ids are copied at every step of a task and are mostly short. Short ones are stored inline, without a reference count.
#[derive(Clone)]
enum Text {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Arc<str>),
}

/// A UUID has 36.
const SHORT_MAX: usize = 38;

impl TaskId {
    /// Returns a new id; later ids sort behind earlier ones.
    #[expect(clippy::new_without_default, reason = "two defaults that differ would surprise")]
    pub fn new() -> TaskId {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        TaskId::from(&*uuid::Uuid::now_v7().hyphenated().encode_lower(&mut text))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Short { .. } => std::str::from_utf8(self.as_bytes()).expect("it was made of text"),
            Text::Long(text) => text,
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(text) => text.as_bytes(),
        }
    }
}

impl PartialEq for TaskId {
    fn eq(&self, other: &TaskId) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for TaskId {}

impl Hash for TaskId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl PartialOrd for TaskId {
    fn partial_cmp(&self, other: &TaskId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TaskId {
    fn cmp(&self, other: &TaskId) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl From<Box<str>> for TaskId {
    fn from(text: Box<str>) -> TaskId {
        TaskId::from(&*text)
    }
}

impl From<&str> for TaskId {
    fn from(text: &str) -> TaskId {
        let mut bytes = [0; SHORT_MAX];
        TaskId(match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                Text::Short { length: text.len() as u8, bytes }
            }
            None => Text::Long(text.into()),
        })
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskId").field(&self.as_str()).finish()
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a broker stores and delivers: the queue, the times, and a body that it does not read.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The task's id.
    pub id: TaskId,
    /// The queue it waits in.
    pub queue: String,
    /// 0 to 9, higher first; equal ones in the order they were published.
    pub priority: u8,
    /// Not before this instant.
    pub eta: Option<Timestamp>,
    /// Not after this instant: a task that still waits then is dropped and counted as expired.
    pub expires: Option<Timestamp>,
    /// At most one task with this key at a time.
    pub unique: Option<Unique>,
    /// Properties beside the body, as Celery's protocol needs them.
    pub headers: BTreeMap<String, Value>,
    /// The task itself, in the format of its codec.
    pub body: Vec<u8>,
}

impl Envelope {
    /// Returns an envelope for `queue` with this body, a new id and default options.
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

    /// Returns an envelope that carries `task` under the task's own id.
    pub fn of(task: &Task, queue: &str, body: Vec<u8>) -> Envelope {
        Envelope::with(task.id.clone(), queue, body)
    }
}

/// One task per key: a second publish with the same key is answered with the first one's id, until the first has left the queue
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
    /// Soft time limit: after this long the handler is asked to end.
    pub soft_limit: Option<Duration>,
    /// Hard time limit: after this long the run is ended.
    pub hard_limit: Option<Duration>,
    /// Its own number of retries, if it states one.
    pub retries_max: Option<u32>,
    /// Its own back-off, if it states one.
    pub backoff: Option<Backoff>,
}

impl Task {
    /// Returns a task of this name with a new id and no arguments.
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

    /// Adds an argument by position.
    pub fn arg(mut self, value: impl Into<Value>) -> Task {
        self.args.push(value.into());
        self
    }

    /// Adds an argument by name.
    pub fn kwarg(mut self, name: &str, value: impl Into<Value>) -> Task {
        self.kwargs.insert(name.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_text_whatever_their_length() {
        for length in [0, 1, 36, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 300] {
            let text = "ä".repeat(length / 2) + &"a".repeat(length % 2);
            let id = TaskId::from(&*text);
            assert_eq!((id.as_str(), id.to_string()), (&*text, text.clone()));
            assert_eq!(id, TaskId::from(text.clone().into_boxed_str()));
            assert_eq!(serde_json::from_value::<TaskId>(serde_json::to_value(&id).unwrap()).unwrap(), id);
            let longer = TaskId::from(&*(text + "a"));
            assert!(id < longer && id != longer);
        }
        assert_eq!(TaskId::new().as_str().len(), 36);
    }
}
