//! Blocking work off the loop: `pool.rs` has the threads, `queue.rs` their line, `job.rs` what goes to and fro,
//! `stats.rs` its figures; `held.rs` is for virtual time. A loop's own pool is made on first use.

mod held;
mod job;
mod pool;
mod queue;
mod stats;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

pub(crate) use held::Held;
use job::JobName;
pub use job::{JobError, ThreadJob};
pub use pool::{ThreadPool, ThreadPoolBuilder};
pub use stats::{RunningJob, StillRunning, ThreadStats};

use crate::kernel::Kernel;
use crate::runtime::event_loop::LoopHandle;

/// The pool a loop's blocking jobs go to.
#[derive(Debug, Clone)]
pub(crate) enum Threads {
    Own(ThreadPoolBuilder),
    Shared(ThreadPool),
}

/// Runs `job` in a thread of the running loop's pool, in a copy of the context, and yields its result. As in asyncio
/// nothing happens before it is awaited; [`LoopHandle::run_in_executor`] starts at once.
///
/// On a loop in virtual time the clock stands still while a job runs, results arrive when nothing else is ready, in the
/// order the jobs were handed over, however long each of them took: a simulated run stays the same run.
///
/// # Cancel safety
/// As [`ThreadJob`]: a job that no thread has taken yet is not run, one that runs goes on and its result is dropped.
///
/// # Panics
/// When awaited outside of a running loop.
///
/// ```
/// use tidegate_loop::{ContextVar, run, to_thread};
///
/// static USER: ContextVar<&str> = ContextVar::new("user");
///
/// run(async {
///     USER.set("ann");
///     let text = to_thread(|| std::fs::read_to_string("/proc/self/comm")).name("read").await.unwrap();
///     assert!(text.is_ok());
///     assert_eq!(to_thread(|| USER.get()).await.unwrap(), Some("ann"));
/// })
/// .unwrap();
/// ```
#[track_caller]
pub fn to_thread<F, R>(job: F) -> ToThread<F, R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    ToThread { state: ToThreadState::New { job, name: None, location: Location::caller() } }
}

/// The future of [`to_thread`].
#[must_use = "futures do nothing unless polled"]
pub struct ToThread<F, R: Send + 'static> {
    state: ToThreadState<F, R>,
}

enum ToThreadState<F, R: Send + 'static> {
    New { job: F, name: Option<Arc<str>>, location: &'static Location<'static> },
    Moving,
    Begun(ThreadJob<R>),
}

impl<F, R: Send + 'static> ToThread<F, R> {
    /// Gives the job a name for messages; otherwise it is called by the place where it was made.
    ///
    /// ```
    /// use tidegate_loop::{run, to_thread};
    /// run(async { to_thread(|| ()).name("nothing").await.unwrap() }).unwrap();
    /// ```
    pub fn name(mut self, text: impl Into<Arc<str>>) -> Self {
        if let ToThreadState::New { name, .. } = &mut self.state {
            *name = Some(text.into());
        }
        self
    }
}

/// Nothing in it is pinned: the job is moved to its thread.
impl<F, R: Send + 'static> Unpin for ToThread<F, R> {}

impl<F, R> Future for ToThread<F, R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    type Output = Result<R, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let state = std::mem::replace(&mut self.state, ToThreadState::Moving);
        let mut begun = match state {
            ToThreadState::New { job, name, location } => {
                let handle = LoopHandle::current();
                handle.kernel.thread_pool().submit(Some(&handle.kernel), JobName::here(name, location), job)
            }
            ToThreadState::Begun(job) => job,
            ToThreadState::Moving => panic!("to_thread found no loop to run on and cannot be awaited again"),
        };
        let polled = Pin::new(&mut begun).poll(cx);
        self.state = ToThreadState::Begun(begun);
        polled
    }
}

impl<F, R: Send + 'static> fmt::Debug for ToThread<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToThread").finish_non_exhaustive()
    }
}

impl Kernel {
    pub(crate) fn thread_pool(&self) -> &ThreadPool {
        self.threads.get_or_init(|| {
            let setup = self.threads_setup.clone();
            setup.expect("a loop without a pool of its own was given one").build()
        })
    }
}

impl LoopHandle {
    /// Hands `job` to a thread of the loop's pool, at once, in a copy of the running context.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let job = event_loop.run_in_executor(|| 6 * 7);
    /// assert_eq!(event_loop.run_until_complete(job).unwrap().unwrap(), 42);
    /// ```
    #[track_caller]
    pub fn run_in_executor<F, R>(&self, job: F) -> ThreadJob<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let name = JobName::here(None, Location::caller());
        self.kernel.thread_pool().submit(Some(&self.kernel), name, job)
    }

    /// The loop's pool: the one it was given, or its own, made on first use.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert_eq!(event_loop.thread_pool().stats().threads, 0);
    /// ```
    pub fn thread_pool(&self) -> ThreadPool {
        self.kernel.thread_pool().clone()
    }
}
