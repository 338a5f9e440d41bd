//! The worker pool: takes what was received, lets it wait for its limit without a slot and for a slot without a limit, runs
//! it in the mode, and decides what follows. It never speaks to the broker; what ended is in the acks of its connection.

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

/// What the rooms of a worker have in common.
pub(crate) struct Shared {
    pub(crate) broker: Rc<dyn Broker>,
    pub(crate) mode: Rc<dyn Mode>,
    pub(crate) decode: Decode,
    pub(crate) policies: Policies,
    pub(crate) limits: Limits,
    pub(crate) middleware: Vec<Rc<dyn Middleware>>,
    pub(crate) counters: Counters,
    pub(crate) hands: Rc<Hands>,
    /// For the spread of retries; from the loop's seed, where it has one.
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

/// Something to run, or already known not to be run.
struct Received {
    held: Held,
    refused: Option<Box<Outcome>>,
}

/// For so long tasks take their first steps in one of the pool's, then it is the others' turn.
const STEP_MAX: Duration = Duration::from_millis(5);

/// A name that is mostly the one before: it is written down once.
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
    /// Taken out of the intake.
    line: RefCell<VecDeque<Received>>,
    /// Until when the line is worked off without a pause, and whether one is due.
    until: Cell<Option<Instant>>,
    tired: Cell<bool>,
    /// Names of the handlers; `None`: the mode finds out by trying.
    known: Option<QuickSet<String>>,
    /// The last name that was found among them: mostly the next one too.
    known_last: RefCell<Rc<str>>,
    /// Above the high-water mark, and not back at the low one.
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

    /// Takes a delivery in hand.
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
        // Closed: the stop has begun, and dropping what is held returns it.
        let _ = self.intake.try_push(Received { held, refused: refused.map(Box::new) });
    }

    /// What is known before it takes a slot.
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

    /// Begins what is received, until the intake is closed.
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

    /// The next in line that is to run now; those before it that are not leave here.
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

    /// Whether it is the others' turn, at `now`.
    pub(crate) fn is_tired(&self, now: Instant) -> bool {
        let Some(until) = self.until.get() else {
            self.until.set(Some(now + STEP_MAX));
            return false;
        };
        let tired = now > until;
        self.tired.set(tired);
        tired
    }

    /// Whether it was revoked, expired or known as poison in the meantime.
    pub(crate) fn still_wanted(&self, held: &Held) -> Option<Outcome> {
        if held.stop().reason() == Some(StopReason::Revoked) {
            return Some(Outcome::Revoked);
        }
        let info = held.info();
        // Nearly all of them: neither the time nor a policy could be against it.
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

    /// Waits for a slot and runs it there.
    async fn start(&self, lane: Lane) {
        // Refused, the pool is closed: what is held returns with the lane. In a box, because on its way into the slot it is
        // moved more often than it is long.
        if let Ok(handle) = self.slots.submit(Box::pin(lane)).await {
            handle.detach();
        }
    }

    pub(crate) fn settle(&self, held: Held, outcome: Outcome) {
        let kind = outcome.kind();
        let policy = self.policy(held.info());
        // What most of them come to needs neither the time nor chance.
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

    /// What holds for a task: what it says itself comes first.
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

    /// Nothing is begun any more: what waits returns at once, what runs goes on. Awaited, it waits for that.
    pub(crate) fn stop_taking(&self) -> Drained<AtOnce> {
        self.intake.close();
        let drained = self.slots.close();
        self.shared.hands.stop(false);
        drained
    }

    /// Drops what does not listen; the guards return it. It need not be awaited.
    pub(crate) fn abort(&self) -> Drained<AtOnce> {
        self.intake.close();
        self.slots.abort()
    }
}

/// Whoever is in line when nobody works it off any more returns.
struct Line<'a>(&'a WorkerPool);

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let rest = self.0.line.take();
        drop(rest);
    }
}

/// Counts who waits at a gate.
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
