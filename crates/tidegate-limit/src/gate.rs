//! The gate: the limits, who waits at them, and the one timer. `pump.rs` decides; this is the lock around it, and what
//! happens outside of the lock.

mod control;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant, SystemTime};

use crate::builder::Builder;
use crate::cost::Cost;
use crate::enter::Enter;
use crate::error::{EnterError, TryEnterError};
use crate::journal::Journal;
use crate::lease::Lease;
use crate::limit::Limit;
use crate::limits::Until;
use crate::line::ScopeId;
use crate::moment::{Moment, nanos_of};
use crate::pump::{Effects, State, Why};
use crate::scope::Scope;
use crate::stats::Snapshot;
use crate::timer::Timer;

/// How often the wall clock is looked at, at the most.
const WALL_EVERY_NANOS: u64 = 1_000_000_000;

/// Concurrency of the process-wide gate, if nobody has made another.
const GLOBAL_DEFAULT: u64 = 200;

/// Layered limits, decided at once and waited for exactly.
///
/// Cheap to clone; all clones are the same gate, on any thread. See the [crate](crate) for what it promises.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
/// let gate = Gate::builder()
///     .limit(Limit::concurrency("global", 200))
///     .limit(Limit::rpm(150))
///     .limit(Limit::tpm(1_000_000))
///     .limit(Limit::rpd(10_000, "America/Los_Angeles"))
///     .build()?;
/// let file = gate.scope("report.pdf", 50);
///
/// let mut lease = gate.enter(&file, Cost::tokens(1_200)).await?;
/// // … the request goes out here …
/// lease.sent();
/// // … and its answer says what it really cost.
/// lease.settle(Cost::tokens(934));
/// drop(lease); // the slots are free again
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
/// ```
#[derive(Clone)]
pub struct Gate {
    pub(crate) shared: Arc<Shared>,
    unscoped: Scope,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    timer: Box<dyn Timer>,
    pub(crate) journal: Option<Box<dyn Journal>>,
    /// The beginning of its moments.
    epoch: Instant,
    /// When the wall clock is to be looked at next.
    wall_at: AtomicU64,
    /// The margin as it was last set, in nanoseconds.
    margin: AtomicU64,
    alarm: OnceLock<Waker>,
}

/// What the timer wakes.
struct Alarm(Weak<Shared>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.alarm_rang();
        }
    }
}

