//! Keeps a consumer connected: makes the connection, restores what it had, receives, and starts over when it is gone.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_amqp::{Connection, Consume, Error, Incoming as Arrived, Settle};
use tidegate_loop::{sleep, spawn, timeout};

use super::backoff::Backoff;
use super::consumer::{ACK_PATIENCE, Held, READ_PATIENCE, Shared};
use super::core::{Core, Place};
use super::engine::plan::{Plan, Step};
use super::engine::publisher::{Fate, Terms};
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::message;
use super::quarantine;
use super::settle;
use super::topology::QueueKind;
use crate::broker::{BrokerError, Incoming, Tag, TaskState};
use crate::clock;
use crate::codec::dramatiq;

/// How long an attempt to connect may take; a broker that starts may take a connection and not answer on it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long the notes of returned tasks are waited for.
const JUDGE_PATIENCE: Duration = Duration::from_secs(1);

/// How long a copy with a new count of crashes is waited for.
const RECOUNT_PATIENCE: Duration = Duration::from_secs(2);

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
    shared.epoch.set(shared.epoch.get() + 1);
    if shared.stopped.get() {
        return Ok(());
    }
    for (at, queue) in shared.subscription.queues.iter().enumerate() {
        for (from, tag) in sources(shared, at, queue) {
            let mut consume = Consume::from(&from);
            consume.tag = tag;
            connection.consume(&consume).await?;
        }
    }
    Ok(())
}

/// What a queue's tasks come from, and under which tag.
pub(super) fn sources(shared: &Shared, at: usize, queue: &str) -> Vec<(String, String)> {
    // Due tasks first: they have waited longer.
    let due = shared.core.kind(queue).due_name(queue).map(|due| (due, due_tag(at)));
    let mut sources: Vec<_> = due.into_iter().chain([(queue.to_owned(), consumer_tag(at))]).collect();
    if let Some(delayed) = shared.core.kind(queue).delayed_name(queue) {
        sources.push((delayed, delayed_tag(at)));
    }
    sources
}

