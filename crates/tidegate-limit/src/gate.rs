//! The gate: the lock around the limits and the line, and the calls that are made without the lock (wakers, the timer, the
//! journal). `pump.rs` decides.

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
use crate::pump::{Effects, GateState, NotAdmitted};
use crate::scope::Scope;
use crate::stats::Snapshot;
use crate::timer::Timer;

/// The shortest time between two readings of the wall clock.
const WALL_EVERY_NANOS: u64 = 1_000_000_000;

/// The longest time for which the timer is set on a real clock. A day ends by the wall clock, which may be set while everything
/// waits, and the timer's clock stands still while the machine sleeps.
const ALARM_MAX: Duration = Duration::from_secs(30);

/// Concurrency of the process-wide gate, unless it was set.
const GLOBAL_DEFAULT: u64 = 200;

/// Layered limits, decided at once and waited for exactly.
///
/// Cheap to clone; clones are the same gate, on any thread. See the [crate](crate) for what it promises.
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
/// // … and the answer states what it cost.
/// lease.settle(Cost::tokens(934));
/// drop(lease); // the slots are free again
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
/// ```
#[derive(Clone)]
pub struct Gate {
    pub(crate) shared: Arc<GateShared>,
    unscoped: Scope,
}

pub(crate) struct GateShared {
    state: Mutex<GateState>,
    timer: Box<dyn Timer>,
    pub(crate) journal: Option<Box<dyn Journal>>,
    /// The instant of [`Moment::ZERO`].
    epoch: Instant,
    /// The moment from which the wall clock is read again.
    wall_at: AtomicU64,
    /// The current margin in nanoseconds.
    margin: AtomicU64,
    alarm: OnceLock<Waker>,
}

/// The waker that the timer wakes.
struct GateAlarm(Weak<GateShared>);

impl Wake for GateAlarm {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.alarm_rang();
        }
    }
}

impl Gate {
    pub(crate) fn new(
        state: GateState,
        timer: Box<dyn Timer>,
        journal: Option<Box<dyn Journal>>,
        epoch: Instant,
    ) -> Gate {
        let shared = Arc::new(GateShared {
            state: Mutex::new(state),
            timer,
            journal,
            epoch,
            wall_at: AtomicU64::new(0),
            margin: AtomicU64::new(0),
            alarm: OnceLock::new(),
        });
        let alarm = Waker::from(Arc::new(GateAlarm(Arc::downgrade(&shared))));
        shared.alarm.set(alarm).expect("set once");
        Gate { unscoped: Scope::unscoped(&shared), shared }
    }

    /// Returns a builder for a gate.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns the process-wide gate: the one passed to [`set_global`](Self::set_global), or else one with a concurrency of
    /// 200 and no rates.
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

    /// Makes `gate` the process-wide one. Works once, before the first call of [`global`](Self::global).
    ///
    /// # Errors
    /// Returns `gate` if there is one already; change its limits with [`set`](Self::set).
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

    /// Creates a scope inside this gate: at most `cap` of its leases at once, first come, first served. A full scope blocks
    /// no other. The scope is removed with its last handle and lease.
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

    /// Returns the scope without a cap, for entries that need no scope.
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
    /// Nothing is held or counted while it waits. An entry that is admitted at once uses no queue, no timer and no
    /// allocation.
    ///
    /// # Errors
    /// [`EnterError`] as soon as it is known that the entry cannot be admitted.
    ///
    /// # Panics
    /// If the scope belongs to another gate.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line. If it had been granted a lease already, that is refunded.
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

