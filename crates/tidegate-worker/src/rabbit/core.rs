//! What the broker, its consumers and its readers share: how tasks are written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::{Connection, Consume, Delivery, Error, Exchange, Field, Message, PROPERTIES_BYTES_MAX, Queue, Uri};
use tidegate_loop::{LoopHandle, sleep, timeout};
use tidegate_sync::Mutex;

use super::Options;
use super::backoff::Backoff;
use super::celery::RedisResults;
use super::delay;
use super::engine::publisher::{Fate, Terms};
use super::follow::Unseen;
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, Link, all_stored, of_request};
use super::message::{self, Death, PRIORITY_RETURNED, Stored};
use super::topology::{self, QUEUES, QueueKind, RESULTS, REVOKED, Topology};
use super::unique::Keys;
use crate::broker::{BrokerError, TaskResult, TaskState};
use crate::clock::{self, LoopClock};
use crate::json as exact;
use crate::task::{Envelope, TaskId};

/// How long an entry of a log may go without an answer before it is sent again. A log is a stream, and one that comes up again
/// forgets what was published in the first moment, without a word; an entry that is there twice says the same.
const ENTRY_PATIENCE: Duration = Duration::from_secs(2);

/// How long a log that is not up may hold up tasks.
pub(super) const LOG_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Core {
    pub(super) uri: Uri,
    pub(super) options: Options,
    pub(super) clock: LoopClock,
    /// For tasks, and nothing else: a refused request would take their confirmations along.
    publisher: Link,
    /// For answers to places that others name: an exchange that is missing closes the channel, and hides what became of
    /// everything else on it.
    courtesy: Link,
    /// For entries of logs: where a log takes nothing (a stream without its majority), the broker soon reads nothing more from
    /// whoever writes to it, and that must not be who publishes tasks.
    logs: Link,
    /// For requests that may be refused.
    pub(super) control: Link,
    pub(super) keys: Keys,
    pub(super) topology: Topology,
    /// What many need at once is made once.
    making: Mutex<()>,
    pub(super) unseen: RefCell<Option<Unseen>>,
    /// Where Celery's results go, if not where `rpc://` looks.
    pub(super) backend: RefCell<Option<Rc<RedisResults>>>,
    pub(super) listing: RefCell<Listing>,
}

/// The log of queues as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// With the place of each one's last entry.
    pub(super) queues: BTreeMap<String, i64>,
    pub(super) read: Option<i64>,
}

/// Where a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// To its queue: at once, or when it is due.
    Queue,
    /// To the due tasks of its queue, at once or when it is due. For copies by workers: there is no length limit, so a worker
    /// whose tasks fail is never held up by a full queue that it alone could empty.
    Due,
    /// To the head of its queue, as far as the kind of queue allows.
    Head,
    /// To the dead letters.
    Dead,
}

impl Core {
    pub(super) fn new(uri: Uri, options: Options) -> Core {
        let link = |what: &str| Link::new(uri.clone(), format!("{} {what}", options.name));
        let (publisher, logs, control) = (link("publisher"), link("logs"), link("control"));
        Core {
            publisher,
            courtesy: link("answers"),
            keys: Keys::new(link("keys")),
            logs,
            control,
            uri,
            options,
            clock: LoopClock::new(),
            topology: Topology::default(),
            making: Mutex::new(()),
            unseen: RefCell::default(),
            backend: RefCell::default(),
            listing: RefCell::default(),
        }
    }

    pub(super) fn publisher(&self) -> &Link {
        &self.publisher
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) async fn close(&self) {
        self.publisher.close().await;
        self.courtesy.close().await;
        self.keys.close().await;
        self.logs.close().await;
        self.control.close().await;
    }

    /// What is known of a queue, or else what queues are here.
    pub(super) fn kind(&self, queue: &str) -> QueueKind {
        self.topology.kind(queue).unwrap_or(self.options.kind)
    }

    /// Makes everything anew with its next use: somebody has deleted something.
    pub(super) fn forget(&self) {
        self.topology.forget();
    }

    /// What the log of queues says.
    pub(super) fn list(&self, entry: &Value) -> Option<String> {
        let queue = entry.get("queue").and_then(Value::as_str)?;
        if let Some(kind) = entry.get("kind").and_then(Value::as_str).and_then(QueueKind::of) {
            self.topology.list(queue, kind);
        }
        Some(queue.to_owned())
    }

    /// Adds a queue to the log of queues.
    pub(super) async fn enlist(&self, queue: &str) -> Result<(), BrokerError> {
        let entry = json!({ "queue": queue, "kind": self.kind(queue).as_str() });
        self.append(QUEUES, &entry).await
    }

