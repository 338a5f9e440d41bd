//! Finds limits that were not stated, or that were stated too high, from which requests a server refuses.
//!
//! Pure: time is an argument, nothing waits. The gate asks [`Finder::ready`] before it admits a request and reports what
//! became of it: [`served`](Finder::served), [`refused`](Finder::refused), [`failed`](Finder::failed).
//!
//! Up to two numbers are learnt: a **cap** (requests in flight) and a **window** (an amount per length of time). When no
//! window explains the refusals, a **pace** is learnt instead: a window of about 0.1 s. The stated limits are asked
//! before this one, so what is learnt only ever tightens them.
//!
//! # The rules
//! 1. **Confirmation by silence.** A refusal comes back quickly; an answer may take a minute. A request that was not
//!    refused within an *echo* counts as accepted (`echo.rs`).
//! 2. **Burst bound.** At most `burst` requests are unconfirmed. It starts at 8, grows by one per accepted request, so it
//!    doubles per echo, and stays below an eighth of what was accepted so far. This bounds the refusals of every wrong
//!    belief. Where a rate is stated, it is trusted: the bound applies from the first refusal on.
//! 3. **News.** A refusal is news if its request was sent after the last news. Others belong to the same burst, and are
//!    only taken out of the counts: a refused request is in no window.
//! 4. **Stop and probe.** On news that what is known does not explain, sending stops for one echo, until everything sent
//!    before is confirmed or refused. Then one request at a time is sent as a probe: 50 ms after the first refusal, then
//!    1.5 times as late each time, and exactly 1 s, 10 s and 60 s after the burst began (`search.rs`). The first probe
//!    that is accepted ends the search; the burst bound restarts at 1.
//! 5. **Cap or window?** Let *n* be the accepted requests in flight when the first refusal happened. A probe is also sent
//!    as soon as fewer than *n* are in flight. If that one is accepted promptly, the cap is *n*. If it is refused, or one
//!    is accepted while *n* are in flight, it is a window: its amount is what was accepted since the burst began, its
//!    length the time from the first of them to the accepted probe.
//! 6. **Narrowing.** The true length lies between the last refused and the first accepted age. One early request per
//!    window halves the interval, down to 4 %.
//! 7. **Exploring.** After 50 accepted requests, or 60 s, one request may exceed the learnt cap or amount (`explore.rs`).
//!    If it is accepted, the number rises; after three in a row the steps double. If it is refused, only this request
//!    waits. A pace becomes 5 % faster instead, then 10, 20, 40 %.
//! 8. **Doubt.** A window that refuses although it has room is corrected: its amount becomes what was used. If it was
//!    90 % used and had been full before, its length grows by the time lost instead. A block longer than two lengths is
//!    another limit: the window stays. After three corrections without 50 quiet requests each, the window is replaced
//!    by a pace.
//! 9. **Pace.** Refused at full pace: 15 % slower, then 10 % faster per 10 accepted requests, up to 97 % of the old pace.
//!    If the accepted rate stays below the pace, the pace becomes the best of the last five measured rates.
//! 10. **Hints.** A delay in the refusal (`Retry-After`) binds the refused request. It binds all requests once sending
//!     has stopped by rule 4, except one probe of rule 5. A limit that the refusal states is believed at once.
//! 11. **Outage.** Three failures in a row of requests that were sent after the last answer: the server is down. One request is tried every
//!     1/8 of the outage so far, between 0.25 s and 30 s. The first answer restarts the burst bound at 1.
//! 12. **Near a stated window.** A refusal while a stated window is 90 % used is a matter of milliseconds: everything is
//!     held for 10 ms, then goes on. Ten of them without an accepted request in between are news.
//!
//! `flights.rs` is what was sent, `window.rs` the window and the pace, `outcome.rs` what the answers change, `found.rs`
//! what is shown. Simulated servers of many kinds are in `tests/finder/`.

mod echo;
mod explore;
mod flights;
mod found;
mod outcome;
mod search;
mod window;

use std::time::Duration;

use crate::moment::Moment;

use echo::Echo;
use explore::{Explorer, Goal};
use flights::Flights;
pub use found::{Found, FoundState, FoundWindow};
use search::Search;
use window::Window;

/// Unconfirmed requests at first (rule 2).
const BURST: u64 = 8;
/// Later at most this part of what was accepted so far.
const BURST_SHARE: u64 = 8;
/// Unconfirmed requests at first, with limits remembered from an earlier run.
const BURST_REMEMBERED: u64 = 64;
/// Accepted requests per attempt to get more (rule 7).
const QUIET: u64 = 50;
/// The longest time between two probes, and between two attempts to get more.
const PROBE_RAREST: Duration = Duration::from_secs(60);
/// Failures in a row without an answer: the server is down (rule 11).
const FAILURES: u32 = 3;
/// How long everything is held after a refusal near the edge of a stated window (rule 12).
const RESEND_AFTER: Duration = Duration::from_millis(10);
/// As many such refusals without an accepted request in between are news.
const RESENDS_MAX: u32 = 10;

