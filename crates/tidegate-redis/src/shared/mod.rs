//! A gate that several machines share through Redis.

mod agree;
mod common;
mod core;
mod driver;
mod lease;
mod local;
mod spec;
mod stats;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, EnterError, Limit};
use tidegate_loop::{JoinHandle, LoopHandle};

use self::core::{Batch, Core};
use self::local::LocalShare;
use self::spec::Spec;
use crate::client::Client;

pub use self::agree::AgreeError;
pub use self::lease::{SharedEnter, SharedLease};
pub use self::spec::SharedConfigError;
pub use self::stats::{SharedLimitStats, SharedStats};

/// How long a machine that does not use its turn delays the others.
const GRACE: Duration = Duration::from_millis(50);
const LEASE_MIN: Duration = Duration::from_millis(100);

/// What a shared gate does while Redis cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum OnLoss {
    /// Nothing is admitted until Redis is back; entries go on waiting.
    #[default]
    Stop,
    /// This machine goes on alone with its share of every limit. The shares of all machines should add up to 1. Strict
    /// windows begin used up, since what was used before the loss still counts: the first entry is admitted after one
    /// window. With a limit whose share is less than one nothing is admitted. When Redis is back, what was admitted is
    /// reported to it.
    ///
    /// The limits hold exactly while Redis is lost to all machines. A machine that is cut off alone adds its share to what
    /// the others use, and so does one that reconnects after the others, until it has reported.
    LocalShare {
        /// Above 0, at most 1.
        share: f64,
    },
}

/// Makes a [`SharedGate`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct SharedBuilder {
    client: Client,
    name: Arc<str>,
    limits: Vec<Limit>,
    lease: Duration,
    margin: Duration,
    on_loss: OnLoss,
}

impl SharedBuilder {
    /// Adds a limit. All machines should state the same ones; where amounts differ, each machine keeps to its own.
    pub fn limit(mut self, limit: Limit) -> SharedBuilder {
        self.limits.push(limit);
        self
    }

    /// Adds several limits.
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> SharedBuilder {
        self.limits.extend(limits);
        self
    }

    /// Sets after which time without a renewal a machine's slots are free. Default: 10 s. A machine renews its lease every
    /// third of that while it holds slots or waits.
    pub fn lease(mut self, lease: Duration) -> SharedBuilder {
        self.lease = lease;
        self
    }

    /// Sets how much longer than its window a strict limit counts an entry, for the time between its admission and its
    /// arrival at the server. Default: 50 ms. See [`SharedLease::sent`]. Refusals [widen](SharedGate::refused) it to at most
    /// four times that.
    pub fn margin(mut self, margin: Duration) -> SharedBuilder {
        self.margin = margin;
        self
    }

    /// Sets what to do while Redis cannot be reached.
    pub fn on_loss(mut self, on_loss: OnLoss) -> SharedBuilder {
        self.on_loss = on_loss;
        self
    }

    /// Builds the gate. This does not wait for Redis; entering does.
    ///
    /// # Errors
    /// [`SharedConfigError`] if the options contradict each other or are out of range.
    ///
    /// # Panics
    /// Outside of a loop.
    pub fn build(self) -> Result<SharedGate, SharedConfigError> {
        let spec = Spec::new(self.limits, self.margin)?;
        if self.lease < LEASE_MIN {
            return Err(SharedConfigError::Lease(self.lease));
        }
        if let OnLoss::LocalShare { share } = self.on_loss
            && !(share > 0.0 && share <= 1.0)
        {
            return Err(SharedConfigError::Share);
        }
        let holder = uuid::Uuid::new_v4().simple().to_string();
        let core = Core::new(spec, &self.name, holder, self.lease, GRACE);
        let shared = Rc::new(Shared {
            client: self.client,
            name: self.name,
            core: RefCell::new(core),
            on_loss: self.on_loss,
            late_after: (self.margin / 2).max(Duration::from_millis(1)),
            nudges: Cell::new(0),
            driver: RefCell::new(None),
            closed: RefCell::new(None),
            local: RefCell::new(None),
        });
        let channel = shared.core.borrow().channel();
        let listener = Rc::downgrade(&shared);
        shared.client.subscribe(&channel, move |_| {
            if let Some(shared) = listener.upgrade() {
                shared.core.borrow_mut().notify();
                shared.wake();
            }
        });
        let task = LoopHandle::current().task().name("shared gate").spawn(driver::drive(shared.clone()));
        Ok(SharedGate { handle: Rc::new(Handle { shared, channel, task: RefCell::new(Some(task)) }) })
    }
}

/// A gate whose limits are shared by all machines that use a gate of the same name at the same Redis. Clones share it; it
/// belongs to its loop.
///
/// ```no_run
/// use tidegate_limit::{Cost, Limit};
/// use tidegate_redis::{Client, ClientOptions, SharedGate};
///
/// # tidegate_loop::run(async {
/// let redis = Client::open("redis://limits.example".parse()?, ClientOptions::default());
/// let gate = SharedGate::builder(redis, "llm")
///     .limit(Limit::concurrency("global", 200))
///     .limit(Limit::rpm(600))
///     .limit(Limit::tpm(1_000_000))
///     .limit(Limit::rpd(10_000, "America/Los_Angeles"))
///     .build()?;
///
/// let mut lease = gate.enter(Cost::tokens(1_200)).await?;
/// lease.sent(); // from here on it counts, whatever becomes of it
/// lease.settle(Cost::tokens(934)); // what the answer says it cost
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
/// ```
#[derive(Clone)]
pub struct SharedGate {
    handle: Rc<Handle>,
}

