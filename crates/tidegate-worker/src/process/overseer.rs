//! What is decided about one child: which runs it has, when their limits are over, when it is told, asked and killed, and
//! how each run ends. No I/O; time is an argument. Driven by `child.rs`.
//!
//! A child runs what it was sent in order and answers each run before it begins the next. So of the runs that are open when it
//! dies the first may have begun, and the others have not: those are given back and run elsewhere.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::protocol::{Answer, Event, Protocol, Ready};
use crate::broker::TaskError;
use crate::mode::StopReason;
use crate::outcome::Outcome;
use crate::task::Task;

/// How long a child may live on after it has closed its socket.
const HANG_UP: Duration = Duration::from_millis(500);

/// What holds for every child.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// From its start to its greeting.
    pub(super) ready_limit: Duration,
    /// Between being asked to end and being killed.
    pub(super) grace: Duration,
    /// It is replaced after so many tasks.
    pub(super) max_tasks: Option<u64>,
    /// Runs it may have open at a time.
    pub(super) depth: usize,
    /// The longest frame, in both directions.
    pub(super) max_frame: usize,
}

/// Something to be done in the world.
#[derive(Debug, PartialEq)]
pub(super) enum Action<K> {
    /// This run has ended.
    Finish(K, Outcome),
    /// This run was never begun: it goes to another child.
    GiveBack(K),
    /// SIGUSR1, to the child alone, once all is written: it makes the child look.
    Poke,
    /// The child reads its end: it has nothing left to do.
    CloseInput,
    /// SIGTERM, to its group.
    Terminate,
    /// SIGKILL, to its group.
    Kill,
    /// It cannot be ended (it hangs in the kernel): its end is not waited for.
    Abandon,
}

#[derive(Debug)]
struct Flight<K> {
    run: u64,
    key: K,
    soft: Option<Duration>,
    hard: Option<Duration>,
    /// When it became the first: from then on its limits count.
    begun: Option<Instant>,
    soft_told: bool,
    /// How it ends, whatever the child says from now on.
    fate: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Starting {
        until: Instant,
    },
    Ready,
    /// It is to end; at `at` the next, harder measure is taken.
    Ending {
        step: Step,
        at: Option<Instant>,
    },
    Gone,
}

/// What was done last to end a child; each is harder than the one before.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Step {
    Closed,
    Asked,
    Killed,
    Abandoned,
}

/// Decides about one child. `K` names a run for whoever gave it.
#[derive(Debug)]
pub(super) struct Overseer<K> {
    protocol: Protocol,
    rules: Rules,
    phase: Phase,
    /// In the order the child runs them; the first is running.
    flights: VecDeque<Flight<K>>,
    actions: VecDeque<Action<K>>,
    ready: Option<Ready>,
    /// Why it is ended though it has done nothing but misbehave.
    fault: Option<String>,
    /// It closed its socket by itself: it is about to end, or hides.
    hung_up: bool,
    /// It takes no more, and ends when what it has is done.
    retiring: bool,
    served: u64,
}

impl<K> Overseer<K> {
    pub(super) fn new(rules: Rules, now: Instant) -> Overseer<K> {
        Overseer {
            protocol: Protocol::new(rules.max_frame),
            rules,
            phase: Phase::Starting { until: now + rules.ready_limit },
            flights: VecDeque::new(),
            actions: VecDeque::new(),
            ready: None,
            fault: None,
            hung_up: false,
            retiring: false,
            served: 0,
        }
    }

    /// How many more runs it can take now.
    pub(super) fn room(&self) -> usize {
        if self.phase != Phase::Ready || self.retiring {
            return 0;
        }
        let open = self.flights.len();
        let left = match self.rules.max_tasks {
            Some(max) => usize::try_from(max.saturating_sub(self.served)).unwrap_or(usize::MAX).saturating_sub(open),
            None => usize::MAX,
        };
        self.rules.depth.saturating_sub(open).min(left)
    }

    /// What it said of itself.
    pub(super) fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// How many runs it has.
    pub(super) fn open(&self) -> usize {
        self.flights.len()
    }

