//! The requests that were sent: which are unconfirmed, which are in flight, and when those that count were sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::FinderTicket;
use crate::moment::Moment;

/// Send instants that are remembered; a window with a larger amount is not learnt.
const SENT_MAX: usize = 1 << 16;

/// How long an answer is remembered.
const ANSWERS_FOR: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Not yet known to be accepted.
    unconfirmed: BTreeMap<FinderTicket, Moment>,
    /// Not yet answered.
    in_flight: BTreeMap<FinderTicket, Moment>,
    /// When each request was sent that was not refused, in order.
    sent: VecDeque<Moment>,
    /// The requests that were answered lately.
    answers: VecDeque<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    sent: Moment,
    at: Moment,
}

impl Flights {
    pub(super) fn send(&mut self, ticket: FinderTicket, now: Moment) {
        self.unconfirmed.insert(ticket, now);
        self.in_flight.insert(ticket, now);
        self.note_sent(now);
    }

    fn note_sent(&mut self, now: Moment) {
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(now);
    }

    pub(super) fn restamp(&mut self, ticket: FinderTicket, now: Moment) {
        let Some(sent) = self.in_flight.get_mut(&ticket) else { return };
        let before = std::mem::replace(sent, now);
        if let Some(unconfirmed) = self.unconfirmed.get_mut(&ticket) {
            *unconfirmed = now;
        }
        self.unsend(before);
        self.note_sent(now);
    }

    fn unsend(&mut self, at: Moment) {
        let index = self.sent.partition_point(|sent| *sent < at);
        if self.sent.get(index) == Some(&at) {
            self.sent.remove(index);
        }
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        self.unconfirmed.len() as u64
    }

    pub(super) fn oldest_unconfirmed(&self) -> Option<Moment> {
        self.unconfirmed.first_key_value().map(|(_, sent)| *sent)
    }

    /// The oldest unconfirmed request, if it was sent at `until` or before.
    pub(super) fn next_confirmed(&self, until: Moment) -> Option<FinderTicket> {
        self.unconfirmed.first_key_value().filter(|(_, sent)| **sent <= until).map(|(ticket, _)| *ticket)
    }

    /// The request is accepted. Returns when it was sent, unless that was known already.
    pub(super) fn confirm(&mut self, ticket: FinderTicket) -> Option<Moment> {
        self.unconfirmed.remove(&ticket)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.len() as u64
    }

    /// The request is not in flight any more. Returns when it was sent.
    pub(super) fn land(&mut self, ticket: FinderTicket) -> Option<Moment> {
        self.in_flight.remove(&ticket)
    }

    /// Remembers an answer for a while.
    pub(super) fn note_answer(&mut self, sent: Moment, now: Moment) {
        self.answers.push_back(Answer { sent, at: now });
        while self.answers.front().is_some_and(|answer| now.since(answer.at) > ANSWERS_FOR) {
            self.answers.pop_front();
        }
    }

    /// The request was refused, failed or never sent: it counts nowhere. Returns when it was sent.
    pub(super) fn forget(&mut self, ticket: FinderTicket) -> Option<Moment> {
        self.unconfirmed.remove(&ticket);
        let sent = self.in_flight.remove(&ticket)?;
        self.unsend(sent);
        Some(sent)
    }

    /// The request is abandoned: it is not in flight any more, and stays counted. Returns `false` if it was not in flight.
    pub(super) fn abandon(&mut self, ticket: FinderTicket) -> bool {
        self.unconfirmed.remove(&ticket);
        self.in_flight.remove(&ticket).is_some()
    }

    fn up_to(&self, at: Moment) -> usize {
        self.sent.partition_point(|sent| *sent <= at)
    }

    /// How many were sent after `since`.
    pub(super) fn sent_after(&self, since: Moment) -> u64 {
        (self.sent.len() - self.up_to(since)) as u64
    }

    /// How many were sent after `since`, up to `until`.
    pub(super) fn sent_between(&self, since: Moment, until: Moment) -> u64 {
        self.up_to(until).saturating_sub(self.up_to(since)) as u64
    }

    /// The first that was sent after `since`.
    pub(super) fn first_after(&self, since: Moment) -> Option<Moment> {
        self.sent.get(self.up_to(since)).copied()
    }

    /// When the `count`-th last request was sent.
    pub(super) fn last(&self, count: u64) -> Option<Moment> {
        let count = usize::try_from(count).ok()?;
        self.sent.len().checked_sub(count).and_then(|index| self.sent.get(index)).copied()
    }

    /// When the `count`-th last of the requests up to `until` was sent, or the first of all.
    pub(super) fn last_up_to(&self, until: Moment, count: u64) -> Option<Moment> {
        let index = self.up_to(until).saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        self.sent.get(index).copied()
    }

    /// How many of those in flight now, or answered since, were in flight at the server at `at`: those sent by then, and
    /// answered later than `at` by a round trip.
    pub(super) fn in_flight_at(&self, at: Moment, round_trip: Duration) -> u64 {
        let still = self.in_flight.values().filter(|sent| **sent <= at).count();
        let since = self.answers.iter().filter(|answer| answer.sent <= at && answer.at > at + round_trip).count();
        (still + since) as u64
    }

    /// How many were answered on the way: in flight when a request was sent at `at`, but no more when it arrived.
    pub(super) fn answered_within(&self, at: Moment, round_trip: Duration) -> u64 {
        let within = |answer: &&Answer| answer.sent < at && at < answer.at && answer.at <= at + round_trip;
        self.answers.iter().filter(within).count() as u64
    }

    /// The longest that an answer has taken lately, or takes so far at `at`.
    pub(super) fn slowest(&self, at: Moment) -> Duration {
        let answered = self.answers.iter().map(|answer| answer.at.since(answer.sent));
        let pending = self.in_flight.values().map(|sent| at.since(*sent));
        answered.chain(pending).max().unwrap_or_default()
    }
}