/// Held by gates and leases. When the last is dropped, the task reports to Redis and ends.
pub(crate) struct Handle {
    shared: Rc<Shared>,
    channel: String,
    task: RefCell<Option<JoinHandle<()>>>,
}

pub(crate) struct Shared {
    client: Client,
    name: Arc<str>,
    core: RefCell<Core>,
    on_loss: OnLoss,
    /// A request that is sent this long after its admission was asked for has its booking moved.
    late_after: Duration,
    /// Counts the wake-ups of the driver.
    nudges: Cell<u64>,
    driver: RefCell<Option<Waker>>,
    /// Why nothing is admitted any more; set once.
    closed: RefCell<Option<EnterError>>,
    /// Present while Redis is lost, if the policy is a local share.
    local: RefCell<Option<LocalShare>>,
}

impl SharedGate {
    /// Returns a builder for a gate of this name, without limits yet.
    pub fn builder(client: Client, name: impl Into<Arc<str>>) -> SharedBuilder {
        SharedBuilder {
            client,
            name: name.into(),
            limits: Vec::new(),
            lease: Duration::from_secs(10),
            margin: Duration::from_millis(50),
            on_loss: OnLoss::Stop,
        }
    }

    /// Waits until all limits admit `cost` in one decision over all machines. First come, first served on this machine;
    /// machines take turns.
    ///
    /// # Errors
    /// [`EnterError::TooLarge`] for a cost that never fits, [`EnterError::Shut`] if Redis cannot be used without a change of
    /// configuration, [`EnterError::Closed`].
    ///
    /// # Cancel safety
    /// Safe: if the future is dropped, what was granted meanwhile is returned.
    pub fn enter(&self, cost: Cost) -> SharedEnter {
        SharedEnter::new(self, cost)
    }

    /// Doubles the margin, up to four times its configured value, because a strict server refused an admitted request. From
    /// this machine's next entry on it holds for all machines, for an hour or as long as this machine runs.
    pub fn refused(&self) {
        self.handle.shared.core.borrow_mut().spec.widen_margin();
    }

    /// Returns the gate's counters.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        let core = self.handle.shared.core.borrow();
        let mut stats = core.stats.clone();
        stats.current = core.held;
        stats.waiting = core.waiting();
        stats.blocked_by = core.blocked.map(|blocked| match blocked.limit {
            Some(at) => core.spec.limits[at].name.clone(),
            None => "another machine's turn".into(),
        });
        stats
    }

    /// Asks Redis for the state of the limits although no entry waits. [`stats`](Self::stats) has it a moment later. While
    /// entries are admitted or wait, the stats are up to date anyway.
    pub fn look(&self) {
        self.handle.shared.core.borrow_mut().look();
        self.handle.shared.wake();
    }

    /// Admits nothing any more, and waits until all leases have ended and this was reported to Redis. Without a connection it
    /// does not wait: the leases expire.
    ///
    /// # Cancel safety
    /// If the future is dropped, the gate is closed all the same.
    pub async fn close(&self) {
        self.handle.shared.close_now(EnterError::Closed);
        let task = self.handle.task.borrow_mut().take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}

impl fmt::Debug for SharedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGate").field("name", &self.handle.shared.name).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.client.unsubscribe(&self.channel);
        self.shared.close_now(EnterError::Closed);
    }
}

impl Shared {
    fn now(&self) -> Instant {
        tidegate_loop::now()
    }

    fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    fn close_now(&self, why: EnterError) {
        self.closed.borrow_mut().get_or_insert(why);
        self.refuse_if_closed();
        self.wake();
    }

    /// Ends the entries in line with the reason, if the gate is closed. Entries of a call in flight are put back in line first.
    fn refuse_if_closed(&self) {
        let Some(why) = self.closed.borrow().clone() else { return };
        let mut wake = Vec::new();
        self.core.borrow_mut().refuse_line(&why, &mut wake);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Wakes the driver.
    fn wake(&self) {
        self.nudges.set(self.nudges.get() + 1);
        let driver = self.driver.take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Ready once the driver was woken after `seen`.
    fn poll_nudge(&self, cx: &mut Context<'_>, seen: u64) -> Poll<()> {
        if self.nudges.get() != seen {
            return Poll::Ready(());
        }
        let before = self.driver.replace(Some(cx.waker().clone()));
        drop(before);
        Poll::Pending
    }

    /// Gives a slot that was granted through Redis to the local share, if Redis is lost.
    fn slot_freed(&self) {
        let held = self.core.borrow().held;
        if let Some(local) = &*self.local.borrow() {
            local.leave_slots(held.saturating_sub(local.held()));
        }
    }

    fn note_loss(&self, first: bool, fault: &str) {
        let mut core = self.core.borrow_mut();
        core.stats.losses += u64::from(first);
        core.stats.fault = Some(fault.into());
    }

    /// Ends all entries with an error, because nothing can be admitted without a change of configuration.
    fn shut(&self, mut batch: Batch, reason: &str) {
        tracing::error!(gate = &*self.name, reason, "the shared gate is shut");
        let mut wake = Vec::new();
        {
            let mut core = self.core.borrow_mut();
            let why = EnterError::Shut { limit: self.name.clone(), reason: reason.into() };
            core.refuse_all(&mut batch, &why, &mut wake);
            core.stats.fault = Some(reason.into());
            core.take_back(batch);
        }
        wake.into_iter().for_each(Waker::wake);
    }
}
