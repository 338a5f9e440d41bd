//! One worker's deliveries: what the supervisor has received, what is handed out, and how it is settled.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_amqp::{Connection, Settle};
use tidegate_loop::{LoopHandle, Task, spawn, timeout};
use tidegate_sync::Event;

use super::core::{Core, Place, dying};
use super::follow;
use super::message::Stored;
use super::revokes::{Follower, Revokes};
use super::supervisor;
use crate::broker::{
    BrokerError, Consumer, Delivery, Incoming, Local, Settled, Settlement, Subscription, Tag, TaskResult, TaskState,
    Verdict,
};
use crate::hash::QuickMap;
use crate::share::share;
use crate::task::{Envelope, TaskId};

/// How long a close waits for a broker to take back what is unsettled; after that it takes it back by itself.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// What a lost connection sends back comes within this time, unless others take it.
const PARDONED_FOR: Duration = Duration::from_secs(30);

/// How long the acknowledgement of a brief task may wait for others: for that the broker is spoken to once for many tasks.
/// Those that ended within this time before a worker dies are run again, as is what ran.
pub(super) const ACK_PATIENCE: Duration = Duration::from_millis(5);

/// How long tasks that flood in may gather before they are looked at: for that the kernel is asked once for dozens of them.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(2);

/// A delivery of the current connection.
#[derive(Debug)]
pub(super) struct Held {
    /// The place of its queue in the subscription.
    pub(super) at: usize,
    pub(super) tag: Tag,
    pub(super) amqp: tidegate_amqp::Tag,
    pub(super) stored: Stored,
    /// Since when the worker has it.
    pub(super) handed_out: Option<Instant>,
}

impl Held {
    /// Whether it took so little that doing it again costs less than telling the broker of it alone.
    fn is_brief(&self, now: Instant) -> bool {
        self.handed_out.is_some_and(|since| now.saturating_duration_since(since) < ACK_PATIENCE)
    }
}

pub(super) struct Shared {
    pub(super) core: Rc<Core>,
    pub(super) subscription: Subscription,
    /// Told before any delivery.
    pub(super) notices: RefCell<VecDeque<Incoming>>,
    /// Received, and not handed out; by queue, as they are subscribed to.
    pub(super) held: RefCell<Vec<VecDeque<Held>>>,
    /// Where the next sharing out begins among the queues, so that none comes last for ever.
    turn: Cell<usize>,
    /// Envelopes that were settled: the next ones take their place.
    pub(super) memory: RefCell<Vec<Arc<Envelope>>>,
    /// Handed out, and not settled.
    pub(super) running: RefCell<QuickMap<Tag, Held>>,
    pub(super) connection: RefCell<Option<Rc<Connection>>>,
    /// Of the connection or channel that deliveries come over; every new one has another.
    pub(super) epoch: Cell<u32>,
    pub(super) revokes: Revokes,
    /// What we had when a connection was lost: that it comes again is nobody's crash.
    pub(super) missed: RefCell<HashSet<TaskId>>,
    /// How many others may come again, and until when, before it counts: they were on their way to us, or our acknowledgement to
    /// the broker.
    pub(super) pardons: Cell<(usize, Timestamp)>,
    /// Being replaced by a copy; if that comes before the first is acknowledged, it waits here, or a crash in between would
    /// leave two.
    pub(super) rewriting: RefCell<HashMap<TaskId, Option<Held>>>,
    pub(super) stopped: Cell<bool>,
    pub(super) closed: Cell<bool>,
    pub(super) failure: RefCell<Option<BrokerError>>,
    pub(super) changed: Event,
}

impl Shared {
    pub(super) fn new(core: Rc<Core>, subscription: Subscription) -> Shared {
        let held = subscription.queues.iter().map(|_| VecDeque::new()).collect();
        Shared {
            core,
            subscription,
            notices: RefCell::default(),
            held: RefCell::new(held),
            turn: Cell::new(0),
            memory: RefCell::default(),
            running: RefCell::default(),
            connection: RefCell::default(),
            epoch: Cell::new(0),
            revokes: Revokes::default(),
            missed: RefCell::default(),
            pardons: Cell::new((0, Timestamp::MIN)),
            rewriting: RefCell::default(),
            stopped: Cell::new(false),
            closed: Cell::new(false),
            failure: RefCell::default(),
            changed: Event::new(),
        }
    }

