//! Gates on tokio: its clock, and a task that sleeps until the instant.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::AbortHandle;

use crate::timer::Timer;
use crate::wanted::Wanted;

/// Alarms on the tokio runtime that waits at the gate, which must have its time driver enabled. Tokio's timers are
/// exact to a millisecond; where that is too coarse, [`ThreadTimer`](crate::ThreadTimer) is exact.
///
/// If several current-thread runtimes share the gate, or the runtime with the alarm has ended, a thread of the gate has the
/// alarm instead. In a test with tokio's clock paused, set the gate's margin to zero.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit, TokioTimer};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let gate = Gate::builder().limit(Limit::rpm(60)).timer(TokioTimer::new()).build().unwrap();
/// let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
/// lease.sent();
/// # });
/// ```
pub struct TokioTimer {
    wanted: Arc<Wanted>,
    home: Mutex<TimerHome>,
}

#[derive(Default)]
struct TimerHome {
    runtime: Option<(Id, Handle)>,
    task: Option<AbortHandle>,
}

impl TokioTimer {
    /// Creates a timer for a new gate.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit, TokioTimer};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).timer(TokioTimer::new()).build().unwrap();
    /// # let _ = gate;
    /// ```
    #[must_use]
    pub fn new() -> TokioTimer {
        TokioTimer { wanted: Wanted::new(), home: Mutex::default() }
    }

    /// Returns the runtime for the alarm: a multi-threaded one, or the only current-thread one.
    fn settle_home(&self) -> Option<Handle> {
        let current = Handle::try_current().ok();
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = match (&home.runtime, current) {
            (Some((_, known)), None) => Some(known.clone()),
            (Some((_, known)), Some(_)) if known.runtime_flavor() != RuntimeFlavor::CurrentThread => {
                Some(known.clone())
            }
            (Some((id, known)), Some(current)) if *id == current.id() => Some(known.clone()),
            (known, Some(current)) => {
                let alone = known.is_none() || current.runtime_flavor() != RuntimeFlavor::CurrentThread;
                home.runtime = Some((current.id(), current.clone()));
                alone.then_some(current)
            }
            (None, None) => None,
        };
        drop(home);
        if settled.is_none() {
            self.wanted.move_to_thread();
        }
        settled
    }

    fn set(&self, armed: Option<(Instant, Waker)>) {
        let on_thread = self.wanted.set(armed);
        let runtime = if on_thread { None } else { self.settle_home() };
        let task = runtime.zip(self.wanted.ring(true)).map(|(runtime, (at, ring))| {
            let sleeping = async move {
                tokio::time::sleep_until(at.into()).await;
                ring.ring();
            };
            runtime.spawn(sleeping).abort_handle()
        });
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut home.task, task);
        drop(home);
        if let Some(before) = before {
            before.abort();
        }
    }
}

impl Default for TokioTimer {
    fn default() -> TokioTimer {
        TokioTimer::new()
    }
}

impl Timer for TokioTimer {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
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

impl fmt::Debug for TokioTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioTimer").field("on_thread", &self.wanted.is_on_thread()).finish_non_exhaustive()
    }
}
