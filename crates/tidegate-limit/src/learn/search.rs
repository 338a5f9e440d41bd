//! The search after a refusal that nothing explains: one probe at a time, and what the accepted one teaches (rules 4, 5,
//! 8 and 9).

use std::time::Duration;

use super::window::{RATE_OVER, Window};
use super::{Finder, FinderMode, FinderTicket, PROBE_RAREST, QUIET};
use crate::moment::Moment;

/// The first probe comes this long after the first refusal.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// Factor between the delays of probes.
const STEP: f64 = 1.5;
/// Lengths of windows that are common, and probed exactly.
const COMMON: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// How much later than a common length a probe is sent, for the wire.
const COMMON_LATE: Duration = Duration::from_millis(30);
/// A window that had to be corrected more often is replaced by a pace.
const DOUBTS: u32 = 3;

#[derive(Debug)]
pub(super) struct Search {
    /// When the first refused request was sent.
    pub(super) first: Moment,
    /// When the last refused probe was sent, or the first refused request.
    last: Moment,
    /// From `first` to the next probe.
    delay: Duration,
    /// When the next probe is due.
    pub(super) next: Moment,
    pub(super) probe: Option<Probe>,
    /// The cap, if it is one: requests in flight when the first refusal happened.
    pub(super) suspect: Option<u64>,
    /// A probe was sent in this search.
    pub(super) tested: bool,
    /// Requests in the known window when the first refusal happened.
    used: u64,
    /// How long the last search took, up to the accepted probe.
    took: Duration,
    /// When the last search ended, and what was accepted by then.
    pub(super) ended: Moment,
    pub(super) ended_accepted: u64,
    /// Once, nothing was learnt because the window seemed to be used up by another run.
    excused: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) ticket: FinderTicket,
    pub(super) sent: Moment,
    /// Requests in flight when it was sent.
    in_flight: u64,
}

impl Search {
    pub(super) fn new(now: Moment) -> Search {
        Search {
            first: now,
            last: now,
            delay: Duration::ZERO,
            next: now,
            probe: None,
            suspect: None,
            tested: false,
            used: 0,
            took: Duration::ZERO,
            ended: now.minus(Duration::from_nanos(1)),
            ended_accepted: 0,
            excused: false,
        }
    }

    pub(super) fn send_probe(&mut self, ticket: FinderTicket, now: Moment, in_flight: u64) {
        self.probe = Some(Probe { ticket, sent: now, in_flight });
        self.tested = true;
    }

    pub(super) fn restamp(&mut self, ticket: FinderTicket, now: Moment) {
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.ticket == ticket) {
            probe.sent = now;
        }
    }
}

impl Finder {
    /// All that was sent before the first refusal is now known to be accepted or refused: the search begins.
    pub(super) fn settle(&mut self, now: Moment) {
        let first = self.search.first;
        let in_flight = self.flights.in_flight_at(first, self.echo.round_trip());
        let suspects_cap = in_flight > 0 && (self.window.is_none() || self.cap.is_some());
        self.search.suspect = suspects_cap.then_some(in_flight);
        // Far fewer in flight than the cap that was found a moment ago: it is not a cap.
        if self.cap.is_some_and(|cap| 2 * in_flight < cap) && self.accepted < self.cap_found_at + QUIET {
            self.cap = None;
            self.search.suspect = None;
        }
        let mut delay = FIRST_DELAY;
        self.search.used = 0;
        if let Some(window) = &self.window {
            self.search.used = self.flights.sent_between(first.minus(window.length), first);
            if window.pace.is_some() {
                let again = self.accepted < self.search.ended_accepted + RATE_OVER;
                delay = if again { window.length.max(self.search.took) } else { window.length };
            } else if (self.search.used as f64) < 0.9 * window.amount as f64 {
                delay = window.length / 4;
            }
        }
        self.search.last = first;
        self.search.delay = delay.div_f64(STEP);
        self.search.tested = false;
        self.tally.probes_in_row = 0;
        self.mode = FinderMode::Searching;
        self.schedule(now);
    }

    /// Sets the instant of the next probe.
    fn schedule(&mut self, now: Moment) {
        let search = &mut self.search;
        let grown = search.delay.mul_f64(STEP).min(search.delay + PROBE_RAREST);
        search.delay = grown.max(now.since(search.first));
        search.next = search.first + search.delay;
        if self.window.is_some_and(|window| window.pace.is_some()) {
            return;
        }
        let began = self.flights.first_after(search.ended).unwrap_or(search.first);
        for common in COMMON {
            let at = began + common + COMMON_LATE;
            if now < at && at < search.next {
                search.next = at;
                search.delay = at.since(search.first);
            }
        }
    }

