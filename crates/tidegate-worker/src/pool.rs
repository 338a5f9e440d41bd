//! The worker pool: takes received tasks, lets each wait for its limit (holding no slot), then for a slot, runs it in the
//! mode, and decides what follows. It never calls the broker; settlements go to the acks of the task's connection.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_limit::EnterError;
use tidegate_loop::{spawn, yield_now};
use tidegate_pool::{Drained, Pool, Watermarks};
use tidegate_sync::Queue;

use crate::at_once::AtOnce;
use crate::broker::{Broker, Delivery};
use crate::codec::native::DecodeError;
use crate::hands::{Acks, Hands, Held, Known};
use crate::hash::QuickSet;
use crate::lane::Lane;
use crate::limits::{Bound, Limits};
use crate::metrics::{Counters, add};
use crate::middleware::{Middleware, TaskInfo};
use crate::mode::{Mode, StopReason};
use crate::outcome::{Circumstances, Outcome, RETRY_AFTER_MAX, before_run, decide, succeeded};
use crate::retry::{Policies, Policy};
use crate::task::{Envelope, Task};

/// Reads the task in an envelope; the number is how often it was retried.
pub type Decode = Rc<dyn Fn(&Envelope, u32) -> Result<Task, DecodeError>>;

/// What the parts of a worker share.
pub(crate) struct Shared {
    pub(crate) broker: Rc<dyn Broker>,
    pub(crate) mode: Rc<dyn Mode>,
    pub(crate) decode: Decode,
    pub(crate) policies: Policies,
    pub(crate) limits: Limits,
    pub(crate) middleware: Vec<Rc<dyn Middleware>>,
    pub(crate) counters: Counters,
    pub(crate) hands: Rc<Hands>,
    /// State of the random numbers that spread retries; from the loop's seed, where it has one.
    pub(crate) chance: Cell<u64>,
}

impl Shared {
    /// Between 0 and 1.
    pub(crate) fn chance(&self) -> f64 {
        let mut random = fastrand::Rng::with_seed(self.chance.get());
        let drawn = random.f64();
        self.chance.set(random.get_seed());
        drawn
    }
}

/// A received task, with its outcome if it must not be run.
struct Received {
    held: Held,
    refused: Option<Box<Outcome>>,
}

/// How long the pool runs first steps of tasks before it yields to the loop's other tasks.
const STEP_MAX: Duration = Duration::from_millis(5);

/// A name that mostly repeats: equal names in a row share one allocation.
#[derive(Debug)]
struct Last(RefCell<Rc<str>>);

impl Default for Last {
    fn default() -> Last {
        Last(RefCell::new("".into()))
    }
}

impl Last {
    fn of(&self, name: &str) -> Rc<str> {
        let mut last = self.0.borrow_mut();
        if **last != *name {
            *last = name.into();
        }
        Rc::clone(&last)
    }
}

pub(crate) struct WorkerPool {
    pub(crate) shared: Rc<Shared>,
    slots: Pool<AtOnce>,
    pub(crate) watermarks: Option<Watermarks>,
    /// Bounded by the prefetch.
    intake: Queue<Received>,
    /// Tasks taken out of the intake, in order.
    line: RefCell<VecDeque<Received>>,
    /// Until when the line is worked off without yielding; `tired` is set when that instant has passed.
    until: Cell<Option<Instant>>,
    tired: Cell<bool>,
    /// Names of the handlers; `None` if only a run can tell.
    known: Option<QuickSet<String>>,
    /// The last name that was found among them; mostly the next one too.
    known_last: RefCell<Rc<str>>,
    /// Set when the high-water mark is reached, cleared at the low-water mark.
    pub(crate) high: Cell<bool>,
    name: Last,
    queue: Last,
}

impl WorkerPool {
    pub(crate) fn new(shared: Rc<Shared>, watermarks: Option<Watermarks>) -> Rc<WorkerPool> {
        let slots = Pool::on(AtOnce, shared.mode.slots());
        slots.set_watermarks(watermarks);
        let known = shared.mode.handlers().map(|names| names.into_iter().collect());
        Rc::new(WorkerPool {
            shared,
            slots,
            watermarks,
            intake: Queue::unbounded(),
            line: RefCell::default(),
            until: Cell::new(None),
            tired: Cell::new(false),
            known,
            known_last: RefCell::new("".into()),
            high: Cell::new(false),
            name: Last::default(),
            queue: Last::default(),
        })
    }

