//! The pool: threads made on demand, up to a limit, that leave when they have had nothing to do for a while.

use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::job::{Ends, JobError, JobName, ThreadJob};
use super::queue::{Queue, Queued};
use super::stats::{RunningJob, StillRunning, ThreadStats};
use crate::kernel::clock;
use crate::kernel::current;
use crate::kernel::{Kernel, Pace};
use crate::runtime::remote::RemoteHandle;

/// How long a thread waits for another job before it leaves, unless told otherwise.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// As many threads as asyncio allows: most jobs wait rather than compute.
fn default_max() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores + 4).min(32)
}

/// How a [`ThreadPool`] is made.
///
/// ```
/// use std::time::Duration;
/// use tidegate_loop::ThreadPool;
/// let pool = ThreadPool::builder().threads_max(2).idle_after(Duration::from_secs(1)).name("pdf").build();
/// assert_eq!(pool.threads_max(), 2);
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until build is called"]
pub struct ThreadPoolBuilder {
    threads_max: usize,
    idle_after: Duration,
    name: Arc<str>,
}

impl ThreadPoolBuilder {
    pub(super) fn new() -> ThreadPoolBuilder {
        ThreadPoolBuilder { threads_max: default_max(), idle_after: IDLE_AFTER, name: "tidegate-thread".into() }
    }

    /// The most threads there may be; the number of cores and 4 more, at most 32, unless set.
    ///
    /// # Panics
    /// When it is zero.
    ///
    /// ```
    /// assert_eq!(tidegate_loop::ThreadPool::builder().threads_max(1).build().threads_max(), 1);
    /// ```
    pub fn threads_max(mut self, threads_max: usize) -> Self {
        assert!(threads_max > 0, "a pool of no threads would never run a job");
        self.threads_max = threads_max;
        self
    }

    /// How long a thread waits for another job before it leaves; 10 s unless set.
    ///
    /// ```
    /// let pool = tidegate_loop::ThreadPool::builder().idle_after(std::time::Duration::ZERO).build();
    /// ```
    pub fn idle_after(mut self, idle_after: Duration) -> Self {
        self.idle_after = idle_after;
        self
    }

    /// What its threads are called, each with a number behind; `tidegate-thread` unless set.
    ///
    /// ```
    /// let pool = tidegate_loop::ThreadPool::builder().name("pdf").build();
    /// ```
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Makes the pool. It has no thread yet.
    ///
    /// ```
    /// let pool = tidegate_loop::ThreadPool::builder().build();
    /// assert_eq!(pool.stats().threads, 0);
    /// ```
    pub fn build(self) -> ThreadPool {
        let state = PoolState {
            queue: Queue::new(),
            running: Vec::new(),
            threads: 0,
            idle: 0,
            closed: false,
            thread_number: 0,
            peak: 0,
            total: 0,
            removed: 0,
            panicked: 0,
        };
        let shared = PoolShared { setup: self, state: Mutex::new(state), work: Condvar::new(), left: Condvar::new() };
        ThreadPool { owner: Arc::new(Owner { shared: Arc::new(shared) }) }
    }
}

/// Threads for what blocks: jobs wait in line, first come first served; threads are made as they are needed and leave
/// when they have had nothing to do for a while. Cheap to clone; may be shared by any number of loops and threads. When
/// the last clone goes, the jobs in line are still run, and the threads end by themselves.
///
/// Every loop makes one of its own on first use, see [`to_thread`](crate::to_thread).
///
/// ```
/// use tidegate_loop::{EventLoop, ThreadPool};
///
/// let pool = ThreadPool::builder().threads_max(4).build();
/// let event_loop = EventLoop::builder().thread_pool(pool.clone()).build().unwrap();
/// let job = pool.run(|| std::thread::current().name().map(str::to_owned));
/// let name = event_loop.run_until_complete(job).unwrap().unwrap();
/// assert_eq!(name.as_deref(), Some("tidegate-thread-1"));
/// ```
#[derive(Clone)]
pub struct ThreadPool {
    owner: Arc<Owner>,
}

