//! Running a program: a loop, its main task, and an orderly end.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::context::Snapshot;
use crate::observe::report::{Report, ReportKind};
use crate::runtime::error::{CleanupError, RunError};
use crate::runtime::event_loop::EventLoop;
use crate::task::{Outcome, Task};
use crate::threads::StillRunning;

/// Runs `future` on a new loop until it is done, then cancels the tasks that are left, waits for them to clean up, and
/// closes the loop. On the main thread Ctrl-C ends it in order, see [`Runner`].
///
/// What the future returns is returned, even if a cancellation was pending. What goes wrong in the clean-up is reported
/// to the loop's exception handler; with a [`Runner`] it is an error of [`Runner::close`].
///
/// # Errors
/// See [`RunError`].
///
/// # Panics
/// When the future panics.
///
/// ```
/// let answer = tidegate_loop::run(async { 6 * 7 });
/// assert_eq!(answer.unwrap(), 42);
/// ```
#[track_caller]
pub fn run<F>(future: F) -> Result<F::Output, RunError>
where
    F: Future + 'static,
{
    if crate::LoopHandle::try_current().is_some() {
        return Err(RunError::Nested);
    }
    Runner::new(EventLoop::new().map_err(RunError::Setup)?).run(future)
}

/// [`run`] for a future that can fail: its error and those of the run are one.
///
/// # Errors
/// The future's own, or a [`RunError`].
///
/// # Panics
/// When the future panics.
///
/// ```
/// use std::error::Error;
/// use tidegate_loop::run_fallible;
///
/// fn main() -> Result<(), Box<dyn Error>> {
///     let port: u16 = run_fallible(async { Ok::<_, Box<dyn Error>>("8080".parse()?) })?;
///     assert_eq!(port, 8080);
///     Ok(())
/// }
/// ```
#[track_caller]
pub fn run_fallible<F, T, E>(future: F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>> + 'static,
    E: From<RunError>,
{
    run(future)?
}

/// A loop that ends in order: several futures can be run on it one after the other; when it goes, the tasks that are
/// left are cancelled, they clean up, jobs in threads are waited for, and the loop is closed.
///
/// # Ctrl-C
/// On the main thread, while [`run`](Self::run) runs: the first SIGINT cancels the main task, as asyncio's runner does,
/// and unless it catches that, `run` brings [`RunError::CtrlC`] when it has cleaned up. A second one, in the run or in
/// the clean-up after it, ends the process at once, with status 130 and a line on standard error, even if the
/// loop is blocked. Otherwise SIGINT is what it was before and becomes that again after the run.
///
/// A program that sees to SIGINT itself is left alone: one that ignores it or had a handler for it before the run, and
/// one that listens for it inside the run ([`signal`](crate::signal::signal),
/// [`add_signal_handler`](crate::LoopHandle::add_signal_handler)), for as long as it does.
///
/// In other threads Ctrl-C is taken only if asked for, see [`ctrl_c`](Self::ctrl_c). When runners run in several, it
/// cancels the main task of each.
///
/// ```
/// use tidegate_loop::{EventLoop, Runner};
/// let runner = Runner::new(EventLoop::simulated(1));
/// assert_eq!(runner.run(async { 1 }).unwrap(), 1);
/// assert_eq!(runner.run(async { 2 }).unwrap(), 2);
/// ```
pub struct Runner {
    event_loop: EventLoop,
    thread_limit: Duration,
    /// `None`: on the main thread only.
    ctrl_c: Option<bool>,
    /// What the next main task starts with; `None` before the first run.
    context: Cell<Option<Snapshot>>,
}

/// How long a runner waits for the jobs in its loop's threads, unless told otherwise.
const THREAD_LIMIT: Duration = Duration::from_secs(30);

/// How often the loop runs between the end of the tasks and its own, for two ticks each time. asyncio's runner does so for
/// async generators and for the executor.
const CLOSING_RUNS: usize = 2;

impl Runner {
    /// A runner on that loop.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap());
    /// ```
    #[must_use]
    pub fn new(event_loop: EventLoop) -> Runner {
        Runner { event_loop, thread_limit: THREAD_LIMIT, ctrl_c: None, context: Cell::new(None) }
    }

    /// How long to wait, when everything else has ended, for jobs that still run in the threads of the loop's own pool;
    /// 30 s unless set. A pool that the loop was given is not waited for.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap()).thread_limit(Duration::from_secs(5));
    /// ```
    #[must_use]
    pub fn thread_limit(mut self, limit: Duration) -> Runner {
        self.thread_limit = limit;
        self
    }

    /// Whether Ctrl-C ends a run in order; unless set, it does on the main thread.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap()).ctrl_c(false);
    /// ```
    #[must_use]
    pub fn ctrl_c(mut self, takes: bool) -> Runner {
        self.ctrl_c = Some(takes);
        self
    }

    /// Ends in order, as dropping it does, and returns what went wrong with that, where dropping it reports it to the
    /// loop's exception handler.
    ///
    /// # Errors
    /// See [`CleanupError`]. If both happened, the jobs in threads are reported.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap());
    /// runner.run(async { tidegate_loop::to_thread(|| ()).await.unwrap() }).unwrap();
    /// runner.close().unwrap();
    /// ```
    pub fn close(self) -> Result<(), CleanupError> {
        let ended = match self.clean_up() {
            (Ok(()), threads) => threads.map_err(CleanupError::StillRunning),
            (Err(error), threads) => {
                self.report_threads(threads);
                Err(CleanupError::EndedEarly(error))
            }
        };
        let _ = self.event_loop.close();
        ended
    }

    /// Its loop.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// assert!(!Runner::new(EventLoop::simulated(1)).event_loop().is_running());
    /// ```
    pub fn event_loop(&self) -> &EventLoop {
        &self.event_loop
    }

    /// Runs `future` until it is done. Other tasks stay for the next `run`.
    ///
    /// A runner has a context of its own: a copy of the context of its first run's caller. Each run starts with the
    /// values that the main task before it left behind.
    ///
    /// # Errors
    /// See [`RunError`].
    ///
    /// # Panics
    /// When the future panics.
    ///
    /// ```
    /// use tidegate_loop::{ContextVar, EventLoop, Runner};
    /// static USER: ContextVar<u32> = ContextVar::new("user");
    ///
    /// let runner = Runner::new(EventLoop::simulated(1));
    /// runner.run(async { drop(USER.set(7)) }).unwrap();
    /// assert_eq!(runner.run(async { USER.get() }).unwrap(), Some(7));
    /// ```
    #[track_caller]
    pub fn run<F>(&self, future: F) -> Result<F::Output, RunError>
    where
        F: Future + 'static,
    {
        let context = self.context.take().unwrap_or_else(Snapshot::current);
        self.context.set(Some(context.clone()));
        let run = Run { runner: self, main: OnceCell::new(), keeps_interrupts: Cell::new(false) };
        let kernel = &self.event_loop.kernel;
        // After a run that Ctrl-C ended SIGINT is still handled; this one starts anew.
        kernel.leave_interrupts();
        let pressed = Rc::new(Cell::new(false));
        let result = self.event_loop.run_main(future, context, |main| {
            let _ = run.main.set(main.clone());
            if self.ctrl_c.unwrap_or_else(is_main_thread) {
                let (main, pressed) = (main.clone(), pressed.clone());
                kernel.take_interrupts(Rc::new(move || {
                    pressed.set(true);
                    main.cancel();
                }));
            }
        });
        run.keeps_interrupts.set(pressed.get());
        match result {
            Err(RunError::Cancelled) if pressed.get() => Err(RunError::CtrlC),
            result => result,
        }
    }

    /// [`run`](Self::run) for a future that can fail: its error and those of the run are one.
    ///
    /// # Errors
    /// The future's own, or a [`RunError`]. Under a seed a failing run prints the seed.
    ///
    /// # Panics
    /// When the future panics.
    ///
    /// ```
    /// # use std::error::Error;
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::simulated(1));
    /// let result: Result<u32, Box<dyn Error>> = runner.run_fallible(async { Ok("12x".parse()?) });
    /// assert_eq!(result.unwrap_err().to_string(), "invalid digit found in string");
    /// ```
    #[track_caller]
    pub fn run_fallible<F, T, E>(&self, future: F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + 'static,
        E: From<RunError>,
    {
        let result = self.run(future)?;
        if result.is_err() {
            self.event_loop.print_seed();
        }
        result
    }

    /// Everything but closing the loop: whether its tasks have ended, and whether its threads have.
    fn clean_up(&self) -> (Result<(), RunError>, Result<(), StillRunning>) {
        let tasks = self.end_tasks().and_then(|()| self.run_queued());
        let threads = self.end_threads();
        // One more tick: results of threads that no task awaits any more are dropped on their loop, while it is there.
        if self.event_loop.kernel.threads.get().is_some() {
            let _ = self.event_loop.kernel.run_tick();
        }
        (tasks, threads)
    }

    /// Cancels the tasks that are left and runs until they have ended.
    fn end_tasks(&self) -> Result<(), RunError> {
        let left: Vec<Task> = self.event_loop.all_tasks();
        if left.is_empty() {
            return Ok(());
        }
        for task in &left {
            task.cancel();
        }
        // Callbacks instead of a task that waits: `all_tasks` shows no task but the program's own.
        let open = Rc::new(Cell::new(left.len()));
        for task in &left {
            let (open, handle) = (open.clone(), self.event_loop.handle());
            task.add_done_callback(move |_| {
                open.set(open.get() - 1);
                if open.get() == 0 {
                    let stopping = handle.clone();
                    handle.call_soon(move || stopping.stop());
                }
            });
        }
        let ran = self.event_loop.run_forever();
        for task in &left {
            if matches!(task.outcome(), Some(Outcome::Failed | Outcome::Panicked)) {
                let report = Report {
                    kind: ReportKind::UnseenError,
                    message: task.error().unwrap_or_default(),
                    name: Some(task.name()),
                    location: Some(task.location()),
                    took: None,
                };
                self.event_loop.kernel.watch.report(&report);
            }
        }
        if ran.is_ok() && open.get() > 0 {
            return Err(RunError::Stopped);
        }
        ran
    }

    /// Runs what the last tick has queued, and a short chain of calls behind it.
    fn run_queued(&self) -> Result<(), RunError> {
        for _ in 0..CLOSING_RUNS {
            if !self.event_loop.kernel.has_work() {
                break;
            }
            // Stopped by a call in the second tick, as in asyncio: a stop of the program's own may come before it.
            let handle = self.event_loop.handle();
            self.event_loop.call_soon(move || {
                let stopping = handle.clone();
                handle.call_soon(move || stopping.stop());
            });
            self.event_loop.run_forever()?;
        }
        Ok(())
    }

    /// Waits for the jobs that run. The tasks are gone, and with them the jobs that were still in line.
    fn end_threads(&self) -> Result<(), StillRunning> {
        let kernel = &self.event_loop.kernel;
        let own = kernel.threads.get().filter(|_| kernel.threads_setup.is_some());
        own.map_or(Ok(()), |threads| threads.shutdown(self.thread_limit))
    }

    fn report_threads(&self, ended: Result<(), StillRunning>) {
        for job in ended.err().into_iter().flat_map(|left| left.running) {
            let report = Report {
                kind: ReportKind::ThreadLeft,
                message: format!("it has been running for {:?} in {}", job.running_for, job.thread),
                name: Some((&*job.name).into()),
                location: Some(job.location),
                took: None,
            };
            self.event_loop.kernel.watch.report(&report);
        }
    }
}

/// One run of a runner. Dropped when the run is over, however that came about: keeps the context of the main task for the
/// next run, and stops handling SIGINT, except after Ctrl-C, when the next one is to end the clean-up too.
struct Run<'a> {
    runner: &'a Runner,
    main: OnceCell<Task>,
    keeps_interrupts: Cell<bool>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some(main) = self.main.get() {
            self.runner.context.set(Some(main.cell.context_values()));
        }
        if !self.keeps_interrupts.get() {
            self.runner.event_loop.kernel.leave_interrupts();
        }
    }
}

pub(crate) fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.event_loop.is_closed() {
            return;
        }
        let (tasks, threads) = self.clean_up();
        if let Err(error) = tasks {
            let report = Report {
                kind: ReportKind::CleanupCut,
                message: error.to_string(),
                name: None,
                location: None,
                took: None,
            };
            self.event_loop.kernel.watch.report(&report);
        }
        self.report_threads(threads);
        let _ = self.event_loop.close();
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("event_loop", &self.event_loop).finish_non_exhaustive()
    }
}
