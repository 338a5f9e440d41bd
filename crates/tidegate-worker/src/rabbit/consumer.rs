//! One worker's deliveries, as the worker sees them: received, settled, given back. What becomes of each is decided in
//! `engine/deliveries.rs`; this file moves bytes and wakes tasks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_amqp::{Connection, Settle};
use tidegate_loop::{LoopHandle, Task, spawn, timeout};
use tidegate_sync::Event;

use super::core::{Core, Place, dying};
use super::engine::deliveries::{Action, Deliveries, Facts, Reply};
use super::engine::held::{Attempt, Held};
use super::engine::plan::{Plan, Step};
use super::follow;
use super::management::Asking;
use super::message::Stored;
use super::revokes::{Follower, Revokes};
use super::settle::{self, Drivers};
use super::supervisor;
use crate::broker::{
    BrokerError, Consumer, Incoming, Local, Settled, Settlement, Subscription, TaskError, TaskResult, TaskState,
    Verdict,
};
use crate::task::{Envelope, TaskId};

/// How long a close waits for a broker to take back what is unsettled; after that it takes it back by itself.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// How long the acknowledgement of a brief task may wait for others: for that the broker is spoken to once for many tasks.
/// Those that ended within this time before a worker dies are run again, as is what ran.
pub(super) const ACK_PATIENCE: Duration = Duration::from_millis(5);

/// How long a settlement is waited for before the others of its batch are answered.
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);

/// The same for one that was pending before.
const PENDING_PATIENCE: Duration = Duration::from_millis(50);

/// How long tasks that flood in may gather before they are looked at: for that the kernel is asked once for dozens of them.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(2);

/// Returns `true` if a task took so little that doing it again costs less than an acknowledgement of its own.
fn is_brief(held: &Held, now: Instant) -> bool {
    held.handed_out.is_some_and(|since| now.saturating_duration_since(since) < ACK_PATIENCE)
}

pub(super) struct Shared {
    pub(super) core: Rc<Core>,
    pub(super) subscription: Subscription,
    /// Borrowed for one call at a time, each followed by [`act`](Self::act).
    pub(super) deliveries: RefCell<Deliveries>,
    pub(super) drivers: Drivers,
    /// Envelopes that were settled: the next ones take their place.
    pub(super) memory: RefCell<Vec<Arc<Envelope>>>,
    /// The one whose deliveries there are; `None` while it is lost.
    pub(super) connection: RefCell<Option<Rc<Connection>>>,
    pub(super) revokes: Revokes,
    pub(super) closed: Cell<bool>,
    pub(super) failure: RefCell<Option<BrokerError>>,
    pub(super) changed: Event,
}

impl Facts for Shared {
    fn is_revoked(&self, id: &TaskId) -> bool {
        self.revokes.contains(id)
    }

    fn returned(&self, attempt: &Attempt) -> u32 {
        self.revokes.returned(attempt)
    }

    fn take_returned(&self, attempt: &Attempt) -> bool {
        self.revokes.take_returned(attempt)
    }

    fn end_plan(&self, held: &Held, state: TaskState) -> Plan {
        self.plan_of_end(&held.stored, Some(self.core.end(&held.stored.envelope.id, state)), None)
    }

    /// What must be done before the broker may forget a delivery.
    fn plan(&self, held: &Held, settlement: &Settlement) -> Plan {
        let stored = &held.stored;
        let comes_back = matches!(settlement.verdict, Verdict::Retry { .. } | Verdict::Crash { .. } | Verdict::Return);
        if comes_back && self.is_revoked(&stored.envelope.id) {
            return self.end_plan(held, TaskState::Revoked);
        }
        let mut copy = stored.clone();
        let place = match &settlement.verdict {
            Verdict::Ack => return self.plan_of_end(stored, settlement.result.clone(), None),
            Verdict::Return => return held.return_plan(),
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
        self.plan_of_end(stored, settlement.result.clone(), Some((copy, place)))
    }
}

impl Shared {
    pub(super) fn new(core: Rc<Core>, subscription: Subscription) -> Shared {
        let deliveries = Deliveries::new(subscription.queues.len(), subscription.prefetch);
        Shared {
            core,
            subscription,
            deliveries: RefCell::new(deliveries),
            drivers: Drivers::default(),
            memory: RefCell::default(),
            connection: RefCell::default(),
            revokes: Revokes::default(),
            closed: Cell::new(false),
            failure: RefCell::default(),
            changed: Event::new(),
        }
    }

    /// Does what the deliveries ask for. Nothing is borrowed while foreign code runs.
    pub(super) fn act(self: &Rc<Self>) {
        loop {
            let action = self.deliveries.borrow_mut().poll_action();
            match action {
                None => return,
                Some(Action::Settle(key)) => settle::drive(self, key),
                Some(Action::Judge(tag)) => drop(spawn(supervisor::judge(Rc::clone(self), tag))),
                Some(Action::Unseen(envelope, state)) => {
                    let watcher = self.core.unseen.borrow().clone();
                    if let Some(watcher) = watcher {
                        watcher(&envelope, state);
                    }
                }
                Some(Action::Wake) => _ = self.changed.notify_all(),
            }
        }
    }

