//! The connection: for each subscription one task receives and one settles, both in batches. Temporary errors are retried
//! with back-off; others end the worker.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{JoinHandle, LoopHandle, sleep, spawn, timeout};
use tidegate_sync::Event;

use crate::broker::{BrokerError, Consumer, Incoming, Settled, Subscription, Verdict};
use crate::hands::{Acks, Ending};
use crate::metrics::add;
use crate::outcome::OutcomeKind;
use crate::pool::{Shared, WorkerPool};
use crate::retry::Backoff;

/// Delays between attempts while the broker does not answer.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(5) };

/// The first error that waiting does not cure.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    error: RefCell<Option<BrokerError>>,
    happened: Event,
}

impl Failure {
    fn set(&self, error: BrokerError) {
        self.error.borrow_mut().get_or_insert(error);
        self.happened.set();
    }

    pub(crate) async fn happened(&self) {
        self.happened.wait().await;
    }

    pub(crate) fn take(&self) -> Option<BrokerError> {
        self.error.borrow_mut().take()
    }
}

/// One subscription and the two tasks that serve it.
pub(crate) struct Connection {
    shared: Rc<Shared>,
    consumer: Rc<dyn Consumer>,
    acks: Rc<Acks>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// A stop has begun, so errors of the broker do not end the worker any more.
    stopping: Cell<bool>,
}

impl Connection {
    /// Subscribes.
    pub(crate) async fn open(
        shared: &Rc<Shared>,
        number: usize,
        what: Subscription,
    ) -> Result<Rc<Connection>, BrokerError> {
        let consumer = shared.broker.subscribe(what).await?;
        Ok(Rc::new(Connection {
            shared: Rc::clone(shared),
            consumer,
            acks: Rc::new(Acks::new(number)),
            tasks: RefCell::default(),
            stopping: Cell::new(false),
        }))
    }

    /// Begins to receive and to settle.
    pub(crate) fn serve(self: &Rc<Self>, pool: &Rc<WorkerPool>, failure: &Rc<Failure>) {
        let receiving = spawn(Rc::clone(self).receive(Rc::clone(pool), Rc::clone(failure)));
        let settling = spawn(Rc::clone(self).settle(Rc::clone(failure)));
        self.tasks.borrow_mut().extend([receiving, settling]);
    }

    async fn receive(self: Rc<Self>, pool: Rc<WorkerPool>, failure: Rc<Failure>) {
        let counters = &self.shared.counters;
        let mut errors = 0;
        loop {
            match self.consumer.recv_all().await {
                Ok(batch) => {
                    errors = 0;
                    counters.failing_since.set(None);
                    self.take(batch, &pool);
                }
                Err(BrokerError::Closed) if self.stopping.get() => return,
                Err(error) => {
                    self.count_error("receive", &error);
                    if !matches!(error, BrokerError::Retry { .. }) {
                        return failure.set(error);
                    }
                    self.back_off(&mut errors).await;
                }
            }
        }
    }

    fn take(&self, batch: Vec<Incoming>, pool: &WorkerPool) {
        let shared = &self.shared;
        let (mut deliveries, now) = (0, shared.broker.now());
        for incoming in batch {
            match incoming {
                Incoming::Delivery(delivery) => {
                    deliveries += 1;
                    pool.receive(delivery, now, &self.acks);
                }
                Incoming::Revoked(id) => {
                    let told = shared.hands.revoke(&id);
                    tracing::info!(task.id = %id, told, "revoked");
                }
                Incoming::Expired(id) => {
                    add(&shared.counters.expired, 1);
                    tracing::info!(task.id = %id, "expired before a worker received it");
                }
                Incoming::Lost(tag) => {
                    let told = shared.hands.lost(&self.acks, tag);
                    tracing::warn!(?tag, told, "a delivery was lost: another worker will run it");
                }
            }
        }
        if deliveries > 0 {
            add(&shared.counters.received, deliveries);
            add(&shared.counters.batches_received, 1);
            shared.counters.last_received.set(Some(LoopHandle::current().time()));
        }
    }

