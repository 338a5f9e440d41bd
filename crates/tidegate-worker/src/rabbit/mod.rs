//! Queues in RabbitMQ, for workers on several machines.
//!
//! Tasks wait in a queue of their own name beside which lie its dead letters (`NAME.dead`) and, once a task was delayed, a
//! ladder of waiting queues (`delay.rs`). One connection a consumer, publishing on another, requests that may be refused on a
//! third. A delivery is settled by writing what follows from it first (a retry, a dead letter, a result), having that
//! confirmed, and acknowledging then: whatever dies in between, the task is there at least once.
//!
//! # What AMQP cannot do, and what is done instead
//! What of this concerns the contract of brokers is told by [`capabilities`](crate::Broker::capabilities).
//! - *Peek*: what is looked at is taken and put back by the broker; a task that is due in that moment waits it out.
//! - *Results, revokes, the list of queues*: three streams (`tidegate.results`, `tidegate.revoked`, `tidegate.queues`) that
//!   everybody appends to and reads from the beginning. Who asks for results keeps those of the last `result_memory` in
//!   memory. Streams need RabbitMQ 3.9. Where they are not up (they may not come back after a broker was killed soon after they
//!   were made), tasks go on without: revokes are heard later, and storing a result is an error. Each is read over a connection
//!   of its own, because a refused read would close the channel that tasks come over.
//! - *Crashes*: all that is told is that somebody had a message before. Only a new message can carry a count, so such a one is
//!   put in its place (a quorum queue counts by itself); what a lost connection, a broker's death or a note explains is not
//!   counted. A note says that a task was returned or looked at; it is written to the log of revokes before the task goes back.
//! - *Unique*: a queue stands for the key (`unique.rs`, `engine/keys.rs`).
//! - *All of a batch or none*: a batch is checked as a whole, then written message by message, and each one's own end is
//!   reported (`engine/publisher.rs`). The same id published twice is stored twice.
//! - *How many are running, how long the oldest waits*: AMQP does not say; [`inspect`](crate::Broker::inspect) counts the
//!   running tasks of its own process, and says 0 for the age.
//! - *A returned task* keeps its place, except in a quorum queue, where it may come behind those that were delivered with it.
//! - *A revoked task* leaves its queue when its turn comes, not before; only then is there a result that says so.
//! - *An acknowledgement has no answer*: [`Settled::Done`](crate::Settled::Done) means that it was sent on the connection the
//!   delivery came over. If that breaks before the broker reads it, the task is delivered once more.
//!
//! Read `mod.rs`, `engine/` (what is decided, without I/O), `core.rs` and `link.rs` (how tasks are written), `message.rs` (as
//! what), `consumer.rs` and `supervisor.rs` (how they are received), `settle.rs` (how they end), then the rest.

mod admin;
mod backoff;
mod celery;
mod consumer;
mod core;
mod delay;
mod engine;
mod follow;
mod link;
mod management;
mod message;
mod quarantine;
mod results;
mod revokes;
mod settle;
mod supervisor;
mod topology;
mod unique;
mod upgrade;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
pub use tidegate_amqp::{Uri, UriError};
use tidegate_loop::{spawn, timeout};

use crate::broker::{
    Broker, BrokerError, Capabilities, Consumer, DeadLetter, Local, Published, QueueStats, Selection, Subscription,
    TaskResult,
};
use crate::envelope_check;
use crate::task::{Envelope, TaskId};

#[cfg(fuzzing)]
pub use celery::fuzz_glob;
pub use celery::{Presence, PresenceOptions, RedisResults};
use consumer::{RabbitConsumer, Shared};
use core::{Core, LOG_PATIENCE, Place};
use engine::held::Held;
use engine::publisher::Fate;
pub use management::Management;
use management::{Asking, Watched};
use message::Stored;
use results::Results;
use revokes::Follower;
pub use topology::QueueKind;
use topology::REVOKED;
pub use upgrade::Upgrade;