impl Gate {
    pub(crate) fn new(state: State, timer: Box<dyn Timer>, journal: Option<Box<dyn Journal>>, epoch: Instant) -> Gate {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            timer,
            journal,
            epoch,
            wall_at: AtomicU64::new(0),
            margin: AtomicU64::new(0),
            alarm: OnceLock::new(),
        });
        let alarm = Waker::from(Arc::new(Alarm(Arc::downgrade(&shared))));
        shared.alarm.set(alarm).expect("set once");
        Gate { unscoped: Scope::unscoped(&shared), shared }
    }

    /// How a gate is made.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The process-wide gate: the one given to [`set_global`](Self::set_global), or else one of 200 at once and no rates.
    ///
    /// ```
    /// use tidegate_limit::{Cost, Gate};
    /// let lease = Gate::global().try_enter(Gate::global().unscoped(), Cost::request()).unwrap();
    /// assert_eq!(Gate::global().stats().current, 1);
    /// # drop(lease);
    /// ```
    pub fn global() -> &'static Gate {
        GLOBAL.get_or_init(|| {
            let limit = Limit::concurrency("global", GLOBAL_DEFAULT);
            Gate::builder().limit(limit).build().expect("a single limit above zero")
        })
    }

    /// Makes `gate` the process-wide one. Once: before anybody has asked for it.
    ///
    /// # Errors
    /// Hands `gate` back if there is one already; change the limits of that with [`set`](Self::set).
    ///
    /// ```
    /// use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::concurrency("global", 50)).build().unwrap();
    /// assert!(Gate::set_global(gate.clone()).is_ok());
    /// assert!(Gate::set_global(gate).is_err());
    /// ```
    pub fn set_global(gate: Gate) -> Result<(), Gate> {
        GLOBAL.set(gate)
    }

    /// A scope inside this gate: at most `cap` of its leases at once, served first come, first served. One that is full
    /// holds up nobody else. It is gone when its last handle and lease are.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::concurrency("global", 200)).build().unwrap();
    /// let file = gate.scope("a.pdf", 1);
    /// let lease = gate.try_enter(&file, Cost::request()).unwrap();
    /// assert!(gate.try_enter(&file, Cost::request()).is_err());
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
    /// # drop(lease);
    /// ```
    #[must_use]
    pub fn scope(&self, name: impl Into<Arc<str>>, cap: u64) -> Scope {
        let id = self.shared.lock().line.add_scope(name.into(), cap);
        Scope::new(&self.shared, id)
    }

    /// The scope of those who need none: it has no cap.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
    /// ```
    #[must_use]
    pub fn unscoped(&self) -> &Scope {
        &self.unscoped
    }

    /// Waits until `cost` fits under every limit at once, and books it.
    ///
    /// Nothing is held or counted while it waits. Uncontended, it takes no queue, no timer and no allocation.
    ///
    /// # Errors
    /// [`EnterError`] if it can never succeed as things are, as soon as that is known.
    ///
    /// # Panics
    /// If the scope is another gate's.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves the line without a trace; dropped with a lease that it has not returned yet, it
    /// gives that back, refunded.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
    /// let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
    /// for _ in 0..3 {
    ///     // The second and third wait for a minute each.
    ///     gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
    /// }
    /// assert_eq!(gate.stats().waited.as_secs(), 120);
    /// # }).unwrap();
    /// ```
    #[inline]
    pub fn enter<'a>(&'a self, scope: &'a Scope, cost: Cost) -> Enter<'a> {
        self.check_scope(scope);
        Enter::new(&self.shared, scope.id(), cost)
    }

    /// Books `cost` if it fits now and nobody is first. Never waits.
    ///
    /// # Errors
    /// [`TryEnterError`] says which limit has no room, and until when.
    ///
    /// # Panics
    /// If the scope is another gate's.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::concurrency("global", 1)).build().unwrap();
    /// let lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_err());
    /// # drop(lease);
    /// ```
    pub fn try_enter(&self, scope: &Scope, cost: Cost) -> Result<Lease, TryEnterError> {
        self.check_scope(scope);
        let now = self.shared.tell_time();
        let mut state = self.shared.lock_at(now);
        match state.enter_now(scope.id(), &cost, now.moment) {
            Ok(booking) => {
                drop(state);
                Ok(Lease::new(Arc::clone(&self.shared), scope.id(), booking))
            }
            Err(Why::Never(error)) => Err(TryEnterError::Never(error)),
            Err(Why::Behind) => Err(TryEnterError::Behind { waiting: state.line.waiting() }),
            Err(Why::ScopeFull) => {
                Err(TryEnterError::Later { limit: Arc::clone(&state.line.scope(scope.id()).name), ready_at: None })
            }
            Err(Why::Denied(denied)) => {
                let limit = Arc::clone(&state.limits.slot(denied.limit).name);
                // Who does not wait may come again: by then it should be written.
                if denied.until == Until::Journal {
                    drop(state);
                    self.shared.reserve(denied.limit, &cost);
                }
                let ready_at = match denied.until {
                    Until::At(at) => Some(self.shared.instant(at)),
                    _ => None,
                };
                Err(TryEnterError::Later { limit, ready_at })
            }
        }
    }

    #[track_caller]
    #[inline]
    fn check_scope(&self, scope: &Scope) {
        assert!(scope.is_of(&self.shared), "scope {:?} is another gate's", scope.name());
    }

    /// How long its rates make the last of `count` more entries wait, of `cost` each, if all of them came now and nobody
    /// else did: by what is in the windows, what flows in, the days to come, and what is paused. Those in line are to be
    /// counted in. How long slots are held nobody can tell, so they are not counted. `None`: for ever, as things are.
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Cost, Gate, Limit}};
    /// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
    /// let gate = Gate::builder().limit(Limit::rpm(20)).build().unwrap();
    /// assert_eq!(gate.outlook(20, &Cost::request()), Some(Duration::ZERO));
    /// assert_eq!(gate.outlook(55, &Cost::request()), Some(Duration::from_secs(120)));
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn outlook(&self, count: u64, cost: &Cost) -> Option<Duration> {
        let now = self.shared.tell_time();
        let last = self.shared.lock_at(now).limits.last_of(count, cost, now.moment)?;
        Some(last.since(now.moment))
    }

    /// What the gate has to say about itself.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::concurrency("global", 5)).limit(Limit::rpm(60)).build().unwrap();
    /// gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
    /// let stats = gate.stats();
    /// assert_eq!((stats.current, stats.peak, stats.granted, stats.blocked), (0, 1, 1, 0));
    /// assert_eq!(stats.limit("rpm").unwrap().remaining, 59);
    /// ```
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        let now = self.shared.tell_time();
        let mut state = self.shared.lock_at(now);
        Snapshot::of(&mut state, now.moment)
    }

    /// Lets nobody in any more: who waits and who comes is told. Leases go on. A journal learns what became of the last
    /// reservations.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// gate.close();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_err());
    /// ```
    pub fn close(&self) {
        let now = self.shared.tell_time();
        let mut effects = Effects::default();
        let mut state = self.shared.lock_at(now);
        if !state.closed {
            state.closed = true;
            state.refuse_all(now.moment, &mut effects, |_, _| Some(EnterError::Closed));
            effects.journal = state.limits.settle_ledgers(now.moment);
            state.pump(now.moment, &mut effects);
        }
        drop(state);
        self.shared.carry_out(effects);
    }

    /// Whether nobody is let in any more. Who was let in before it was closed, and has not begun, can still refrain.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// assert!(!gate.is_closed());
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }
}