    pub(super) fn notice(&self, incoming: Incoming) {
        self.notices.borrow_mut().push_back(incoming);
    }

    /// Received.
    pub(super) fn hold(&self, held: Held) {
        self.held.borrow_mut()[held.at].push_back(held);
    }

    /// Everything that was received and not handed out.
    pub(super) fn take_held(&self) -> Vec<Held> {
        self.held.borrow_mut().iter_mut().flat_map(|queue| queue.drain(..)).collect()
    }

    pub(super) fn holds(&self) -> usize {
        self.held.borrow().iter().map(VecDeque::len).sum()
    }

    /// Tasks of a queue that this consumer has.
    pub(super) fn count(&self, queue: &str) -> u64 {
        let of_queue = |held: &&Held| held.stored.envelope.queue == queue;
        let running = self.running.borrow().values().filter(of_queue).count();
        let held = self.held.borrow().iter().flatten().filter(of_queue).count();
        (running + held) as u64
    }

    pub(super) fn is_revoked(&self, id: &TaskId) -> bool {
        self.revokes.contains(id)
    }

    /// After a connection was lost. A broker that was away takes everything it had for delivered before; otherwise it is what was
    /// under way, there and back.
    pub(super) fn pardon(&self, away: bool) {
        let now = self.core.now();
        let (left, until) = self.pardons.get();
        // A second loss does not make good for the first.
        let left = if until > now { left } else { 0 };
        let queues = self.subscription.queues.iter().enumerate();
        let sources: usize = queues.map(|(at, queue)| supervisor::sources(self, at, queue).len()).sum();
        let under_way = 2 * sources * self.subscription.prefetch;
        let until = now.checked_add(PARDONED_FOR).unwrap_or(Timestamp::MAX);
        self.pardons.set((if away { usize::MAX } else { left.max(under_way) }, until));
    }

    /// Whether a task that somebody had before was with us when a connection was lost.
    pub(super) fn pardons(&self, id: &TaskId) -> bool {
        if self.missed.borrow_mut().remove(id) {
            return true;
        }
        let (left, until) = self.pardons.get();
        let pardoned = left > 0 && self.core.now() < until;
        if pardoned {
            self.pardons.set((left - 1, until));
        }
        pardoned
    }

    /// Whether the worker has it.
    pub(super) fn runs(&self, id: &TaskId) -> bool {
        self.running.borrow().values().any(|held| held.stored.envelope.id == *id)
    }

    /// Tells the broker, if it is still the same connection.
    pub(super) fn ack(&self, tag: tidegate_amqp::Tag, epoch: u32) -> bool {
        self.ack_by(epoch, |connection| connection.settle(tag, Settle::Ack))
    }

    fn ack_by(&self, epoch: u32, ack: impl FnOnce(&Connection) -> bool) -> bool {
        epoch == self.epoch.get() && self.connection.borrow().as_ref().is_some_and(|connection| ack(connection))
    }

    /// What is there for the worker now.
    fn take(self: &Rc<Self>) -> Vec<Incoming> {
        let mut incoming: Vec<Incoming> = self.notices.borrow_mut().drain(..).collect();
        if self.stopped.get() {
            return incoming;
        }
        let (mut held, mut running) = (self.held.borrow_mut(), self.running.borrow_mut());
        let room = self.subscription.prefetch.saturating_sub(running.len());
        let shares = if let [queue] = &held[..] {
            vec![room.min(queue.len())]
        } else {
            let waiting: Vec<usize> = held.iter().map(VecDeque::len).collect();
            let turn = self.turn.get();
            self.turn.set((turn + 1) % waiting.len().max(1));
            share(&waiting, room, turn)
        };
        incoming.reserve(shares.iter().sum());
        let now = Some(LoopHandle::current().time());
        for (queue, count) in held.iter_mut().zip(shares) {
            for mut one in queue.drain(..count) {
                // Revoked while it lay here, where nobody looks for it.
                if self.is_revoked(&one.stored.envelope.id) {
                    drop(spawn(supervisor::finish(Rc::clone(self), one, TaskState::Revoked)));
                    continue;
                }
                let Stored { envelope, retries, crashes, published, .. } = &one.stored;
                incoming.push(Incoming::Delivery(Delivery {
                    tag: one.tag,
                    envelope: Arc::clone(envelope),
                    retries: *retries,
                    crashes: *crashes,
                    published: *published,
                }));
                one.handed_out = now;
                running.insert(one.tag, one);
            }
        }
        incoming
    }

