//! Keeps a consumer connected: makes the connection, restores what it had, receives, and starts over when it is gone.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_amqp::{Connection, Consume, Error, Incoming as Arrived};
use tidegate_loop::{LoopHandle, sleep, timeout};

use super::backoff::Backoff;
use super::consumer::{ACK_PATIENCE, READ_PATIENCE, Shared};
use super::core::Core;
use super::engine::deliveries::Arrival;
use super::engine::held::Held;
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::message;
use super::quarantine;
use super::topology::QueueKind;
use crate::broker::{BrokerError, Tag};
use crate::codec::dramatiq;

/// How long an attempt to connect may take; a broker that starts may take a connection and not answer on it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long the notes of returned tasks are waited for.
const JUDGE_PATIENCE: Duration = Duration::from_secs(1);

fn consumer_tag(at: usize) -> String {
    format!("queue-{at}")
}

fn delayed_tag(at: usize) -> String {
    format!("delayed-{at}")
}

fn due_tag(at: usize) -> String {
    format!("due-{at}")
}

/// What the deliveries of one consumer have in common.
struct Source {
    tag: Arc<str>,
    /// Which queue of the subscription they are for.
    at: usize,
    /// They come from where their producer had them wait.
    delayed: bool,
    /// They come from where they wait when they are due.
    due: bool,
    kind: QueueKind,
}

impl Source {
    fn of(shared: &Shared, tag: &Arc<str>) -> Option<Source> {
        let (kind, at) = tag.split_once('-')?;
        let (at, delayed, due) = (at.parse().ok()?, kind == "delayed", kind == "due");
        let queue = shared.subscription.queues.get(at)?;
        Some(Source { tag: Arc::clone(tag), at, delayed, due, kind: shared.core.kind(queue) })
    }
}

/// A connection on which everything is as it should be: topology, QoS, consumers started.
pub(super) async fn connect(shared: &Shared) -> Result<Rc<Connection>, BrokerError> {
    let core = &shared.core;
    let mut options = tidegate_amqp::Options::default();
    options.name = format!("{} {}", core.options.name, shared.subscription.consumer);
    options.body_bytes_max = quarantine::BYTES_MAX.max(core.options.body_bytes_max as u64);
    options.pause_above = core.options.body_bytes_max as u64;
    options.ack_patience = ACK_PATIENCE;
    options.read_patience = READ_PATIENCE;
    // Over the control connection: a refusal there leaves this one alone.
    for queue in &shared.subscription.queues {
        core.ensure_sources(queue).await?;
    }
    let connection = Rc::new(Connection::open(&core.uri, &options).await.map_err(|error| of_connect(&error))?);
    restore(shared, &connection).await.map_err(|error| {
        // Somebody may have deleted what was made before.
        core.forget();
        of_request(&error)
    })?;
    Ok(connection)
}

/// Everything a fresh channel lacks.
async fn restore(shared: &Shared, connection: &Connection) -> Result<(), Error> {
    // QoS is a consumer's, so each queue's has all of it, or an empty queue would keep the others from using its share; what is
    // beyond the whole is held here.
    let prefetch = u16::try_from(shared.subscription.prefetch.max(1)).unwrap_or(u16::MAX);
    connection.qos(prefetch).await?;
    if shared.deliveries.borrow().is_stopped() {
        return Ok(());
    }
    for (from, tag) in all_sources(shared) {
        let mut consume = Consume::from(&from);
        consume.tag = tag;
        connection.consume(&consume).await?;
    }
    Ok(())
}

/// Has the broker deliver nothing more.
pub(super) async fn cancel_sources(shared: &Shared, connection: &Connection) {
    for (_, tag) in all_sources(shared) {
        // A connection that is gone delivers nothing either.
        let _ = connection.cancel(&tag).await;
    }
}

fn all_sources(shared: &Shared) -> Vec<(String, String)> {
    let queues = shared.subscription.queues.iter().enumerate();
    queues.flat_map(|(at, queue)| sources(shared, at, queue)).collect()
}

/// What a queue's tasks come from, and under which tag.
fn sources(shared: &Shared, at: usize, queue: &str) -> Vec<(String, String)> {
    // Due tasks first: they have waited longer.
    let due = shared.core.kind(queue).due_name(queue).map(|due| (due, due_tag(at)));
    let mut sources: Vec<_> = due.into_iter().chain([(queue.to_owned(), consumer_tag(at))]).collect();
    if let Some(delayed) = shared.core.kind(queue).delayed_name(queue) {
        sources.push((delayed, delayed_tag(at)));
    }
    sources
}

/// Takes a connection into use: what it delivers is ours from now on.
pub(super) fn attach(shared: &Shared, connection: &Rc<Connection>) {
    *shared.connection.borrow_mut() = Some(Rc::clone(connection));
    shared.deliveries.borrow_mut().connected();
}

/// Runs for as long as the consumer lives, from a connection that is attached.
pub(super) async fn supervise(shared: Rc<Shared>, mut connection: Rc<Connection>) {
    loop {
        let end = receive(&shared, &connection).await;
        detach(&shared);
        if shared.closed.get() || shared.deliveries.borrow().is_stopped() {
            return;
        }
        tracing::warn!(broker = %shared.core.uri, reason = %end, "consuming stopped; reconnecting");
        let away;
        (connection, away) = match reconnect(&shared).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(broker = %shared.core.uri, %error, "consuming cannot go on");
                *shared.failure.borrow_mut() = Some(error);
                shared.changed.notify_all();
                return;
            }
        };
        attach(&shared, &connection);
        let (sources, now) = (all_sources(&shared).len(), shared.core.now());
        shared.deliveries.borrow_mut().excuse(away, sources, now);
        if shared.deliveries.borrow().is_stopped() {
            // The stop came while the consumers were started, and found no connection to cancel them on. Every task would be
            // delivered, given back, and delivered again.
            cancel_sources(&shared, &connection).await;
        }
        tracing::info!(broker = connection.place(), "consuming again");
    }
}

