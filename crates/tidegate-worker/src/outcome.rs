//! How a run ends, and what follows from it: one table, decided here and nowhere else.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::broker::{TaskError, TaskResult, TaskState, Verdict};
use crate::moment;
use crate::retry::Policy;
use crate::task::TaskId;

/// How one run of a task ended, in any mode.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned this.
    Success(Value),
    /// The handler failed.
    Failure(TaskError),
    /// The handler asks to be run again, after this long (the policy's back-off if it does not say), at most
    /// [`RETRY_AFTER_MAX`].
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
    /// The process or thread running it died: a child was killed, a thread panicked outside its handler.
    Crashed {
        /// The known circumstances: a signal, an exit code, the last lines of standard error.
        message: String,
    },
    /// It was ended by a stop of the worker. It returns to the queue uncounted.
    Cancelled,
    /// It was ended by `revoke`.
    Revoked,
    /// It can never run here: no such handler, arguments that do not fit, a body that is not a task.
    Rejected {
        /// Why.
        reason: String,
    },
    /// It expired before it could start; it was not run.
    Expired,
    /// Its earlier runs crashed too often; it was not run.
    Poisoned {
        /// How often.
        crashes: u32,
    },
}

/// An outcome's name in metrics, logs and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OutcomeKind {
    /// The handler returned.
    Success,
    /// The handler failed.
    Failure,
    /// The handler asked to be run again.
    Retry,
    /// A limit was passed.
    TimedOut,
    /// The process or thread running it died.
    Crashed,
    /// A stop ended it, or it was not begun before the stop.
    Cancelled,
    /// It was revoked.
    Revoked,
    /// It can never run here.
    Rejected,
    /// It expired before it could start.
    Expired,
    /// Its earlier runs crashed too often.
    Poisoned,
}

impl OutcomeKind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [OutcomeKind; 10] = [
        OutcomeKind::Success,
        OutcomeKind::Failure,
        OutcomeKind::Retry,
        OutcomeKind::TimedOut,
        OutcomeKind::Crashed,
        OutcomeKind::Cancelled,
        OutcomeKind::Revoked,
        OutcomeKind::Rejected,
        OutcomeKind::Expired,
        OutcomeKind::Poisoned,
    ];

    /// As in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            OutcomeKind::Success => "success",
            OutcomeKind::Failure => "failure",
            OutcomeKind::Retry => "retry",
            OutcomeKind::TimedOut => "timeout",
            OutcomeKind::Crashed => "crash",
            OutcomeKind::Cancelled => "cancelled",
            OutcomeKind::Revoked => "revoked",
            OutcomeKind::Rejected => "rejected",
            OutcomeKind::Expired => "expired",
            OutcomeKind::Poisoned => "poisoned",
        }
    }
}

impl Outcome {
    /// Its name.
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Outcome::Success(_) => OutcomeKind::Success,
            Outcome::Failure(_) => OutcomeKind::Failure,
            Outcome::Retry { .. } => OutcomeKind::Retry,
            Outcome::TimedOut { .. } => OutcomeKind::TimedOut,
            Outcome::Crashed { .. } => OutcomeKind::Crashed,
            Outcome::Cancelled => OutcomeKind::Cancelled,
            Outcome::Revoked => OutcomeKind::Revoked,
            Outcome::Rejected { .. } => OutcomeKind::Rejected,
            Outcome::Expired => OutcomeKind::Expired,
            Outcome::Poisoned { .. } => OutcomeKind::Poisoned,
        }
    }
}

/// What a decision depends on beside the outcome.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// The policy for this task.
    pub policy: &'a Policy,
    /// How often it was retried before this run.
    pub retries: u32,
    /// How often it crashed before this run.
    pub crashes: u32,
    /// Now.
    pub now: Timestamp,
    /// Between 0 and 1, for the spread of retries.
    pub chance: f64,
}

/// What follows from a run: the verdict for the broker, and the result for callers that wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// For the broker.
    pub verdict: Verdict,
    /// For callers that wait. `None` for a task that returns to its queue uncounted, or if results are not kept.
    pub result: Option<TaskResult>,
}

