//! How a loop is made.

use std::io;

use crate::kernel::{Kernel, Pace, Setup};
use crate::reactor::selector::SelectorKind;
use crate::runtime::event_loop::EventLoop;
use crate::threads::{ThreadPool, ThreadPoolBuilder, Threads};

/// How a loop is made.
///
/// ```
/// use tidegate_loop::EventLoop;
/// let event_loop = EventLoop::builder().strict(true).debug(true).build().unwrap();
/// assert!(event_loop.is_debug());
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until build is called"]
pub struct Builder {
    pace: Pace,
    strict: bool,
    debug: bool,
    seed: Option<u64>,
    selector: Option<SelectorKind>,
    threads: Threads,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            pace: Pace::Real,
            strict: false,
            debug: false,
            seed: None,
            selector: None,
            threads: Threads::Own(ThreadPool::builder()),
        }
    }

    /// Polls once a tick, exactly as asyncio does, instead of at least every
    /// [`STEPS_BETWEEN_POLLS`](crate::STEPS_BETWEEN_POLLS) steps. Off by default.
    ///
    /// ```
    /// # use tidegate_loop::EventLoop;
    /// let event_loop = EventLoop::builder().strict(true).build().unwrap();
    /// event_loop.run_until_complete(async {}).unwrap();
    /// assert_eq!(event_loop.metrics().polls, event_loop.metrics().ticks);
    /// ```
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Reports steps that block the loop. Also switched on by `TIDEGATE_DEBUG=1`.
    ///
    /// ```
    /// # use tidegate_loop::EventLoop;
    /// assert!(EventLoop::builder().debug(true).build().unwrap().is_debug());
    /// ```
    pub fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// The clock is virtual and jumps to the next deadline when nothing is ready. The order of events is the usual one.
    ///
    /// ```
    /// use tidegate_loop::{sleep, Duration, EventLoop};
    /// let event_loop = EventLoop::builder().virtual_time().build().unwrap();
    /// event_loop.run_until_complete(sleep(Duration::from_secs(86_400))).unwrap(); // at once
    /// ```
    pub fn virtual_time(mut self) -> Self {
        self.pace = Pace::Jumping;
        self
    }

    /// The clock is virtual and stands still until [`LoopHandle::advance`](crate::LoopHandle::advance). See [`EventLoop::run_until_idle`].
    ///
    /// ```
    /// use tidegate_loop::{sleep, Duration, EventLoop};
    /// let event_loop = EventLoop::builder().manual_clock().build().unwrap();
    /// let nap = event_loop.spawn(sleep(Duration::from_millis(250)));
    /// event_loop.run_until_idle().unwrap();
    /// event_loop.advance(Duration::from_millis(249));
    /// event_loop.run_until_idle().unwrap();
    /// assert!(!nap.is_finished());
    /// event_loop.advance(Duration::from_millis(1));
    /// event_loop.run_until_idle().unwrap();
    /// assert!(nap.is_finished());
    /// ```
    pub fn manual_clock(mut self) -> Self {
        self.pace = Pace::Standing;
        self
    }

    /// Virtual time, and tasks that are ready in the same tick take their steps in an order drawn from `seed`:
    /// another seed, another interleaving; the same seed, the same run, event for event. Callbacks keep their order,
    /// which is promised.
    ///
    /// ```
    /// # use tidegate_loop::EventLoop;
    /// let event_loop = EventLoop::builder().simulated(7).build().unwrap();
    /// assert_eq!(event_loop.seed(), Some(7));
    /// ```
    pub fn simulated(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        if matches!(self.pace, Pace::Real) {
            self.pace = Pace::Jumping;
        }
        self
    }

    /// How the loop waits for descriptors. Without this the environment variable `TIDEGATE_SELECTOR` decides (`select`,
    /// `epoll-lt`, `epoll`, `io_uring` or `auto`), and without that it is [`SelectorKind::Auto`].
    ///
    /// ```
    /// use tidegate_loop::{EventLoop, SelectorKind};
    /// let event_loop = EventLoop::builder().selector(SelectorKind::EpollLevel).build().unwrap();
    /// assert_eq!(event_loop.selector(), SelectorKind::EpollLevel);
    /// ```
    pub fn selector(mut self, kind: SelectorKind) -> Self {
        self.selector = Some(kind);
        self
    }

    /// How the loop's own thread pool is to be made, should it be needed.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, ThreadPool};
    /// let event_loop = EventLoop::builder().threads(ThreadPool::builder().threads_max(2)).build().unwrap();
    /// assert_eq!(event_loop.thread_pool().threads_max(), 2);
    /// ```
    pub fn threads(mut self, threads: ThreadPoolBuilder) -> Self {
        self.threads = Threads::Own(threads);
        self
    }

    /// A thread pool to use instead of one of its own. The loop does not own it, and neither waits for it
    /// nor shuts it down when it closes.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, ThreadPool};
    /// let pool = ThreadPool::new();
    /// let event_loop = EventLoop::builder().thread_pool(pool.clone()).build().unwrap();
    /// event_loop.run_until_complete(event_loop.run_in_executor(|| ())).unwrap().unwrap();
    /// assert_eq!(pool.stats().total, 1);
    /// ```
    pub fn thread_pool(mut self, pool: ThreadPool) -> Self {
        self.threads = Threads::Shared(pool);
        self
    }

    /// Makes the loop.
    ///
    /// # Errors
    /// When the process has no descriptors left; when `TIDEGATE_SELECTOR` names no selector.
    ///
    /// ```
    /// # use tidegate_loop::EventLoop;
    /// let event_loop = EventLoop::builder().build().unwrap();
    /// ```
    pub fn build(self) -> io::Result<EventLoop> {
        let debug = self.debug || std::env::var_os("TIDEGATE_DEBUG").is_some_and(|value| value == "1");
        let selector = self.selector.map_or_else(SelectorKind::from_env, Ok)?;
        let (pace, strict, seed, threads) = (self.pace, self.strict, self.seed, self.threads);
        let kernel = Kernel::new(Setup { pace, strict, seed, debug, selector, threads })?;
        Ok(EventLoop::of(kernel))
    }
}