/// Names one request of a finder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FinderTicket(u64);

/// When the next request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Now,
    /// At this instant, if nothing is reported before.
    At(Moment),
    /// When a request is answered.
    AfterAnswer,
}

/// What a refusal says about the limit that refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusalHint {
    /// How long to wait, if it says so.
    pub(crate) delay: Option<Duration>,
    /// Requests per length of time, if it says so.
    pub(crate) window: Option<(u64, Duration)>,
    /// A stated window is nearly full, which explains the refusal (rule 12).
    pub(crate) near_stated: bool,
}

#[derive(Debug)]
pub(crate) struct Finder {
    echo: Echo,
    flights: Flights,
    /// Unconfirmed requests that are allowed (rule 2).
    burst: u64,
    /// A rate is stated and nothing has contradicted it: `burst` does not apply.
    trusted: bool,
    /// Requests accepted so far.
    accepted: u64,
    /// When the last accepted request was sent.
    accepted_sent: Option<Moment>,
    /// The most requests in flight, if a cap was found.
    cap: Option<u64>,
    /// What `accepted` was when the cap was found.
    cap_found_at: u64,
    window: Option<Window>,
    explorer: Explorer,
    mode: FinderMode,
    search: Search,
    /// What the request that goes next is for, as the last `ready` has decided.
    next_purpose: ProbePurpose,
    /// No request goes before this instant, because the server has said so (rule 10).
    hinted_until: Moment,
    /// When the last news came; what was sent before is no news.
    news_at: Option<Moment>,
    /// News in a row while at the cap, without an accepted request sent in between.
    strikes: u32,
    /// Refusals near a stated window, without an accepted request in between.
    resends: u32,
    resent_at: Moment,
    /// Failures in a row of requests that were sent after the last answer.
    failures: u32,
    answered_at: Option<Moment>,
    tally: FinderTally,
    last_ticket: u64,
}

