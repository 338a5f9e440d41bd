//! The loop as its users see it: `EventLoop` owns and runs it, `LoopHandle` is how code on its thread speaks to it. How
//! one is made is in `builder.rs`, how other threads reach it in `remote.rs`.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::context::Snapshot;
use crate::deferred::Deferred;
use crate::kernel::clock::{IntoDelay, Nanos, nanos_of};
use crate::kernel::current;
use crate::kernel::{Kernel, RunState, TimerJob};
use crate::observe::Observer;
use crate::observe::metrics::{Metrics, Now};
use crate::observe::report::Report;
use crate::reactor::selector::SelectorKind;
use crate::runtime::builder::Builder;
use crate::runtime::callback::{Callback, Handle, TimerHandle};
use crate::runtime::error::{CloseError, RunError};
use crate::runtime::main_task::{MainFuture, SeedNotice};
use crate::runtime::remote::RemoteHandle;
use crate::task::raw::AnyValue;
use crate::task::{JoinError, JoinHandle, Outcome, Task, TaskBuilder, spawn_in, spawn_on};

/// A single-threaded event loop. It owns its tasks; dropped, it closes.
///
/// ```
/// use tidegate_loop::{EventLoop, sleep, Duration};
///
/// let event_loop = EventLoop::new().unwrap();
/// let answer = event_loop.run_until_complete(async {
///     sleep(Duration::from_millis(1)).await;
///     42
/// });
/// assert_eq!(answer.unwrap(), 42);
/// ```
pub struct EventLoop {
    handle: LoopHandle,
}

impl EventLoop {
    pub(crate) fn of(kernel: Rc<Kernel>) -> EventLoop {
        EventLoop { handle: LoopHandle { kernel } }
    }

    /// A loop in real time.
    ///
    /// # Errors
    /// See [`Builder::build`].
    ///
    /// ```
    /// let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.is_running());
    /// ```
    pub fn new() -> io::Result<EventLoop> {
        EventLoop::builder().build()
    }

    /// A loop made to measure.
    ///
    /// ```
    /// let event_loop = tidegate_loop::EventLoop::builder().strict(true).build().unwrap();
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A loop in virtual time whose interleaving is drawn from `seed`, see [`Builder::simulated`].
    ///
    /// # Panics
    /// When the process has no descriptors left.
    ///
    /// ```
    /// use tidegate_loop::{sleep, Duration, EventLoop};
    /// EventLoop::simulated(1).run_until_complete(sleep(Duration::from_secs(3600))).unwrap();
    /// ```
    #[must_use]
    pub fn simulated(seed: u64) -> EventLoop {
        EventLoop::builder().simulated(seed).build().expect("a simulated loop needs a descriptor or two")
    }

    /// Runs until `future` is done and returns its output. Other tasks stay where they are and go on with the next run.
    ///
    /// What the future returns is returned, even if a cancellation request was pending then: there is nothing left to
    /// cancel, and the output may be an error. (asyncio keeps an exception in that case and drops a value.)
    ///
    /// # Errors
    /// See [`RunError`]. Under a seed a failing run prints the seed.
    ///
    /// # Panics
    /// When the future panics.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert_eq!(event_loop.run_until_complete(async { 1 + 1 }).unwrap(), 2);
    /// ```
    #[track_caller]
    pub fn run_until_complete<F>(&self, future: F) -> Result<F::Output, RunError>
    where
        F: Future + 'static,
    {
        self.run_main(future, Snapshot::current(), |_| ())
    }

    /// Runs `future` as a task in `context`. `begins` is called with that task before its first step.
    #[track_caller]
    pub(crate) fn run_main<F>(
        &self,
        future: F,
        context: Snapshot,
        begins: impl FnOnce(&Task),
    ) -> Result<F::Output, RunError>
    where
        F: Future + 'static,
    {
        let seed = SeedNotice::new(self.seed());
        let result = self.complete(future, context, begins);
        if result.is_ok() {
            std::mem::forget(seed);
        }
        result
    }

    #[track_caller]
    fn complete<F>(&self, future: F, context: Snapshot, begins: impl FnOnce(&Task)) -> Result<F::Output, RunError>
    where
        F: Future + 'static,
    {
        self.kernel.check_runnable()?;
        let mut main = spawn_in::<_, AnyValue>(&self.kernel, MainFuture::new(future), Location::caller(), context);
        begins(&main.task());
        let kernel = self.kernel.clone();
        let stop = main.task().add_done_callback(move |_| kernel.stop());
        let ran = self.kernel.run();
        main.task().remove_done_callback(stop);
        // An interrupt or a stall is returned even when the future is done; a stop is not.
        if let Err(error) = ran {
            if main.task().outcome() == Some(Outcome::Completed) {
                self.kernel.report_lost_result(type_name::<F::Output>(), &main.task().cell);
            }
            return Err(error);
        }
        match main.try_result() {
            None => Err(RunError::Stopped),
            Some(Ok(output)) => Ok(output),
            Some(Err(JoinError::Panicked(panic))) => panic.resume(),
            Some(Err(_)) => Err(RunError::Cancelled),
        }
    }

