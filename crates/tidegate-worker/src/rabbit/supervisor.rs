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
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::topology::QueueKind;
use crate::broker::{BrokerError, Incoming, Tag, TaskState};
use crate::clock;
use crate::codec::dramatiq;

/// How long an attempt to connect may take; a broker that starts may take a connection and not answer on it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

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
    options.body_bytes_max = core.options.body_bytes_max as u64;
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
    let copies = shared.rewriting.borrow_mut().drain().filter_map(|(_, copy)| copy).collect::<Vec<_>>();
    for held in shared.take_held().into_iter().chain(copies) {
        missed.insert(held.stored.envelope.id.clone());
    }
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
                    if let Some(source) = &source {
                        take(shared, connection, source, delivery, now);
                    }
                }
                Arrived::Oversized { bytes, .. } => {
                    tracing::warn!(bytes, "a message larger than allowed went to the dead letters");
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
    connection: &Connection,
    source: &Source,
    mut delivery: tidegate_amqp::Delivery,
    now: Timestamp,
) {
    let Source { at, delayed, due, kind, .. } = *source;
    let queue = &shared.subscription.queues[at];
    let Some(mut stored) = Core::read(queue, kind, &mut delivery, now, shared.memory.borrow_mut().pop()) else {
        tracing::warn!(queue, "a message whose properties cannot be read went to the dead letters");
        connection.settle(delivery.tag, Settle::Reject);
        return;
    };
    let (amqp, redelivered) = (delivery.tag, delivery.redelivered);
    connection.reuse(delivery);
    if delayed && stored.envelope.eta.is_none() {
        let eta = dramatiq::read(&stored.envelope).ok().and_then(|message| message.eta());
        Arc::make_mut(&mut stored.envelope).eta = eta;
    }
    let pardoned = redelivered && shared.pardons(&stored.envelope.id);
    let counted_by_broker = kind == QueueKind::Quorum;
    if pardoned && counted_by_broker {
        stored.crashes = stored.crashes.saturating_sub(1);
    }
    let tag = Tag { epoch: shared.epoch.get(), number: amqp.number };
    let held = Held { at, tag, amqp, stored, handed_out: None };
    let held = match shared.rewriting.borrow_mut().get_mut(&held.stored.envelope.id) {
        Some(copy @ None) => {
            *copy = Some(held);
            return;
        }
        _ => held,
    };
    let envelope = &held.stored.envelope;
    if shared.is_revoked(&envelope.id) {
        drop(spawn(finish(shared.clone(), held, TaskState::Revoked)));
    } else if envelope.expires.is_some_and(|expires| expires <= now) {
        shared.notice(Incoming::Expired(envelope.id.clone()));
        drop(spawn(finish(shared.clone(), held, TaskState::Expired)));
    } else if envelope.eta.is_some_and(|eta| clock::until(eta, now) > super::delay::UNIT) {
        drop(spawn(rewrite(shared.clone(), held, Place::Due)));
    } else if redelivered && !counted_by_broker && !pardoned && !delayed {
        // Only a new message can carry the count; its first one says no more than that somebody had it.
        let mut held = held;
        held.stored.crashes += 1;
        drop(spawn(rewrite(shared.clone(), held, if due { Place::Due } else { Place::Head })));
    } else if shared.stopped.get() {
        drop(spawn(rewrite(shared.clone(), held, Place::Head)));
    } else {
        shared.hold(held);
    }
}

/// A task that must not run leaves with a result.
pub(super) async fn finish(shared: Rc<Shared>, held: Held, state: TaskState) {
    let Held { stored, amqp, tag, .. } = held;
    let envelope = &stored.envelope;
    let done = async {
        shared.core.conclude(&stored, state).await?;
        shared.ack(amqp, tag.epoch);
        shared.core.release(envelope).await
    };
    if let Err(error) = done.await {
        tracing::warn!(task = %envelope.id, %error, "a task that must not run could not be taken out; it comes again");
    }
}

/// Puts a changed copy in the place of a message.
async fn rewrite(shared: Rc<Shared>, held: Held, place: Place) {
    let Held { stored, amqp, tag, .. } = held;
    let id = stored.envelope.id.clone();
    shared.rewriting.borrow_mut().insert(id.clone(), None);
    match shared.core.write(&[(stored, place)]).await {
        Ok(()) => {
            shared.ack(amqp, tag.epoch);
        }
        Err(error) => tracing::warn!(task = %id, %error, "a task could not be put back; it comes again"),
    }
    let copy = shared.rewriting.borrow_mut().remove(&id).flatten();
    if let Some(copy) = copy {
        shared.hold(copy);
        shared.changed.notify_all();
    }
}
