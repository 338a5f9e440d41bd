//! What follows from how a foreign task ended, before it may be acknowledged: Celery's answers, callbacks, chains; dramatiq's
//! pipelines. And how a foreign message is written for its next try, so that its own workers understand it as well.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::Message;
use tidegate_amqp::types::BasicProperties;

use super::core::{Core, Place};
use super::engine::plan::Step;
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

/// What is to be written for a task that ended.
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

    /// As [`add`](Self::add), for a message that is too large to be read.
    pub(super) fn add_refusal(&mut self, stored: &Stored, result: &TaskResult, now: Timestamp) -> bool {
        let envelope = &stored.envelope;
        let Some(message) =
            Some(envelope).filter(|envelope| celery::is_celery(envelope)).and_then(|_| without_body(envelope))
        else {
            return true;
        };
        let unknown = TaskError { kind: "Rejected".to_owned(), message: String::new(), traceback: None };
        let error = result.error.as_ref().unwrap_or(&unknown);
        let following = message.following(Status::Failure(error), now, self.chords);
        let kept = !message.ignore_result;
        self.take(&Rc::new(message), following, now);
        kept && result.ttl >= KEPT_MIN
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
        let read = celery::read(&stored.envelope, stored.retries).ok().or_else(|| without_body(&stored.envelope));
        let Some(message) = read else { return true };
        let following = message.following(status, now, self.chords);
        let kept = !message.ignore_result;
        self.take(&Rc::new(message), following, now);
        kept
    }

    /// What is to be done, in its order, and what chords get after that.
    pub(super) fn into_steps(self) -> (Vec<Step>, Vec<Step>) {
        let Following { begun, tasks, answers, parts, .. } = self;
        let mut steps: Vec<Step> = begun.into_iter().map(Step::Begin).collect();
        steps.extend([Step::Follow(tasks), Step::Answers(answers)]);
        (steps, parts.into_iter().map(|(message, part)| Step::Part(message, part)).collect())
    }

    pub(super) fn take(&mut self, message: &Rc<celery::Message>, following: celery::Following, now: Timestamp) {
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

/// What a message whose body cannot be read says outside of it: whose it is, and where its producer waits for an answer.
fn without_body(envelope: &Envelope) -> Option<celery::Message> {
    let mut bare = Envelope::new(&envelope.queue, b"[[],{},{}]".to_vec());
    bare.id = envelope.id.clone();
    bare.headers = envelope.headers.clone();
    // These two describe the body, or may be what cannot be read.
    for header in ["amqp.content_type", "timelimit"] {
        bare.headers.remove(header);
    }
    celery::read(&bare, 0).ok()
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
    /// For what follows from an end.
    pub(super) fn following(&self) -> Following {
        let chords = if self.backend.borrow().is_some() { Chords::Counted } else { Chords::Refused };
        Following { chords, begun: Vec::new(), tasks: Vec::new(), answers: Vec::new(), parts: Vec::new() }
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
    pub(super) async fn reply(&self, answers: Vec<Answer>) -> Result<(), BrokerError> {
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
    pub(super) async fn reach(&self, queue: &str) -> Result<(), BrokerError> {
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
