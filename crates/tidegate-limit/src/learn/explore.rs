//! Attempts to get more than what is known (rules 6 and 7).

use std::collections::BTreeMap;
use std::time::Duration;

use super::{FinderTicket, PROBE_RAREST, QUIET};
use crate::moment::Moment;

/// Accepted attempts until the steps double, at least.
const BATCH: u64 = 3;

/// What an exploratory request tries to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Whether one more may be in flight.
    Cap,
    /// Whether one more fits into the window.
    Amount,
    /// Whether the window is shorter.
    Length,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) goal: Goal,
    /// The age of the oldest request in the window when this one was sent.
    pub(super) age: Duration,
    pub(super) sent: Moment,
}

#[derive(Debug)]
pub(super) struct Explorer {
    attempts: BTreeMap<FinderTicket, Attempt>,
    /// Requests accepted since the last attempt that was refused, or the last change.
    pub(super) credit: u64,
    /// When the credit was last spent on a change.
    pub(super) spent_at: Moment,
    /// Attempts at the same time.
    step: u64,
    /// Of the current step, accepted.
    accepted: u64,
}

impl Explorer {
    pub(super) fn new(now: Moment) -> Explorer {
        Explorer { attempts: BTreeMap::new(), credit: 0, spent_at: now, step: 1, accepted: 0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether one request may exceed the cap or the amount.
    pub(super) fn may_try(&self, now: Moment, news_at: Option<Moment>) -> bool {
        let quiet_since = self.spent_at.max(news_at.unwrap_or(Moment::ZERO));
        (self.attempts.len() as u64) < self.step && (self.credit >= QUIET || now.since(quiet_since) >= PROBE_RAREST)
    }

    /// Whether enough was accepted, or enough time has passed, for a change.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.credit >= QUIET || now.since(self.spent_at) >= PROBE_RAREST
    }

    pub(super) fn send(&mut self, ticket: FinderTicket, goal: Goal, age: Duration, now: Moment) {
        self.attempts.insert(ticket, Attempt { goal, age, sent: now });
    }

    /// The attempt, if this request was one, or took the place of one: sent within a round trip of it.
    pub(super) fn explains(&self, ticket: FinderTicket, sent: Moment, round_trip: Duration) -> Option<Attempt> {
        let near = |attempt: &&Attempt| attempt.goal != Goal::Length && attempt.sent.distance(sent) <= round_trip;
        self.attempts.get(&ticket).or_else(|| self.attempts.values().find(near)).copied()
    }

    /// The request was accepted: the attempt, if it was one.
    pub(super) fn accepted(&mut self, ticket: FinderTicket) -> Option<Attempt> {
        let attempt = self.attempts.remove(&ticket)?;
        if attempt.goal != Goal::Length {
            self.accepted += 1;
            if self.accepted >= self.step.max(BATCH) {
                self.step *= 2;
                self.accepted = 0;
            }
        }
        Some(attempt)
    }

    pub(super) fn forget(&mut self, ticket: FinderTicket) {
        self.attempts.remove(&ticket);
    }

    /// Begins with single steps again, and forgets the attempts.
    pub(super) fn give_up(&mut self) {
        self.attempts.clear();
        self.single_steps();
    }

    pub(super) fn single_steps(&mut self) {
        self.step = 1;
        self.accepted = 0;
    }
}
