//! Handles: callbacks that wait for their turn and can be cancelled until then.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::time::Instant;

use crate::context::Snapshot;
use crate::kernel::clock::Nanos;
use crate::kernel::timers::TimerKey;
use crate::kernel::{Kernel, TimerJob};

/// A callback in the ready queue or behind a timer.
pub(crate) struct Callback {
    job: Cell<Option<Box<dyn FnOnce()>>>,
    context: Cell<Snapshot>,
    cancelled: Cell<bool>,
    pub(crate) location: &'static Location<'static>,
}

impl Callback {
    pub(crate) fn new(job: Box<dyn FnOnce()>, context: Snapshot, location: &'static Location<'static>) -> Callback {
        Callback { job: Cell::new(Some(job)), context: Cell::new(context), cancelled: Cell::new(false), location }
    }

    /// Runs it, once, in its own context; not if it was cancelled.
    pub(crate) fn run(&self) {
        if let Some(job) = self.job.take() {
            self.context.take().run_detached(job);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// What it captured is dropped now, not when its turn comes.
    fn cancel(&self) {
        self.cancelled.set(true);
        drop(self.job.take());
        drop(self.context.take());
    }
}

/// A callback queued by [`call_soon`](crate::LoopHandle::call_soon).
///
/// ```
/// use tidegate_loop::EventLoop;
///
/// let event_loop = EventLoop::new().unwrap();
/// let handle = event_loop.call_soon(|| unreachable!());
/// handle.cancel();
/// assert!(handle.cancelled());
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) callback: Rc<Callback>,
}

impl Handle {
    /// Takes the callback out of its turn and drops what it captured. Once it has run this does nothing.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.call_soon(|| unreachable!()).cancel();
    /// event_loop.stop();
    /// event_loop.run_forever().unwrap();
    /// ```
    pub fn cancel(&self) {
        self.callback.cancel();
    }

    /// Whether it was cancelled.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.call_soon(|| ()).cancelled());
    /// ```
    pub fn cancelled(&self) -> bool {
        self.callback.is_cancelled()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("queued_at", &format_args!("{}", self.callback.location))
            .field("cancelled", &self.cancelled())
            .finish()
    }
}

/// A callback behind a timer, made by [`call_later`](crate::LoopHandle::call_later) or
/// [`call_at`](crate::LoopHandle::call_at).
///
/// ```
/// use std::time::Duration;
/// use tidegate_loop::EventLoop;
///
/// let event_loop = EventLoop::new().unwrap();
/// let timer = event_loop.call_later(Duration::from_secs(3600), || unreachable!());
/// timer.cancel();
/// timer.cancel(); // counts once
/// assert!(timer.cancelled());
/// ```
#[derive(Clone)]
pub struct TimerHandle {
    pub(crate) kernel: Weak<Kernel>,
    pub(crate) key: TimerKey,
    pub(crate) when: Nanos,
    pub(crate) instant: Instant,
    pub(crate) callback: Rc<Callback>,
}

impl TimerHandle {
    /// Disarms the timer and drops what its callback captured. Once it has run this does nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// let timer = event_loop.call_later(Duration::from_secs(1), || unreachable!());
    /// timer.cancel();
    /// ```
    pub fn cancel(&self) {
        self.callback.cancel();
        if let Some(kernel) = self.kernel.upgrade() {
            let job: Option<TimerJob> = kernel.timers.borrow_mut().cancel(self.key);
            drop(job);
        }
    }

    /// Whether it was cancelled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// assert!(!event_loop.call_later(Duration::ZERO, || ()).cancelled());
    /// ```
    pub fn cancelled(&self) -> bool {
        self.callback.is_cancelled()
    }

    /// Its deadline.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// let timer = event_loop.call_later(Duration::from_secs(2), || ());
    /// assert_eq!(timer.when() - event_loop.time(), Duration::from_secs(2));
    /// ```
    pub fn when(&self) -> Instant {
        self.instant
    }
}

impl fmt::Debug for TimerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHandle")
            .field("armed_at", &format_args!("{}", self.callback.location))
            .field("when_ns", &self.when)
            .field("cancelled", &self.cancelled())
            .finish()
    }
}