/// How the queues behave where nobody says otherwise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Which kind of queues tasks wait in. A queue that exists as another kind is refused by name.
    pub kind: QueueKind,
    /// What the broker's management shows of our connections.
    pub name: String,
    /// For how long results are kept at most, whatever their own time.
    pub result_memory: Duration,
    /// For how long a revoke waits for its task.
    pub revoke_memory: Duration,
    /// Larger bodies are refused, and go to the dead letters as they are where others have published them.
    pub body_bytes_max: usize,
    /// How long a publish waits for a broker that is away, or takes nothing, before it is an error.
    pub publish_patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kind: QueueKind::Classic,
            name: "tidegate".to_owned(),
            result_memory: Duration::from_secs(86_400),
            revoke_memory: Duration::from_secs(86_400),
            body_bytes_max: envelope_check::BODY_BYTES_MAX,
            publish_patience: Duration::from_secs(30),
        }
    }
}

/// A broker in RabbitMQ.
///
/// ```no_run
/// use tidegate_worker::rabbit::{Options, RabbitBroker};
/// use tidegate_worker::{Broker, Envelope};
///
/// # tidegate_loop::run(async {
/// let broker = RabbitBroker::open("amqp://guest:guest@localhost", Options::default()).await?;
/// broker.publish(vec![Envelope::new("mail", b"hello".to_vec())]).await?;
/// broker.close().await
/// # }).unwrap().unwrap();
/// ```
pub struct RabbitBroker {
    core: Rc<Core>,
    results: Results,
    /// Where the policies of queues are asked for.
    management: RefCell<Option<Management>>,
    consumers: RefCell<Vec<Weak<RabbitConsumer>>>,
}

impl RabbitBroker {
    /// Connects once, so that a wrong address, password or vhost is told at once.
    ///
    /// # Errors
    /// What is wrong, and the way out.
    ///
    /// # Cancel safety
    /// Safe: dropped, the attempt is given up.
    pub async fn open(address: &str, options: Options) -> Result<RabbitBroker, BrokerError> {
        let uri: Uri =
            address.parse().map_err(|error: UriError| BrokerError::Refused { message: error.to_string() })?;
        RabbitBroker::open_at(uri, options).await
    }

    /// As [`open`](Self::open), at an address that was read before.
    ///
    /// # Errors
    /// What is wrong, and the way out.
    ///
    /// # Cancel safety
    /// Safe: dropped, the attempt is given up.
    pub async fn open_at(uri: Uri, options: Options) -> Result<RabbitBroker, BrokerError> {
        let core = Rc::new(Core::new(uri, options));
        core.control.connection().await?;
        Ok(RabbitBroker {
            core,
            results: Results::default(),
            management: RefCell::default(),
            consumers: RefCell::default(),
        })
    }

    /// Sends a message as it is, to a place that may be gone: an answer to who waits for it.
    ///
    /// # Errors
    /// When the broker does not take it in time.
    ///
    /// # Cancel safety
    /// Dropped, it may be sent all the same.
    pub async fn post(&self, message: tidegate_amqp::Message) -> Result<(), BrokerError> {
        self.core.post(message.mandatory(false)).await
    }

    /// Deletes delay queues of earlier versions as far as they are empty; workers and producers of this version do not use them.
    /// Those that hold tasks stay, and so do those that such tasks would pass.
    ///
    /// # Errors
    /// When the broker refuses, or is away.
    ///
    /// # Cancel safety
    /// Safe: dropped, some may be deleted.
    pub async fn upgrade(&self, queue: &str) -> Result<Upgrade, BrokerError> {
        self.core.upgrade(queue).await
    }

    /// Has the results of Celery's tasks go to Redis, where producers whose `result_backend` it is look for them, and where chords
    /// are counted; unless set, they go where `rpc://` looks. Before anything is received.
    pub fn keep_celery_results(&self, results: RedisResults) {
        *self.core.backend.borrow_mut() = Some(Rc::new(results));
    }