static GLOBAL: OnceLock<Gate> = OnceLock::new();

/// A look at the clocks, outside of the lock.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub(crate) moment: Moment,
    /// If it was time to look.
    wall: Option<SystemTime>,
    is_virtual: bool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.timer.now())
    }

    #[inline]
    fn moment(&self, instant: Instant) -> Moment {
        Moment::from_nanos(nanos_of(instant.saturating_duration_since(self.epoch)))
    }

    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let after = Duration::from_nanos(moment.as_nanos());
        // What no instant can be is later than any that matters.
        self.epoch.checked_add(after).unwrap_or_else(|| self.epoch + Duration::from_secs(1 << 32))
    }

    #[inline]
    pub(crate) fn tell_time(&self) -> Now {
        let moment = self.now();
        if moment.as_nanos() < self.wall_at.load(Ordering::Relaxed) {
            return Now { moment, wall: None, is_virtual: false };
        }
        self.look_at_wall(moment)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn tell_time_and_wall(&self) -> Now {
        self.look_at_wall(self.now())
    }

    #[cold]
    fn look_at_wall(&self, moment: Moment) -> Now {
        self.wall_at.store(moment.as_nanos().saturating_add(WALL_EVERY_NANOS), Ordering::Relaxed);
        Now { moment, wall: Some(self.timer.wall()), is_virtual: self.timer.is_virtual() }
    }

    /// Locks, and passes on what the clocks show.
    #[inline]
    pub(crate) fn lock_at(&self, now: Now) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if let Some(wall) = now.wall {
            state.limits.set_wall(now.moment, wall);
            self.apply_margin(&mut state, now.is_virtual);
        }
        state
    }

    /// Changes something, lets in whoever that makes room for, and does what remains outside of the lock.
    pub(crate) fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Moment, bool) -> R) -> R {
        let now = self.tell_time();
        let is_virtual = self.timer.is_virtual();
        let mut effects = Effects::default();
        let mut state = self.lock_at(now);
        let result = change(&mut state, now.moment, is_virtual);
        state.pump(now.moment, &mut effects);
        drop(state);
        self.carry_out(effects);
        result
    }

    pub(crate) fn carry_out(self: &Arc<Self>, effects: Effects) {
        if effects.rearm {
            self.set_timer();
        }
        for waker in effects.wake {
            waker.wake();
        }
        if !effects.journal.is_empty() {
            self.write_down(effects.journal);
        }
    }

    /// Sets the timer to when somebody is due. One thread at a time does; it looks again before it leaves, so whoever
    /// finds it busy need not wait.
    fn set_timer(&self) {
        let mut state = self.lock();
        while !state.timer_busy && state.timer_set != state.due {
            let due = state.due;
            state.timer_busy = true;
            state.timer_set = due;
            drop(state);
            match due {
                Some(at) => self.timer.arm(self.instant(at), self.alarm.get().expect("set when it was made")),
                None => self.timer.disarm(),
            }
            state = self.lock();
            state.timer_busy = false;
        }
    }

    fn alarm_rang(self: &Arc<Self>) {
        let now = self.tell_time();
        let mut effects = Effects::default();
        let mut state = self.lock_at(now);
        state.timer_set = None;
        state.tally.alarms += 1;
        state.pump(now.moment, &mut effects);
        state.tally.idle_alarms += u64::from(effects.wake.is_empty() && effects.journal.is_empty());
        drop(state);
        self.carry_out(effects);
    }

    /// Somebody waits who runs here.
    pub(crate) fn attend(&self) {
        self.timer.attend();
    }

    pub(crate) fn abandon_scope(&self, scope: ScopeId) {
        self.lock().line.abandon(scope);
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.timer.is_virtual()
    }

    /// In virtual time there is no wire.
    pub(crate) fn apply_margin(&self, state: &mut State, is_virtual: bool) {
        let margin = if is_virtual { Duration::ZERO } else { state.margin.get() };
        state.limits.set_margin(margin);
        self.margin.store(nanos_of(margin), Ordering::Relaxed);
    }

    /// Whether what was booked at `at` and is sent at `now` is so late that it has to be booked anew. A quarter of the
    /// margin is left to the way from the gate to the wire.
    #[inline]
    pub(crate) fn is_late(&self, at: Moment, now: Moment) -> bool {
        now > at.plus(self.margin.load(Ordering::Relaxed) / 4)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Gate");
        if let Ok(state) = self.shared.state.try_lock() {
            out.field("current", &state.tally.current).field("waiting", &state.line.waiting());
        }
        out.finish_non_exhaustive()
    }
}