    /// Makes sure that a queue is there, and is listed.
    pub(super) async fn ensure(&self, queue: &str) -> Result<(), BrokerError> {
        if self.topology.knows(queue) {
            return Ok(());
        }
        let _turn = self.making.lock().await;
        let control = self.control.connection().await?;
        let kind = self.kind(queue);
        if self.topology.ensure(&control, kind, queue).await? {
            // Tasks are worth more than a list of queues.
            let listed = timeout(LOG_PATIENCE, self.enlist(queue)).await;
            if !matches!(listed, Ok(Ok(()))) {
                tracing::warn!(queue, "the log of queues is not up; the queue may be missing from lists");
            }
        }
        Ok(())
    }

    /// Makes sure that tasks of a queue can be delayed.
    pub(super) async fn ensure_ladder(&self, queue: &str) -> Result<(), BrokerError> {
        let _turn = self.making.lock().await;
        let control = self.control.connection().await?;
        if !self.topology.ensure_ladder(&control, self.kind(queue), queue).await? {
            return Ok(());
        }
        // Workers of version 0.1.0 do not consume due tasks.
        if let Some(due) = self.kind(queue).due_name(queue) {
            let consumers = |found: Option<tidegate_amqp::Declared>| found.map_or(0, |declared| declared.consumers);
            if consumers(self.look(queue).await?) > 0 && consumers(self.look(&due).await?) == 0 {
                tracing::warn!(
                    queue,
                    due,
                    "the workers of this queue do not consume its due tasks: delayed tasks wait until workers of a newer \
                     version run; upgrade workers before producers"
                );
            }
        }
        Ok(())
    }

    /// For a worker: the queue, what is beside it, and, once tasks were delayed, all of its ladder. If a
    /// part of it was deleted, the tasks in the rungs above wait until it is there again.
    pub(super) async fn ensure_sources(&self, queue: &str) -> Result<(), BrokerError> {
        self.ensure(queue).await?;
        if self.has_ladder(queue).await? {
            let control = self.control.connection().await?;
            self.topology.ensure_ladder(&control, self.kind(queue), queue).await?;
        }
        Ok(())
    }

    /// Whether a queue has a ladder, of which rungs may be missing.
    pub(super) async fn has_ladder(&self, queue: &str) -> Result<bool, BrokerError> {
        if delay::unfit(queue).is_some() {
            return Ok(false);
        }
        let control = self.control.connection().await?;
        let looked = control.declare_exchange(&Exchange::passive(delay::mark_name(queue))).await;
        control.try_recv_all();
        match looked {
            Ok(()) => Ok(true),
            Err(Error::Refused { refusal, .. }) if refusal.code == 404 => Ok(false),
            Err(error) => Err(of_request(&error)),
        }
    }

    /// The message for a task that goes there now.
    async fn message(&self, stored: &Stored, place: Place) -> Result<Message, BrokerError> {
        let envelope = &stored.envelope;
        self.ensure(&envelope.queue).await?;
        let kind = self.kind(&envelope.queue);
        let priority = match place {
            Place::Head if kind == QueueKind::Classic => PRIORITY_RETURNED,
            _ => envelope.priority,
        };
        let wait = || envelope.eta.map(|eta| clock::until(eta, self.now())).filter(|wait| !wait.is_zero());
        let (exchange, key) = match (place, wait()) {
            (Place::Dead, _) => (String::new(), kind.dead_name(&envelope.queue)),
            (Place::Queue | Place::Due, Some(_)) => {
                self.ensure_ladder(&envelope.queue).await?;
                // Making the ladder takes a part of the delay.
                delay::route(&kind.target(&envelope.queue), wait().unwrap_or_default())
            }
            (Place::Due, None) => (String::new(), kind.target(&envelope.queue)),
            _ => (String::new(), envelope.queue.clone()),
        };
        let properties = message::properties(stored, priority);
        let message = Message::new(exchange, key, envelope.body.clone()).properties(&properties).mandatory(true);
        match message.properties_bytes() {
            ..=PROPERTIES_BYTES_MAX => Ok(message),
            _ if place == Place::Dead => Ok(message.properties(&message::fitting(stored, priority))),
            bytes => Err(BrokerError::Refused {
                message: format!(
                    "the headers of task {} have {bytes} bytes with those that the queue needs, and no more than \
                     {PROPERTIES_BYTES_MAX} fit: move what they carry to the arguments",
                    message::excerpt(envelope.id.as_str())
                ),
            }),
        }
    }