    /// Prints which seed replays this loop's run, if it was simulated.
    pub(crate) fn print_seed(&self) {
        drop(SeedNotice::new(self.seed()));
    }

    /// Runs until [`stop`](LoopHandle::stop) is called.
    ///
    /// # Errors
    /// See [`RunError`].
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let handle = event_loop.handle();
    /// event_loop.call_soon(move || handle.stop());
    /// event_loop.run_forever().unwrap();
    /// ```
    pub fn run_forever(&self) -> Result<(), RunError> {
        self.kernel.run()
    }

    /// Runs until nothing is ready, without waiting for timers or descriptors and without moving a virtual clock.
    ///
    /// # Errors
    /// See [`RunError`].
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let task = event_loop.spawn(async { tidegate_loop::yield_now().await });
    /// event_loop.run_until_idle().unwrap();
    /// assert!(task.is_finished());
    /// ```
    pub fn run_until_idle(&self) -> Result<(), RunError> {
        self.kernel.run_ready()
    }

    /// Drops every task, callback and timer. Using the loop afterwards is an error. Closing twice is not.
    ///
    /// # Errors
    /// [`CloseError::Running`] from inside of the loop.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.close().unwrap();
    /// assert!(event_loop.is_closed());
    /// assert!(event_loop.run_forever().is_err());
    /// ```
    pub fn close(&self) -> Result<(), CloseError> {
        if self.kernel.state.get() == RunState::Running {
            return Err(CloseError::Running);
        }
        self.kernel.close();
        Ok(())
    }

    /// A handle to keep.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let handle = event_loop.handle();
    /// handle.call_soon(|| ());
    /// ```
    pub fn handle(&self) -> LoopHandle {
        self.handle.clone()
    }
}

impl Deref for EventLoop {
    type Target = LoopHandle;

