//! The contract of the three modes: processes, threads, coroutines. The pool gives a mode one task at a time per slot and is
//! told how it ended; time limits are the mode's business, because each ends a run in its own way.

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use crate::broker::Local;
use crate::outcome::Outcome;
use crate::task::Task;

/// Runs tasks.
pub trait Mode {
    /// What it is called in start-up lines, logs and metrics: `process`, `thread`, `coroutine`.
    fn name(&self) -> &'static str;

    /// How many tasks it runs at a time.
    fn slots(&self) -> usize;

    /// Names of the handlers it has; a task of any other name is rejected before it takes a slot. `None`: it finds out
    /// by trying (children that don't say).
    fn handlers(&self) -> Option<Vec<String>>;

    /// Makes everything ready to run; undone by `stop`.
    fn start(&self) -> Local<'_, Result<(), ModeError>>;

    /// Runs one task to its end. Never fails: whatever happens is an outcome. Ends within the hard limit plus the mode's
    /// grace, whatever the handler does.
    fn run(&self, job: Job) -> Local<'static, Outcome>;

    /// As [`run`](Self::run), called in a step of the task that will poll what it answers. A mode whose tasks may be over with
    /// their first step takes that step here: then there is nothing to wait for, and nothing to keep.
    fn begin(&self, job: Job, _cx: &mut Context<'_>) -> Begun {
        Begun::Runs(self.run(job))
    }

    /// Replaces what runs tasks by something fresh, each once its task is done (SIGHUP).
    fn recycle(&self);

    /// Ends everything; runs still going end as [`Outcome::Cancelled`]. Bounded in time.
    fn stop(&self) -> Local<'_, ()>;

    /// What it counts beside tasks, for metrics: children replaced, threads abandoned.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

/// What became of a task by its first step.
pub enum Begun {
    /// It is over.
    Ended(Outcome),
    /// It goes on, and this is to be polled now.
    Runs(Local<'static, Outcome>),
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Begun::Ended(outcome) => f.debug_tuple("Ended").field(outcome).finish(),
            Begun::Runs(_) => f.write_str("Runs"),
        }
    }
}

/// A count of a mode's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// In metrics behind `tidegate_worker_`, with `_total` for what only grows: `threads_abandoned_total`.
    pub name: &'static str,
    /// In one line.
    pub help: &'static str,
    /// How many.
    pub value: u64,
}

/// One task to run, and the way to reach it meanwhile.
#[derive(Debug)]
pub struct Job {
    /// What to run.
    pub task: Task,
    /// Soft time limit: after this long the handler is asked to end.
    pub soft_limit: Option<Duration>,
    /// After this long it is ended.
    pub hard_limit: Option<Duration>,
    /// Settled when the run must end early.
    pub stop: Rc<StopSignal>,
}

/// Tells a run to end early, and why. Set once; the first reason counts.
#[derive(Debug, Default)]
pub struct StopSignal {
    reason: std::cell::Cell<Option<StopReason>>,
    event: tidegate_sync::Event,
}

/// Why a run must end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The worker stops, or another one has the task by now: the run ends as [`Outcome::Cancelled`].
    Stopping,
    /// The task was revoked: the run ends as [`Outcome::Revoked`].
    Revoked,
}

impl StopSignal {
    /// Asks the run to end.
    pub fn set(&self, reason: StopReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
            self.event.set();
        }
    }

    /// What was asked for, if anything was.
    pub fn reason(&self) -> Option<StopReason> {
        self.reason.get()
    }

    /// Waits for the request.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call sees the same request.
    pub async fn requested(&self) -> StopReason {
        loop {
            if let Some(reason) = self.reason.get() {
                return reason;
            }
            self.event.wait().await;
        }
    }
}

/// A mode that could not start.
#[derive(Debug)]
pub struct ModeError {
    /// What is wrong, and the way out.
    pub message: String,
}

impl std::fmt::Display for ModeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ModeError {}
