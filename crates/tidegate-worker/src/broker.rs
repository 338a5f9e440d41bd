//! The contract between a worker and its queue. Implementations: `memory`, `sqlite`, RabbitMQ; one conformance suite checks
//! that each keeps the promises made here.
//!
//! All calls take batches, because a worker works in batches: it wakes, takes everything that is ready, runs it, and writes
//! once.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::task::{Envelope, TaskId};

/// A future that stays on its loop.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A queue that keeps each task until it is settled.
pub trait Broker {
    /// Where this is, without secrets; for start-up lines and errors.
    fn describe(&self) -> String;

    /// Which parts of the contract this broker keeps. Default: all.
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    /// The time that ETAs, expiries and retries are counted by: the wall clock, or the loop's where that is virtual.
    fn now(&self) -> Timestamp;

    /// Publishes a batch and returns one answer per envelope, in order. What is [`Published::Stored`] survives a crash of anything
    /// (as far as this broker promises). Brokers with [atomic batches](Capabilities::atomic_batches) store all of a batch or
    /// nothing; others report each envelope's own fate.
    ///
    /// # Errors
    /// Brokers with atomic batches: nothing was stored, or (`Retry`) it is not known; published again under the same ids, what is
    /// still in its queue is not stored twice. Others: nothing was sent.
    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>>;

    /// Begins to receive.
    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>>;

    /// Every queue, by name.
    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>>;

    /// The next `limit` waiting tasks of a queue, in the order they would run; nothing is taken.
    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>>;

    /// Deletes the waiting and delayed tasks of a queue, not running ones; returns how many.
    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>>;

    /// Dead letters of a queue (of all, if `None`), oldest first.
    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>>;

    /// Sends dead letters back to their queues with their counts at zero; returns how many.
    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>>;

    /// Deletes dead letters; returns how many.
    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>>;

    /// Revokes a task: a waiting one is dropped, of a running one its worker is notified. The id is remembered, so that a task
    /// that arrives later is dropped as well.
    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>>;

    /// The result of a task; `None` if there is none yet, or if it has expired.
    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>>;

    /// Waits until there is a final result.
    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>>;

    /// Ends the connection in order; unsettled deliveries return to their queues.
    fn close(&self) -> Local<'_, Result<(), BrokerError>>;
}

/// What of the contract a broker keeps in full. Where one says no, the conformance suite asks for what its field says instead,
/// and tools show that a figure is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Higher priorities come first. Otherwise tasks come in the order they were published.
    pub priorities: bool,
    /// Every returned task stands where it stood before. Otherwise those that are returned together keep their order, and all
    /// come, uncounted; they stand before or behind the rest.
    pub returns_in_place: bool,
    /// An id that is still in its queue is not stored again. Otherwise it is, and runs twice.
    pub remembers_ids: bool,
    /// A waiting task that is revoked is removed at once. Otherwise it is dropped, with a result that says so, when its turn comes.
    pub revokes_waiting: bool,
    /// A peek shows delayed tasks behind the others. Otherwise it shows those that could run now.
    pub peeks_delayed: bool,
    /// [`QueueStats::running`] counts every process. Otherwise it counts this one.
    pub counts_running: bool,
    /// [`QueueStats::oldest_ms`] is known. Otherwise it is 0.
    pub knows_age: bool,
    /// A batch is stored as a whole or not at all. Otherwise [`Published`] says of each envelope what became of it.
    pub atomic_batches: bool,
}

impl Capabilities {
    /// The whole contract.
    pub const ALL: Capabilities = Capabilities {
        priorities: true,
        returns_in_place: true,
        remembers_ids: true,
        revokes_waiting: true,
        peeks_delayed: true,
        counts_running: true,
        knows_age: true,
        atomic_batches: true,
    };
}

/// One worker's stream of deliveries. Receiving and settling go on beside each other, so every method takes a shared
/// reference; one task at a time receives. Dropped without `close`, its deliveries return when their leases expire.
pub trait Consumer {
    /// Waits for something, then takes everything there is, up to the prefetch. Cancelling loses nothing. After `stop` it
    /// still returns revoked tasks and lost deliveries; after `close` it is `Closed`.
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>>;

    /// Settles a batch in one write. The answer has one entry per settlement, in order. One that cannot be settled yet does
    /// not delay the others.
    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>>;

    /// No further deliveries; what was fetched and not yet handed out returns to the queue. Settling goes on.
    fn stop(&self) -> Local<'_, Result<(), BrokerError>>;

    /// The end: everything still unsettled returns to its queue, uncounted.
    fn close(&self) -> Local<'_, Result<(), BrokerError>>;
}

/// What to receive.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// The queues to receive from; they are made if they do not exist.
    pub queues: Vec<String>,
    /// At most this many unsettled at a time.
    pub prefetch: usize,
    /// The worker's name, shown by `inspect`.
    pub consumer: String,
}

/// What became of one published envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// The broker keeps it.
    Stored,
    /// Not stored: this task holds its unique key, or is the same task, published before.
    Duplicate(TaskId),
    /// Not stored, and safe to publish again: the queue was full, or the broker could not be reached in time.
    Refused {
        /// What was in the way.
        reason: String,
    },
    /// It may be stored: the connection was lost before the broker confirmed it. Published again under the same id, it may be
    /// stored twice.
    Unknown {
        /// What happened.
        reason: String,
    },
}