/// Runs for as long as the consumer lives.
pub(super) async fn supervise(shared: Rc<Shared>, mut connection: Rc<Connection>) {
    loop {
        *shared.connection.borrow_mut() = Some(connection.clone());
        let end = receive(&shared, &connection).await;
        lose(&shared);
        if shared.closed.get() || shared.stopped.get() {
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
        shared.pardon(away);
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

/// The deliveries of the connection that is gone are somebody else's, or ours once more.
fn lose(shared: &Shared) {
    shared.connection.borrow_mut().take();
    let mut missed = shared.missed.borrow_mut();
    if missed.len() > 4 * shared.subscription.prefetch {
        // Others have long had them.
        missed.clear();
    }
    let mut tags: Vec<Tag> = Vec::new();
    for (tag, held) in shared.running.borrow_mut().drain() {
        missed.insert(held.stored.envelope.id.clone());
        tags.push(tag);
    }
    let copies = shared.recounting.borrow_mut().drain().filter_map(|(_, copy)| copy).collect::<Vec<_>>();
    for held in shared.take_held().into_iter().chain(copies) {
        missed.insert(held.stored.envelope.id.clone());
    }
    let mut settling = shared.settling.borrow_mut();
    missed.extend(settling.values().map(|settling| settling.id()));
    if settling.len() > 4 * shared.subscription.prefetch {
        settling.retain(|_, settling| {
            let parked = settling.is_parked();
            if parked {
                settling.cancel();
            }
            !parked
        });
    }
    drop(settling);
    tags.sort_unstable();
    tags.into_iter().for_each(|tag| shared.notice(Incoming::Lost(tag)));
    shared.changed.notify_all();
}

/// Until the connection ends, or its channel does.
async fn receive(shared: &Rc<Shared>, connection: &Rc<Connection>) -> String {
    loop {
        let arrived = match connection.recv_all().await {
            Ok(arrived) => arrived,
            Err(error) => return error.to_string(),
        };
        let (before, now) = (shared.holds(), shared.core.now());
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
                Arrived::ConsumerCancelled { consumer } if !shared.stopped.get() => {
                    shared.core.forget();
                    return format!("the broker ended consumer {consumer}: its queue was deleted or moved");
                }
                Arrived::ChannelClosed(refusal) => return refusal.to_string(),
                _ => {}
            }
        }
        if shared.holds() > before || !shared.notices.borrow().is_empty() {
            shared.changed.notify_all();
        }
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
    let (amqp, redelivered) = (delivery.tag, delivery.redelivered);
    let delivered = if kind == QueueKind::Quorum && redelivered { message::delivery_count(&delivery) } else { 0 };
    connection.reuse(delivery);
    if delayed && stored.envelope.eta.is_none() {
        let eta = dramatiq::read(&stored.envelope).ok().and_then(|message| message.eta());
        Arc::make_mut(&mut stored.envelope).eta = eta;
    }
    let tag = Tag { epoch: shared.epoch.get(), number: amqp.number };
    let mut held = Held { at, tag, amqp, stored, counted: delivered, delivered, due, handed_out: None };
    if let Some(copy @ None) = shared.recounting.borrow_mut().get_mut(&held.stored.envelope.id) {
        *copy = Some(held);
        return;
    }
    let mut pardoned = false;
    if redelivered {
        // The same attempt is being settled here: it is not run again.
        let Some(fresh) = settle::join(shared, held) else { return };
        held = fresh;
        pardoned = shared.pardons(&held.stored.envelope.id);
    }
    let envelope = &held.stored.envelope;
    if shared.is_revoked(&envelope.id) {
        shared.conclude(held, TaskState::Revoked);
    } else if envelope.expires.is_some_and(|expires| expires <= now) {
        shared.notice(Incoming::Expired(envelope.id.clone()));
        shared.conclude(held, TaskState::Expired);
    } else if envelope.eta.is_some_and(|eta| clock::until(eta, now) > super::delay::UNIT) {
        let copy = Step::Copy(Box::new((held.stored.clone(), Place::Due)));
        settle::begin(shared, held, Plan::new([copy, Step::Ack]));
    } else if redelivered && !delayed {
        judge(shared, held, kind, pardoned);
    } else {
        hold(shared, held);
    }
}

/// Keeps a task for the worker, or gives it back if the worker wants no more.
fn hold(shared: &Rc<Shared>, held: Held) {
    if shared.stopped.get() {
        let plan = Shared::return_plan(&held);
        settle::begin(shared, held, plan);
    } else {
        shared.hold(held);
    }
}

/// Finds out how many of a task's deliveries ended by a crash: all that is told is that there were some.
fn judge(shared: &Rc<Shared>, held: Held, kind: QueueKind, pardoned: bool) {
    let revokes = &shared.revokes;
    if kind == QueueKind::Quorum {
        let attempt = held.attempt();
        // The queue has counted every delivery, whatever its end was.
        let known = |held: &Held| revokes.returned(&attempt) + u32::from(pardoned) >= held.delivered;
        if known(&held) {
            return hold(shared, discounted(held, revokes.returned(&attempt) + u32::from(pardoned)));
        }
    } else if pardoned || revokes.take_returned(&held.attempt()) {
        return hold(shared, held);
    }
    drop(spawn(judge_later(Rc::clone(shared), held, kind, pardoned)));
}

/// Takes back deliveries of a quorum queue that no worker died with.
fn discounted(mut held: Held, innocent: u32) -> Held {
    let innocent = innocent.min(held.counted);
    held.counted -= innocent;
    held.stored.crashes = held.stored.crashes.saturating_sub(innocent);
    held
}

/// As [`judge`], once the notes of others were read.
async fn judge_later(shared: Rc<Shared>, mut held: Held, kind: QueueKind, pardoned: bool) {
    if !matches!(timeout(JUDGE_PATIENCE, shared.revokes.catch_up(&shared.core)).await, Ok(Ok(()))) {
        tracing::debug!(task.id = %held.stored.envelope.id, "the notes of returned tasks cannot be read");
    }
    if held.tag.epoch != shared.epoch.get() {
        return;
    }
    let attempt = held.attempt();
    if kind == QueueKind::Quorum {
        let innocent = shared.revokes.returned(&attempt) + u32::from(pardoned);
        hold(&shared, discounted(held, innocent));
    } else if shared.revokes.take_returned(&attempt) {
        hold(&shared, held);
    } else {
        // Only a new message can carry the count.
        held.stored.crashes += 1;
        let terms = Terms::within(RECOUNT_PATIENCE);
        let copy = (held.stored.clone(), held.place());
        shared.recounting.borrow_mut().insert(attempt.id.clone(), None);
        match shared.core.write_each(&[copy], terms).await.as_deref() {
            Ok([Fate::Stored]) => _ = shared.settle_amqp(held.amqp, held.tag.epoch, Settle::Ack),
            // It is not worth waiting for: the count is right for this run.
            _ if held.tag.epoch == shared.epoch.get() => {
                held.counted += 1;
                hold(&shared, held);
            }
            _ => {}
        }
        let copy = shared.recounting.borrow_mut().remove(&attempt.id).flatten();
        if let Some(copy) = copy {
            hold(&shared, copy);
        }
    }
    shared.changed.notify_all();
}
