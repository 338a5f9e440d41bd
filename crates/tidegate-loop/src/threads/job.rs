//! A job from the awaiter's side and from the thread's side, and the slot between them in which its result is left.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as PollContext, Poll, Waker};

use super::held::Held;
use super::pool::PoolShared;
use crate::context::Carried;
use crate::kernel::current;
use crate::observe::report::{Report, ReportKind};
use crate::runtime::remote::RemoteHandle;
use crate::task::Panic;

/// Why a job in a thread brought no result.
///
/// ```
/// use tidegate_loop::{JobError, run, to_thread};
/// # std::panic::set_hook(Box::new(|_| ()));
/// run(async {
///     let Err(JobError::Panicked(panic)) = to_thread(|| panic!("not a PDF")).await else { unreachable!() };
///     assert_eq!(panic.to_string(), "not a PDF");
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// It panicked.
    Panicked(Panic),
    /// The pool was shut down before a thread had taken the job; it was not run.
    Closed,
    /// The pool has no thread and the system refused one; the job was not run. Try again when fewer threads run.
    NoThread(io::Error),
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Panicked(panic) => write!(f, "the job panicked: {panic}"),
            JobError::Closed => f.write_str("the thread pool is shut down and takes no more jobs; make a new one"),
            JobError::NoThread(error) => write!(f, "no thread could be started for the job: {error}"),
        }
    }
}

impl std::error::Error for JobError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JobError::NoThread(error) => Some(error),
            _ => None,
        }
    }
}

/// What a job is called: the name it was given, or where it was handed over.
#[derive(Clone)]
pub(crate) struct JobName {
    given: Option<Arc<str>>,
    pub(super) location: &'static Location<'static>,
}

impl JobName {
    pub(crate) fn here(given: Option<Arc<str>>, location: &'static Location<'static>) -> JobName {
        JobName { given, location }
    }

    pub(super) fn text(&self) -> Arc<str> {
        match &self.given {
            Some(name) => name.clone(),
            None => self.location.to_string().into(),
        }
    }
}

/// What a thread is given to do. Dropped, with or without having run, it settles the awaiter's slot.
pub(super) trait Work: Send {
    /// Runs it and keeps the result; whether it panicked.
    fn run(&mut self) -> bool;
    /// It cannot be run.
    fn fail(&mut self, error: JobError);
}

/// Where a result is left.
struct JobSlot<R> {
    name: JobName,
    inner: Mutex<JobSlotInner<R>>,
}

struct JobSlotInner<R> {
    result: Option<Result<R, JobError>>,
    waker: Option<Waker>,
    /// The awaiter is gone; a result is to be dropped at home.
    abandoned: bool,
    /// Not to be seen before `release`.
    held: bool,
    /// The loop the job was handed over on.
    home: Option<RemoteHandle>,
}

impl<R> JobSlot<R> {
    fn lock(&self) -> MutexGuard<'_, JobSlotInner<R>> {
        // Nothing foreign runs under this lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Send + 'static> JobSlot<R> {
    fn settle(&self, result: Result<R, JobError>) {
        let mut inner = self.lock();
        if inner.abandoned {
            // In virtual time a late result must not be seen to arrive; and a job that was not run has none.
            let stays = inner.held || matches!(result, Err(JobError::Closed | JobError::NoThread(_)));
            let home = inner.home.take().filter(|_| !stays);
            drop(inner);
            let name = self.name.clone();
            match home {
                // Refused means closed: then it is dropped here.
                Some(home) => drop(home.call_soon_threadsafe(move || drop_unseen(result, &name))),
                None => drop_unseen(result, &name),
            }
            return;
        }
        inner.result = Some(result);
        if inner.held {
            let home = inner.home.clone();
            drop(inner);
            if let Some(home) = home {
                home.nudge();
            }
        } else {
            let waker = inner.waker.take();
            drop(inner);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<R: Send> Held for JobSlot<R> {
    fn is_settled(&self) -> bool {
        let inner = self.lock();
        inner.result.is_some() || inner.abandoned
    }

    fn release(&self) {
        let mut inner = self.lock();
        inner.held = false;
        // Released early, when its loop closes, it wakes the awaiter when it is there.
        let waker = if inner.result.is_some() { inner.waker.take() } else { None };
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Drops a result that was not fetched; a panic is reported.
fn drop_unseen<R>(result: Result<R, JobError>, name: &JobName) {
    if let Err(JobError::Panicked(panic)) = result {
        let report = Report {
            kind: ReportKind::UnseenPanic,
            message: panic.to_string(),
            name: Some((&*name.text()).into()),
            location: Some(name.location),
            took: None,
        };
        current::with(|kernel| match kernel {
            Some(kernel) => kernel.watch.report(&report),
            None => report.log(),
        });
    }
}

struct Job<F, R: Send + 'static> {
    work: Option<(F, Carried)>,
    result: Option<Result<R, JobError>>,
    slot: Arc<JobSlot<R>>,
}

impl<F, R> Work for Job<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send + 'static,
{
    fn run(&mut self) -> bool {
        let Some((work, context)) = self.work.take() else { return false };
        // What the job shared with others and left half done is theirs to judge, as with any thread that panics.
        let outcome = catch_unwind(AssertUnwindSafe(move || context.run(work)));
        let panicked = outcome.is_err();
        self.result = Some(outcome.map_err(|payload| JobError::Panicked(Panic::new(payload))));
        panicked
    }

    fn fail(&mut self, error: JobError) {
        self.result = Some(Err(error));
    }
}

impl<F, R: Send + 'static> Drop for Job<F, R> {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or(Err(JobError::Closed));
        self.slot.settle(result);
    }
}

/// A job that was handed to a [`ThreadPool`](super::ThreadPool); await it for its result.
///
/// # Cancel safety
/// Dropped, or its task cancelled, before a thread has taken the job: the job is taken out of the line and dropped
/// unrun. Later: the job runs to its end, because a thread cannot be stopped; its result is dropped on the loop it was
/// handed over on (in the thread, if there was none, it is closed or its time is virtual), and a panic is reported there.
///
/// ```
/// use tidegate_loop::{LoopHandle, run};
/// run(async {
///     let job = LoopHandle::current().run_in_executor(|| 6 * 7);
///     assert_eq!(job.await.unwrap(), 42);
/// })
/// .unwrap();
/// ```
#[must_use = "dropped, a job that has not begun is not run"]
pub struct ThreadJob<R: Send + 'static> {
    slot: Arc<JobSlot<R>>,
    pool: Arc<PoolShared>,
    /// Its place in the pool's line; `None` when it never had one.
    id: Option<u64>,
    fetched: bool,
}

/// The two ends of a new job.
pub(super) struct Ends<R: Send + 'static> {
    pub(super) work: Box<dyn Work>,
    pub(super) job: ThreadJob<R>,
    pub(super) held: Option<Arc<dyn Held>>,
}

