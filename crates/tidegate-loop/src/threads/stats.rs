//! What a pool tells about itself: its figures, and the jobs that outlasted its patience.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A pool's figures at one moment.
///
/// ```
/// use tidegate_loop::{LoopHandle, run, to_thread};
/// run(async {
///     to_thread(|| ()).await.unwrap();
///     let stats = LoopHandle::current().thread_pool().stats();
///     assert_eq!((stats.threads, stats.busy, stats.total), (1, 0, 1));
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadStats {
    /// Threads there are.
    pub threads: usize,
    /// Those that have nothing to do.
    pub idle: usize,
    /// Those that run a job.
    pub busy: usize,
    /// Jobs that no thread has taken yet.
    pub queued: usize,
    /// The most threads that ever ran jobs at one time.
    pub peak: usize,
    /// Jobs that were ever handed over.
    pub total: u64,
    /// Jobs that were taken out of the line because their awaiter was gone.
    pub removed: u64,
    /// Jobs that panicked.
    pub panicked: u64,
}

/// A job that is running.
///
/// ```
/// use std::{sync::mpsc, time::Duration};
/// let (begun, begins) = mpsc::channel();
/// let (end, ends) = mpsc::channel::<()>();
/// let pool = tidegate_loop::ThreadPool::new();
/// let job = pool.run_named("parse a.pdf", move || {
///     begun.send(()).unwrap();
///     ends.recv().unwrap();
/// });
/// begins.recv().unwrap();
/// assert_eq!(&*pool.running()[0].name, "parse a.pdf");
/// end.send(()).unwrap();
/// # pool.shutdown(Duration::from_secs(60)).unwrap();
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunningJob {
    /// The name it was given, or where it was handed over.
    pub name: Arc<str>,
    /// Where it was handed over.
    pub location: &'static Location<'static>,
    /// For how long it has been running.
    pub running_for: Duration,
    /// The thread it runs on.
    pub thread: Arc<str>,
}

impl fmt::Display for RunningJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` for {:.3} s in {}", self.name, self.running_for.as_secs_f64(), self.thread)
    }
}

/// A pool was shut down, and not every job was done within the limit. Those that run go on; see there which they are.
///
/// ```
/// use std::{sync::mpsc, time::Duration};
/// let (begun, begins) = mpsc::channel();
/// let (end, ends) = mpsc::channel::<()>();
/// let pool = tidegate_loop::ThreadPool::new();
/// let job = pool.run_named("upload", move || {
///     begun.send(()).unwrap();
///     ends.recv().unwrap();
/// });
/// begins.recv().unwrap();
/// let stuck = pool.shutdown(Duration::ZERO).unwrap_err();
/// assert_eq!(&*stuck.running[0].name, "upload");
/// assert!(stuck.to_string().contains("`upload` for 0.0"));
/// end.send(()).unwrap();
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StillRunning {
    /// The jobs that still run, the longest first.
    pub running: Vec<RunningJob>,
    /// How many were in line and were dropped unrun.
    pub dropped: usize,
    /// How long the pool waited.
    pub limit: Duration,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the thread pool was shut down, but after {:?} ", self.limit)?;
        match self.running.len() {
            0 => f.write_str("its threads had not ended")?,
            1 => f.write_str("a job still runs: ")?,
            count => write!(f, "{count} jobs still run: ")?,
        }
        for (at, job) in self.running.iter().enumerate() {
            write!(f, "{}{job}", if at == 0 { "" } else { ", " })?;
        }
        match self.dropped {
            0 => Ok(()),
            count => write!(f, "; {count} in line were not run"),
        }
    }
}

impl std::error::Error for StillRunning {}