/// The longest delay before a retry that a handler can ask for, by `Retry-After` or `after_ms` or in any other way: 7 days.
/// Longer ones are cut to it, because they are mistakes and the task would wait unnoticed.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Decides what follows from a run. "Some left" means fewer retries than the policy allows; for a crash, fewer crashes than it
/// allows, this one included. The two are counted apart: a crash uses up no retry, and a retry resets no crash count.
///
/// | outcome | verdict, with some left | verdict, with none left | result |
/// |---|---|---|---|
/// | success | ack | ack | succeeded |
/// | failure, time-out | retry after the back-off | dead | retrying, failed |
/// | retry | retry when it asked to, within [`RETRY_AFTER_MAX`] | dead | retrying, failed |
/// | crash | again after the back-off, counted as a crash | dead | retrying, failed |
/// | cancelled | return | return | none |
/// | revoked | ack | ack | revoked |
/// | expired | ack | ack | expired |
/// | rejected, poisoned | dead | dead | failed |
///
/// ```
/// use jiff::Timestamp;
/// use tidegate_worker::{Circumstances, Outcome, Policy, TaskId, Verdict, decide};
///
/// let policy = Policy { retries_max: 1, ..Policy::default() };
/// let first = Circumstances { policy: &policy, retries: 0, crashes: 0, now: Timestamp::UNIX_EPOCH, chance: 1.0 };
/// let timed_out = || Outcome::TimedOut { limit: std::time::Duration::from_secs(5) };
/// let again = decide(&TaskId::from("t"), timed_out(), first).verdict;
/// assert_eq!(again, Verdict::Retry { at: Timestamp::from_second(1).unwrap() });
/// let last = Circumstances { retries: 1, ..first };
/// assert!(matches!(decide(&TaskId::from("t"), timed_out(), last).verdict, Verdict::Dead { .. }));
/// ```
pub fn decide(id: &TaskId, outcome: Outcome, given: Circumstances<'_>) -> Decision {
    let policy = given.policy;
    let result = |state, value, error| {
        let ttl = policy.result_ttl;
        (!ttl.is_zero()).then(|| TaskResult { id: id.clone(), state, value, error, ttl })
    };
    let ack = |state, value| done(id, state, value, policy);
    let back_off = |count| moment::after(given.now, policy.backoff.delay(count, given.chance));
    let comes_back =
        |verdict, error| Decision { verdict, result: result(TaskState::Retrying, Value::Null, Some(error)) };
    let again = |at, error| comes_back(Verdict::Retry { at }, error);
    let dead = |reason: String, error: TaskError| Decision {
        verdict: Verdict::Dead { reason, traceback: error.traceback.clone() },
        result: result(TaskState::Failed, Value::Null, Some(error)),
    };
    let plain = |kind: &str, message: String| TaskError { kind: kind.to_owned(), message, traceback: None };
    let retries_left = given.retries < policy.retries_max;
    let spent =
        |error: &TaskError| format!("{}: {}; tried {} times", error.kind, error.message, u64::from(given.retries) + 1);

    match outcome {
        Outcome::Success(value) => succeeded(id, value, policy),
        Outcome::Revoked => ack(TaskState::Revoked, Value::Null),
        Outcome::Expired => ack(TaskState::Expired, Value::Null),
        Outcome::Cancelled => Decision { verdict: Verdict::Return, result: None },
        Outcome::Failure(error) if retries_left => again(back_off(given.retries), error),
        Outcome::Failure(error) => dead(spent(&error), error),
        Outcome::Retry { after, error } if retries_left => {
            let at = |after: Duration| moment::after(given.now, after.min(RETRY_AFTER_MAX));
            again(after.map_or_else(|| back_off(given.retries), at), error)
        }
        Outcome::Retry { error, .. } => dead(spent(&error), error),
        Outcome::TimedOut { limit } => {
            let error = plain("TimeLimit", format!("ran longer than its limit of {limit:?}"));
            if retries_left { again(back_off(given.retries), error) } else { dead(spent(&error), error) }
        }
        Outcome::Crashed { message } => {
            let (crashes, max) = (given.crashes.saturating_add(1), policy.crashes_max.max(1));
            let error = plain("Crash", message);
            if crashes < max {
                comes_back(Verdict::Crash { at: back_off(given.crashes) }, error)
            } else {
                dead(format!("{}; crashed {crashes} times", error.message), error)
            }
        }
        Outcome::Poisoned { crashes } => {
            let limit = policy.crashes_max.max(1);
            let error = plain("Crash", format!("its process crashed {crashes} times, the limit is {limit}"));
            dead(error.message.clone(), error)
        }
        Outcome::Rejected { reason } => dead(reason.clone(), plain("Rejected", reason)),
    }
}

/// What follows from a success, whatever the circumstances.
pub(crate) fn succeeded(id: &TaskId, value: Value, policy: &Policy) -> Decision {
    done(id, TaskState::Succeeded, value, policy)
}

fn done(id: &TaskId, state: TaskState, value: Value, policy: &Policy) -> Decision {
    let ttl = policy.result_ttl;
    let result = (!ttl.is_zero()).then(|| TaskResult { id: id.clone(), state, value, error: None, ttl });
    Decision { verdict: Verdict::Ack, result }
}

/// Returns the outcome of a task that must not be run, because it has expired or crashed too often.
pub fn before_run(expires: Option<Timestamp>, given: Circumstances<'_>) -> Option<Outcome> {
    if expires.is_some_and(|expires| expires <= given.now) {
        return Some(Outcome::Expired);
    }
    (given.crashes >= given.policy.crashes_max.max(1)).then_some(Outcome::Poisoned { crashes: given.crashes })
}

#[cfg(test)]
mod tests;
