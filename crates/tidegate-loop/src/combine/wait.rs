//! Waiting for some of several tasks.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::runtime::callback::TimerHandle;
use crate::runtime::event_loop::LoopHandle;
use crate::task::{AsTask, CallbackId, Outcome, Task};

/// When [`wait`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When one has ended, however it did.
    FirstCompleted,
    /// When one has failed or panicked, or all have ended. A cancelled one does not count.
    FirstException,
    /// When all have ended.
    All,
}

/// What [`wait`] found, as indices into what it was given, in that order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waited {
    /// Those that have ended.
    pub done: Vec<usize>,
    /// Those that have not; they go on.
    pub pending: Vec<usize>,
}

/// There was nothing to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyWait;

impl fmt::Display for EmptyWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wait was given no tasks; it would wait for ever")
    }
}

impl std::error::Error for EmptyWait {}

/// Waits for the tasks behind `tasks` (tasks or join handles) until `when`, or until `timeout` has passed. Nothing is
/// cancelled, and nothing is taken: results are still in their handles.
///
/// # Errors
/// [`EmptyWait`] for an empty slice.
///
/// # Cancel safety
/// Safe: the tasks go on.
///
/// ```
/// use tidegate_loop::{run, sleep, spawn, wait, Duration, When};
/// run(async {
///     let fast = spawn(sleep(Duration::from_millis(1)));
///     let slow = spawn(sleep(Duration::from_secs(60)));
///     let waited = wait(&[fast, slow], When::FirstCompleted, None).await.unwrap();
///     assert_eq!((waited.done, waited.pending), (vec![0], vec![1]));
/// })
/// .unwrap();
/// ```
pub async fn wait(tasks: &[impl AsTask], when: When, timeout: Option<Duration>) -> Result<Waited, EmptyWait> {
    if tasks.is_empty() {
        return Err(EmptyWait);
    }
    let tasks: Vec<Task> = tasks.iter().map(AsTask::as_task).collect();
    let handle = LoopHandle::current();
    let enough = handle.create_future::<()>();
    let timer = timeout.map(|timeout| {
        let enough = enough.clone();
        handle.call_later(timeout, move || drop(enough.set_result(())))
    });
    let left = Rc::new(Cell::new(tasks.len()));
    let ids = tasks.iter().map(|task| {
        let (left, enough, timer) = (left.clone(), enough.clone(), timer.clone());
        task.add_done_callback(move |task| {
            left.set(left.get() - 1);
            let failed = matches!(task.outcome(), Some(Outcome::Failed | Outcome::Panicked));
            if left.get() == 0 || when == When::FirstCompleted || (when == When::FirstException && failed) {
                if let Some(timer) = &timer {
                    timer.cancel();
                }
                drop(enough.set_result(()));
            }
        })
    });
    let ids = ids.collect();
    let watch = Watch { tasks: &tasks, ids, timer };
    // Only a request to the waiting task cancels it, and that is raised there instead of coming out here.
    let _ = enough.await;
    drop(watch);
    let (done, pending) = (0..tasks.len()).partition(|&at| tasks[at].is_finished());
    Ok(Waited { done, pending })
}

/// Takes callbacks and timer back, however the wait ends.
struct Watch<'a> {
    tasks: &'a [Task],
    ids: Vec<CallbackId>,
    timer: Option<TimerHandle>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.cancel();
        }
        for (task, id) in self.tasks.iter().zip(&self.ids) {
            task.remove_done_callback(*id);
        }
    }
}
