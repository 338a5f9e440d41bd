//! The results of runs in the format of Celery's `rpc://` backend, and everything else that follows a run.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Begun, Chords, End, Message, Part, Reply, chord, signature};
use crate::broker::TaskError;
use crate::json as exact;
use crate::task::Envelope;

/// The status of a run, as it is reported to callers that wait.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Status<'a> {
    /// It runs.
    Started {
        /// As which process.
        pid: u32,
        /// On which worker.
        hostname: &'a str,
    },
    /// It returned this.
    Success(&'a Value),
    /// It failed for good.
    Failure(&'a TaskError),
    /// It failed, and is tried again.
    Retry(&'a TaskError),
    /// It was revoked, or expired; in one word.
    Revoked(&'a str),
}

/// What follows a run: everything of it must be sent before the task is settled.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Following {
    /// Chords that begin; to be known before their tasks are published.
    pub chords: Vec<Begun>,
    /// Tasks to publish.
    pub tasks: Vec<Envelope>,
    /// The answers for callers that wait.
    pub answers: Vec<Answer>,
    /// What chords get from this run: from the task, or in the place of those behind it that will never run.
    pub parts: Vec<Part>,
}

/// An answer about a task.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Of which task.
    pub id: String,
    /// Whether it succeeded. An answer about another run does not change that.
    pub success: bool,
    /// Where `rpc://` looks for it.
    pub reply: Option<Reply>,
    /// As Celery's result backends keep it.
    pub body: Vec<u8>,
}

impl Message {
    /// Returns the answer about a run with this status; `None` if no caller waits for it.
    pub fn answer(&self, status: Status<'_>, now: Timestamp) -> Option<Answer> {
        self.answer_with(status, now, Vec::new())
    }

    fn answer_with(&self, status: Status<'_>, now: Timestamp, children: Vec<Value>) -> Option<Answer> {
        if self.ignore_result {
            return None;
        }
        let mut body = meta(self.task.id.as_str(), status, now);
        body["children"] = Value::Array(children);
        for (name, value) in [("group_id", &self.group), ("parent_id", &self.parent_id)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        let id = self.task.id.to_string();
        let success = matches!(status, Status::Success(_));
        Some(Answer { id, success, reply: self.reply.clone(), body: exact::to_string(&body).into_bytes() })
    }

    /// Everything that follows a run that ended so: callbacks or errbacks, the next of the chain, the answer. If the rest of a
    /// chain will never run, its steps are answered too, because a caller of a chain waits for the last step.
    pub fn following(&self, status: Status<'_>, now: Timestamp, chords: Chords) -> Following {
        match status {
            Status::Success(value) => match self.after_success(value, now, chords) {
                Ok((mut following, children)) => {
                    following.answers.extend(self.answer_with(status, now, children));
                    following.parts = self.parts(&End::new("SUCCESS", value.clone()), chords);
                    following
                }
                Err(error) => {
                    let message = format!("it succeeded, but its callbacks cannot be sent: {}", error.message);
                    tracing::error!(task.id = %self.task.id, task.name = self.task.name, message);
                    let error = TaskError { kind: "NotImplementedError".to_owned(), message, traceback: None };
                    self.following(Status::Failure(&error), now, chords)
                }
            },
            Status::Failure(error) => {
                let mut following = self.never(status, &End::new("FAILURE", exception(error)), now, chords);
                following.tasks = self.after_failure(&self.errbacks, self.task.id.as_str(), now);
                following
            }
            Status::Revoked(reason) => {
                self.never(status, &End::new("REVOKED", exception(&revoked(reason))), now, chords)
            }
            Status::Started { .. } | Status::Retry(_) => {
                Following { answers: self.answer(status, now).into_iter().collect(), ..Following::default() }
            }
        }
    }

    /// Told of the task, and of all that would have come behind it.
    fn never(&self, status: Status<'_>, end: &End, now: Timestamp, chords: Chords) -> Following {
        let mut answers: Vec<Answer> = self.answer(status, now).into_iter().collect();
        if !self.ignore_result {
            answers.extend(self.chain.iter().flat_map(|step| self.told(step, status, now)));
        }
        let mut parts = self.parts(end, chords);
        if chords == Chords::Counted {
            self.chain.iter().for_each(|step| chord::owed(step, end, &mut parts));
        }
        Following { answers, parts, ..Following::default() }
    }

    /// Returns the answers for callers that wait for a signature which will not run.
    pub(super) fn told(&self, step: &Value, status: Status<'_>, now: Timestamp) -> Vec<Answer> {
        let own = self.reply.as_ref().map(|reply| reply.queue.as_str());
        let mut found = Vec::new();
        signature::waited_for(step, own, &mut found);
        let answer = |(id, queue): (String, Option<String>)| {
            let mut body = meta(&id, status, now);
            body["parent_id"] = json!(self.task.id.as_str());
            let reply = queue.map(|queue| Reply { queue, correlation_id: id.clone() });
            Answer { id, success: false, reply, body: exact::to_string(&body).into_bytes() }
        };
        found.into_iter().map(answer).collect()
    }

    /// What its own chord gets from it.
    fn parts(&self, end: &End, chords: Chords) -> Vec<Part> {
        let (Chords::Counted, Some(body), Some(group)) = (chords, &self.chord, &self.group) else { return Vec::new() };
        vec![end.part(self.task.id.as_str(), group, self.group_index, body)]
    }
}

/// As Celery's backends keep it.
fn meta(id: &str, status: Status<'_>, now: Timestamp) -> Value {
    let (name, result, traceback) = match status {
        Status::Started { pid, hostname } => ("STARTED", json!({ "pid": pid, "hostname": hostname }), None),
        Status::Success(value) => ("SUCCESS", value.clone(), None),
        Status::Failure(error) => ("FAILURE", exception(error), error.traceback.as_deref()),
        Status::Retry(error) => ("RETRY", exception(error), error.traceback.as_deref()),
        Status::Revoked(reason) => ("REVOKED", exception(&revoked(reason)), None),
    };
    let done = !matches!(status, Status::Started { .. } | Status::Retry(_));
    json!({
        "task_id": id,
        "status": name,
        "result": result,
        "traceback": traceback,
        "children": [],
        "date_done": done.then(|| now.to_string()),
    })
}

fn revoked(reason: &str) -> TaskError {
    let kind = "celery.exceptions.TaskRevokedError".to_owned();
    TaskError { kind, message: reason.to_owned(), traceback: None }
}

/// As Celery's JSON backend writes an exception. What only a worker knows of is called by Celery's own names, so that producers
/// catch what they always caught.
pub(super) fn exception(error: &TaskError) -> Value {
    let (module, kind) = match error.kind.as_str() {
        "TimeLimit" => ("billiard.exceptions", "TimeLimitExceeded"),
        "Crash" => ("billiard.exceptions", "WorkerLostError"),
        "Rejected" if error.message.starts_with("no handler is called") => ("celery.exceptions", "NotRegistered"),
        "Rejected" => ("celery.exceptions", "InvalidTaskError"),
        kind => kind.rsplit_once('.').unwrap_or(("builtins", kind)),
    };
    json!({ "exc_type": kind, "exc_message": [error.message], "exc_module": module })
}