/// Counted for display.
#[derive(Clone, Copy, Debug, Default)]
struct FinderTally {
    refused: u64,
    probes: u64,
    /// Probes since the search began.
    probes_in_row: u64,
    /// When what is known last changed.
    found_at: Option<Moment>,
    remembered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinderMode {
    /// Sending, within what is known.
    Open,
    /// Waiting for what was sent before a refusal to be confirmed or refused.
    Settling { until: Moment },
    /// One probe at a time, to find out when the server accepts again.
    Searching,
    /// One request at a time, to find out when the server answers again.
    Down { since: Moment, next: Moment },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProbePurpose {
    #[default]
    Work,
    Probe,
    Explore(Goal),
}

impl Finder {
    /// A finder that knows nothing but the stated window, if there is one.
    pub(crate) fn new(stated: Option<(u64, Duration)>, now: Moment) -> Finder {
        Finder {
            echo: Echo::default(),
            flights: Flights::default(),
            burst: BURST,
            trusted: stated.is_some(),
            accepted: 0,
            accepted_sent: None,
            cap: None,
            cap_found_at: 0,
            window: stated.map(|(amount, length)| Window::given(amount, length)),
            explorer: Explorer::new(now),
            mode: FinderMode::Open,
            search: Search::new(now),
            next_purpose: ProbePurpose::Work,
            hinted_until: Moment::ZERO,
            news_at: None,
            strikes: 0,
            resends: 0,
            resent_at: Moment::ZERO,
            failures: 0,
            answered_at: None,
            tally: FinderTally::default(),
            last_ticket: 0,
        }
    }

    /// Starts with what an earlier run has found; as far as it is below what is stated.
    pub(crate) fn remember(&mut self, found: &Found) {
        self.cap = found.in_flight;
        if let Some(known) = found.window {
            let window = Window::remembered(known);
            if self.window.is_none_or(|stated| window.rate() < stated.rate()) {
                self.window = Some(window);
            }
        }
        self.burst = BURST_REMEMBERED;
        self.tally.remembered = true;
    }

    /// When the next request may be sent.
    pub(crate) fn ready(&mut self, now: Moment) -> Ready {
        self.next_purpose = ProbePurpose::Work;
        if let FinderMode::Down { next, .. } = self.mode {
            self.next_purpose = ProbePurpose::Probe;
            return match self.search.probe {
                Some(_) => Ready::AfterAnswer,
                None => at(next, now),
            };
        }
        self.confirm(now);
        if let FinderMode::Settling { until } = self.mode {
            if now < until {
                return Ready::At(until);
            }
            self.settle(now);
        }
        match self.mode {
            FinderMode::Searching => self.ready_to_probe(now),
            _ => self.ready_to_work(now),
        }
    }

    fn ready_to_probe(&mut self, now: Moment) -> Ready {
        if let Some(probe) = &self.search.probe {
            return Ready::At(probe.sent + self.echo.length());
        }
        self.next_purpose = ProbePurpose::Probe;
        let below = self.search.suspect.is_some_and(|suspect| self.flights.in_flight() < suspect);
        if below && (now >= self.hinted_until || !self.search.tested) {
            return Ready::Now;
        }
        at(self.search.next.max(self.hinted_until), now)
    }

    fn ready_to_work(&mut self, now: Moment) -> Ready {
        if now < self.hinted_until {
            return Ready::At(self.hinted_until);
        }
        if !self.trusted
            && self.flights.unconfirmed() >= self.burst
            && let Some(oldest) = self.flights.oldest_unconfirmed()
        {
            return Ready::At(oldest + self.echo.length());
        }
        let more = self.explorer.may_try(now, self.news_at);
        if self.cap.is_some_and(|cap| self.flights.in_flight() >= cap) {
            if more {
                self.next_purpose = ProbePurpose::Explore(Goal::Cap);
                return Ready::Now;
            }
            return Ready::AfterAnswer;
        }
        let Some(window) = &mut self.window else { return Ready::Now };
        if self.flights.sent_after(now.minus(window.length)) < window.amount {
            return Ready::Now;
        }
        let Some(oldest) = self.flights.last(window.amount) else { return Ready::Now };
        window.filled_at.get_or_insert(now);
        if window.pace.is_none() {
            if window.is_narrowing(self.echo.jitter()) {
                if self.explorer.is_idle() {
                    self.next_purpose = ProbePurpose::Explore(Goal::Length);
                    return at(oldest + (window.shortest + window.length) / 2, now);
                }
            } else if more && now.since(oldest) < window.shortest / 2 {
                self.next_purpose = ProbePurpose::Explore(Goal::Amount);
                return Ready::Now;
            }
        }
        at(oldest + window.length, now)
    }

    /// The request that `ready` has said yes to is sent.
    pub(crate) fn sent(&mut self, now: Moment) -> FinderTicket {
        self.last_ticket += 1;
        let ticket = FinderTicket(self.last_ticket);
        match self.next_purpose {
            ProbePurpose::Work => {}
            ProbePurpose::Probe => {
                self.search.send_probe(ticket, now, self.flights.in_flight());
                self.tally.probes += 1;
                self.tally.probes_in_row += 1;
            }
            ProbePurpose::Explore(goal) => {
                let oldest = self.window.as_ref().and_then(|window| self.flights.last(window.amount));
                let age = oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
                self.explorer.send(ticket, goal, age, now);
            }
        }
        self.next_purpose = ProbePurpose::Work;
        self.flights.send(ticket, now);
        ticket
    }

    /// The request is sent only now, later than it was admitted.
    pub(crate) fn restamp(&mut self, ticket: FinderTicket, now: Moment) {
        self.flights.restamp(ticket, now);
        self.search.restamp(ticket, now);
    }

    /// Nothing will be reported about this request any more. What was sent stays counted.
    pub(crate) fn ended(&mut self, ticket: FinderTicket) {
        if self.flights.abandon(ticket) {
            self.forget_purpose(ticket);
        }
    }

    /// The request was never sent.
    pub(crate) fn withdraw(&mut self, ticket: FinderTicket) {
        if self.flights.forget(ticket).is_some() {
            self.forget_purpose(ticket);
        }
    }

    fn forget_purpose(&mut self, ticket: FinderTicket) {
        self.explorer.forget(ticket);
        if self.search.probe.as_ref().is_some_and(|probe| probe.ticket == ticket) {
            self.search.probe = None;
        }
    }

    /// Whether another request could go without delaying the next one.
    pub(crate) fn has_room_to_spare(&self) -> bool {
        self.mode == FinderMode::Open
            && self.cap.is_none()
            && (self.trusted || (self.window.is_none() && self.flights.unconfirmed() + 2 <= self.burst))
    }

    /// Another amount was stated: a window that was stated and not contradicted follows it.
    pub(crate) fn restate(&mut self, stated: Option<(u64, Duration)>) {
        if self.window.is_some_and(|window| !window.learnt) {
            self.window = stated.map(|(amount, length)| Window::given(amount, length));
        }
    }

    /// The earliest instant at which the last of `count` more requests has been sent, by what was found alone: stated limits
    /// are asked themselves.
    pub(crate) fn last_of(&self, count: u64, now: Moment) -> Moment {
        let from = now.max(self.hinted_until);
        let Some(window) = self.window.as_ref().filter(|window| window.learnt) else { return from };
        let used = self.flights.sent_after(now.minus(window.length)).min(window.amount);
        let rounds = (used + count).saturating_sub(1) / window.amount;
        from + window.length.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }

    /// How long the server has been down, if it is.
    pub(crate) fn down_for(&self, now: Moment) -> Option<Duration> {
        match self.mode {
            FinderMode::Down { since, .. } => Some(now.since(since)),
            _ => None,
        }
    }
}

fn at(instant: Moment, now: Moment) -> Ready {
    if instant <= now { Ready::Now } else { Ready::At(instant) }
}
