//! Gates on tidegate's loop: its clock, virtual or not, and `call_at`.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use tidegate_loop::{LoopHandle, OnLoop, RemoteHandle, TimerHandle};

use crate::timer::Timer;
use crate::wanted::Wanted;

/// The default start of the wall clock on a loop in virtual time, 2026-01-01T00:00:00Z: the same in every run.
const VIRTUAL_START: Duration = Duration::from_secs(1_767_225_600);

/// The timers of tidegate's loops.
///
/// The alarm is armed on the loop whose tasks wait at the gate. If tasks of several loops wait, on different threads, a
/// thread of the gate has the alarm instead, because one loop may be stopped or busy while tasks of another wait. The same
/// happens when the loop with the alarm is closed.
///
/// In virtual time the wall clock starts at a fixed instant and advances with the loop. A gate can be used on one loop in
/// virtual time at a time.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_limit::{Cost, Gate, Limit, LoopTimer};
/// use tidegate_loop::EventLoop;
///
/// // 23:59:59 on the last day of 1970.
/// let start = SystemTime::UNIX_EPOCH + Duration::from_secs(365 * 86_400 - 1);
/// EventLoop::simulated(1).run_until_complete(async move {
///     let timer = LoopTimer::new().virtual_start(start);
///     let gate = Gate::builder().limit(Limit::rpd(1, "UTC")).timer(timer).build().unwrap();
///     let began = tidegate_loop::LoopHandle::current().time();
///     for _ in 0..2 {
///         gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
///     }
///     assert_eq!(tidegate_loop::LoopHandle::current().time() - began, Duration::from_secs(1));
/// }).unwrap();
/// ```
pub struct LoopTimer {
    wanted: Arc<Wanted>,
    home: Mutex<Option<Arc<TimerHome>>>,
    virtual_start: SystemTime,
    /// The start of the virtual wall clock.
    virtual_from: Mutex<Option<Instant>>,
    is_virtual: AtomicBool,
}

/// The loop that has the alarm.
struct TimerHome {
    armed: OnLoop<ArmedTimer>,
    remote: RemoteHandle,
    /// The loop has been closed.
    gone: Arc<AtomicBool>,
}

/// Stays on its loop, and is dropped with it.
struct ArmedTimer {
    handle: Cell<Option<TimerHandle>>,
    gone: Arc<AtomicBool>,
}

impl ArmedTimer {
    fn set(&self, wanted: &Arc<Wanted>) {
        let Some(current) = LoopHandle::try_current().filter(|current| !current.is_closed()) else { return };
        let ring = wanted.ring(!current.is_virtual());
        if let Some(before) = self.handle.take() {
            before.cancel();
        }
        self.handle.set(ring.map(|(at, ring)| current.call_at(at, move || ring.ring())));
    }
}

impl Drop for ArmedTimer {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        if let Some(handle) = self.handle.take() {
            handle.cancel();
        }
    }
}

impl LoopTimer {
    /// Creates a timer for a new gate; the default of [`Gate::builder`](crate::Gate::builder).
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit, LoopTimer};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).timer(LoopTimer::new()).build().unwrap();
    /// # let _ = gate;
    /// ```
    #[must_use]
    pub fn new() -> LoopTimer {
        LoopTimer {
            wanted: Wanted::new(),
            home: Mutex::new(None),
            virtual_start: SystemTime::UNIX_EPOCH + VIRTUAL_START,
            virtual_from: Mutex::new(None),
            is_virtual: AtomicBool::new(false),
        }
    }

    /// Sets the wall clock's time at its first reading in virtual time.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::LoopTimer};
    /// let timer = LoopTimer::new().virtual_start(SystemTime::UNIX_EPOCH);
    /// # let _ = timer;
    /// ```
    #[must_use]
    pub fn virtual_start(mut self, start: SystemTime) -> LoopTimer {
        self.virtual_start = start;
        self
    }

    fn home(&self) -> MutexGuard<'_, Option<Arc<TimerHome>>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the loop that has the alarm; the running one if none has it yet. If another loop runs here, or none does and
    /// none has it, the thread takes the alarm over.
    fn settle_home(&self) -> Option<Arc<TimerHome>> {
        let known = self.home().clone().filter(|home| !home.gone.load(Ordering::Acquire));
        let current = LoopHandle::try_current().filter(|current| !current.is_closed());
        match (known, current) {
            (Some(home), None) => Some(home),
            (Some(home), Some(_)) => {
                if home.armed.with(|_| ()).is_ok() {
                    return Some(home);
                }
                self.move_to_thread();
                None
            }
            (None, Some(current)) => {
                let gone = Arc::new(AtomicBool::new(false));
                let armed = OnLoop::new(ArmedTimer { handle: Cell::new(None), gone: Arc::clone(&gone) });
                let home = Arc::new(TimerHome { armed, remote: current.remote(), gone });
                let before = self.home().replace(Arc::clone(&home));
                drop(before);
                Some(home)
            }
            (None, None) => {
                self.move_to_thread();
                None
            }
        }
    }

    fn move_to_thread(&self) {
        self.wanted.move_to_thread();
        // Dropping it, which happens on its loop, cancels its alarm.
        let before = self.home().take();
        drop(before);
    }

    fn set(&self, armed: Option<(Instant, Waker)>) {
        if self.wanted.set(armed) {
            return;
        }
        let Some(home) = self.settle_home() else { return };
        if home.armed.with(|armed| armed.set(&self.wanted)).is_ok() {
            return;
        }
        let (wanted, remote) = (Arc::clone(&self.wanted), home.remote.clone());
        let there = move || _ = home.armed.with(|armed| armed.set(&wanted));
        if remote.call_soon_threadsafe(there).is_err() {
            self.move_to_thread();
        }
    }
}

impl Default for LoopTimer {
    fn default() -> LoopTimer {
        LoopTimer::new()
    }
}

impl Timer for LoopTimer {
    #[inline]
    fn now(&self) -> Instant {
        match LoopHandle::try_current() {
            Some(current) if current.is_virtual() => {
                if !self.is_virtual.load(Ordering::Relaxed) {
                    self.is_virtual.store(true, Ordering::Relaxed);
                }
                current.time()
            }
            _ => Instant::now(),
        }
    }

    fn wall(&self) -> SystemTime {
        if !self.is_virtual() {
            return SystemTime::now();
        }
        let now = self.now();
        let mut from = self.virtual_from.lock().unwrap_or_else(PoisonError::into_inner);
        let from = *from.get_or_insert(now);
        self.virtual_start + now.saturating_duration_since(from)
    }

    fn is_virtual(&self) -> bool {
        self.is_virtual.load(Ordering::Relaxed)
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        self.set(Some((at, waker.clone())));
    }

    fn disarm(&self) {
        self.set(None);
    }

    fn attend(&self) {
        if !self.wanted.is_on_thread() {
            self.settle_home();
        }
    }
}

impl fmt::Debug for LoopTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopTimer").field("on_thread", &self.wanted.is_on_thread()).finish_non_exhaustive()
    }
}
