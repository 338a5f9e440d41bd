//! What a gate needs of an executor: the time, and to be woken at an instant.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Instant, SystemTime};

/// A clock, and one alarm. The alarm is the gate's own, not that of somebody who waits: a future that is kept but not
/// polled must not hold up the others.
///
/// A gate calls `arm` and `disarm` one at a time, and never while it holds a lock, so an alarm may go off at once.
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
    /// The time; virtual where the executor's is. Must not call the gate.
    fn now(&self) -> Instant;

    /// What the wall clock shows. Asked once a second at most.
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Whether `now` is virtual: there is no wire then, and no margin for it.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Wakes `waker` at `at`, instead of whatever was armed before.
    fn arm(&self, at: Instant, waker: &Waker);

    /// Nothing is to be woken any more.
    fn disarm(&self);

    /// Somebody waits who runs where this is called from. An alarm that depends on one of several event loops is moved to
    /// where it does not.
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

/// An alarm clock of its own: a thread, started when it is first needed, that sleeps until the instant. For any executor,
/// and for gates that several of them share.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit, ThreadTimer};
///
/// let gate = Gate::builder().limit(Limit::rpm(60)).timer(ThreadTimer::default()).build().unwrap();
/// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
/// ```
#[derive(Default)]
pub struct ThreadTimer {
    alarm: Arc<Alarm>,
}

#[derive(Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Default)]
struct AlarmState {
    armed: Option<(Instant, Waker)>,
    /// There is a thread; it is there for as long as the timer is.
    running: bool,
    closed: bool,
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(self: &Arc<Self>, armed: Option<(Instant, Waker)>) {
        let mut state = self.lock();
        if !state.running && armed.is_some() {
            let alarm = Arc::clone(self);
            let thread = thread::Builder::new().name("tidegate-alarm".to_owned()).spawn(move || alarm.run());
            // Without threads there is no other way to be on time; the machine is out of memory or processes.
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
    /// Whether it ever had to ring.
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
        // One that never rang needs no thread to be silent.
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
