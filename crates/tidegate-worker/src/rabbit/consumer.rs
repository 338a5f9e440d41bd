//! One worker's deliveries: what the supervisor has received, what is handed out, and how it is settled.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_amqp::{Connection, Settle};
use tidegate_loop::{LoopHandle, Task, timeout};
use tidegate_sync::Event;

use super::core::{Core, Place, dying};
use super::engine::plan::{Plan, Step};
use super::follow;
use super::message::Stored;
use super::revokes::{Follower, Revokes};
use super::settle::{self, Attempt, Settling};
use super::supervisor;
use crate::broker::{
    BrokerError, Consumer, Delivery, Incoming, Local, Settled, Settlement, Subscription, Tag, TaskError, TaskResult,
    TaskState, Verdict,
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

/// How long a settlement is waited for before the others of its batch are answered.
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);

/// The same for one that was pending before.
const PENDING_PATIENCE: Duration = Duration::from_millis(50);

/// A task that a quorum queue has delivered this often is not put back but written anew: the queue gives up one that was
/// delivered 50 times.
pub(super) const DELIVERED_MAX: u32 = 25;

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
    /// How many of its crashes its message does not say: the broker counts them, or this worker.
    pub(super) counted: u32,
    /// How often a quorum queue has delivered it before.
    pub(super) delivered: u32,
    /// It comes from the queue of due tasks.
    pub(super) due: bool,
    /// Since when the worker has it.
    pub(super) handed_out: Option<Instant>,
}

impl Held {
    /// Where a copy of it goes that takes its place.
    pub(super) fn place(&self) -> Place {
        if self.due { Place::Due } else { Place::Head }
    }