/// A new connection, and whether the broker was away in between.
async fn reconnect(shared: &Shared) -> Result<(Rc<Connection>, bool), BrokerError> {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    let (mut refused, mut away) = (0, false);
    loop {
        sleep(backoff.next()).await;
        let connected = timeout(CONNECT_PATIENCE, connect(shared)).await;
        let slow = || Err(BrokerError::Retry { message: format!("no answer within {CONNECT_PATIENCE:?}") });
        match connected.unwrap_or_else(|_| slow()) {
            Ok(connection) => return Ok((connection, away)),
            // A broker that starts refuses what it will allow in a moment: users and vhosts come last.
            Err(error @ BrokerError::Refused { .. }) => {
                refused += 1;
                if refused > 10 {
                    return Err(error);
                }
                tracing::warn!(broker = %shared.core.uri, %error, "not yet");
            }
            Err(BrokerError::Closed) => return Err(BrokerError::Closed),
            Err(error) => tracing::debug!(broker = %shared.core.uri, %error, "not yet"),
        }
        away = true;
    }
}

/// Deliveries of a connection that is gone cannot be settled any more.
fn detach(shared: &Rc<Shared>) {
    shared.connection.borrow_mut().take();
    shared.deliveries.borrow_mut().lost();
    shared.drivers.notify_all();
    shared.act();
}

/// Until the connection ends, or its channel does.
async fn receive(shared: &Rc<Shared>, connection: &Rc<Connection>) -> String {
    loop {
        let arrived = match connection.recv_all().await {
            Ok(arrived) => arrived,
            Err(error) => return error.to_string(),
        };
        let now = shared.core.now();
        let mut source: Option<Source> = None;
        for arrived in arrived {
            match arrived {
                Arrived::Delivery(delivery) => {
                    // Most deliveries come from where the one before came from.
                    if source.as_ref().is_none_or(|source| source.tag != delivery.consumer) {
                        source = Source::of(shared, &delivery.consumer);
                    }
                    match (&source, quarantine::reason(shared, &delivery)) {
                        (Some(source), None) => take(shared, connection, source, delivery, now),
                        (Some(source), Some(reason)) => {
                            quarantine::begin(shared, connection, source.at, delivery, &reason, now);
                        }
                        (None, _) => {
                            let reason = format!("it came for a consumer {:?} that is not known", delivery.consumer);
                            quarantine::begin(shared, connection, 0, delivery, &reason, now);
                        }
                    }
                }
                Arrived::Oversized { bytes, consumer, .. } => {
                    let at = Source::of(shared, &consumer).map_or(0, |source| source.at);
                    let queue = &shared.subscription.queues[at];
                    tracing::error!(
                        queue,
                        bytes,
                        "a message is larger than any worker takes; it stays in its queue, unacknowledged: remove it by hand"
                    );
                }
                Arrived::ConsumerCancelled { consumer } if !shared.deliveries.borrow().is_stopped() => {
                    shared.core.forget();
                    return format!("the broker ended consumer {consumer}: its queue was deleted or moved");
                }
                Arrived::ChannelClosed(refusal) => return refusal.to_string(),
                _ => {}
            }
        }
        shared.act();
    }
}

/// What becomes of a delivery before anybody sees it.
fn take(
    shared: &Rc<Shared>,
    connection: &Rc<Connection>,
    source: &Source,
    mut delivery: tidegate_amqp::Delivery,
    now: Timestamp,
) {
    let Source { at, delayed, due, kind, .. } = *source;
    let queue = &shared.subscription.queues[at];
    let Some(mut stored) = Core::read(queue, kind, &mut delivery, now, shared.memory.borrow_mut().pop()) else {
        return quarantine::begin(shared, connection, at, delivery, "its properties cannot be read", now);
    };
    let (amqp, redelivered, delivered) = (delivery.tag, delivery.redelivered, delivered(kind, &delivery));
    connection.reuse(delivery);
    if delayed && stored.envelope.eta.is_none() {
        let eta = dramatiq::read(&stored.envelope).ok().and_then(|message| message.eta());
        Arc::make_mut(&mut stored.envelope).eta = eta;
    }
    let (tag, quorum) = (shared.deliveries.borrow().tag(amqp.number), kind == QueueKind::Quorum);
    let held = Held { at, tag, amqp, stored, counted: delivered, delivered, due, handed_out: None };
    let arrival = Arrival { redelivered, delayed, quorum, wall: now, now: LoopHandle::current().time() };
    shared.deliveries.borrow_mut().arrived(held, arrival, &**shared);
}

/// How often a queue that counts has delivered a message before.
pub(super) fn delivered(kind: QueueKind, delivery: &tidegate_amqp::Delivery) -> u32 {
    if kind == QueueKind::Quorum && delivery.redelivered { message::delivery_count(delivery) } else { 0 }
}

/// Reads the notes of others before a redelivery counts as a crash.
pub(super) async fn judge(shared: Rc<Shared>, tag: Tag) {
    if !matches!(timeout(JUDGE_PATIENCE, shared.revokes.catch_up(&shared.core)).await, Ok(Ok(()))) {
        tracing::debug!("the notes of returned tasks cannot be read");
    }
    shared.deliveries.borrow_mut().judged(tag, &*shared);
    shared.act();
}
