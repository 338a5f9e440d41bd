//! Running a program: a loop, its main task, and an orderly end.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::combine::gather_all;
use crate::kernel::Kernel;
use crate::observe::report::{Report, ReportKind};
use crate::runtime::error::RunError;
use crate::runtime::event_loop::EventLoop;
use crate::task::{Outcome, Task};
use crate::threads::StillRunning;

/// Runs `future` on a new loop until it is done, then cancels what is left, lets it clean up, and closes the loop. On
/// the main thread Ctrl-C ends it in order, see [`Runner`].
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
#[derive(Debug)]
pub struct Runner {
    event_loop: EventLoop,
    thread_limit: Duration,
    /// `None`: on the main thread only.
    ctrl_c: Option<bool>,
}

/// How long a runner waits for the jobs in its loop's threads, unless told otherwise.
const THREAD_LIMIT: Duration = Duration::from_secs(30);

impl Runner {
    /// A runner on that loop.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap());
    /// ```
    #[must_use]
    pub fn new(event_loop: EventLoop) -> Runner {
        Runner { event_loop, thread_limit: THREAD_LIMIT, ctrl_c: None }
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

    /// Ends in order, as dropping it does, and says whether jobs were left in threads, where dropping it reports them to
    /// the loop's exception handler.
    ///
    /// # Errors
    /// [`StillRunning`] names the jobs that did not end within the limit.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// let runner = Runner::new(EventLoop::new().unwrap());
    /// runner.run(async { tidegate_loop::to_thread(|| ()).await.unwrap() }).unwrap();
    /// runner.close().unwrap();
    /// ```
    pub fn close(self) -> Result<(), StillRunning> {
        self.end_tasks();
        let ended = self.end_threads();
        self.end_loop();
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
    /// # Errors
    /// See [`RunError`].
    ///
    /// # Panics
    /// When the future panics.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, Runner};
    /// assert_eq!(Runner::new(EventLoop::simulated(1)).run(async { 1 }).unwrap(), 1);
    /// ```
    #[track_caller]
    pub fn run<F>(&self, future: F) -> Result<F::Output, RunError>
    where
        F: Future + 'static,
    {
        let interrupts = Interrupts { kernel: &self.event_loop.kernel, keeps: Cell::new(false) };
        // After a run that Ctrl-C ended it is still taken; this one starts anew.
        interrupts.kernel.leave_interrupts();
        let pressed = Rc::new(Cell::new(false));
        let result = self.event_loop.run_main(future, |main| {
            if self.ctrl_c.unwrap_or_else(is_main_thread) {
                let (main, pressed) = (main.clone(), pressed.clone());
                interrupts.kernel.take_interrupts(Rc::new(move || {
                    pressed.set(true);
                    main.cancel();
                }));
            }
        });
        interrupts.keeps.set(pressed.get());
        match result {
            Err(RunError::Cancelled) if pressed.get() => Err(RunError::CtrlC),
            result => result,
        }
    }

    /// The tasks are gone, and with them the jobs in line: what is left runs.
    fn end_threads(&self) -> Result<(), StillRunning> {
        let kernel = &self.event_loop.kernel;
        let own = kernel.threads.get().filter(|_| kernel.threads_setup.is_some());
        own.map_or(Ok(()), |threads| threads.shutdown(self.thread_limit))
    }

    fn end_loop(&self) {
        // One more tick: results of threads that nobody awaits any more are dropped at home, while there is one.
        if self.event_loop.kernel.threads.get().is_some() {
            self.event_loop.stop();
            let _ = self.event_loop.run_forever();
        }
        let _ = self.event_loop.close();
    }

    fn end_tasks(&self) {
        let left: Vec<Task> = self.event_loop.all_tasks();
        if !left.is_empty() {
            for task in &left {
                task.cancel();
            }
            let waiting = left.clone();
            // A task that catches its cancellation and stalls in virtual time must not keep us: it is closed with the
            // loop. An interrupt during the clean-up likewise ends it.
            let ended = async move {
                let ends = waiting.iter().map(|task| {
                    let task = task.clone();
                    crate::spawn(async move { task.finished().await })
                });
                gather_all(ends.collect::<Vec<_>>()).await;
            };
            let waited = self.event_loop.complete(ended, |_| ());
            if let Err(error) = waited {
                log::warn!("tasks were left when the loop closed: {error}");
            }
            for task in left {
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
        }
    }
}

/// Lets SIGINT go when the run is over, however that came about; except after Ctrl-C, when the next one is to end the
/// clean-up too. The loop lets go of it at the latest.
struct Interrupts<'a> {
    kernel: &'a Kernel,
    keeps: Cell<bool>,
}

impl Drop for Interrupts<'_> {
    fn drop(&mut self) {
        if !self.keeps.get() {
            self.kernel.leave_interrupts();
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
        self.end_tasks();
        for job in self.end_threads().err().into_iter().flat_map(|left| left.running) {
            let report = Report {
                kind: ReportKind::ThreadLeft,
                message: format!("it has been running for {:?} in {}", job.running_for, job.thread),
                name: Some((&*job.name).into()),
                location: Some(job.location),
                took: None,
            };
            self.event_loop.kernel.watch.report(&report);
        }
        self.end_loop();
    }
}