/// The threads hold the shared part; when this handle is dropped, no more jobs can come.
struct Owner {
    shared: Arc<PoolShared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

pub(crate) struct PoolShared {
    setup: ThreadPoolBuilder,
    state: Mutex<PoolState>,
    /// There is a job, or the pool is closed.
    work: Condvar,
    /// A thread has left.
    left: Condvar,
}

struct PoolState {
    queue: Queue,
    running: Vec<Running>,
    threads: usize,
    /// Threads that will look at the queue before they do anything else. Each of them is good for one job in it.
    idle: usize,
    closed: bool,
    thread_number: usize,
    peak: usize,
    total: u64,
    removed: u64,
    panicked: u64,
}

struct Running {
    id: u64,
    name: JobName,
    since: Instant,
    thread: Arc<str>,
}

impl ThreadPool {
    /// A pool of the default size, see [`ThreadPoolBuilder`].
    ///
    /// ```
    /// let pool = tidegate_loop::ThreadPool::new();
    /// assert!(pool.threads_max() > 4);
    /// ```
    #[must_use]
    pub fn new() -> ThreadPool {
        ThreadPool::builder().build()
    }

    /// A pool made to measure.
    ///
    /// ```
    /// let pool = tidegate_loop::ThreadPool::builder().threads_max(1).build();
    /// ```
    pub fn builder() -> ThreadPoolBuilder {
        ThreadPoolBuilder::new()
    }

    /// Hands a job over, at once. It runs in a copy of the running context, see [`ContextVar`](crate::ContextVar).
    ///
    /// ```
    /// use tidegate_loop::{ThreadPool, run};
    /// let pool = ThreadPool::new();
    /// assert_eq!(run(pool.run(|| 1 + 1)).unwrap().unwrap(), 2);
    /// ```
    #[track_caller]
    pub fn run<F, R>(&self, job: F) -> ThreadJob<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let name = JobName::here(None, Location::caller());
        current::with(|kernel| self.submit(kernel, name, job))
    }

    /// [`run`](Self::run) for a job that shows up under this name in [`running`](Self::running) and when the
    /// pool is shut down.
    ///
    /// ```
    /// use tidegate_loop::{ThreadPool, run};
    /// let pool = ThreadPool::new();
    /// assert_eq!(run(pool.run_named("add", || 1 + 1)).unwrap().unwrap(), 2);
    /// ```
    #[track_caller]
    pub fn run_named<F, R>(&self, name: impl Into<Arc<str>>, job: F) -> ThreadJob<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let name = JobName::here(Some(name.into()), Location::caller());
        current::with(|kernel| self.submit(kernel, name, job))
    }

    pub(crate) fn submit<F, R>(&self, kernel: Option<&Kernel>, name: JobName, work: F) -> ThreadJob<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let shared = &self.owner.shared;
        let is_held = kernel.is_some_and(|kernel| kernel.pace != Pace::Real);
        let Ends { work, mut job, held } = ThreadJob::ends(shared, name, kernel.map(RemoteHandle::new), is_held, work);
        let more = {
            let mut state = shared.lock();
            if state.closed {
                drop(state);
                job.unhold();
                drop(work);
                return job;
            }
            state.total += 1;
            let id = state.queue.push(job.name(), work);
            job.stands_at(id);
            let more = state.queue.len() > state.idle && state.threads < shared.setup.threads_max;
            state.threads += usize::from(more);
            more
        };
        if let (Some(kernel), Some(held)) = (kernel, held) {
            kernel.held.borrow_mut().push_back(held);
        }
        if more {
            shared.start_thread();
        } else {
            shared.work.notify_one();
        }
        job
    }

    /// Refuses jobs from now on, lets those that run and those in line come to their end, and waits for that, blocking,
    /// up to `limit`. May be called again to wait longer.
    ///
    /// # Errors
    /// [`StillRunning`] names the jobs that still run. Those in line are dropped unrun: their awaiters get
    /// [`JobError::Closed`].
    ///
    /// ```
    /// use std::time::Duration;
    /// let pool = tidegate_loop::ThreadPool::new();
    /// let job = pool.run(|| ());
    /// pool.shutdown(Duration::from_secs(60)).unwrap();
    /// assert_eq!(pool.stats().threads, 0);
    /// ```
    pub fn shutdown(&self, limit: Duration) -> Result<(), StillRunning> {
        let shared = &self.owner.shared;
        shared.close();
        let state = shared.lock();
        let (mut state, _) = shared
            .left
            .wait_timeout_while(state, limit, |state| state.threads > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if state.threads == 0 {
            return Ok(());
        }
        let unrun = state.queue.take();
        let running = state.running_jobs();
        drop(state);
        let dropped = unrun.len();
        drop(unrun);
        Err(StillRunning { running, dropped, limit })
    }

    /// Refuses jobs from now on; the threads end by themselves when the line is empty.
    pub(crate) fn close(&self) {
        self.owner.shared.close();
    }

    /// The jobs that run at the moment, the longest first.
    ///
    /// ```
    /// assert!(tidegate_loop::ThreadPool::new().running().is_empty());
    /// ```
    pub fn running(&self) -> Vec<RunningJob> {
        self.owner.shared.lock().running_jobs()
    }

    /// Its figures.
    ///
    /// ```
    /// assert_eq!(tidegate_loop::ThreadPool::new().stats().total, 0);
    /// ```
    pub fn stats(&self) -> ThreadStats {
        let state = self.owner.shared.lock();
        ThreadStats {
            threads: state.threads,
            idle: state.idle,
            busy: state.running.len(),
            queued: state.queue.len(),
            peak: state.peak,
            total: state.total,
            removed: state.removed,
            panicked: state.panicked,
        }
    }

    /// The most threads there may be.
    ///
    /// ```
    /// assert!(tidegate_loop::ThreadPool::new().threads_max() <= 32);
    /// ```
    pub fn threads_max(&self) -> usize {
        self.owner.shared.setup.threads_max
    }
}

