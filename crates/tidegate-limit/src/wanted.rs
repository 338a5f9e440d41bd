//! Shared by the timers of event loops: the alarm that is set, and the thread that takes over if the loop cannot fire it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use crate::timer::{ThreadTimer, Timer};

/// The alarm of an event loop's timer. If the loop drops it before it fires, it continues in a thread.
pub(crate) struct Wanted {
    state: Mutex<WantedState>,
    pub(crate) thread: ThreadTimer,
}

#[derive(Default)]
struct WantedState {
    armed: Option<(Instant, Waker)>,
    /// Incremented by each change, so that an old alarm recognises that it was replaced.
    version: u64,
    /// Set if tasks of several loops wait at the gate: the thread has the alarm.
    on_thread: bool,
}

impl Wanted {
    pub(crate) fn new() -> Arc<Wanted> {
        Arc::new(Wanted { state: Mutex::default(), thread: ThreadTimer::default() })
    }

    fn lock(&self) -> MutexGuard<'_, WantedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the alarm. Returns `true` if the thread has it.
    pub(crate) fn set(&self, armed: Option<(Instant, Waker)>) -> bool {
        let mut state = self.lock();
        state.version += 1;
        let before = std::mem::replace(&mut state.armed, armed.clone());
        let on_thread = state.on_thread;
        drop(state);
        drop(before);
        if on_thread {
            self.arm_on_thread(armed);
        }
        on_thread
    }

    /// Moves the alarm to the thread for good.
    pub(crate) fn move_to_thread(&self) {
        let mut state = self.lock();
        if state.on_thread {
            return;
        }
        state.on_thread = true;
        state.version += 1;
        let armed = state.armed.clone();
        drop(state);
        self.arm_on_thread(armed);
    }

    pub(crate) fn is_on_thread(&self) -> bool {
        self.lock().on_thread
    }

    fn arm_on_thread(&self, armed: Option<(Instant, Waker)>) {
        match armed {
            Some((at, waker)) => self.thread.arm(at, &waker),
            None => self.thread.disarm(),
        }
    }

    /// Returns the alarm that a loop has to arm now, if any; it replaces earlier ones. `goes_on` says that the thread can
    /// take over, because the loop's time is real.
    pub(crate) fn ring(self: &Arc<Self>, goes_on: bool) -> Option<(Instant, WantedAlarm)> {
        let mut state = self.lock();
        state.version += 1;
        let (at, waker) = state.armed.clone()?;
        Some((
            at,
            WantedAlarm { wanted: Arc::downgrade(self), version: state.version, at, waker: Some(waker), goes_on },
        ))
    }
}

/// An alarm that an event loop has armed. If it is dropped before it fires and was not replaced, the thread takes it over.
pub(crate) struct WantedAlarm {
    wanted: Weak<Wanted>,
    version: u64,
    at: Instant,
    waker: Option<Waker>,
    goes_on: bool,
}

impl WantedAlarm {
    /// Fires the alarm.
    pub(crate) fn ring(mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for WantedAlarm {
    fn drop(&mut self) {
        let Some(waker) = self.waker.take() else { return };
        let Some(wanted) = self.wanted.upgrade() else { return };
        let still = wanted.lock().version == self.version;
        if still && self.goes_on {
            wanted.thread.arm(self.at, &waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;

    use super::*;

    struct Tell(mpsc::Sender<Instant>);

    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            self.0.send(Instant::now()).expect("the test listens");
        }
    }

    #[test]
    fn an_alarm_that_is_dropped_unrung_goes_on_in_the_thread() {
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::from(Arc::new(Tell(sender)));
        let wanted = Wanted::new();
        let now = Instant::now();
        assert!(!wanted.set(Some((now, waker.clone()))));
        let (_, stale) = wanted.ring(true).unwrap();
        assert!(!wanted.set(Some((now, waker))));
        drop(stale);
        drop(wanted.ring(false).unwrap());
        assert!(!wanted.thread.is_running(), "another one is wanted, and then none that goes on");
        drop(wanted.ring(true).unwrap());
        receiver.recv().unwrap();
    }
}