    /// As [`message`](Self::message). Queues are made over another connection than tasks are published over; while that is away, it
    /// is waited for, too, at the expense of `patience`. What a broker that is there takes to make a queue does not count.
    /// Without patience the caller tries again.
    async fn message_within(
        &self,
        stored: &Stored,
        place: Place,
        patience: &mut Option<Duration>,
    ) -> Result<Message, BrokerError> {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
        loop {
            let began = LoopHandle::current().time();
            let made = self.message(stored, place).await;
            let wait = backoff.next();
            let spent = LoopHandle::current().time().saturating_duration_since(began) + wait;
            match (made, patience.as_mut().filter(|left| **left > spent)) {
                (Err(BrokerError::Retry { .. }), Some(left)) => {
                    *left -= spent;
                    sleep(wait).await;
                }
                (made, _) => return made,
            }
        }
    }

    /// How tasks are published unless the caller knows better: for as long as the options say.
    pub(super) fn terms(&self) -> Terms {
        Terms::within(self.options.publish_patience)
    }

    /// Writes tasks to their places and returns one fate per task.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(super) async fn write_each(&self, tasks: &[(Stored, Place)], terms: Terms) -> Result<Vec<Fate>, BrokerError> {
        self.write_over(None, tasks, terms).await
    }

    /// As [`write_each`](Self::write_each), over one channel and no other if it is given.
    pub(super) async fn write_over(
        &self,
        channel: Option<(Rc<Connection>, u32)>,
        tasks: &[(Stored, Place)],
        terms: Terms,
    ) -> Result<Vec<Fate>, BrokerError> {
        let mut terms = terms;
        let mut messages = Vec::with_capacity(tasks.len());
        for (stored, place) in tasks {
            messages.push(self.message_within(stored, *place, &mut terms.patience).await?);
        }
        let mut forgotten = false;
        // A queue of this topology was deleted.
        let declare = async |index: usize| {
            if !std::mem::replace(&mut forgotten, true) {
                self.topology.forget();
            }
            let (stored, place): &(Stored, Place) = &tasks[index];
            self.message(stored, *place).await
        };
        self.publisher.send_over(channel, messages, terms, declare).await
    }

    /// Writes a message unchanged to one of tidegate's own queues.
    pub(super) async fn send_raw(&self, message: Message, terms: Terms) -> Result<Vec<Fate>, BrokerError> {
        let declare = async |_| {
            let message =
                "the queue of dead letters was deleted; it is made with the next start of a worker".to_owned();
            Err(BrokerError::Retry { message })
        };
        self.publisher.send(vec![message], terms, declare).await
    }

    pub(super) async fn post(&self, message: Message) -> Result<(), BrokerError> {
        self.post_all(vec![message]).await
    }

    /// Sends messages as they are, to places that may be gone.
    pub(super) async fn post_all(&self, messages: Vec<Message>) -> Result<(), BrokerError> {
        self.courtesy.post(messages, self.options.publish_patience).await
    }

    /// Appends to a log.
    pub(super) async fn append(&self, log: &str, entry: &Value) -> Result<(), BrokerError> {
        self.append_all(log, std::slice::from_ref(entry)).await
    }

    pub(super) async fn append_all(&self, log: &str, entries: &[Value]) -> Result<(), BrokerError> {
        let message = |entry: &Value| Message::to_queue(log, exact::to_string(entry).into()).mandatory(true);
        let terms = Terms { silence: Some(ENTRY_PATIENCE), ..self.terms() };
        let mut declared = false;
        let declare = async |index: usize| {
            if !std::mem::replace(&mut declared, true) {
                self.declare_log(log).await?;
            }
            Ok(message(&entries[index]))
        };
        all_stored(self.logs.send(entries.iter().map(message).collect(), terms, declare).await?)
    }

    pub(super) async fn declare_log(&self, log: &str) -> Result<(), BrokerError> {
        let keep = match log {
            RESULTS => Some(self.options.result_memory),
            REVOKED => Some(self.options.revoke_memory),
            _ => None,
        };
        topology::declare_log(&*self.control.connection().await?, log, keep).await
    }

    pub(super) async fn store_results(&self, results: &[TaskResult]) -> Result<(), BrokerError> {
        let now = self.now();
        let entries: Vec<Value> = results.iter().map(|result| result_entry(result, now)).collect();
        self.append_all(RESULTS, &entries).await
    }

    pub(super) fn end(&self, id: &TaskId, state: TaskState) -> TaskResult {
        let ttl = self.options.result_memory;
        TaskResult { id: id.clone(), state, value: Value::Null, error: None, ttl }
    }

    /// A message of ours, found at that time and read into that memory; `None` if its properties cannot be.
    pub(super) fn read(
        queue: &str,
        kind: QueueKind,
        delivery: &mut Delivery,
        found: Timestamp,
        memory: Option<Arc<Envelope>>,
    ) -> Option<Stored> {
        let properties = delivery.properties.glance().ok()?;
        let body = std::mem::take(&mut delivery.body);
        Some(message::read(queue, &properties, body, found, kind == QueueKind::Quorum, memory))
    }

    /// Reads a log to its end, from its beginning or behind an entry; each comes with its place.
    pub(super) async fn scan(
        &self,
        log: &str,
        behind: Option<i64>,
        each: impl FnMut(Value, Option<i64>),
    ) -> Result<(), BrokerError> {
        let late = |_| Err(BrokerError::Retry { message: format!("log {log:?} at {} does not answer", self.uri) });
        timeout(LOG_PATIENCE, self.scan_all(log, behind, each)).await.unwrap_or_else(late)
    }

    async fn scan_all(
        &self,
        log: &str,
        behind: Option<i64>,
        mut each: impl FnMut(Value, Option<i64>),
    ) -> Result<(), BrokerError> {
        let marker = self.mark(log).await?;
        let connection = tidegate_amqp::Connection::open(&self.uri, &tidegate_amqp::Options::default()).await;
        let connection = connection.map_err(|error| super::link::of_connect(&error))?;
        let scanned = async {
            connection.qos(1000).await?;
            connection.consume(&reading(log, behind)).await?;
            loop {
                for incoming in connection.recv_all().await? {
                    let tidegate_amqp::Incoming::Delivery(delivery) = incoming else {
                        let (place, reason) =
                            (connection.place().to_owned(), format!("reading was ended: {incoming:?}"));
                        return Err(Error::Lost { place, reason });
                    };
                    connection.settle(delivery.tag, tidegate_amqp::Settle::Ack);
                    let Ok(entry) = exact::from_slice::<Value>(&delivery.body) else { continue };
                    let last = entry.get("marker").is_some_and(|nonce| *nonce == *marker);
                    each(entry, offset(&delivery));
                    if last {
                        return Ok::<(), Error>(());
                    }
                }
            }
        };
        scanned.await.map_err(|error| of_request(&error))?;
        connection.close().await;
        Ok(())
    }

    /// Appends an entry of no meaning: who has read it, has read everything before it.
    pub(super) async fn mark(&self, log: &str) -> Result<String, BrokerError> {
        let nonce = TaskId::new().to_string();
        self.append(log, &json!({ "marker": nonce })).await?;
        Ok(nonce)
    }

    /// What waits in a queue, if it is there.
    pub(super) async fn look(&self, queue: &str) -> Result<Option<tidegate_amqp::Declared>, BrokerError> {
        let control = self.control.connection().await?;
        let looked = control.declare(&Queue::passive(queue)).await;
        control.try_recv_all();
        match looked {
            Ok(declared) => Ok(Some(declared)),
            Err(Error::Refused { refusal, .. }) if refusal.code == 404 => Ok(None),
            Err(error) => Err(of_request(&error)),
        }
    }
}