    pub(super) fn attempt(&self) -> Attempt {
        let Stored { envelope, retries, crashes, .. } = &self.stored;
        Attempt { id: envelope.id.clone(), retries: *retries, crashes: crashes.saturating_sub(self.counted) }
    }

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
    /// Being replaced by a copy with another count. If that comes before the first is acknowledged, it waits here: a crash in
    /// between would leave two.
    pub(super) recounting: RefCell<HashMap<TaskId, Option<Held>>>,
    /// Being settled, by the delivery they came with.
    pub(super) settling: RefCell<QuickMap<Tag, Rc<Settling>>>,
    /// How those ended that were pending when the worker last asked.
    pub(super) ended: RefCell<QuickMap<Tag, Settled>>,
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
            recounting: RefCell::default(),
            settling: RefCell::default(),
            ended: RefCell::default(),
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
        let settling = self.settling.borrow().values().filter(|settling| settling.queue() == queue).count();
        (running + held + settling) as u64
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
    pub(super) fn settle_amqp(&self, tag: tidegate_amqp::Tag, epoch: u32, how: Settle) -> bool {
        self.ack_by(epoch, |connection| connection.settle(tag, how))
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
        let room = self.subscription.prefetch.saturating_sub(running.len() + self.settling.borrow().len());
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
                    self.conclude(one, TaskState::Revoked);
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

    /// Has a task that must not run leave with a result.
    pub(super) fn conclude(self: &Rc<Self>, held: Held, state: TaskState) {
        let watcher = self.core.unseen.borrow().clone();
        if let Some(watcher) = watcher {
            watcher(&held.stored.envelope, state);
        }
        let plan = self.end_plan(&held.stored, Some(self.core.end(&held.stored.envelope.id, state)), None);
        settle::begin(self, held, plan);
    }

    /// What is to be done for a task that leaves its queue with this result, to this place or for good.
    fn end_plan(&self, stored: &Stored, result: Option<TaskResult>, copy: Option<(Stored, Place)>) -> Plan {
        let mut steps = Vec::new();
        if let Some(result) = result {
            let mut following = self.core.following();
            if following.add(self.core.kind(&stored.envelope.queue), stored, &result, self.core.now()) {
                steps.push(Step::Result(result));
            }
            let (first, parts) = following.into_steps();
            steps.extend(first.into_iter().chain(parts));
        }
        let leaves = copy.as_ref().is_none_or(|(_, place)| *place == Place::Dead);
        steps.extend(copy.map(|copy| Step::Copy(Box::new(copy))));
        steps.push(Step::Ack);
        if leaves && stored.envelope.unique.is_some() {
            steps.push(Step::Release(Arc::clone(&stored.envelope)));
        }
        Plan::new(steps)
    }

    /// What is to be done for a task that is too large to be run: its producer gets a failure, the dead letters all of it.
    pub(super) fn quarantine_plan(&self, stored: &Stored, reason: &str) -> Plan {
        let mut result = self.core.end(&stored.envelope.id, TaskState::Failed);
        result.error = Some(TaskError { kind: "Rejected".to_owned(), message: reason.to_owned(), traceback: None });
        let (mut following, now) = (self.core.following(), self.core.now());
        let mut steps = Vec::new();
        if following.add_refusal(stored, &result, now) {
            steps.push(Step::Result(result));
        }
        let (first, parts) = following.into_steps();
        steps.extend(first.into_iter().chain(parts));
        let letter = dying(stored.clone(), now, reason.to_owned(), None);
        steps.extend([Step::Copy(Box::new((letter, Place::Dead))), Step::Ack]);
        if stored.envelope.unique.is_some() {
            steps.push(Step::Release(Arc::clone(&stored.envelope)));
        }
        Plan::new(steps)
    }

    /// What is to be done for a task that goes back to its place, uncounted.
    pub(super) fn return_plan(held: &Held) -> Plan {
        if held.delivered < DELIVERED_MAX {
            return Plan::new([Step::Note, Step::Requeue]);
        }
        // A quorum queue counts every return, and gives up a task that was delivered too often.
        let mut stored = held.stored.clone();
        stored.crashes = stored.crashes.saturating_sub(held.counted);
        Plan::new([Step::Copy(Box::new((stored, held.place()))), Step::Ack])
    }

    /// What must be done before the broker may forget a delivery.
    fn plan(&self, held: &Held, settlement: &Settlement) -> Plan {
        let stored = &held.stored;
        let comes_back = matches!(settlement.verdict, Verdict::Retry { .. } | Verdict::Crash { .. } | Verdict::Return);
        if comes_back && self.is_revoked(&stored.envelope.id) {
            return self.end_plan(stored, Some(self.core.end(&stored.envelope.id, TaskState::Revoked)), None);
        }
        let mut copy = stored.clone();
        let place = match &settlement.verdict {
            Verdict::Ack => return self.end_plan(stored, settlement.result.clone(), None),
            Verdict::Return => return Shared::return_plan(held),
            Verdict::Retry { at } => {
                copy.retries += 1;
                Arc::make_mut(&mut copy.envelope).eta = Some(*at);
                let error = settlement.result.as_ref().and_then(|result| result.error.as_ref());
                follow::retried(self.core.kind(&stored.envelope.queue), &mut copy, *at, error);
                Place::Due
            }
            Verdict::Crash { at } => {
                copy.crashes += 1;
                Arc::make_mut(&mut copy.envelope).eta = Some(*at);
                Place::Due
            }
            Verdict::Dead { reason, traceback } => {
                copy = dying(copy, self.core.now(), reason.clone(), traceback.clone());
                Place::Dead
            }
        };
        self.end_plan(stored, settlement.result.clone(), Some((copy, place)))
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
                self.settle_amqp(held.amqp, held.tag.epoch, Settle::Ack)
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

    async fn settle(self: &Rc<Self>, batch: &[Settlement]) -> Result<Vec<Settled>, BrokerError> {
        if batch.iter().all(|settlement| self.is_plain(settlement)) && self.ended.borrow().is_empty() {
            return Ok(self.tell(batch, true));
        }
        let mut settled: Vec<Result<Settled, Rc<Settling>>> = Vec::with_capacity(batch.len());
        let mut patience = PENDING_PATIENCE;
        // As they came, so that those returned together keep their order.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|at| batch[*at].tag);
        settled.resize_with(batch.len(), || Ok(Settled::Lost));
        for at in order {
            let settlement = &batch[at];
            let pending = self.settling.borrow().get(&settlement.tag).cloned();
            settled[at] = if let Some(settling) = pending {
                Err(settling)
            } else if let Some(ended) = self.ended.borrow_mut().remove(&settlement.tag) {
                Ok(ended)
            } else if self.is_plain(settlement) {
                Ok(self.tell(std::slice::from_ref(settlement), false)[0])
            } else {
                let held = self.running.borrow_mut().remove(&settlement.tag);
                match held {
                    Some(held) => {
                        patience = SETTLE_PATIENCE;
                        let plan = self.plan(&held, settlement);
                        Err(settle::begin(self, held, plan))
                    }
                    None => Ok(Settled::Lost),
                }
            };
        }
        let all = async {
            for settling in settled.iter().filter_map(|settled| settled.as_ref().err()) {
                settling.ended().await;
            }
        };
        let _ = timeout(patience, all).await;
        Ok(settled.into_iter().map(|settled| settled.unwrap_or_else(|settling| settling.answer())).collect())
    }

    /// Gives deliveries back, uncounted.
    async fn give_back(self: &Rc<Self>, all: Vec<Held>) {
        let mut returned = Vec::new();
        for held in all {
            if self.is_revoked(&held.stored.envelope.id) {
                self.conclude(held, TaskState::Revoked);
            } else if held.delivered < DELIVERED_MAX {
                returned.push(held);
            } else {
                let plan = Shared::return_plan(&held);
                settle::begin(self, held, plan);
            }
        }
        if returned.is_empty() {
            return;
        }
        // One note for all of them; without it each counts a crash more than it had.
        let attempts: Vec<Attempt> = returned.iter().map(Held::attempt).collect();
        if let Err(error) = self.core.note(&attempts).await {
            tracing::warn!(%error, tasks = attempts.len(), "returned tasks may be counted as crashed once");
        }
        for held in &returned {
            self.settle_amqp(held.amqp, held.tag.epoch, Settle::Requeue);
        }
    }

    /// Waits until everything that is being settled is.
    async fn settled(&self) {
        loop {
            let next = self.settling.borrow().values().find(|settling| !settling.is_parked()).cloned();
            let Some(settling) = next else { return };
            settling.ended().await;
            // Its task takes it out of the list.
            tidegate_loop::yield_now().await;
        }
    }

    /// Ends what is being settled where it is.
    fn cancel_settling(&self) {
        self.settling.take().values().for_each(|settling| settling.cancel());
    }

    async fn stop(self: &Rc<Self>) -> Result<(), BrokerError> {
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
        self.give_back(self.take_held()).await;
        Ok(())
    }

    async fn close(self: &Rc<Self>) -> Result<(), BrokerError> {
        let returned = async {
            self.stop().await?;
            let running: Vec<Held> = self.running.borrow_mut().drain().map(|(_, held)| held).collect();
            self.give_back(running).await;
            self.settled().await;
            Ok(())
        };
        let returned = timeout(CLOSE_PATIENCE, returned).await;
        self.closed.set(true);
        self.cancel_settling();
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
        self.shared.cancel_settling();
        // Cut: what is unsettled returns as it would after a crash.
        self.shared.connection.borrow_mut().take();
    }
}
