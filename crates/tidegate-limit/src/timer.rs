//! The trait through which a gate uses an executor: the time, and a wake-up at an instant.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Instant, SystemTime};

/// A clock, and one alarm. The alarm belongs to the gate and not to a waiting future, because a future that is not polled
/// must not delay other entries.
///
/// A gate makes one call of `arm` and `disarm` at a time, and holds no lock during it, so an alarm may fire at once.
/// Implemented by [`ThreadTimer`], by `LoopTimer` (feature `tidegate-loop`) and by `TokioTimer` (feature `tokio`).
///
/// ```
/// use std::sync::Arc;
/// use std::task::Waker;
/// use std::time::Instant;
/// use tidegate_limit::{Gate, Limit, ThreadTimer, Timer};
///
/// /// Counts how often it is set.
/// #[derive(Default)]
/// struct Counting(ThreadTimer, std::sync::atomic::AtomicU64);
///
/// impl Timer for Counting {
///     fn now(&self) -> Instant { self.0.now() }
///     fn arm(&self, at: Instant, waker: &Waker) {
///         self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.0.arm(at, waker);
///     }
///     fn disarm(&self) { self.0.disarm() }
/// }
///
/// let gate = Gate::builder().limit(Limit::rpm(60)).timer(Arc::new(Counting::default())).build().unwrap();
/// # let _ = gate;
/// ```
pub trait Timer: Send + Sync + 'static {
    /// Returns the time, which is virtual if the executor's is. Must not call the gate.
    fn now(&self) -> Instant;

    /// Returns the wall clock's time. Called at most once per second.
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Whether `now` is virtual. The gate then uses no margin.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Sets the alarm: wakes `waker` at `at`. Replaces an earlier alarm.
    fn arm(&self, at: Instant, waker: &Waker);

    /// Cancels the alarm.
    fn disarm(&self);

    /// Called when a task of the calling thread begins to wait. If tasks of several event loops wait, a timer moves its alarm
    /// to a place that does not depend on one of the loops.
    fn attend(&self) {}
}

impl<T: Timer + ?Sized> Timer for Arc<T> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn wall(&self) -> SystemTime {
        (**self).wall()
    }

    fn is_virtual(&self) -> bool {
        (**self).is_virtual()
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        (**self).arm(at, waker);
    }

    fn disarm(&self) {
        (**self).disarm();
    }

    fn attend(&self) {
        (**self).attend();
    }
}

/// A timer with its own thread, which is started when it is first needed and sleeps until the instant. For any executor,
/// and for gates that several executors share.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit, ThreadTimer};
///
/// let gate = Gate::builder().limit(Limit::rpm(60)).timer(ThreadTimer::default()).build().unwrap();
/// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
/// ```
#[derive(Default)]
pub struct ThreadTimer {
    alarm: Arc<ThreadAlarm>,
}

#[derive(Default)]
struct ThreadAlarm {
    state: Mutex<ThreadAlarmState>,
    changed: Condvar,
}

#[derive(Default)]
struct ThreadAlarmState {
    armed: Option<(Instant, Waker)>,
    /// Whether the thread runs, as it does until the timer is dropped.
    running: bool,
    closed: bool,
}

impl ThreadAlarm {
    fn lock(&self) -> MutexGuard<'_, ThreadAlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(self: &Arc<Self>, armed: Option<(Instant, Waker)>) {
        let mut state = self.lock();
        if !state.running && armed.is_some() {
            let alarm = Arc::clone(self);
            let thread = thread::Builder::new().name("tidegate-alarm".to_owned()).spawn(move || alarm.run());
            // If no thread can be started, the machine is out of memory or processes, and the alarm cannot fire.
            thread.expect("the gate's alarm needs a thread, and the system has none left");
            state.running = true;
        }
        let before = std::mem::replace(&mut state.armed, armed);
        drop(state);
        self.changed.notify_one();
        drop(before);
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some((at, _)) = &state.armed else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let due = state.armed.take();
                drop(state);
                if let Some((_, waker)) = due {
                    waker.wake();
                }
                state = self.lock();
            } else {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl ThreadTimer {
    /// Whether an alarm was ever set.
    #[cfg(all(test, any(feature = "tidegate-loop", feature = "tokio")))]
    pub(crate) fn is_running(&self) -> bool {
        self.alarm.lock().running
    }
}

impl Timer for ThreadTimer {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        self.alarm.set(Some((at, waker.clone())));
    }

    fn disarm(&self) {
        // Without an alarm so far, there is no thread to notify.
        if self.alarm.lock().running {
            self.alarm.set(None);
        }
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        self.alarm.lock().closed = true;
        self.alarm.changed.notify_one();
    }
}

impl fmt::Debug for ThreadTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadTimer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    struct Tell(mpsc::Sender<Instant>);

    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            self.0.send(Instant::now()).expect("the test listens");
        }
    }

    #[test]
    fn the_thread_rings_at_the_instant_and_only_for_the_last_one_set() {
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::from(Arc::new(Tell(sender)));
        let timer = ThreadTimer::default();
        let now = timer.now();
        timer.arm(now + Duration::from_secs(3600), &waker);
        timer.arm(now + Duration::from_millis(5), &waker);
        let rang = receiver.recv().unwrap();
        assert!(rang >= now + Duration::from_millis(5));
        timer.arm(now, &waker);
        receiver.recv().unwrap();
        timer.disarm();
        drop((timer, waker));
        assert!(receiver.recv().is_err(), "nothing is left to ring");
    }
}
