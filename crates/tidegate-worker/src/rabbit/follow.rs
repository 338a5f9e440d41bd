//! What follows from how a foreign task ended, before it may be acknowledged: Celery's answers, callbacks, chains; dramatiq's
//! pipelines. And how a foreign message is written for its next try, so that its own workers understand it as well.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::Message;
use tidegate_amqp::types::BasicProperties;

use super::core::{Core, Place};
use super::message::Stored;
use super::topology::QueueKind;
use crate::broker::{BrokerError, TaskError, TaskResult, TaskState};
use crate::codec::celery::{self, Answer, Begun, Chords, Part, Reply, Status};
use crate::codec::dramatiq;
use crate::task::Envelope;

/// Results of foreign tasks are needed for what follows even where nobody wants them kept; those are given less than this.
const KEPT_MIN: Duration = Duration::from_secs(1);

/// Told of tasks that ended before any worker saw them.
pub(super) type Unseen = Rc<dyn Fn(&Envelope, TaskState)>;

/// What is to be written for a batch of ended tasks.
#[derive(Debug)]
pub(super) struct Following {
    chords: Chords,
    begun: Vec<Begun>,
    tasks: Vec<(Stored, Place)>,
    answers: Vec<Answer>,
    parts: Vec<(Rc<celery::Message>, Part)>,
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
        let following = message.following(status, now, self.chords);
        let kept = !message.ignore_result;
        self.take(&Rc::new(message), following, now);
        kept
    }

    fn take(&mut self, message: &Rc<celery::Message>, following: celery::Following, now: Timestamp) {
        self.parts.extend(following.parts.into_iter().map(|part| (Rc::clone(message), part)));
        self.begun.extend(following.chords);
        self.tasks.extend(following.tasks.into_iter().map(|envelope| fresh(envelope, now)));
        self.answers.extend(following.answers);
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
    (Stored { envelope: Arc::new(envelope), retries: 0, crashes: 0, published: now, dead: None }, Place::Queue)
}

/// As Celery's `rpc://` sends it: to a queue that may be gone, and not worth a disk.
fn answer(reply: &Reply, body: Vec<u8>) -> Message {
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
    let envelope = Arc::make_mut(&mut stored.envelope);
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
        let (mut following, result) = (self.following(), self.end(&stored.envelope.id, state));
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

    /// For what follows from a batch.
    pub(super) fn following(&self) -> Following {
        let chords = if self.backend.borrow().is_some() { Chords::Counted } else { Chords::Refused };
        Following { chords, begun: Vec::new(), tasks: Vec::new(), answers: Vec::new(), parts: Vec::new() }
    }

    /// Writes all of it, and returns once it is kept. What can never be written is told and left out: somebody's odd signature
    /// must not keep a task from being settled.
    pub(super) async fn write_following(&self, mut following: Following) -> Result<(), BrokerError> {
        let mut parts: VecDeque<(Rc<celery::Message>, Part)> = std::mem::take(&mut following.parts).into();
        self.write_first(following).await?;
        let backend = self.backend.borrow().clone();
        let Some(backend) = backend else { return Ok(()) };
        while let Some((message, part)) = parts.pop_front() {
            let whole = match backend.part(&part).await {
                Ok(Some(whole)) => whole,
                Ok(None) => continue,
                Err(BrokerError::Refused { message }) => {
                    tracing::error!(task.id = part.returned.id, group = part.group, message, "a chord will not end");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (mut following, now) = (self.following(), self.now());
            following.take(&message, message.after_chord(&part, &whole.parts, whole.shape.as_ref(), now), now);
            // The end of a chord may be a part of the one around it.
            parts.extend(std::mem::take(&mut following.parts));
            self.write_first(following).await?;
            backend.end_chord(&part).await?;
        }
        Ok(())
    }

    async fn write_first(&self, following: Following) -> Result<(), BrokerError> {
        let Following { begun, tasks, answers, .. } = following;
        let backend = self.backend.borrow().clone();
        if let Some(backend) = &backend {
            for chord in &begun {
                backend.begin_chord(chord).await?;
            }
        }
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
        match backend {
            Some(backend) => backend.store(&answers).await,
            None => self.reply(answers).await,
        }
    }

    /// Tells of a task that begins, if it can be told now.
    pub(super) async fn tell(&self, answer: Answer) -> Result<(), BrokerError> {
        let backend = self.backend.borrow().clone();
        match backend {
            Some(backend) => backend.tell(&answer).await,
            None => self.reply(vec![answer]).await,
        }
    }

    /// Answers where `rpc://` looks for them.
    async fn reply(&self, answers: Vec<Answer>) -> Result<(), BrokerError> {
        let message = |answered: Answer| answered.reply.map(|reply| answer(&reply, answered.body));
        let messages: Vec<Message> = answers.into_iter().filter_map(message).collect();
        if !messages.is_empty() && refused(self.post_all(messages.clone()).await)? {
            for message in messages {
                let queue = message.routing_key.clone();
                if refused(self.post(message).await)? {
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