    /// Sends an acknowledgement over the current connection, the only one whose tags there are.
    pub(super) fn ack_by(&self, ack: impl FnOnce(&Connection) -> bool) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| ack(connection))
    }

    async fn receive(self: &Rc<Self>) -> Result<Vec<Incoming>, BrokerError> {
        loop {
            if self.closed.get() {
                return Err(BrokerError::Closed);
            }
            let incoming = self.deliveries.borrow_mut().hand_out(&**self, LoopHandle::current().time());
            self.act();
            if !incoming.is_empty() {
                return Ok(incoming);
            }
            if let Some(failure) = self.failure.borrow().clone() {
                return Err(failure);
            }
            self.changed.wait().await;
        }
    }

    /// What is to be done for a task that leaves its queue with this result, to this place or for good.
    fn plan_of_end(&self, stored: &Stored, result: Option<TaskResult>, copy: Option<(Stored, Place)>) -> Plan {
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

    /// Acknowledges a task that leaves nothing behind. `lazily`: a brief one may wait for others.
    fn ack(&self, held: Held, lazily: bool, now: Instant) -> Settled {
        let acked = if lazily && is_brief(&held, now) {
            self.ack_by(|connection| connection.settle_lazily(held.amqp, Settle::Ack))
        } else {
            self.ack_by(|connection| connection.settle(held.amqp, Settle::Ack))
        };
        self.keep(held.stored.envelope);
        if acked { Settled::Done } else { Settled::Lost }
    }

    async fn settle(self: &Rc<Self>, batch: &[Settlement]) -> Result<Vec<Settled>, BrokerError> {
        let (now, mut patience) = (LoopHandle::current().time(), PENDING_PATIENCE);
        let lazily = {
            let deliveries = self.deliveries.borrow();
            !deliveries.has_ended() && batch.iter().all(|settlement| deliveries.is_plain(settlement))
        };
        // As they came, so that those returned together keep their order.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        if !lazily {
            order.sort_by_key(|at| batch[*at].tag);
        }
        let mut settled = vec![Settled::Pending; batch.len()];
        for at in order {
            let reply = self.deliveries.borrow_mut().settle(&batch[at], &**self);
            settled[at] = match reply {
                Reply::Ack(held) => self.ack(held, lazily, now),
                Reply::Settled(settled) => settled,
                Reply::Pending => Settled::Pending,
                Reply::Begun => {
                    patience = SETTLE_PATIENCE;
                    Settled::Pending
                }
            };
        }
        self.act();
        if !settled.contains(&Settled::Pending) {
            return Ok(settled);
        }
        let pending = |at: &usize| settled[*at] == Settled::Pending;
        let pending: Vec<usize> = (0..batch.len()).filter(pending).collect();
        let all = async {
            for at in &pending {
                settle::ended(self, batch[*at].tag).await;
            }
        };
        let _ = timeout(patience, all).await;
        for at in pending {
            settled[at] = self.deliveries.borrow_mut().answer(batch[at].tag);
        }
        Ok(settled)
    }

    /// Gives back what is held, and with `running` what the worker has, uncounted.
    async fn give_back(self: &Rc<Self>, running: bool) {
        let noted = self.deliveries.borrow_mut().give_back(running, &**self);
        self.act();
        if noted.is_empty() {
            return;
        }
        // One note for all of them; without it each counts a crash more than it had.
        let attempts: Vec<Attempt> = noted.iter().map(|(_, attempt)| attempt.clone()).collect();
        if let Err(error) = self.core.note(&attempts).await {
            tracing::warn!(%error, tasks = attempts.len(), "returned tasks may be counted as crashed once");
        }
        let returned = self.deliveries.borrow_mut().returned(&noted);
        for amqp in returned {
            self.ack_by(|connection| connection.settle(amqp, Settle::Requeue));
        }
    }

    /// Waits until everything that is being judged or settled has ended.
    async fn settled(&self) {
        loop {
            if self.deliveries.borrow().is_settled() {
                return;
            }
            self.changed.wait().await;
        }
    }

    async fn stop(self: &Rc<Self>) -> Result<(), BrokerError> {
        if !self.deliveries.borrow_mut().stop() {
            return Ok(());
        }
        let connection = self.connection.borrow().clone();
        if let Some(connection) = connection {
            supervisor::cancel_sources(self, &connection).await;
        }
        // What was on its way is given back as it arrives.
        self.give_back(false).await;
        Ok(())
    }

    async fn close(self: &Rc<Self>) -> Result<(), BrokerError> {
        let returned = async {
            self.stop().await?;
            self.give_back(true).await;
            self.settled().await;
            Ok(())
        };
        let returned = timeout(CLOSE_PATIENCE, returned).await;
        self.closed.set(true);
        self.drivers.cancel_all();
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
    pub(super) _asking: Option<Asking>,
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
        self.shared.drivers.cancel_all();
        // Cut: what is unsettled returns as it would after a crash.
        self.shared.connection.borrow_mut().take();
    }
}