/// An event for the worker.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming {
    /// A task to run.
    Delivery(Delivery),
    /// A task that this worker has must not go on. The worker settles it as usual; whatever the verdict, it does not return to
    /// its queue.
    Revoked(TaskId),
    /// A task of this worker's queues was waiting beyond its expiry and was dropped; for counting.
    Expired(TaskId),
    /// This delivery no longer belongs to this worker: its lease expired, or the connection it came over is gone. Another worker will run
    /// it; settling it answers [`Settled::Lost`].
    Lost(Tag),
}

/// A task handed to this worker until it is settled.
#[derive(Debug)]
pub struct Delivery {
    /// Names it in its settlement.
    pub tag: Tag,
    /// The task as it was published, shared with brokers that keep it until it is settled.
    pub envelope: Arc<Envelope>,
    /// How often it came back by [`Verdict::Retry`].
    pub retries: u32,
    /// How often the process running it died: it came back by [`Verdict::Crash`], or its worker died or lost its lease.
    pub crashes: u32,
    /// When it was published; for the time it spent waiting.
    pub published: Timestamp,
}

/// A delivery's name. A tag of an earlier connection is stale: it never settles anything on a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The connection or channel.
    pub epoch: u32,
    /// The delivery's number within it.
    pub number: u64,
}

/// What to do with a delivery.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which one.
    pub tag: Tag,
    /// What.
    pub verdict: Verdict,
    /// Stored with the settlement, in the same write where the broker can.
    pub result: Option<TaskResult>,
}

/// The ways a delivery ends.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Done: the task leaves the broker.
    Ack,
    /// Again at this instant, counted as a retry.
    Retry {
        /// Not before.
        at: Timestamp,
    },
    /// Again at this instant, counted as a crash: the process running it died.
    Crash {
        /// Not before.
        at: Timestamp,
    },
    /// Back to its place in the queue, uncounted: it was never begun, or a stop ended it.
    Return,
    /// Kept as a dead letter with its reason until it is retried or deleted by a command.
    Dead {
        /// Why, in words that a person can act on.
        reason: String,
        /// The traceback, if the handler's language has one.
        traceback: Option<String>,
    },
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It took effect.
    Done,
    /// The lease was lost, or the tag was stale: another worker has the task, nothing was changed.
    Lost,
    /// Not yet: the broker goes on with it, or could not. Settle it again to learn how it ends; nothing that was written for it
    /// is written twice.
    Pending,
}

/// How a task ended, for callers that wait for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Of which task.
    pub id: TaskId,
    /// How it ended.
    pub state: TaskState,
    /// What the handler returned.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// For how long to keep it.
    #[serde(skip)]
    pub ttl: Duration,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskState {
    /// It failed and waits for its next attempt; not final.
    Retrying,
    /// The handler returned.
    Succeeded,
    /// The handler failed, and no retry is left.
    Failed,
    /// Revoked before or while it ran.
    Revoked,
    /// It waited beyond its expiry.
    Expired,
}

impl TaskState {
    /// Returns its name in JSON and in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Retrying => "retrying",
            TaskState::Succeeded => "succeeded",
            TaskState::Failed => "failed",
            TaskState::Revoked => "revoked",
            TaskState::Expired => "expired",
        }
    }

    /// Returns `true` if the task will not run again.
    pub fn is_final(self) -> bool {
        self != TaskState::Retrying
    }
}

/// An error as the handler's language reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// Its type, such as `ValueError`.
    pub kind: String,
    /// In one line.
    pub message: String,
    /// Where it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
}

/// A task that gets no further attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The task as it was published.
    pub envelope: Envelope,
    /// Why it was dead-lettered.
    pub reason: String,
    /// The traceback of its last attempt.
    pub traceback: Option<String>,
    /// When it was dead-lettered.
    pub at: Timestamp,
    /// How often it was retried before.
    pub retries: u32,
}

/// Selects dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// These.
    Ids(Vec<TaskId>),
    /// All of one queue.
    Queue(String),
    /// All.
    All,
}

/// The counts of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Its name.
    pub queue: String,
    /// Waiting tasks that could run now.
    pub ready: u64,
    /// Tasks that wait for their time.
    pub delayed: u64,
    /// Tasks held by workers.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// Workers subscribed to it.
    pub consumers: u64,
    /// How long the oldest ready task has waited.
    pub oldest_ms: u64,
}

/// Why a broker call failed, named by the caller's next move.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum BrokerError {
    /// It may work in a moment: locked, busy, reconnecting.
    Retry {
        /// What was in the way.
        message: String,
    },
    /// Nothing was changed, and a retry will not help before a person acts: full disk, wrong password, a queue that exists
    /// with other arguments.
    Refused {
        /// What is wrong, and the way out.
        message: String,
    },
    /// The data contradicts itself.
    Damaged {
        /// Where.
        message: String,
    },
    /// It was closed.
    Closed,
}

impl std::fmt::Display for BrokerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BrokerError::Retry { message } | BrokerError::Refused { message } | BrokerError::Damaged { message } => {
                f.write_str(message)
            }
            BrokerError::Closed => f.write_str("the broker was closed"),
        }
    }
}

impl std::error::Error for BrokerError {}