    async fn receive(self: &Rc<Self>) -> Result<Vec<Incoming>, BrokerError> {
        loop {
            if self.closed.get() {
                return Err(BrokerError::Closed);
            }
            let incoming = self.take();
            if !incoming.is_empty() {
                return Ok(incoming);
            }
            if let Some(failure) = self.failure.borrow().clone() {
                return Err(failure);
            }
            self.changed.wait().await;
        }
    }

    /// What must be written before the broker may forget a delivery.
    fn follow(&self, held: &Held, settlement: &Settlement) -> (Option<(Stored, Place)>, Option<TaskResult>) {
        let comes_back = matches!(settlement.verdict, Verdict::Retry { .. } | Verdict::Crash { .. } | Verdict::Return);
        if comes_back && self.is_revoked(&held.stored.envelope.id) {
            return (None, Some(self.core.end(&held.stored.envelope.id, TaskState::Revoked)));
        }
        let copy = match &settlement.verdict {
            Verdict::Ack => None,
            Verdict::Return => Some((held.stored.clone(), Place::Head)),
            Verdict::Retry { at } => {
                let mut stored = held.stored.clone();
                stored.retries += 1;
                Arc::make_mut(&mut stored.envelope).eta = Some(*at);
                let error = settlement.result.as_ref().and_then(|result| result.error.as_ref());
                follow::retried(self.core.kind(&held.stored.envelope.queue), &mut stored, *at, error);
                Some((stored, Place::Due))
            }
            Verdict::Crash { at } => {
                let mut stored = held.stored.clone();
                stored.crashes += 1;
                Arc::make_mut(&mut stored.envelope).eta = Some(*at);
                Some((stored, Place::Due))
            }
            Verdict::Dead { reason, traceback } => {
                let stored = dying(held.stored.clone(), self.core.now(), reason.clone(), traceback.clone());
                Some((stored, Place::Dead))
            }
        };
        (copy, settlement.result.clone())
    }

    /// Whether there is nothing to do but to tell the broker.
    fn is_plain(&self, settlement: &Settlement) -> bool {
        let unique = |held: &Held| held.stored.envelope.unique.is_some();
        matches!(settlement.verdict, Verdict::Ack)
            && settlement.result.is_none()
            && !self.running.borrow().get(&settlement.tag).is_some_and(unique)
    }

    /// As many as were ever handed out at a time, which is the prefetch at most.
    fn keep(&self, mut envelope: Arc<Envelope>) {
        if let Some(place) = Arc::get_mut(&mut envelope) {
            // Those may be large.
            if !place.headers.is_empty() {
                place.headers = BTreeMap::new();
            }
            let body = std::mem::take(&mut place.body);
            if let Some(connection) = &*self.connection.borrow() {
                connection.reuse_body(body);
            }
            self.memory.borrow_mut().push(envelope);
        }
    }

