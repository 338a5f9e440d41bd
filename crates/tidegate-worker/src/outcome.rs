//! How a run ends, and what follows from it: one table, decided here and nowhere else.

use std::time::Duration;

use serde_json::Value;

use crate::broker::TaskError;

/// How one run of a task ended, whatever ran it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned this.
    Success(Value),
    /// The handler failed.
    Failure(TaskError),
    /// The handler asks to be run again, after this long (the policy's back-off if it does not say).
    Retry {
        /// When.
        after: Option<Duration>,
        /// Why.
        error: TaskError,
    },
    /// It ran longer than its hard limit, or than its soft limit without ending itself in between.
    TimedOut {
        /// The limit that was passed.
        limit: Duration,
    },
    /// What ran it died: a child was killed, a thread panicked beyond its handler.
    Crashed {
        /// What is known of it: a signal, an exit code, the last lines of standard error.
        message: String,
    },
    /// It was ended by a stop of the worker. Not its fault: it returns to the queue uncounted.
    Cancelled,
    /// It was ended by `revoke`.
    Revoked,
    /// It can never run here: no such handler, arguments that don't fit, a body that is no task.
    Rejected {
        /// Why.
        reason: String,
    },
}
