//! Hooks around receiving, running and settling.

use std::rc::Rc;

use jiff::Timestamp;

use crate::broker::{Settled, Verdict};
use crate::mode::Job;
use crate::outcome::Outcome;
use crate::retry::Backoff;
use crate::task::TaskId;

/// What is known of a task while this worker has it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// Which task.
    pub id: TaskId,
    /// The handler's name; empty if the body could not be read.
    pub name: Rc<str>,
    /// Where it waited.
    pub queue: Rc<str>,
    /// How often it was retried before.
    pub retries: u32,
    /// How often it crashed before.
    pub crashes: u32,
    /// When it was published.
    pub published: Timestamp,
    /// When it came to this worker.
    pub received: Timestamp,
    /// Not to be begun after this.
    pub expires: Option<Timestamp>,
    /// How often it is tried again, where it says so itself.
    pub retries_max: Option<u32>,
    /// And when.
    pub backoff: Option<Backoff>,
}

/// Called at every step of a task. Hooks run on the loop and must not block; those of several middlewares run in the order
/// they were added, and in reverse order behind the run.
///
/// ```
/// use tidegate_worker::{Middleware, Outcome, TaskInfo};
///
/// /// Refuses what came back too often.
/// struct Patience(u32);
///
/// impl Middleware for Patience {
///     fn received(&self, task: &TaskInfo) -> Result<(), Outcome> {
///         if task.retries <= self.0 {
///             return Ok(());
///         }
///         Err(Outcome::Rejected { reason: format!("retried {} times", task.retries) })
///     }
/// }
/// ```
pub trait Middleware {
    /// A task has come and was understood. An outcome takes the place of its run.
    ///
    /// # Errors
    /// What the task ends as instead.
    fn received(&self, _task: &TaskInfo) -> Result<(), Outcome> {
        Ok(())
    }

    /// It has a slot and is about to run; the job may be changed.
    fn starting(&self, _task: &TaskInfo, _job: &mut Job) {}

    /// The run is over; the outcome may be changed.
    fn ended(&self, _task: &TaskInfo, _outcome: &mut Outcome) {}

    /// The broker has answered.
    fn settled(&self, _task: &TaskInfo, _verdict: &Verdict, _settled: Settled) {}
}