impl<R: Send + 'static> ThreadJob<R> {
    pub(super) fn ends<F>(
        pool: &Arc<PoolShared>,
        name: JobName,
        home: Option<RemoteHandle>,
        held: bool,
        work: F,
    ) -> Ends<R>
    where
        F: FnOnce() -> R + Send + 'static,
    {
        let inner = JobSlotInner { result: None, waker: None, abandoned: false, held, home };
        let slot = Arc::new(JobSlot { name, inner: Mutex::new(inner) });
        let held: Option<Arc<dyn Held>> = if held { Some(slot.clone()) } else { None };
        let work = Job { work: Some((work, Carried::current())), result: None, slot: slot.clone() };
        let job = ThreadJob { slot, pool: pool.clone(), id: None, fetched: false };
        Ends { work: Box::new(work), job, held }
    }

    pub(super) fn name(&self) -> JobName {
        self.slot.name.clone()
    }

    pub(super) fn stands_at(&mut self, id: u64) {
        self.id = Some(id);
    }

    /// Whatever comes of it may be seen at once.
    pub(super) fn unhold(&self) {
        self.slot.lock().held = false;
    }

    /// Whether the result is there.
    ///
    /// ```
    /// use tidegate_loop::ThreadPool;
    /// let pool = ThreadPool::new();
    /// let job = pool.run(|| 1);
    /// pool.shutdown(std::time::Duration::from_secs(60)).unwrap();
    /// assert!(job.is_finished());
    /// ```
    pub fn is_finished(&self) -> bool {
        let inner = self.slot.lock();
        inner.result.is_some() && !inner.held
    }
}

impl<R: Send + 'static> Future for ThreadJob<R> {
    type Output = Result<R, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        assert!(!self.fetched, "a job is awaited once");
        // Cloned before the lock: a foreign waker may do anything.
        let waker = cx.waker().clone();
        let mut inner = self.slot.lock();
        if !inner.held
            && let Some(result) = inner.result.take()
        {
            drop(inner);
            self.fetched = true;
            return Poll::Ready(result);
        }
        let before = inner.waker.replace(waker);
        drop(inner);
        drop(before);
        Poll::Pending
    }
}

impl<R: Send + 'static> Drop for ThreadJob<R> {
    fn drop(&mut self) {
        if self.fetched {
            return;
        }
        let (result, waker) = {
            let mut inner = self.slot.lock();
            inner.abandoned = true;
            (inner.result.take(), inner.waker.take())
        };
        drop(waker);
        match result {
            Some(result) => drop_unseen(result, &self.slot.name),
            None => drop(self.id.and_then(|id| self.pool.remove(id))),
        }
    }
}

impl<R: Send + 'static> fmt::Debug for ThreadJob<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadJob").field("name", &self.slot.name.text()).finish_non_exhaustive()
    }
}
