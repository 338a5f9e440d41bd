//! What follows from how a foreign task ended, before it may be acknowledged: Celery's answers, callbacks, chains; dramatiq's
//! pipelines. And how a foreign message is written for its next try, so that its own workers understand it as well.

use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::Message;
use tidegate_amqp::types::BasicProperties;

use super::core::{Core, Place};
use super::message::Stored;
use super::topology::QueueKind;
use crate::broker::{BrokerError, TaskError, TaskResult, TaskState};
use crate::codec::celery::{self, Reply, Status};
use crate::codec::dramatiq;
use crate::task::Envelope;

/// Results of foreign tasks are needed for what follows even where nobody wants them kept; those are given less than this.
const KEPT_MIN: Duration = Duration::from_secs(1);

/// Told of tasks that ended before any worker saw them.
pub(super) type Unseen = Rc<dyn Fn(&Envelope, TaskState)>;

/// What is to be written for a batch of ended tasks.
#[derive(Debug, Default)]
pub(super) struct Following {
    tasks: Vec<(Stored, Place)>,
    answers: Vec<Message>,
}

impl Following {
    /// Adds what follows from this end; whether the result is for tidegate's own log as well.
    pub(super) fn add(&mut self, kind: QueueKind, stored: &Stored, result: &TaskResult, now: Timestamp) -> bool {
        let envelope = &stored.envelope;
        if celery::is_celery(envelope) {
            self.add_celery(stored, result, now) && result.ttl >= KEPT_MIN
        } else if kind == QueueKind::Dramatiq {
            if result.state == TaskState::Succeeded {
                self.add_pipeline(envelope, &result.value, now);
            }
            result.ttl >= KEPT_MIN
        } else {
            true
        }
    }

    fn add_celery(&mut self, stored: &Stored, result: &TaskResult, now: Timestamp) -> bool {
        let unknown = TaskError { kind: "Exception".to_owned(), message: String::new(), traceback: None };
        let error = result.error.as_ref().unwrap_or(&unknown);
        let status = match result.state {
            TaskState::Succeeded => Status::Success(&result.value),
            TaskState::Failed => Status::Failure(error),
            TaskState::Retrying => Status::Retry(error),
            TaskState::Revoked => Status::Revoked("revoked"),
            TaskState::Expired => Status::Revoked("expired"),
        };
        // One that cannot be read has nobody who waits, as far as anybody can know; it is among the dead letters.
        let Ok(message) = celery::read(&stored.envelope, stored.retries) else { return true };
        let following = message.following(status, now);
        self.tasks.extend(following.tasks.into_iter().map(|envelope| fresh(envelope, now)));
        self.answers.extend(following.answers.into_iter().map(|(reply, body)| answer(&reply, body)));
        !message.ignore_result
    }

    fn add_pipeline(&mut self, envelope: &Envelope, value: &Value, now: Timestamp) {
        let next = dramatiq::read(envelope).and_then(|message| message.after_success(value, now));
        match next {
            Ok(next) => self.tasks.extend(next.map(|next| fresh(next, now))),
            Err(error) => {
                tracing::error!(task.id = %envelope.id, error = error.message, "the pipeline does not go on");
            }
        }
    }
}

/// A task that is published now.
fn fresh(envelope: Envelope, now: Timestamp) -> (Stored, Place) {
    (Stored { envelope, retries: 0, crashes: 0, published: now, dead: None }, Place::Queue)
}

/// As Celery's `rpc://` sends it: to a queue that may be gone, and not worth a disk.
pub(super) fn answer(reply: &Reply, body: Vec<u8>) -> Message {
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_delivery_mode(1)
        .with_priority(0);
    if let Ok(id) = tidegate_amqp::types::ShortString::try_new(reply.correlation_id.as_str()) {
        properties = properties.with_correlation_id(id);
    }
    Message::to_queue(reply.queue.as_str(), body).properties(&properties)
}

/// Writes into a foreign message what its own workers look for when it is tried again.
pub(super) fn retried(kind: QueueKind, stored: &mut Stored, at: Timestamp, error: Option<&TaskError>) {
    let envelope = &mut stored.envelope;
    if celery::is_celery(envelope) {
        envelope.headers.insert("retries".to_owned(), json!(stored.retries));
        envelope.headers.insert("eta".to_owned(), json!(at.to_string()));
    } else if kind == QueueKind::Dramatiq
        && let Ok(message) = dramatiq::read(envelope)
    {
        envelope.body = message.retried(stored.retries, error, at).envelope().body;
    }
}

impl Core {
    /// Tells of a task that does not run any more, and what follows from that.
    pub(super) async fn conclude(&self, stored: &Stored, state: TaskState) -> Result<(), BrokerError> {
        let (mut following, result) = (Following::default(), self.end(&stored.envelope.id, state));
        let kept = following.add(self.kind(&stored.envelope.queue), stored, &result, self.now());
        self.write_following(following).await?;
        if kept {
            self.store_results(&[result]).await?;
        }
        let watcher = self.unseen.borrow().clone();
        if let Some(watcher) = watcher {
            watcher(&stored.envelope, state);
        }
        Ok(())
    }

    /// Writes all of it, and returns once the broker keeps it. What can never be written is told and left out: somebody's odd
    /// signature must not keep a task from being settled.
    pub(super) async fn write_following(&self, following: Following) -> Result<(), BrokerError> {
        let Following { tasks, answers } = following;
        for (stored, _) in &tasks {
            self.reach(&stored.envelope.queue).await?;
        }
        if !tasks.is_empty() && refused(self.write(&tasks).await)? {
            for task in tasks {
                let (id, queue) = (task.0.envelope.id.clone(), task.0.envelope.queue.clone());
                if refused(self.write(&[task]).await)? {
                    tracing::error!(task.id = %id, queue, "a task that follows another cannot be sent");
                }
            }
        }
        if !answers.is_empty() && refused(self.post_all(&answers).await)? {
            for answer in answers {
                let queue = answer.routing_key.clone();
                if refused(self.post(answer).await)? {
                    tracing::error!(queue, "an answer cannot be sent");
                }
            }
        }
        Ok(())
    }

    /// Makes sure that a queue is there, whatever its arguments: those of foreign queues are their owners' business.
    async fn reach(&self, queue: &str) -> Result<(), BrokerError> {
        if self.topology.knows(queue) {
            return Ok(());
        }
        let found = match self.look(queue).await {
            Err(BrokerError::Refused { .. }) => return Ok(()),
            looked => looked?.is_some(),
        };
        if found {
            self.topology.adopt(queue, self.kind(queue));
        }
        Ok(())
    }
}

/// Whether it is the kind of error that would come again and again.
fn refused(written: Result<(), BrokerError>) -> Result<bool, BrokerError> {
    match written {
        Ok(()) => Ok(false),
        Err(BrokerError::Refused { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}
