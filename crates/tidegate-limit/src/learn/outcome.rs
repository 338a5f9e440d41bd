//! What became of a request, and what follows: accepted, served, refused, failed.

use std::time::Duration;

use super::explore::Goal;
use super::window::{RATE_OVER, Window};
use super::{BURST, BURST_SHARE, FAILURES, Finder, FinderMode, FinderTicket, RESEND_AFTER, RESENDS_MAX, RefusalHint};
use crate::moment::Moment;

/// The longest delay of a refusal that is waited for here.
const DELAY_MAX: Duration = Duration::from_secs(600);
/// Refusals at the cap in a row that lower it by one; then it is in doubt.
const STRIKES: u32 = 3;
/// Between two attempts while the server is down: this part of the outage so far, within these bounds.
const DOWN_SHARE: u32 = 8;
const DOWN_OFTEN: Duration = Duration::from_millis(250);
const DOWN_SELDOM: Duration = Duration::from_secs(30);

impl Finder {
    /// Accepts what was not refused for the length of an echo (rule 1).
    pub(super) fn confirm(&mut self, now: Moment) {
        while let Some(ticket) = self.flights.next_confirmed(now.minus(self.echo.length())) {
            self.accept(ticket, now);
        }
    }

    /// The request was served, or not refused in time.
    fn accept(&mut self, ticket: FinderTicket, now: Moment) {
        let Some(sent) = self.flights.confirm(ticket) else { return };
        self.accepted_sent = self.accepted_sent.max(Some(sent));
        if sent >= self.resent_at {
            self.resends = 0;
        }
        self.accepted += 1;
        self.explorer.credit += 1;
        self.burst = (self.burst + 1).min(BURST.max(self.accepted.div_ceil(BURST_SHARE)));
        self.relax(now);
        if let Some(attempt) = self.explorer.accepted(ticket) {
            match (attempt.goal, &mut self.window, &mut self.cap) {
                (Goal::Length, Some(window), _) => {
                    window.length = window.length.min(attempt.age + self.echo.jitter());
                }
                (Goal::Amount, Some(window), _) => window.amount += 1,
                (Goal::Cap, _, Some(cap)) => *cap += 1,
                _ => {}
            }
        }
        if let Some(probe) = self.search.probe.filter(|probe| probe.ticket == ticket) {
            self.probe_accepted(probe, now);
        }
    }

    /// Nothing was refused for a while: doubts fade, and a little more is tried.
    fn relax(&mut self, now: Moment) {
        let length = self.window.map_or(Duration::ZERO, |window| window.length);
        if self.explorer.is_due(now) && now.since(self.explorer.spent_at) >= 2 * length {
            self.explorer.spent_at = now;
            let Some(window) = &mut self.window else { return };
            window.doubts = window.doubts.saturating_sub(1);
            if window.pace.is_some() {
                self.explorer.credit = 0;
                if self.flights.sent_after(now.minus(10 * window.length)) >= 5 * window.amount {
                    window.speed_up();
                }
            } else {
                window.shortest = window.shortest.mul_f64(0.95);
                window.narrowing = true;
            }
        } else if self.explorer.credit.is_multiple_of(RATE_OVER)
            && let Some(window) = &mut self.window
        {
            window.recover();
        }
    }

    /// The request was answered, and not refused.
    pub(crate) fn served(&mut self, ticket: FinderTicket, now: Moment) {
        self.answered(now);
        let Some(sent) = self.flights.land(ticket) else { return };
        self.accept(ticket, now);
        self.flights.note_answer(sent, now);
        self.echo.served(now.since(sent));
    }

    /// The server is there.
    fn answered(&mut self, now: Moment) {
        self.failures = 0;
        self.answered_at = Some(now);
        if let FinderMode::Down { .. } = self.mode {
            self.mode = FinderMode::Open;
            self.search.probe = None;
            self.search.ended = now;
            self.search.ended_accepted = self.accepted;
            self.burst = 1;
            self.trusted = false;
        }
    }

    /// A limit refused the request.
    pub(crate) fn refused(&mut self, ticket: FinderTicket, hint: RefusalHint, now: Moment) {
        self.answered(now);
        self.tally.refused += 1;
        let Some(sent) = self.flights.forget(ticket) else { return };
        self.echo.refused(now.since(sent));
        let wait_until = now + hint.delay.unwrap_or_default().min(DELAY_MAX);
        if let Some((amount, length)) = hint.window
            && self.window.is_none()
        {
            self.window = Some(Window { learnt: true, ..Window::given(amount, length) });
            self.tally.found_at = Some(now);
        }
        if let Some(attempt) = self.explorer.explains(ticket, sent, self.echo.round_trip()) {
            if let (Goal::Length, Some(window)) = (attempt.goal, &mut self.window) {
                window.shortest = window.shortest.max(attempt.age);
            }
            self.explorer.give_up();
            self.explorer.credit = 0;
            self.news_at = Some(now);
            return;
        }
        if let Some(probe) = self.search.probe.filter(|probe| probe.ticket == ticket) {
            self.hinted_until = self.hinted_until.max(wait_until);
            self.probe_refused(probe, now);
            return;
        }
        if self.mode != FinderMode::Open {
            return;
        }
        if hint.near_stated && self.resends < RESENDS_MAX {
            self.resends += 1;
            self.resent_at = now;
            self.hinted_until = self.hinted_until.max(now + RESEND_AFTER);
            return;
        }
        if self.news_at.is_none_or(|news_at| sent >= news_at) {
            self.news(sent, wait_until, now);
        }
    }

    /// A refusal that begins a burst of them (rule 3).
    fn news(&mut self, sent: Moment, wait_until: Moment, now: Moment) {
        let accepted_since = self.accepted_sent > self.news_at;
        self.strikes = if accepted_since { 0 } else { self.strikes + 1 };
        self.news_at = Some(now);
        self.resends = 0;
        self.trusted = false;
        self.search.first = sent;
        self.explorer.give_up();
        if self.window.is_none_or(|window| window.pace.is_none()) {
            self.explorer.credit = 0;
            self.explorer.spent_at = now;
        }
        if let Some(cap) = &mut self.cap
            && self.flights.in_flight() as f64 >= 0.9 * *cap as f64
            && self.strikes < STRIKES
        {
            *cap = cap.saturating_sub(1).max(1);
            return;
        }
        self.hinted_until = self.hinted_until.max(wait_until);
        self.mode = FinderMode::Settling { until: now + self.echo.length() };
    }

    /// There was no answer: no connection, no answer in time, or one that says that the server is not there.
    pub(crate) fn failed(&mut self, ticket: FinderTicket, now: Moment) {
        let Some(sent) = self.flights.forget(ticket) else { return };
        self.forget_purpose(ticket);
        // A server that never answered is not down: its address is wrong, or it does not run. And what was sent before the
        // last answer says nothing about the time after it.
        if self.answered_at.is_some_and(|answered_at| sent >= answered_at) {
            self.failures += 1;
        }
        match self.mode {
            FinderMode::Down { since, .. } => {
                let pause = (now.since(since) / DOWN_SHARE).clamp(DOWN_OFTEN, DOWN_SELDOM);
                self.mode = FinderMode::Down { since, next: now + pause };
            }
            _ if self.failures >= FAILURES => {
                self.mode = FinderMode::Down { since: now, next: now + DOWN_OFTEN };
                self.tally.probes_in_row = 0;
            }
            _ => {}
        }
    }
}