    /// `lazily`: the brief ones need not be told at once.
    fn tell(&self, batch: &[Settlement], lazily: bool) -> Vec<Settled> {
        let now = LoopHandle::current().time();
        let settled = batch.iter().map(|settlement| {
            let held = self.running.borrow_mut().remove(&settlement.tag);
            let Some(held) = held else { return Settled::Lost };
            let acked = if lazily && held.is_brief(now) {
                self.ack_by(held.tag.epoch, |connection| connection.settle_lazily(held.amqp, Settle::Ack))
            } else {
                self.ack(held.amqp, held.tag.epoch)
            };
            self.keep(held.stored.envelope);
            if acked { Settled::Done } else { Settled::Lost }
        });
        let settled = settled.collect();
        if self.holds() > 0 {
            self.changed.notify_all();
        }
        settled
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Settled>, BrokerError> {
        if batch.iter().all(|settlement| self.is_plain(settlement)) {
            return Ok(self.tell(batch, true));
        }
        let (mut copies, mut results, mut released) = (Vec::new(), Vec::new(), Vec::new());
        let (mut following, now) = (self.core.following(), self.core.now());
        {
            let running = self.running.borrow();
            for settlement in batch {
                let Some(held) = running.get(&settlement.tag) else { continue };
                let (copy, result) = self.follow(held, settlement);
                let leaves = copy.as_ref().is_none_or(|(_, place)| *place == Place::Dead);
                if leaves && held.stored.envelope.unique.is_some() {
                    released.push(Arc::clone(&held.stored.envelope));
                }
                copies.extend(copy.map(|copy| (settlement.tag, copy)));
                results.extend(result.filter(|result| {
                    let kind = self.core.kind(&held.stored.envelope.queue);
                    following.add(kind, &held.stored, result, now)
                }));
            }
        }
        if !copies.is_empty() {
            // As they came, so that those returned together keep their order.
            copies.sort_by_key(|(tag, _)| *tag);
            let copies: Vec<(Stored, Place)> = copies.into_iter().map(|(_, copy)| copy).collect();
            self.core.write(&copies).await?;
        }
        self.core.write_following(following).await?;
        if !results.is_empty() {
            self.core.store_results(&results).await?;
        }
        // What was written for them is not to be written twice.
        let settled = self.tell(batch, false);
        for envelope in &released {
            // The key lets go of itself in time.
            if let Err(error) = self.core.release(envelope).await {
                tracing::warn!(task = %envelope.id, %error, "the unique key stays taken until its time is over");
            }
        }
        Ok(settled)
    }

    /// Gives deliveries back, uncounted.
    async fn give_back(&self, mut all: Vec<Held>) -> Result<(), BrokerError> {
        if all.is_empty() {
            return Ok(());
        }
        all.sort_by_key(|held| held.tag);
        let (revoked, returned): (Vec<&Held>, Vec<&Held>) =
            all.iter().partition(|held| self.is_revoked(&held.stored.envelope.id));
        let copies: Vec<(Stored, Place)> = returned.iter().map(|held| (held.stored.clone(), Place::Head)).collect();
        if !copies.is_empty() {
            self.core.write(&copies).await?;
        }
        for held in revoked {
            self.core.conclude(&held.stored, TaskState::Revoked).await?;
        }
        for held in &all {
            self.ack(held.amqp, held.tag.epoch);
        }
        Ok(())
    }

    async fn stop(&self) -> Result<(), BrokerError> {
        if self.stopped.replace(true) {
            return Ok(());
        }
        let connection = self.connection.borrow().clone();
        if let Some(connection) = connection {
            for (at, queue) in self.subscription.queues.iter().enumerate() {
                for (_, tag) in supervisor::sources(self, at, queue) {
                    // A connection that is gone delivers nothing either.
                    let _ = connection.cancel(&tag).await;
                }
            }
        }
        // The supervisor keeps what was on its way out of here from now on.
        self.give_back(self.take_held()).await
    }

    async fn close(&self) -> Result<(), BrokerError> {
        let returned = async {
            self.stop().await?;
            let running: Vec<Held> = self.running.borrow_mut().drain().map(|(_, held)| held).collect();
            self.give_back(running).await
        };
        let returned = timeout(CLOSE_PATIENCE, returned).await;
        self.closed.set(true);
        self.changed.notify_all();
        let connection = self.connection.borrow_mut().take();
        if let Some(connection) = connection {
            let _ = timeout(CLOSE_PATIENCE, connection.close()).await;
        }
        match returned {
            Ok(returned) => returned,
            Err(_) => {
                let message = "the broker does not answer; what is unsettled returns by itself".to_owned();
                Err(BrokerError::Retry { message })
            }
        }
    }
}

pub(super) struct RabbitConsumer {
    pub(super) shared: Rc<Shared>,
    pub(super) supervisor: Task,
    pub(super) _follower: Follower,
}

impl Consumer for RabbitConsumer {
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>> {
        Box::pin(self.shared.receive())
    }

    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>> {
        Box::pin(async move { self.shared.settle(&batch).await })
    }

    fn stop(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(self.shared.stop())
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async {
            let closed = self.shared.close().await;
            self.supervisor.cancel();
            closed
        })
    }
}

impl Drop for RabbitConsumer {
    fn drop(&mut self) {
        self.supervisor.cancel();
        // Cut: what is unsettled returns as it would after a crash.
        self.shared.connection.borrow_mut().take();
    }
}