    /// Has consumers that subscribe from now on ask the management API for the policies of their queues, and log a warning for
    /// each one that removes, refuses or expires tasks. Nothing waits for the answers.
    pub fn warn_of_policies(&self, management: Management) {
        *self.management.borrow_mut() = Some(management);
    }

    /// Asks for the policies of `queues`, which have been declared; `None` if no API is named.
    fn ask_for_policies(&self, queues: &[String]) -> Option<Asking> {
        let management = self.management.borrow().clone()?;
        let watched: Vec<Watched> = queues.iter().flat_map(|queue| self.core.kind(queue).watched(queue)).collect();
        let vhost = self.core.uri.vhost.clone();
        Some(Asking(spawn(async move { management.log_policies(&vhost, watched).await }).task()))
    }

    fn live(&self) -> Vec<Rc<RabbitConsumer>> {
        self.consumers.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// What this process has of the broker's, and how often it was retried.
    fn envelopes(&self) -> HashMap<TaskId, (Arc<Envelope>, u32)> {
        let mut all = HashMap::new();
        for consumer in self.live() {
            let deliveries = consumer.shared.deliveries.borrow();
            let of = |held: &Held| {
                (held.stored.envelope.id.clone(), (Arc::clone(&held.stored.envelope), held.stored.retries))
            };
            all.extend(deliveries.running().map(of));
        }
        all
    }

    fn revoked_ids(&self) -> Vec<String> {
        let ids: BTreeSet<TaskId> = self.live().iter().flat_map(|consumer| consumer.shared.revokes.ids()).collect();
        ids.iter().map(TaskId::to_string).collect()
    }

    fn revoked_until(&self) -> Timestamp {
        self.core.now().checked_add(self.core.options.revoke_memory).unwrap_or(Timestamp::MAX)
    }

    /// Has this process's consumers know that a task must not begin.
    fn note_revoked(&self, id: &TaskId) {
        for consumer in self.live() {
            consumer.shared.revokes.note(id, self.revoked_until());
        }
    }

    /// Tells everybody's workers, those that start later too. `running`: what runs is ended as well.
    async fn log_revoked(&self, id: &TaskId, running: bool) -> Result<(), BrokerError> {
        let entry = json!({ "revoked": id, "until": self.revoked_until().as_millisecond(), "running": running });
        self.core.append(REVOKED, &entry).await
    }

    async fn publish_all(&self, batch: Vec<Envelope>) -> Result<Vec<Published>, BrokerError> {
        envelope_check::check(&batch, self.core.options.body_bytes_max)?;
        let now = self.core.now();
        let stored =
            |envelope| Stored { envelope: Arc::new(envelope), retries: 0, crashes: 0, published: now, dead: None };
        let keyed: Vec<bool> = batch.iter().map(|envelope| envelope.unique.is_some()).collect();
        let (unique, plain): (Vec<Envelope>, Vec<Envelope>) =
            batch.into_iter().partition(|envelope| envelope.unique.is_some());
        let mut of_unique = Vec::new().into_iter();
        if !unique.is_empty() {
            of_unique = self.core.publish_unique(unique.into_iter().map(stored).collect()).await?.into_iter();
        }
        let plain: Vec<(Stored, Place)> = plain.into_iter().map(|envelope| (stored(envelope), Place::Queue)).collect();
        let mut of_plain = match self.core.write_each(&plain, self.core.terms()).await {
            Ok(fates) => fates.into_iter().map(published).collect::<Vec<_>>(),
            // Those with keys were sent.
            Err(error) if plain.len() < keyed.len() => {
                vec![Published::Refused { reason: error.to_string() }; plain.len()]
            }
            Err(error) => return Err(error),
        }
        .into_iter();
        let answers = keyed.into_iter().map(|keyed| if keyed { of_unique.next() } else { of_plain.next() });
        let missing = || Published::Unknown { reason: "there was no answer".to_owned() };
        Ok(answers.map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    async fn receive(&self, what: Subscription) -> Result<Rc<dyn Consumer>, BrokerError> {
        for queue in &what.queues {
            self.core.ensure(queue).await?;
            let kind = self.core.kind(queue);
            if kind == QueueKind::Plain {
                tracing::warn!(
                    queue,
                    dead = kind.dead_name(queue),
                    "the queue is declared without a dead-letter exchange, as Celery declares it: messages that a length or TTL \
                     policy removes are lost; tasks that this worker gives up are kept in the queue for dead letters"
                );
            }
        }
        let asking = self.ask_for_policies(&what.queues);
        let shared = Rc::new(Shared::new(self.core.clone(), what));
        let follower = Follower::start(shared.clone());
        // No task is taken before it is known which ones must not run; but a log that is not up stops none.
        let _ = timeout(LOG_PATIENCE, shared.revokes.read.wait()).await;
        let connection = supervisor::connect(&shared).await?;
        supervisor::attach(&shared, &connection);
        let task = spawn(supervisor::supervise(shared.clone(), connection));
        let consumer =
            Rc::new(RabbitConsumer { shared, supervisor: task.task(), _follower: follower, _asking: asking });
        let mut consumers = self.consumers.borrow_mut();
        consumers.retain(|consumer| consumer.strong_count() > 0);
        consumers.push(Rc::downgrade(&consumer));
        drop(consumers);
        Ok(consumer)
    }
}

fn published(fate: Fate) -> Published {
    match fate {
        Fate::Stored => Published::Stored,
        Fate::Refused { reason } | Fate::Returned { reason } => Published::Refused { reason },
        Fate::Unknown { reason } => Published::Unknown { reason },
    }
}

impl Broker for RabbitBroker {
    fn describe(&self) -> String {
        self.core.uri.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            priorities: self.core.options.kind == QueueKind::Classic,
            // A quorum queue puts a single returned task behind those that were delivered with it.
            returns_in_place: self.core.options.kind != QueueKind::Quorum,
            remembers_ids: false,
            revokes_waiting: false,
            peeks_delayed: false,
            counts_running: false,
            knows_age: false,
            atomic_batches: false,
        }
    }

    fn now(&self) -> Timestamp {
        self.core.now()
    }

    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>> {
        Box::pin(self.publish_all(batch))
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        Box::pin(self.receive(what))
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        Box::pin(async {
            let mut all = self.core.inspect().await?;
            for consumer in self.consumers.borrow().iter().filter_map(Weak::upgrade) {
                let deliveries = consumer.shared.deliveries.borrow();
                all.iter_mut().for_each(|stats| stats.running += deliveries.count(&stats.queue) as u64);
            }
            Ok(all)
        })
    }

    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>> {
        let queue = queue.to_owned();
        Box::pin(async move { self.core.peek(&queue, limit).await })
    }

    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>> {
        let queue = queue.to_owned();
        Box::pin(async move { self.core.purge(&queue).await })
    }

    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>> {
        let queue = queue.map(ToOwned::to_owned);
        Box::pin(async move { self.core.dead(queue.as_deref(), limit).await })
    }

    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        Box::pin(async move { self.core.dead_retry(&which).await })
    }

    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        Box::pin(async move { self.core.dead_drop(&which).await })
    }

    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>> {
        let id = id.clone();
        Box::pin(async move { self.log_revoked(&id, true).await })
    }

    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>> {
        let id = id.clone();
        Box::pin(async move { self.results.get(&self.core, &id).await })
    }

    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>> {
        let id = id.clone();
        Box::pin(async move { self.results.wait(&self.core, &id).await })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async {
            let consumers = self.consumers.take();
            for consumer in consumers.iter().filter_map(Weak::upgrade) {
                // Those that were closed before have nothing left.
                if !consumer.shared.closed.get() {
                    consumer.close().await?;
                }
            }
            self.results.close();
            self.core.close().await;
            Ok(())
        })
    }
}

impl fmt::Debug for RabbitBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitBroker").field("uri", &self.core.uri).finish_non_exhaustive()
    }
}