    /// Decodes a delivery, checks it, and puts it into the intake.
    pub(crate) fn receive(&self, delivery: Delivery, received: Timestamp, acks: &Rc<Acks>) {
        let shared = &self.shared;
        let Delivery { tag, envelope, retries, crashes, published, .. } = delivery;
        let decoded = (shared.decode)(&envelope, retries);
        let begin = envelope.eta.map_or(published, |eta| eta.max(published));
        let info = TaskInfo {
            id: envelope.id.clone(),
            name: self.name.of(decoded.as_ref().map_or("", |task| &task.name)),
            queue: self.queue.of(&envelope.queue),
            retries,
            crashes,
            published: begin,
            received,
            expires: envelope.expires,
            retries_max: decoded.as_ref().ok().and_then(|task| task.retries_max),
            backoff: decoded.as_ref().ok().and_then(|task| task.backoff),
        };
        let (task, refused) = match decoded {
            Ok(task) => {
                let refused = self.admit(&info, &task).err();
                (Some(task), refused)
            }
            Err(error) => (None, Some(Outcome::Rejected { reason: error.message })),
        };
        tracing::trace!(task.id = %info.id, task.name = %info.name, queue = %info.queue, "received");
        let held = shared.hands.take(tag, Known { info, task }, acks);
        // If the intake is closed, the stop has begun: dropping the guard returns the task.
        let _ = self.intake.try_push(Received { held, refused: refused.map(Box::new) });
    }

    /// Refuses a task without a handler, and what a middleware refuses, before it takes a slot.
    fn admit(&self, info: &TaskInfo, task: &Task) -> Result<(), Outcome> {
        if let Some(known) = &self.known
            && !Rc::ptr_eq(&self.known_last.borrow(), &info.name)
        {
            if !known.contains(&task.name) {
                let reason = format!("no handler is called '{}'", task.name);
                return Err(Outcome::Rejected { reason });
            }
            *self.known_last.borrow_mut() = Rc::clone(&info.name);
        }
        self.shared.middleware.iter().try_for_each(|middleware| middleware.received(info))
    }

    /// Starts received tasks until the intake is closed.
    pub(crate) async fn take(self: Rc<Self>) {
        let _line = Line(&self);
        let mut batch = VecDeque::new();
        while self.intake.recv_all_into(&mut batch).await.is_ok() {
            std::mem::swap(&mut batch, &mut *self.line.borrow_mut());
            self.until.set(None);
            while let Some(held) = self.next_in_line() {
                self.start(Lane::along_the_line(&self, held)).await;
                if self.tired.take() {
                    yield_now().await;
                    self.until.set(None);
                }
            }
        }
    }

    /// Returns the next task in line that can start. Tasks before it are settled, returned, or sent to wait for their limit.
    pub(crate) fn next_in_line(self: &Rc<Self>) -> Option<Held> {
        loop {
            let Received { held, refused } = self.line.borrow_mut().pop_front()?;
            if held.stop().reason() == Some(StopReason::Stopping) || self.slots.is_closed() {
                drop(held);
                continue;
            }
            if let Some(outcome) = refused.map(|outcome| *outcome).or_else(|| self.still_wanted(&held)) {
                self.settle(held, outcome);
                continue;
            }
            match self.shared.limits.of(&held.info().queue, &held.info().name) {
                None => return Some(held),
                Some(bound) => {
                    let bound = bound.clone();
                    spawn(Rc::clone(self).wait_for_limit(bound, held));
                }
            }
        }
    }

    /// Returns `true` if the pool should yield to the loop's other tasks.
    pub(crate) fn is_tired(&self, now: Instant) -> bool {
        let Some(until) = self.until.get() else {
            self.until.set(Some(now + STEP_MAX));
            return false;
        };
        let tired = now > until;
        self.tired.set(tired);
        tired
    }

    /// Returns the outcome of a task that was revoked, has expired, or crashed too often meanwhile.
    pub(crate) fn still_wanted(&self, held: &Held) -> Option<Outcome> {
        if held.stop().reason() == Some(StopReason::Revoked) {
            return Some(Outcome::Revoked);
        }
        let info = held.info();
        // The common case needs neither the time nor the policy.
        if info.expires.is_none() && info.crashes == 0 {
            return None;
        }
        before_run(info.expires, self.circumstances(info, &self.policy(info)))
    }

