//! What is still to be done for a delivery before the broker may forget it. Pure: the driver (`../settle.rs`) performs the step
//! that [`Plan::take`] returns and hands it back to [`Plan::handle`].
//!
//! Steps that may be repeated without harm come first (results, answers), the copy of the task directly before the ack, the
//! release of its key after it. A step that is done does not come back: nothing that was confirmed is ever written again,
//! whatever fails behind it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_amqp::Message;

use super::held::Attempt;
use super::publisher::Fate;
use crate::broker::TaskResult;
use crate::codec::celery::{self, Answer, Begun, Part};
use crate::rabbit::core::Place;
use crate::rabbit::message::Stored;
use crate::task::Envelope;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// One thing to do. Each is done before the next is begun.
#[derive(Debug)]
pub(in crate::rabbit) enum Step {
    /// Append to the log of results. Twice says the same.
    Result(TaskResult),
    /// Have the backend count a chord. Twice says the same.
    Begin(Begun),
    /// Publish the tasks that follow: callbacks, the next of a chain or pipeline.
    Follow(Vec<(Stored, Place)>),
    /// Answer the producers that wait for the task. A second answer has the same content.
    Answers(Vec<Answer>),
    /// Give a chord its part; the last one adds what follows the chord.
    Part(Rc<celery::Message>, Part),
    EndChord(Part),
    /// Write the task to another place.
    Copy(Box<(Stored, Place)>),
    /// The same with one crash more, for as long as it is not worth waiting for: refused, the task runs as it is.
    Recount(Box<(Stored, Place)>),
    /// Write a message that cannot be read to the dead letters, as it came.
    Raw(Message),
    /// Write to the log that this attempt returns without a crash.
    Note(Attempt),
    Ack,
    Requeue,
    /// Free the task's unique key.
    Release(Arc<Envelope>),
}

/// What came of a step.
#[derive(Debug)]
pub(in crate::rabbit) enum Outcome {
    Done,
    /// It is done, and these come next.
    Then(Vec<Step>),
    /// What became of each message of the step.
    Fates(Vec<Fate>),
    /// It can never be done, and is left out.
    Never {
        reason: String,
    },
    /// Not yet.
    Again {
        reason: String,
    },
}

/// What the driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::rabbit) enum Next {
    /// Perform the next step.
    Perform,
    /// The same step again after this time.
    Wait {
        wait: Duration,
        reason: String,
    },
    Finished,
}

#[derive(Debug)]
pub(in crate::rabbit) struct Plan {
    steps: VecDeque<Step>,
    /// A step was done, or may have been.
    begun: bool,
    failures: u32,
}

impl Plan {
    pub(in crate::rabbit) fn new(steps: impl IntoIterator<Item = Step>) -> Plan {
        let steps = steps.into_iter().filter(|step| match step {
            Step::Follow(tasks) => !tasks.is_empty(),
            Step::Answers(answers) => !answers.is_empty(),
            _ => true,
        });
        Plan { steps: steps.collect(), begun: false, failures: 0 }
    }

    /// The first step that is not done.
    pub(in crate::rabbit) fn step(&self) -> Option<&Step> {
        self.steps.front()
    }

    /// Returns `true` if dropping the plan could have a step done twice.
    pub(in crate::rabbit) fn is_begun(&self) -> bool {
        self.begun
    }

    /// The next step, to be performed and handed back. `None`: the plan is finished.
    pub(in crate::rabbit) fn take(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// What came of a step that was taken.
    pub(in crate::rabbit) fn handle(&mut self, step: Step, outcome: Outcome) -> Next {
        self.begun = true;
        match outcome {
            Outcome::Done => self.done(),
            Outcome::Then(steps) => {
                for step in Plan::new(steps).steps.into_iter().rev() {
                    self.steps.push_front(step);
                }
                self.done()
            }
            Outcome::Fates(fates) => self.handle_fates(step, fates),
            Outcome::Never { reason } => {
                tracing::error!(reason, "a part of what follows a task cannot be sent, and is left out");
                self.done()
            }
            // The task is safe without these: a crash may be counted too much, a key is held until it expires.
            Outcome::Again { reason } if matches!(step, Step::Note(_) | Step::Release(_)) => {
                tracing::warn!(reason, "a task was settled, but not all of its traces");
                self.done()
            }
            Outcome::Again { reason } => self.again(step, reason),
        }
    }

    fn done(&mut self) -> Next {
        self.failures = 0;
        if self.steps.is_empty() { Next::Finished } else { Next::Perform }
    }

    fn again(&mut self, step: Step, reason: String) -> Next {
        self.steps.push_front(step);
        let wait = BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        self.failures += 1;
        Next::Wait { wait, reason }
    }

    /// Only what is not stored stays.
    fn handle_fates(&mut self, mut step: Step, fates: Vec<Fate>) -> Next {
        let mut open = None;
        let mut fates = fates.into_iter();
        let mut stays = |fate: Option<Fate>, may_skip: bool| match fate {
            Some(Fate::Stored) => false,
            Some(Fate::Returned { reason }) if may_skip => {
                tracing::error!(reason, "a task that follows another cannot be sent, and is left out");
                false
            }
            Some(Fate::Returned { reason } | Fate::Refused { reason } | Fate::Unknown { reason }) => {
                open = Some(reason);
                true
            }
            None => {
                open.get_or_insert_with(|| "there was no answer".to_owned());
                true
            }
        };
        match &mut step {
            Step::Follow(tasks) => tasks.retain(|_| stays(fates.next(), true)),
            _ => _ = stays(fates.next(), false),
        }
        match open {
            Some(reason) => self.again(step, reason),
            None => self.done(),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