    /// Whether it was told to end.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. }) && !self.hung_up
    }

    /// The run it is at.
    pub(super) fn current(&self) -> Option<&K> {
        self.flights.front().map(|flight| &flight.key)
    }

    /// Runs answered so far.
    pub(super) fn served(&self) -> u64 {
        self.served
    }

    /// What was wrong with it, if it was ended for that.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What is to be written to it.
    pub(super) fn output(&self) -> &[u8] {
        self.protocol.output()
    }

    /// So much was written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.protocol.wrote(count);
    }

    /// What is to be done next.
    pub(super) fn next_action(&mut self) -> Option<Action<K>> {
        self.actions.pop_front()
    }

    /// When to call [`tick`](Self::tick) at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Starting { until } => Some(until),
            Phase::Ending { at, .. } => at,
            Phase::Ready | Phase::Gone => None,
        };
        [phase, self.soft_at(), self.hard_at()].into_iter().flatten().min()
    }

    fn soft_at(&self) -> Option<Instant> {
        let first = self.flights.front().filter(|flight| !flight.soft_told && flight.fate.is_none())?;
        first.begun?.checked_add(first.soft?)
    }

    fn hard_at(&self) -> Option<Instant> {
        let first = self.flights.front().filter(|flight| flight.fate.is_none())?;
        first.begun?.checked_add(first.hard?)
    }

    /// Gives it a task; by which number it runs. Only while there is [room](Self::room).
    ///
    /// # Errors
    /// When it cannot be sent: the key comes back with the outcome.
    pub(super) fn assign(
        &mut self,
        key: K,
        task: &Task,
        (soft, hard): (Option<Duration>, Option<Duration>),
        now: Instant,
    ) -> Result<u64, (K, Outcome)> {
        debug_assert!(self.room() > 0, "a run for a child that has no room");
        let run = match self.protocol.run(task, soft, hard) {
            Ok(run) => run,
            Err(long) => {
                let reason = format!(
                    "the task takes {} bytes as JSON, a child takes {} at most; pass large data by reference or raise the \
                     limit",
                    long.length, long.max
                );
                return Err((key, Outcome::Rejected { reason }));
            }
        };
        let begun = self.flights.is_empty().then_some(now);
        self.flights.push_back(Flight { run, key, soft, hard, begun, soft_told: false, fate: None });
        Ok(run)
    }

    /// Takes what the child has written. [`next_message`](Self::next_message) acts upon it.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if self.fault.is_none() {
            self.protocol.receive(bytes);
        }
    }

    /// Acts upon one message of the child's; whether there was one.
    pub(super) fn next_message(&mut self, now: Instant) -> bool {
        if self.fault.is_some() {
            return false;
        }
        match self.protocol.next_event() {
            Ok(None) => return false,
            Ok(Some(Event::Ready(ready))) => {
                self.ready = Some(ready);
                if let Phase::Starting { .. } = self.phase {
                    self.phase = Phase::Ready;
                    self.retire_if_idle(now);
                }
            }
            Ok(Some(Event::Answered(run, answer))) => self.answered(run, answer, now),
            Ok(Some(Event::Returned(run))) => self.returned(run, now),
            Err(violation) => self.condemn(violation.to_string(), now),
        }
        true
    }

    fn answered(&mut self, run: u64, answer: Answer, now: Instant) {
        let flight = self.flights.pop_front().expect("the protocol knows what is open");
        debug_assert_eq!(flight.run, run, "answers come in order");
        self.served += 1;
        let outcome = flight.fate.unwrap_or_else(|| match answer {
            Answer::Done(value) => Outcome::Success(value),
            Answer::Failed(error) => Outcome::Failure(error),
            Answer::Final(error) => Outcome::Rejected { reason: last_reason(&error) },
            Answer::Retry { after, error } => Outcome::Retry { after, error },
            Answer::SoftLimit(own) => Outcome::TimedOut { limit: flight.soft.or(own).unwrap_or_default() },
            Answer::Rejected(reason) => Outcome::Rejected { reason },
        });
        self.actions.push_back(Action::Finish(flight.key, outcome));
        if self.rules.max_tasks.is_some_and(|max| self.served >= max) {
            self.retiring = true;
        }
        self.begin_next(now);
        self.retire_if_idle(now);
    }

    /// The first in line is running from now on.
    fn begin_next(&mut self, now: Instant) {
        let Some(first) = self.flights.front_mut() else { return };
        if first.begun.is_none() {
            first.begun = Some(now);
            // It was to be taken back, and was begun before that was heard.
            if first.fate.is_some() {
                self.end(Step::Asked, now);
            }
        }
    }

    /// Only what was recalled comes back, and only what must end early is recalled: it has its fate.
    fn returned(&mut self, run: u64, now: Instant) {
        let position =
            self.flights.iter().position(|flight| flight.run == run).expect("the protocol knows what is open");
        let flight = self.flights.remove(position).expect("just found");
        let outcome = flight.fate.expect("a run is recalled because it must end");
        self.actions.push_back(Action::Finish(flight.key, outcome));
        self.begin_next(now);
        self.retire_if_idle(now);
    }

    /// A run must end early.
    pub(super) fn stop_run(&mut self, run: u64, reason: StopReason, now: Instant) {
        let Some(position) = self.flights.iter().position(|flight| flight.run == run) else { return };
        let flight = &mut self.flights[position];
        if flight.fate.is_some() {
            return;
        }
        flight.fate = Some(match reason {
            StopReason::Stopping => Outcome::Cancelled,
            StopReason::Revoked => Outcome::Revoked,
        });
        if position == 0 {
            self.end(Step::Asked, now);
        } else {
            // Once: a second reason to end it finds its fate.
            self.protocol.recall(run);
            self.poke();
        }
    }

    /// Makes a child look at its socket, if it is one that does; the signal would end another.
    fn poke(&mut self) {
        if self.ready.as_ref().is_some_and(|ready| ready.interrupt) {
            self.actions.push_back(Action::Poke);
        }
    }

    /// Time has come.
    pub(super) fn tick(&mut self, now: Instant) {
        match self.phase {
            Phase::Starting { until } if until <= now => {
                let limit = self.rules.ready_limit;
                self.condemn(format!("it was not ready within {limit:?}: no greeting came over its socket"), now);
            }
            Phase::Ending { step, at: Some(at) } if at <= now => {
                if self.hung_up {
                    self.fault.get_or_insert_with(|| "it closed its socket and went on".into());
                }
                let harder = match step {
                    Step::Closed => Step::Asked,
                    Step::Asked => Step::Killed,
                    Step::Killed | Step::Abandoned => Step::Abandoned,
                };
                self.end(harder, now);
            }
            _ => {}
        }
        if self.hard_at().is_some_and(|at| at <= now) {
            let first = self.flights.front_mut().expect("it has a limit");
            first.fate = Some(Outcome::TimedOut { limit: first.hard.expect("it is over") });
            self.end(Step::Asked, now);
        }
        if self.soft_at().is_some_and(|at| at <= now) {
            let first = self.flights.front_mut().expect("it has a limit");
            first.soft_told = true;
            let run = first.run;
            self.protocol.soft(run);
            self.poke();
        }
    }

    /// It takes no more; when what it has is done it ends.
    pub(super) fn retire(&mut self, now: Instant) {
        self.retiring = true;
        self.retire_if_idle(now);
    }

    fn retire_if_idle(&mut self, now: Instant) {
        if self.retiring && self.phase == Phase::Ready && self.flights.is_empty() {
            self.end(Step::Closed, now);
        }
    }

    /// It ends now; what it runs was cancelled.
    pub(super) fn shut(&mut self, now: Instant) {
        self.retiring = true;
        for flight in &mut self.flights {
            flight.fate.get_or_insert(Outcome::Cancelled);
        }
        // One that is still starting would only find out that nobody listens.
        let idle = self.phase == Phase::Ready && self.flights.is_empty();
        self.end(if idle { Step::Closed } else { Step::Asked }, now);
    }

    /// It has closed its socket: whatever it does, nobody will hear of it. Mostly because it has ended, and that will be
    /// noticed in a moment.
    pub(super) fn input_ended(&mut self, now: Instant) {
        if let Phase::Starting { .. } | Phase::Ready = self.phase {
            self.hung_up = true;
            self.phase = Phase::Ending { step: Step::Closed, at: Some(now + self.rules.grace.min(HANG_UP)) };
        }
    }

    fn condemn(&mut self, fault: String, now: Instant) {
        self.fault.get_or_insert(fault);
        self.end(Step::Asked, now);
    }

    fn end(&mut self, step: Step, now: Instant) {
        if self.phase == Phase::Gone || matches!(self.phase, Phase::Ending { step: done, .. } if done >= step) {
            return;
        }
        let (harder, action) = match step {
            Step::Closed => (Some(now + self.rules.grace), Action::CloseInput),
            Step::Asked => (Some(now + self.rules.grace), Action::Terminate),
            Step::Killed => (Some(now + self.rules.grace), Action::Kill),
            Step::Abandoned => (None, Action::Abandon),
        };
        self.phase = Phase::Ending { step, at: harder };
        self.actions.push_back(action);
    }

    /// It has ended, and everything it had written was received. Every run gets its end here. `how` and `last_words` are
    /// for the one it was at.
    pub(super) fn exited(&mut self, how: &str, last_words: &str) {
        // Ended for the sake of another run, it may have got to the next one meanwhile: not that one's fault.
        let innocent = self.is_ending() && self.fault.is_none();
        self.phase = Phase::Gone;
        let message = match (&self.fault, last_words) {
            (Some(fault), "") => format!("its child broke the protocol: {fault}"),
            (Some(fault), words) => format!("its child broke the protocol: {fault}; its last words:\n{words}"),
            (None, "") => format!("its child {how}"),
            (None, words) => format!("its child {how}; its last words:\n{words}"),
        };
        // The last one first: what is given back goes to the head of the line.
        for flight in std::mem::take(&mut self.flights).into_iter().rev() {
            // A child that breaks the protocol may have begun anything.
            let may_have_begun = !innocent && flight.begun.is_some() || self.fault.is_some();
            self.actions.push_back(match flight.fate {
                Some(outcome) => Action::Finish(flight.key, outcome),
                None if may_have_begun => Action::Finish(flight.key, Outcome::Crashed { message: message.clone() }),
                None => Action::GiveBack(flight.key),
            });
        }
    }
}

/// Why a task is given up that its handler does not want tried again.
fn last_reason(error: &TaskError) -> String {
    let traceback = error.traceback.as_deref().map(|text| format!("\n{text}")).unwrap_or_default();
    format!("{}: {}; its handler wants no further try{traceback}", error.kind, error.message)
}

#[cfg(test)]
mod tests;