    async fn wait_for_limit(self: Rc<Self>, bound: Bound, held: Held) {
        let waiting = Gauge::new(&self.shared);
        let entered = {
            let stop = Rc::clone(held.stop());
            let mut requested = pin!(stop.requested());
            let mut enter = pin!(bound.enter());
            poll_fn(|cx| match requested.as_mut().poll(cx) {
                Poll::Ready(reason) => Poll::Ready(Err(reason)),
                Poll::Pending => enter.as_mut().poll(cx).map(Ok),
            })
            .await
        };
        drop(waiting);
        match entered {
            Ok(Ok(lease)) => match self.still_wanted(&held) {
                None => self.start(Lane::of_one(&self, held, Box::new(lease))).await,
                Some(outcome) => self.settle(held, outcome),
            },
            Ok(Err(EnterError::Closed)) | Err(StopReason::Stopping) => drop(held),
            Ok(Err(error)) => {
                let error = crate::TaskError { kind: "Limit".to_owned(), message: error.to_string(), traceback: None };
                self.settle(held, Outcome::Failure(error));
            }
            Err(StopReason::Revoked) => self.settle(held, Outcome::Revoked),
        }
    }

    /// Waits for a slot and runs the lane there.
    async fn start(&self, lane: Lane) {
        // An error means that the pool is closed: dropping the lane returns its task. Boxed, because the lane is moved several
        // times on its way into the slot.
        if let Ok(handle) = self.slots.submit(Box::pin(lane)).await {
            handle.detach();
        }
    }

    pub(crate) fn settle(&self, held: Held, outcome: Outcome) {
        let kind = outcome.kind();
        let policy = self.policy(held.info());
        // The common case needs neither the time nor a random number.
        if let Outcome::Success(value) = outcome {
            let decision = succeeded(&held.info().id, value, &policy);
            return held.settle(decision, kind);
        }
        if let Outcome::Retry { after: Some(after), .. } = &outcome
            && *after > RETRY_AFTER_MAX
        {
            let id = held.info().id.as_str();
            tracing::warn!(task.id = id, asked = ?after, "a retry was asked for later than in 7 days; it comes in 7 days");
        }
        let decision = decide(&held.info().id, outcome, self.circumstances(held.info(), &policy));
        held.settle(decision, kind);
    }

    /// Returns the policy of a task; its own retries and back-off come first.
    fn policy(&self, info: &TaskInfo) -> Cow<'_, Policy> {
        let policy = self.shared.policies.of(&info.name);
        if info.retries_max.is_none() && info.backoff.is_none() {
            return Cow::Borrowed(policy);
        }
        let retries_max = info.retries_max.unwrap_or(policy.retries_max);
        Cow::Owned(Policy { retries_max, backoff: info.backoff.unwrap_or(policy.backoff), ..policy.clone() })
    }

    fn circumstances<'a>(&self, info: &TaskInfo, policy: &'a Policy) -> Circumstances<'a> {
        let shared = &self.shared;
        Circumstances {
            policy,
            retries: info.retries,
            crashes: info.crashes,
            now: shared.broker.now(),
            chance: shared.chance(),
        }
    }

    /// Starts nothing any more: waiting tasks return at once, running ones go on. The future waits until these have ended.
    pub(crate) fn stop_taking(&self) -> Drained<AtOnce> {
        self.intake.close();
        let drained = self.slots.close();
        self.shared.hands.stop(false);
        drained
    }

    /// Drops tasks that ignored their cancellation; their guards return them. The future need not be awaited.
    pub(crate) fn abort(&self) -> Drained<AtOnce> {
        self.intake.close();
        self.slots.abort()
    }
}

/// Returns the tasks in line when the task that works it off ends.
struct Line<'a>(&'a WorkerPool);

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let rest = self.0.line.take();
        drop(rest);
    }
}

/// Counts a task that is blocked by a limit.
struct Gauge(Rc<Shared>);

impl Gauge {
    fn new(shared: &Rc<Shared>) -> Gauge {
        add(&shared.counters.waiting_for_limit, 1);
        Gauge(Rc::clone(shared))
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        let waiting = &self.0.counters.waiting_for_limit;
        waiting.set(waiting.get() - 1);
    }
}