    fn deref(&self) -> &LoopHandle {
        &self.handle
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // Running can only mean that it is dropped by its own task while it unwinds; the memory is freed all the same.
        let _ = self.close();
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

/// A loop, for code on its own thread. Cheap to clone; outlives the loop, whose use is then an error.
///
/// It cannot leave its thread, so a call from the wrong one does not compile:
///
/// ```compile_fail
/// let event_loop = tidegate_loop::EventLoop::new().unwrap();
/// let handle = event_loop.handle();
/// std::thread::spawn(move || handle.call_soon(|| ()));
/// ```
///
/// Other threads use [`RemoteHandle`].
#[derive(Clone)]
pub struct LoopHandle {
    pub(crate) kernel: Rc<Kernel>,
}

impl LoopHandle {
    /// The loop that is running on this thread.
    ///
    /// # Panics
    /// When none is; see [`try_current`](Self::try_current).
    ///
    /// ```
    /// use tidegate_loop::{run, LoopHandle};
    /// run(async { assert!(LoopHandle::current().is_running()) }).unwrap();
    /// ```
    #[must_use]
    #[inline]
    pub fn current() -> LoopHandle {
        LoopHandle::try_current().expect("no loop is running on this thread: call this inside run(...)")
    }

    /// The loop that is running on this thread, if one is.
    ///
    /// ```
    /// assert!(tidegate_loop::LoopHandle::try_current().is_none());
    /// ```
    #[must_use]
    #[inline]
    pub fn try_current() -> Option<LoopHandle> {
        current::with(|kernel| kernel.map(|kernel| LoopHandle { kernel: kernel.handle() }))
    }

    /// Queues `callback` for the next tick, after what is queued already, in a copy of the running context.
    ///
    /// # Panics
    /// On a closed loop.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.call_soon(|| println!("next tick"));
    /// event_loop.run_until_idle().unwrap();
    /// ```
    #[track_caller]
    pub fn call_soon(&self, callback: impl FnOnce() + 'static) -> Handle {
        self.check_open("call_soon");
        let callback = Rc::new(Callback::new(Box::new(callback), Snapshot::current(), Location::caller()));
        self.kernel.push_call(callback.clone());
        Handle { callback }
    }

    /// Runs `callback` once `delay` has passed: a [`Duration`], or seconds as `f64`. Negative seconds are due at once.
    ///
    /// # Panics
    /// On a closed loop; when the seconds are not finite.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// let handle = event_loop.handle();
    /// event_loop.call_later(1.5, move || handle.stop());
    /// event_loop.run_forever().unwrap();
    /// ```
    #[track_caller]
    pub fn call_later(&self, delay: impl IntoDelay, callback: impl FnOnce() + 'static) -> TimerHandle {
        let delay = delay.into_nanos();
        self.arm(self.kernel.now().saturating_add(delay), callback, Location::caller())
    }

    /// Runs `callback` at `when`. Equal deadlines run in the order they were armed.
    ///
    /// # Panics
    /// On a closed loop.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// let handle = event_loop.handle();
    /// event_loop.call_at(event_loop.time() + Duration::from_secs(1), move || handle.stop());
    /// event_loop.run_forever().unwrap();
    /// ```
    #[track_caller]
    pub fn call_at(&self, when: Instant, callback: impl FnOnce() + 'static) -> TimerHandle {
        self.arm(self.kernel.clock.nanos(when), callback, Location::caller())
    }

    #[track_caller]
    fn arm(&self, when: Nanos, callback: impl FnOnce() + 'static, location: &'static Location<'static>) -> TimerHandle {
        self.check_open("a timer");
        let callback = Rc::new(Callback::new(Box::new(callback), Snapshot::current(), location));
        let key = self.kernel.timers.borrow_mut().arm(when, TimerJob::Call(callback.clone()));
        self.kernel.watch.timer_armed(&self.kernel, when, Some(&callback));
        TimerHandle { kernel: self.kernel.weak(), key, when, instant: self.kernel.clock.instant(when), callback }
    }

    #[track_caller]
    fn check_open(&self, what: &str) {
        assert!(!self.is_closed(), "{what} on a closed loop: a closed loop runs nothing more, make a new one");
    }

    /// The loop's time: the machine's monotonic clock, or the virtual one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let event_loop = tidegate_loop::EventLoop::builder().manual_clock().build().unwrap();
    /// let before = event_loop.time();
    /// event_loop.advance(Duration::from_secs(1));
    /// assert_eq!(event_loop.time() - before, Duration::from_secs(1));
    /// ```
    pub fn time(&self) -> Instant {
        self.kernel.clock.instant(self.kernel.now())
    }

    /// Whether the loop's time is virtual.
    ///
    /// ```
    /// # use tidegate_loop::EventLoop;
    /// assert!(EventLoop::simulated(1).is_virtual());
    /// assert!(!EventLoop::new().unwrap().is_virtual());
    /// ```
    #[inline]
    pub fn is_virtual(&self) -> bool {
        self.kernel.clock.is_virtual()
    }

    /// Moves a virtual clock forward. What that makes due runs in the next tick.
    ///
    /// # Panics
    /// On a loop in real time.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::simulated(1);
    /// event_loop.advance(std::time::Duration::from_secs(1));
    /// ```
    #[track_caller]
    pub fn advance(&self, by: Duration) {
        assert!(
            self.kernel.clock.is_virtual(),
            "advance needs a virtual clock: make the loop with Builder::virtual_time"
        );
        self.kernel.clock.jump(self.kernel.clock.now().saturating_add(nanos_of(by)));
    }

    /// The seed of a simulated loop.
    ///
    /// ```
    /// assert_eq!(tidegate_loop::EventLoop::simulated(3).seed(), Some(3));
    /// ```
    pub fn seed(&self) -> Option<u64> {
        self.kernel.seed
    }

    /// How this loop waits for descriptors; never [`SelectorKind::Auto`].
    ///
    /// ```
    /// use tidegate_loop::{EventLoop, SelectorKind};
    /// let event_loop = EventLoop::builder().selector(SelectorKind::Auto).build().unwrap();
    /// assert_eq!(event_loop.selector(), SelectorKind::Epoll);
    /// ```
    pub fn selector(&self) -> SelectorKind {
        self.kernel.io.borrow().kind()
    }

    /// Ends the run after this tick: what is ready in it still runs. Before a run: the next one lasts one tick.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.stop();
    /// event_loop.run_forever().unwrap();
    /// ```
    pub fn stop(&self) {
        self.kernel.stop();
    }

    /// Whether the loop is running.
    ///
    /// ```
    /// assert!(!tidegate_loop::EventLoop::new().unwrap().is_running());
    /// ```
    pub fn is_running(&self) -> bool {
        self.kernel.state.get() == RunState::Running
    }

    /// Whether the loop is closed.
    ///
    /// ```
    /// assert!(!tidegate_loop::EventLoop::new().unwrap().is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.kernel.state.get() == RunState::Closed
    }

    /// The way for other threads to reach this loop.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let remote = event_loop.remote();
    /// let thread = std::thread::spawn(move || remote.call_soon_threadsafe(|| tidegate_loop::LoopHandle::current().stop()));
    /// event_loop.run_forever().unwrap();
    /// thread.join().unwrap().unwrap();
    /// ```
    pub fn remote(&self) -> RemoteHandle {
        RemoteHandle::new(&self.kernel)
    }

    /// Starts a task on this loop.
    ///
    /// # Panics
    /// On a closed loop.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let task = event_loop.spawn(async { 1 });
    /// assert_eq!(event_loop.run_until_complete(task).unwrap().unwrap(), 1);
    /// ```
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        spawn_on::<F, AnyValue>(&self.kernel, future, Location::caller())
    }

