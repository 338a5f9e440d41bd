//! What those who wait for a task are told, in the form of Celery's `rpc://` backend, and everything else that follows a run.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Message, Reply, signature};
use crate::broker::TaskError;
use crate::task::Envelope;

/// How a run is reported to who waits for it.
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
    /// Tasks to publish.
    pub tasks: Vec<Envelope>,
    /// Answers, and where they go.
    pub answers: Vec<(Reply, Vec<u8>)>,
}

impl Message {
    /// The message for who waits on `rpc://`: where it goes, and its body. `None` if nobody does.
    pub fn answer(&self, status: Status<'_>, now: Timestamp) -> Option<(Reply, Vec<u8>)> {
        self.answer_with(status, now, Vec::new())
    }

    fn answer_with(&self, status: Status<'_>, now: Timestamp, children: Vec<Value>) -> Option<(Reply, Vec<u8>)> {
        let reply = self.reply.clone().filter(|_| !self.ignore_result)?;
        let mut body = meta(self.task.id.as_str(), status, now);
        body["children"] = Value::Array(children);
        for (name, value) in [("group_id", &self.group), ("parent_id", &self.parent_id)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        Some((reply, body.to_string().into_bytes()))
    }

    /// Everything that follows a run that ended so: callbacks or errbacks, the next of the chain, the answer. The rest of a chain
    /// is told when it will never run, because who waits for a chain waits for its last.
    pub fn following(&self, status: Status<'_>, now: Timestamp) -> Following {
        match status {
            Status::Success(value) => match self.after_success(value, now) {
                Ok((tasks, children)) => {
                    Following { tasks, answers: self.answer_with(status, now, children).into_iter().collect() }
                }
                Err(error) => {
                    let message = format!("it succeeded, but what follows it cannot be sent: {}", error.message);
                    tracing::error!(task.id = %self.task.id, task.name = self.task.name, message);
                    let error = TaskError { kind: "NotImplementedError".to_owned(), message, traceback: None };
                    self.following(Status::Failure(&error), now)
                }
            },
            Status::Failure(_) | Status::Revoked(_) => {
                let mut answers: Vec<_> = self.answer(status, now).into_iter().collect();
                answers.extend(self.chained().into_iter().map(|(reply, id)| {
                    let mut body = meta(&id, status, now);
                    body["parent_id"] = json!(self.task.id.as_str());
                    (reply, body.to_string().into_bytes())
                }));
                let tasks = match status {
                    Status::Failure(_) => self.after_failure(now),
                    _ => Vec::new(),
                };
                Following { tasks, answers }
            }
            Status::Started { .. } | Status::Retry(_) => {
                Following { tasks: Vec::new(), answers: self.answer(status, now).into_iter().collect() }
            }
        }
    }

    /// What of the chain somebody may wait for: where, and by which id.
    fn chained(&self) -> Vec<(Reply, String)> {
        if self.ignore_result {
            return Vec::new();
        }
        let own = self.reply.as_ref().map(|reply| reply.queue.as_str());
        let mut found = Vec::new();
        self.chain.iter().for_each(|step| signature::waited_for(step, own, &mut found));
        found
    }
}

/// As Celery's backends keep it.
fn meta(id: &str, status: Status<'_>, now: Timestamp) -> Value {
    let (name, result, traceback) = match status {
        Status::Started { pid, hostname } => ("STARTED", json!({ "pid": pid, "hostname": hostname }), None),
        Status::Success(value) => ("SUCCESS", value.clone(), None),
        Status::Failure(error) => ("FAILURE", exception(error), error.traceback.as_deref()),
        Status::Retry(error) => ("RETRY", exception(error), error.traceback.as_deref()),
        Status::Revoked(reason) => {
            let error = TaskError {
                kind: "celery.exceptions.TaskRevokedError".to_owned(),
                message: reason.to_owned(),
                traceback: None,
            };
            ("REVOKED", exception(&error), None)
        }
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

/// As Celery's JSON backend writes an exception. What only a worker knows of is called by Celery's own names, so that producers
/// catch what they always caught.
fn exception(error: &TaskError) -> Value {
    let (module, kind) = match error.kind.as_str() {
        "TimeLimit" => ("billiard.exceptions", "TimeLimitExceeded"),
        "Crash" => ("billiard.exceptions", "WorkerLostError"),
        "Rejected" if error.message.starts_with("no handler is called") => ("celery.exceptions", "NotRegistered"),
        "Rejected" => ("celery.exceptions", "InvalidTaskError"),
        kind => kind.rsplit_once('.').unwrap_or(("builtins", kind)),
    };
    json!({ "exc_type": kind, "exc_message": [error.message], "exc_module": module })
}