    /// Books `cost` if it fits now and no entry is in line before it. Never waits.
    ///
    /// # Errors
    /// [`TryEnterError`] names the limit that has no room, and the instant until which it has none.
    ///
    /// # Panics
    /// If the scope belongs to another gate.
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
            Err(NotAdmitted::Never(error)) => Err(TryEnterError::Never(error)),
            Err(NotAdmitted::Behind) => Err(TryEnterError::Behind { waiting: state.line.waiting() }),
            Err(NotAdmitted::ScopeFull) => {
                Err(TryEnterError::Later { limit: Arc::clone(&state.line.scope(scope.id()).name), ready_at: None })
            }
            Err(NotAdmitted::Denied(denied)) => {
                let limit = Arc::clone(&state.limits.slot(denied.limit).name);
                // Starts to write the reservation, so that the caller's next attempt finds it written.
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

    /// Returns how long the last of `count` more entries of `cost` each would wait for the rates, if all of them came now
    /// and no others did. Counts the windows, buckets, days to come and pauses. `count` should include the entries in line.
    /// Concurrency is ignored, because it is not known how long slots are held. Returns `None` if the wait has no end.
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

    /// Returns the gate's figures.
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

    /// Closes the gate: entries in line and later ones fail with [`EnterError::Closed`]. Leases stay valid. The journal gets
    /// what was used of the last reservations.
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

    /// Whether the gate was [closed](Self::close). An entry that was admitted before and has not sent its request can check
    /// this.
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

/// A reading of the clocks, made without the lock.
#[derive(Clone, Copy)]
pub(crate) struct ClockReading {
    pub(crate) moment: Moment,
    /// `Some` if the wall clock was due to be read.
    wall: Option<SystemTime>,
    is_virtual: bool,
}

impl GateShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, GateState> {
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
        // A moment that does not fit into an `Instant` is replaced by one later than any that matters.
        self.epoch.checked_add(after).unwrap_or_else(|| self.epoch + Duration::from_secs(1 << 32))
    }

    #[inline]
    pub(crate) fn tell_time(&self) -> ClockReading {
        let moment = self.now();
        if moment.as_nanos() < self.wall_at.load(Ordering::Relaxed) {
            return ClockReading { moment, wall: None, is_virtual: false };
        }
        self.look_at_wall(moment)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn tell_time_and_wall(&self) -> ClockReading {
        self.look_at_wall(self.now())
    }

    #[cold]
    fn look_at_wall(&self, moment: Moment) -> ClockReading {
        self.wall_at.store(moment.as_nanos().saturating_add(WALL_EVERY_NANOS), Ordering::Relaxed);
        ClockReading { moment, wall: Some(self.timer.wall()), is_virtual: self.timer.is_virtual() }
    }

    /// Locks the state and sets its clocks.
    #[inline]
    pub(crate) fn lock_at(&self, now: ClockReading) -> MutexGuard<'_, GateState> {
        let mut state = self.lock();
        if let Some(wall) = now.wall {
            state.limits.set_wall(now.moment, wall);
            self.apply_margin(&mut state, now.is_virtual);
        }
        state
    }

    /// Changes the state, admits the entries that fit afterwards, and carries out the effects without the lock.
    pub(crate) fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut GateState, Moment, bool) -> R) -> R {
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

    /// Sets the timer to the next due moment. One thread at a time does so. It checks the due moment again before it
    /// returns, so a thread that finds the timer busy need not wait.
    fn set_timer(&self) {
        let mut state = self.lock();
        while !state.timer_busy && state.timer_set != state.due {
            let due = state.due;
            state.timer_busy = true;
            state.timer_set = due;
            drop(state);
            match due {
                Some(at) => {
                    let at = match self.timer.is_virtual() {
                        true => self.instant(at),
                        false => self.instant(at).min(self.timer.now() + ALARM_MAX),
                    };
                    self.timer.arm(at, self.alarm.get().expect("set when it was made"));
                }
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

    /// Notes that a task of the calling thread waits at the gate; see [`Timer::attend`].
    pub(crate) fn attend(&self) {
        self.timer.attend();
    }

    pub(crate) fn abandon_scope(&self, scope: ScopeId) {
        self.lock().line.abandon(scope);
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.timer.is_virtual()
    }

    /// Passes the measured margin on to the limits. In virtual time it is zero.
    pub(crate) fn apply_margin(&self, state: &mut GateState, is_virtual: bool) {
        let margin = if is_virtual { Duration::ZERO } else { state.margin.get() };
        state.limits.set_margin(margin);
        self.margin.store(nanos_of(margin), Ordering::Relaxed);
    }

    /// Returns whether an entry that was booked at `at` is sent so late, at `now`, that it has to be booked again. The time
    /// between the two may take a quarter of the margin.
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