    /// A task to be given a name, a context or an eager start.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let task = event_loop.task().name("n1").spawn(async {});
    /// ```
    pub fn task(&self) -> TaskBuilder {
        TaskBuilder { handle: self.clone(), name: None, eager: false, context: None }
    }

    /// Makes a future to be set later.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future();
    /// future.set_result(5).unwrap();
    /// assert_eq!(event_loop.run_until_complete(async move { future.await }).unwrap().unwrap(), 5);
    /// ```
    pub fn create_future<T: 'static>(&self) -> Deferred<T> {
        Deferred::new(self)
    }

    /// Every task that has not ended, in the order they were made.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let _task = event_loop.spawn(async {});
    /// assert_eq!(event_loop.all_tasks().len(), 1);
    /// ```
    pub fn all_tasks(&self) -> Vec<Task> {
        self.kernel.all_tasks().into_iter().map(|cell| Task { cell }).collect()
    }

    /// Calls `handler` with errors that no code fetches, instead of logging them.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.set_exception_handler(|report| eprintln!("loop: {report}"));
    /// ```
    pub fn set_exception_handler(&self, handler: impl Fn(&Report) + 'static) {
        self.kernel.watch.set_handler(Some(Rc::new(handler)));
    }

    /// Debug mode: steps longer than [`slow_callback_duration`](Self::set_slow_callback_duration) are reported with
    /// the name of the culprit and where it was spawned.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.set_debug(true);
    /// assert!(event_loop.is_debug());
    /// ```
    pub fn set_debug(&self, debug: bool) {
        self.kernel.watch.set_debug(debug);
    }

    /// Whether debug mode is on.
    ///
    /// ```
    /// assert!(!tidegate_loop::EventLoop::simulated(1).is_debug());
    /// ```
    pub fn is_debug(&self) -> bool {
        self.kernel.watch.is_debug()
    }

    /// What counts as slow in debug mode; 100 ms unless set.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.set_slow_callback_duration(std::time::Duration::from_millis(10));
    /// ```
    pub fn set_slow_callback_duration(&self, threshold: Duration) {
        self.kernel.watch.set_slow(nanos_of(threshold));
    }

    /// Tells `observer` what the loop does from now on; there is one at a time.
    ///
    /// ```
    /// use tidegate_loop::{Duration, LoopEvent, EventLoop, Observer};
    /// struct Silent;
    /// impl Observer for Silent {
    ///     fn observe(&mut self, _: Duration, _: &LoopEvent<'_>) {}
    /// }
    /// EventLoop::new().unwrap().set_observer(Silent);
    /// ```
    pub fn set_observer(&self, observer: impl Observer + 'static) {
        self.kernel.watch.set_observer(Some(Box::new(observer)));
    }

    /// Stops observing.
    ///
    /// ```
    /// tidegate_loop::EventLoop::new().unwrap().clear_observer();
    /// ```
    pub fn clear_observer(&self) {
        self.kernel.watch.set_observer(None);
    }

    /// Adds a remark to the trace; does nothing while the loop is not observed.
    ///
    /// ```
    /// tidegate_loop::EventLoop::new().unwrap().note("about to start");
    /// ```
    pub fn note(&self, text: &str) {
        if self.kernel.watch.is_on() {
            self.kernel.watch.note(&self.kernel, text);
        }
    }

    /// The loop's figures.
    ///
    /// ```
    /// assert_eq!(tidegate_loop::EventLoop::new().unwrap().metrics().ticks, 0);
    /// ```
    pub fn metrics(&self) -> Metrics {
        let timers = self.kernel.timers.borrow();
        self.kernel.counters.read(Now {
            steps: self.kernel.ready.begin() as u64,
            ready: self.kernel.ready.len(),
            tasks: self.kernel.task_count(),
            timers: timers.scheduled(),
            timers_cancelled: timers.cancelled(),
        })
    }
}

impl fmt::Debug for LoopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop")
            .field("running", &self.is_running())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