    async fn settle(self: Rc<Self>, failure: Rc<Failure>) {
        let (mut batch, mut fresh) = (VecDeque::new(), VecDeque::new());
        let mut errors = 0;
        while !batch.is_empty() || self.acks.take(&mut batch).await {
            let settlements = batch.iter().map(Ending::settlement).collect();
            match self.consumer.settle(settlements).await {
                Ok(answers) => {
                    self.shared.counters.failing_since.set(None);
                    self.answered(&mut batch, &answers);
                    if batch.is_empty() {
                        errors = 0;
                    } else {
                        // What ends meanwhile is not held up by what cannot be settled yet.
                        let delay = BACKOFF.delay(errors, self.shared.chance());
                        errors = errors.saturating_add(1);
                        match timeout(delay, self.acks.take(&mut fresh)).await {
                            Ok(true) => batch.append(&mut fresh),
                            // There will be nothing more; what is pending is still asked for.
                            Ok(false) => sleep(delay).await,
                            Err(_) => {}
                        }
                    }
                }
                Err(error @ (BrokerError::Closed | BrokerError::Damaged { .. })) => {
                    self.count_error("settle", &error);
                    return failure.set(error);
                }
                // Also on a full disk: a person may make room, and until then nothing is lost.
                Err(error) => {
                    self.count_error("settle", &error);
                    self.back_off(&mut errors).await;
                }
            }
        }
    }

    /// Counts what is settled; what is pending stays in the batch.
    fn answered(&self, batch: &mut VecDeque<Ending>, answers: &[Settled]) {
        let counters = &self.shared.counters;
        add(&counters.batches_settled, 1);
        counters.last_settled.set(Some(LoopHandle::current().time()));
        // Those of one name and kind that follow each other are counted together.
        let mut alike: Option<(&Rc<str>, OutcomeKind, u64)> = None;
        let count = |(name, kind, count): (&Rc<str>, OutcomeKind, u64)| counters.settled(name, kind, count);
        let mut pending = VecDeque::new();
        if answers.contains(&Settled::Pending) {
            let mut at = answers.iter();
            let (waits, ended) = batch.drain(..).partition(|_| at.next() == Some(&Settled::Pending));
            (pending, *batch) = (waits, ended);
        }
        let answers = answers.iter().filter(|answer| **answer != Settled::Pending);
        for (ending, answer) in batch.iter().zip(answers) {
            let info = &ending.known.info;
            if *answer == Settled::Lost {
                add(&counters.lost, 1);
                tracing::warn!(task.id = %info.id, task.name = %info.name, "ended too late: another worker has it");
            } else {
                match &mut alike {
                    Some((name, kind, count)) if Rc::ptr_eq(name, &info.name) && *kind == ending.kind => *count += 1,
                    _ => alike.replace((&info.name, ending.kind, 1)).into_iter().for_each(count),
                }
                match &ending.verdict {
                    // A crash is counted by its outcome.
                    Verdict::Ack | Verdict::Crash { .. } => {}
                    Verdict::Return => add(&counters.returned, 1),
                    Verdict::Dead { reason, .. } => {
                        add(&counters.dead, 1);
                        tracing::error!(task.id = %info.id, task.name = %info.name, reason, "given up");
                    }
                    Verdict::Retry { .. } => add(&counters.retried, 1),
                }
            }
            for middleware in self.shared.middleware.iter().rev() {
                middleware.settled(info, &ending.verdict, *answer);
            }
        }
        alike.into_iter().for_each(count);
        self.acks.answered(batch.len());
        batch.drain(..).for_each(|ending| self.shared.hands.keep(ending.known));
        batch.append(&mut pending);
    }

    fn count_error(&self, doing: &str, error: &BrokerError) {
        let counters = &self.shared.counters;
        add(&counters.broker_errors, 1);
        if counters.failing_since.get().is_none() {
            counters.failing_since.set(Some(LoopHandle::current().time()));
        }
        tracing::warn!(broker = %self.shared.broker.describe(), doing, %error, "the broker refuses");
    }

    async fn back_off(&self, errors: &mut u32) {
        let delay = BACKOFF.delay(*errors, self.shared.chance());
        *errors = errors.saturating_add(1);
        sleep(delay).await;
    }

    /// Stops deliveries. Revokes and losses still arrive, and settling goes on.
    pub(crate) async fn stop_receiving(&self) -> Result<(), BrokerError> {
        self.stopping.set(true);
        self.consumer.stop().await
    }

    /// Waits until everything that ended is settled.
    pub(crate) async fn settled(&self) {
        self.acks.settled().await;
    }

    pub(crate) fn unsettled(&self) -> usize {
        self.acks.unanswered()
    }

    /// The end; what is unsettled returns to its queue.
    pub(crate) async fn close(&self) -> Result<(), BrokerError> {
        self.stopping.set(true);
        self.acks.close();
        let closed = self.consumer.close().await;
        self.end_tasks();
        closed
    }

    pub(crate) fn end_tasks(&self) {
        for task in self.tasks.borrow_mut().drain(..) {
            task.cancel();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_tasks();
    }
}