/// A consumer of a log, from the beginning or behind an entry.
pub(super) fn reading(log: &str, behind: Option<i64>) -> Consume {
    use tidegate_amqp::types::AMQPValue;
    let mut consume = Consume::from(log);
    let offset = match behind {
        None => AMQPValue::LongString("first".into()),
        Some(behind) => AMQPValue::LongLongInt(behind + 1),
    };
    consume.arguments.insert("x-stream-offset".into(), offset);
    consume
}

/// Where an entry stands in its log.
pub(super) fn offset(delivery: &Delivery) -> Option<i64> {
    delivery.properties.glance().ok()?.headers.find_map(|header| match header {
        (b"x-stream-offset", Field::Integer(offset)) => Some(offset),
        _ => None,
    })
}

fn result_entry(result: &TaskResult, now: Timestamp) -> Value {
    let until = now.checked_add(result.ttl.min(Duration::from_secs(10 * 365 * 86_400))).unwrap_or(Timestamp::MAX);
    json!({ "result": result, "until": until.as_millisecond() })
}

/// A result that has not expired, and until when it holds.
pub(super) fn read_result(mut entry: Value, now: Timestamp) -> Option<(TaskResult, Timestamp)> {
    let until = Timestamp::from_millisecond(entry.get("until")?.as_i64()?).ok()?;
    let mut result: TaskResult = serde_json::from_value(entry.get_mut("result")?.take()).ok()?;
    result.ttl = clock::until(until, now);
    (!result.ttl.is_zero()).then_some((result, until))
}

/// As a dead letter.
pub(super) fn dying(mut stored: Stored, at: Timestamp, reason: String, traceback: Option<String>) -> Stored {
    stored.dead = Some(Box::new(Death { at, reason, traceback }));
    stored
}