    pub(super) fn probe_refused(&mut self, probe: Probe, now: Moment) {
        self.search.probe = None;
        if self.search.suspect.is_some_and(|suspect| probe.in_flight < suspect) {
            self.search.suspect = None;
        }
        self.search.last = probe.sent;
        self.schedule(now);
    }

    pub(super) fn probe_accepted(&mut self, probe: Probe, now: Moment) {
        self.search.probe = None;
        if self.mode != FinderMode::Searching {
            return;
        }
        self.mode = FinderMode::Open;
        self.burst = 1;
        self.explorer.single_steps();
        let gone = probe.sent.since(self.search.first);
        self.search.took = gone;
        if self.is_cap(probe) && gone <= 2 * self.flights.slowest(probe.sent) + self.echo.length() {
            self.hinted_until = Moment::ZERO;
            return;
        }
        match self.window {
            Some(window) if window.pace.is_some() => {
                if !self.correct_pace(window, now) {
                    return;
                }
            }
            Some(window) if gone > 2 * window.length => {}
            Some(window) => self.correct_window(window, probe, gone),
            None => self.find_window(probe, gone),
        }
        self.search.ended = now;
        self.search.ended_accepted = self.accepted;
        self.tally.found_at = Some(now);
        if let Some(window) = &mut self.window {
            window.filled_at = None;
            if window.pace.is_none() && window.learnt {
                window.best = window.best.max(window.rate());
            }
        }
    }

    /// Whether fewer requests in flight made the difference (rule 5).
    fn is_cap(&mut self, probe: Probe) -> bool {
        let on_the_way = self.flights.answered_within(probe.sent, self.echo.round_trip());
        let in_flight = probe.in_flight.saturating_sub(on_the_way);
        let Some(suspect) = self.search.suspect.filter(|suspect| in_flight < *suspect) else { return false };
        self.cap = Some(suspect);
        self.cap_found_at = self.accepted;
        self.explorer.credit = QUIET;
        true
    }

    /// Rule 9. Returns `false` if too little was accepted since the last search to learn from.
    fn correct_pace(&mut self, mut window: Window, now: Moment) -> bool {
        let accepted = self.accepted - self.search.ended_accepted;
        if accepted < RATE_OVER {
            return false;
        }
        let measured = accepted as f64 / now.since(self.search.ended).as_secs_f64();
        let (before, after) = (window.rate(), window.slow_down(measured));
        if after < 0.98 * before {
            window = window.paced(after);
            self.explorer.credit = 0;
        }
        self.window = Some(window);
        true
    }

    /// Rule 8.
    fn correct_window(&mut self, mut window: Window, probe: Probe, gone: Duration) {
        let (first, used) = (self.search.first, self.search.used);
        window.doubts += 1;
        window.narrowing = false;
        window.learnt = true;
        let was_full = window.filled_at.is_some_and(|filled| filled + self.echo.length() < first);
        if window.doubts > DOUBTS {
            let used_rate = used as f64 / window.length.as_secs_f64();
            let best = [window.best, used_rate, 1.0].into_iter().find(|rate| *rate > 0.0).unwrap_or(1.0);
            window = window.paced(0.95 * best);
        } else if used as f64 >= 0.9 * window.amount as f64 && was_full {
            window.shortest = window.length;
            window.length += if gone < window.length / 4 {
                gone
            } else {
                let oldest = self.flights.last_up_to(first, window.amount).unwrap_or(first);
                probe.sent.since(oldest).saturating_sub(window.length) + self.echo.jitter()
            };
        } else {
            window.amount = used.max(1);
        }
        self.window = Some(window);
    }

    /// The first window (rule 5).
    fn find_window(&mut self, probe: Probe, gone: Duration) {
        let (first, ended) = (self.search.first, self.search.ended);
        // Next to nothing was accepted, and for long nothing more: the window may be used up by another run.
        if gone >= COMMON[0] && self.flights.sent_between(ended, first) < 3 && !self.search.excused {
            self.search.excused = true;
            return;
        }
        let since = ended.max(first.minus(10 * gone));
        let began = self.flights.first_after(since).filter(|began| *began < first).unwrap_or(first);
        let amount = self.flights.sent_between(since, first).max(1);
        let mut window = Window::found(amount, probe.sent.since(began), self.search.last.since(began));
        for common in COMMON {
            if window.shortest < common && common <= window.length && window.length < common.mul_f64(1.25) {
                window.length = common + self.echo.jitter();
                window.shortest = common;
            }
        }
        self.window = Some(window);
    }
}
