//! What a handler may know of the run it is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_loop::{now, sleep_until};

use crate::task::{Task, TaskId};

/// The run a handler is in: which task, which try, how much time is left, whether it should come to an end. Take it as a
/// parameter of the handler, at any place; it is not an argument of the task.
///
/// ```
/// use tidegate_worker::{HandlerError, Handlers, TaskContext};
///
/// async fn crawl(context: TaskContext, urls: Vec<String>) -> Result<usize, HandlerError> {
///     let mut done = 0;
///     for _url in urls {
///         if context.should_stop() {
///             return Err(HandlerError::retry(format!("stopped behind {done}")));
///         }
///         done += 1;
///     }
///     Ok(done)
/// }
///
/// let handlers = Handlers::new().task("crawl", crawl);
/// assert_eq!(handlers.names(), ["crawl"]);
/// ```
#[derive(Debug, Clone)]
pub struct TaskContext {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: TaskId,
    name: Arc<str>,
    retries: u32,
    soft_at: Option<Instant>,
    hard_at: Option<Instant>,
    /// The run was asked to end: by a stop of the worker, a revoke, or a time limit.
    stop: AtomicBool,
}

impl TaskContext {
    /// The run of `task` that begins at `now`.
    pub fn new(task: &Task, soft_limit: Option<Duration>, hard_limit: Option<Duration>, now: Instant) -> TaskContext {
        let at = |limit: Option<Duration>| limit.and_then(|limit| now.checked_add(limit));
        TaskContext::named(task.name.as_str().into(), task, at(soft_limit), at(hard_limit))
    }

    /// With the name as it is kept for all runs, and the limits as they lie ahead.
    pub(crate) fn named(
        name: Arc<str>,
        task: &Task,
        soft_at: Option<Instant>,
        hard_at: Option<Instant>,
    ) -> TaskContext {
        let (id, retries) = (task.id.clone(), task.retries);
        TaskContext { shared: Arc::new(Shared { id, name, retries, soft_at, hard_at, stop: AtomicBool::new(false) }) }
    }

    /// Which task.
    pub fn id(&self) -> &TaskId {
        &self.shared.id
    }

    /// The name it was called by.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How often it was tried and failed before.
    pub fn retries(&self) -> u32 {
        self.shared.retries
    }

    /// When the soft limit is passed.
    pub fn soft_deadline(&self) -> Option<Instant> {
        self.shared.soft_at
    }

    /// When the hard limit is passed.
    pub fn hard_deadline(&self) -> Option<Instant> {
        self.shared.hard_at
    }

    /// Whether the handler should come to an end: its soft limit is passed, the worker stops, or the task was revoked. What
    /// blocks in a thread cannot be ended from outside; it has to ask now and then.
    pub fn should_stop(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed) || self.soft_limit_passed()
    }

    /// Whether the soft limit is passed.
    pub fn soft_limit_passed(&self) -> bool {
        self.shared.soft_at.is_some_and(|at| now() >= at)
    }

    /// Waits until the soft limit is passed; for ever if there is none. On a loop only.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn soft_limit(&self) {
        match self.shared.soft_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