impl Default for ThreadPool {
    fn default() -> Self {
        ThreadPool::new()
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ThreadPool");
        debug.field("name", &self.owner.shared.setup.name);
        if let Ok(state) = self.owner.shared.state.try_lock() {
            debug.field("threads", &state.threads).field("queued", &state.queue.len());
        }
        debug.finish_non_exhaustive()
    }
}

impl PoolState {
    fn running_jobs(&self) -> Vec<RunningJob> {
        let now = clock::machine_now();
        let mut running: Vec<&Running> = self.running.iter().collect();
        running.sort_by_key(|job| job.id);
        let job = |job: &Running| RunningJob {
            name: job.name.text(),
            location: job.name.location,
            running_for: now.saturating_duration_since(job.since),
            thread: job.thread.clone(),
        };
        running.into_iter().map(job).collect()
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Nothing foreign runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Takes a job out of the line; the caller drops it.
    pub(super) fn remove(&self, id: u64) -> Option<Queued> {
        let mut state = self.lock();
        let removed = state.queue.remove(id);
        state.removed += u64::from(removed.is_some());
        removed
    }

    /// Starts a thread that has been counted already.
    fn start_thread(self: &Arc<Self>) {
        let number = {
            let mut state = self.lock();
            state.thread_number += 1;
            state.thread_number
        };
        let name: Arc<str> = format!("{}-{number}", self.setup.name).into();
        let shared = self.clone();
        let thread = thread::Builder::new().name(name.to_string()).spawn(move || shared.serve(&name));
        let Err(error) = thread else { return };
        let stranded = {
            let mut state = self.lock();
            state.threads -= 1;
            if state.threads == 0 { state.queue.take() } else { Vec::new() }
        };
        if stranded.is_empty() {
            log::warn!("the thread pool {} could not start another thread: {error}", self.setup.name);
        }
        for mut job in stranded {
            let refused = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            job.work.fail(JobError::NoThread(refused));
        }
        self.left.notify_all();
    }

    /// A thread's life.
    fn serve(&self, thread: &Arc<str>) {
        let mut state = self.lock();
        loop {
            let Some(Queued { id, name, mut work }) = state.queue.pop() else {
                if state.closed {
                    break;
                }
                state.idle += 1;
                let nothing = |state: &mut PoolState| state.queue.len() == 0 && !state.closed;
                let (woken, waited) = self
                    .work
                    .wait_timeout_while(state, self.setup.idle_after, nothing)
                    .unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if waited.timed_out() && state.queue.len() == 0 {
                    break;
                }
                continue;
            };
            state.running.push(Running { id, name, since: clock::machine_now(), thread: thread.clone() });
            state.peak = state.peak.max(state.running.len());
            drop(state);
            let panicked = work.run();
            state = self.lock();
            state.running.retain(|job| job.id != id);
            state.panicked += u64::from(panicked);
            // Idle before the awaiter is woken: its next job then finds this thread and needs no other.
            state.idle += 1;
            drop(state);
            drop(work);
            state = self.lock();
            state.idle -= 1;
        }
        state.threads -= 1;
        drop(state);
        self.left.notify_all();
    }
}
