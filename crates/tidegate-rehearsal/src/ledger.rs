//! Decides which requests are admitted, and keeps the log of its decisions. Plain values; time is an argument.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::builder::Config;
use crate::fault::Fault;
use crate::stats::{Entry, LimitStats, Stats};
use crate::window::{Meter, Now};

/// Entries of the log that are kept; the oldest go first.
const LOG_LEN_MAX: usize = 10_000;

/// Bodies that are remembered to notice repetitions: 64 MB of them.
const SEEN_LEN_MAX: usize = 4_000_000;

/// A limit that can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rpm,
    Tpm,
    Itpm,
    Otpm,
    Rpd,
    Concurrency,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Rpm => "rpm",
            Kind::Tpm => "tpm",
            Kind::Itpm => "itpm",
            Kind::Otpm => "otpm",
            Kind::Rpd => "rpd",
            Kind::Concurrency => "concurrency",
        }
    }
}

/// What the ledger needs to know of a request.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) model: &'a str,
    /// What it counts against the tokens per minute.
    pub(crate) tokens: u64,
    pub(crate) tokens_in: u64,
    /// What it counts against the output tokens per minute.
    pub(crate) tokens_out: u64,
    /// The hash of its body.
    pub(crate) fingerprint: u64,
}

/// An admitted request; it counts from this moment on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) number: u64,
    pub(crate) latency: Duration,
    pub(crate) fault: Option<Fault>,
}

/// Why a request was not admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Denied {
    Limit(Refusal),
    /// The server fails before it counts.
    Fault(Fault),
}

/// The limit that refused, and when it has room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) amount: u64,
    pub(crate) used: u64,
    pub(crate) requested: u64,
    /// `None` if the limit can never admit this cost, or if the instant is unknown.
    pub(crate) delay: Option<Duration>,
}

/// What is left of a limit, for the headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) kind: Kind,
    pub(crate) amount: u64,
    pub(crate) remaining: u64,
    pub(crate) full_in: Duration,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    config: Config,
    began: Instant,
    meters: Vec<(Kind, Meter)>,
    random: Rng,
    seen: HashSet<u64>,
    log: VecDeque<Entry>,
    /// Counters; `limits` stays empty here.
    stats: Stats,
}

impl Ledger {
    /// Returns an empty ledger; `Err` is the name of an unknown time zone.
    pub(crate) fn new(config: Config, began: Instant) -> Result<Ledger, String> {
        let limits = [
            (Kind::Rpd, &config.rpd),
            (Kind::Rpm, &config.rpm),
            (Kind::Tpm, &config.tpm),
            (Kind::Itpm, &config.itpm),
            (Kind::Otpm, &config.otpm),
        ];
        let mut meters = Vec::new();
        for (kind, limit) in limits {
            let Some(limit) = limit else { continue };
            let meter = Meter::new(limit.clone()).ok_or_else(|| match &limit.window {
                crate::window::Window::Day(zone) => zone.clone(),
                _ => unreachable!("only days have zones"),
            })?;
            meters.push((kind, meter));
        }
        let random = Rng::with_seed(config.seed);
        let (seen, log) = (HashSet::new(), VecDeque::new());
        Ok(Ledger { config, began, meters, random, seen, log, stats: Stats::default() })
    }

    /// A request is there, in full. Everything lets it in, or nothing has counted it.
    pub(crate) fn arrive(&mut self, arrival: &Arrival<'_>, now: Now) -> Result<Admitted, Denied> {
        let number = self.stats.arrived;
        self.stats.arrived += 1;
        // Both are drawn for every request, so that what one meets does not depend on what became of those before.
        let drawn = self.config.faults.draw(&mut self.random);
        let latency = self.config.latency.draw(&mut self.random);
        let scripted = usize::try_from(number).ok().and_then(|number| self.config.script.get(number));
        let fault = scripted.copied().unwrap_or(drawn);
        for (kind, meter) in &mut self.meters {
            meter.advance(now);
            meter.offer(cost(*kind, arrival), now);
        }
        let denied = match fault {
            Some(Fault::Unavailable | Fault::Overloaded) => fault.map(Denied::Fault),
            _ => self.refusal(arrival, now).map(Denied::Limit),
        };
        if let Some(denied) = denied {
            self.deny(number, arrival, denied, now);
            return Err(denied);
        }
        for (kind, meter) in &mut self.meters {
            meter.book(cost(*kind, arrival), now);
            meter.accept(cost(*kind, arrival), now);
        }
        let stats = &mut self.stats;
        stats.accepted += 1;
        stats.in_flight += 1;
        stats.in_flight_peak = stats.in_flight_peak.max(stats.in_flight);
        stats.tokens_in += arrival.tokens_in;
        if self.seen.contains(&arrival.fingerprint) {
            stats.repeated += 1;
        } else if self.seen.len() < SEEN_LEN_MAX {
            self.seen.insert(arrival.fingerprint);
        }
        self.note(number, arrival, now, |entry| entry.fault = fault);
        Ok(Admitted { number, latency, fault })
    }

    /// A day's quota first; otherwise the limit that would take longest.
    fn refusal(&self, arrival: &Arrival<'_>, now: Now) -> Option<Refusal> {
        if let Some(cap) = self.config.concurrency.filter(|cap| self.stats.in_flight >= *cap) {
            let (kind, used) = (Kind::Concurrency, self.stats.in_flight);
            return Some(Refusal { kind, amount: cap, used, requested: 1, delay: None });
        }
        let refusals = self.meters.iter().filter_map(|(kind, meter)| {
            let requested = cost(*kind, arrival);
            let (amount, used) = (meter.limit.amount, meter.used());
            let refusal = Refusal { kind: *kind, amount, used, requested, delay: meter.fits_in(requested, now) };
            (!meter.fits(requested)).then_some(refusal)
        });
        refusals.max_by_key(|refusal| (refusal.kind == Kind::Rpd, refusal.delay.is_none(), refusal.delay))
    }

    fn deny(&mut self, number: u64, arrival: &Arrival<'_>, denied: Denied, now: Now) {
        let status = match denied {
            Denied::Fault(Fault::Overloaded) => 529,
            Denied::Fault(_) => 503,
            Denied::Limit(refusal) => {
                let refused = &mut self.stats.refused;
                *match refusal.kind {
                    Kind::Rpm => &mut refused.rpm,
                    Kind::Tpm => &mut refused.tpm,
                    Kind::Itpm => &mut refused.itpm,
                    Kind::Otpm => &mut refused.otpm,
                    Kind::Rpd => &mut refused.rpd,
                    Kind::Concurrency => &mut refused.concurrency,
                } += 1;
                429
            }
        };
        match denied {
            Denied::Fault(_) => self.stats.failed += 1,
            // Some servers count refused requests too, so a client that keeps retrying at once is never admitted.
            Denied::Limit(_) if self.config.refusals_count => {
                for (_, meter) in self.meters.iter_mut().filter(|(kind, _)| *kind == Kind::Rpm) {
                    meter.book(1, now);
                }
            }
            Denied::Limit(_) => {}
        }
        self.note(number, arrival, now, |entry| {
            entry.status = Some(status);
            entry.took_us = Some(0);
            match denied {
                Denied::Limit(refusal) => entry.refused_by = Some(refusal.kind.name()),
                Denied::Fault(fault) => entry.fault = Some(fault),
            }
        });
    }

    /// An accepted request is over: answered with this status, or `None` if it was not.
    pub(crate) fn depart(&mut self, admitted: Admitted, status: Option<u16>, tokens_out: u64, now: Now) {
        let at_us = self.since(now);
        let stats = &mut self.stats;
        stats.in_flight -= 1;
        match (admitted.fault, status) {
            (Some(_), _) => stats.failed += 1,
            (None, Some(_)) => {
                stats.answered += 1;
                stats.tokens_out += tokens_out;
            }
            (None, None) => stats.abandoned += 1,
        }
        let Some(first) = self.log.front().map(|entry| entry.number) else { return };
        let place = admitted.number.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(entry) = place.and_then(|place| self.log.get_mut(place)) {
            entry.status = status;
            entry.took_us = Some(at_us.saturating_sub(entry.at_us));
        }
    }

    pub(crate) fn reject(&mut self) {
        self.stats.rejected += 1;
    }

    /// What is left of each limit.
    pub(crate) fn levels(&mut self, now: Now) -> Vec<Level> {
        let levels = self.meters.iter_mut().map(|(kind, meter)| {
            meter.advance(now);
            let (amount, used) = (meter.limit.amount, meter.used());
            Level { kind: *kind, amount, remaining: amount.saturating_sub(used), full_in: meter.full_in(now) }
        });
        levels.collect()
    }

    pub(crate) fn stats(&mut self, now: Now) -> Stats {
        let limits = self.meters.iter_mut().map(|(kind, meter)| {
            meter.advance(now);
            LimitStats {
                name: kind.name(),
                amount: meter.limit.amount,
                window_ms: u64::try_from(meter.limit.length.as_millis()).unwrap_or(u64::MAX),
                used: meter.used(),
                total: meter.total(),
                worst_window: meter.worst_accepted(),
                worst_offered: meter.worst_offered(),
                used_share: meter.used_share(),
            }
        });
        let limits = limits.collect();
        Stats { up_ms: self.since(now) / 1_000, limits, ..self.stats.clone() }
    }

    /// The last `count` requests, oldest first.
    pub(crate) fn log(&self, count: usize) -> Vec<Entry> {
        self.log.iter().skip(self.log.len().saturating_sub(count)).cloned().collect()
    }

    fn note(&mut self, number: u64, arrival: &Arrival<'_>, now: Now, complete: impl FnOnce(&mut Entry)) {
        if self.log.len() == LOG_LEN_MAX {
            self.log.pop_front();
        }
        let mut entry = Entry {
            number,
            at_us: self.since(now),
            model: arrival.model.to_owned(),
            tokens: arrival.tokens,
            in_flight: self.stats.in_flight,
            refused_by: None,
            fault: None,
            status: None,
            took_us: None,
        };
        complete(&mut entry);
        self.log.push_back(entry);
    }

    fn since(&self, now: Now) -> u64 {
        u64::try_from(now.instant.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

fn cost(kind: Kind, arrival: &Arrival<'_>) -> u64 {
    match kind {
        Kind::Tpm => arrival.tokens,
        Kind::Itpm => arrival.tokens_in,
        Kind::Otpm => arrival.tokens_out,
        Kind::Rpm | Kind::Rpd | Kind::Concurrency => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::window::Limit;

    fn arrival(tokens: u64) -> Arrival<'static> {
        Arrival { model: "m", tokens, tokens_in: tokens, tokens_out: tokens / 10, fingerprint: tokens }
    }

    fn ledger(config: Config) -> (Ledger, Now) {
        let now = Now { instant: Instant::now(), wall: SystemTime::UNIX_EPOCH };
        (Ledger::new(config, now.instant).unwrap(), now)
    }

    #[test]
    fn who_is_refused_by_one_limit_is_counted_by_none() {
        let config = Config { rpm: Some(Limit::new(2)), tpm: Some(Limit::new(100)), ..Config::default() };
        let (mut ledger, now) = ledger(config);
        ledger.arrive(&arrival(90), now).unwrap();
        let Err(Denied::Limit(refusal)) = ledger.arrive(&arrival(20), now) else { panic!("110 tokens of 100") };
        assert_eq!((refusal.kind, refusal.used, refusal.requested), (Kind::Tpm, 90, 20));
        assert_eq!(refusal.delay, Some(Duration::from_secs(60)));
        ledger.arrive(&arrival(10), now).unwrap();
        let stats = ledger.stats(now);
        assert_eq!((stats.accepted, stats.refused.tpm, stats.limit("tpm").unwrap().worst_offered), (2, 1, 120));
    }

    #[test]
    fn prompts_and_answers_are_counted_apart() {
        let config = Config { itpm: Some(Limit::new(300)), otpm: Some(Limit::new(25)), ..Config::default() };
        let (mut ledger, now) = ledger(config);
        ledger.arrive(&arrival(150), now).unwrap();
        let Err(Denied::Limit(refusal)) = ledger.arrive(&arrival(120), now) else { panic!("27 tokens of 25") };
        assert_eq!((refusal.kind, refusal.used, refusal.requested), (Kind::Otpm, 15, 12));
        ledger.arrive(&arrival(100), now).unwrap();
        let silent = Arrival { tokens_out: 0, ..arrival(51) };
        let Err(Denied::Limit(refusal)) = ledger.arrive(&silent, now) else { panic!("301 tokens of 300") };
        assert_eq!(refusal.kind.name(), "itpm");
        let stats = ledger.stats(now);
        assert_eq!((stats.refused.itpm, stats.refused.otpm, stats.refused.total()), (1, 1, 2));
    }

    #[test]
    fn a_cap_on_concurrency_is_kept_and_its_peak_seen() {
        let (mut ledger, now) = ledger(Config { concurrency: Some(1), ..Config::default() });
        let first = ledger.arrive(&arrival(1), now).unwrap();
        assert!(
            matches!(ledger.arrive(&arrival(2), now), Err(Denied::Limit(refusal)) if refusal.kind == Kind::Concurrency)
        );
        ledger.depart(first, Some(200), 5, now);
        ledger.arrive(&arrival(3), now).unwrap();
        let stats = ledger.stats(now);
        assert_eq!((stats.in_flight_peak, stats.answered, stats.refused.concurrency), (1, 1, 1));
        assert_eq!(ledger.log(9).iter().map(|entry| entry.status).collect::<Vec<_>>(), [Some(200), Some(429), None]);
    }

    #[test]
    fn knocking_counts_if_the_server_says_so() {
        let config = Config { rpm: Some(Limit::new(1)), refusals_count: true, ..Config::default() };
        let (mut ledger, now) = ledger(config);
        ledger.arrive(&arrival(1), now).unwrap();
        let later = |seconds| Now { instant: now.instant + Duration::from_secs(seconds), ..now };
        assert!(ledger.arrive(&arrival(2), later(30)).is_err());
        assert!(ledger.arrive(&arrival(2), later(61)).is_err(), "the knock at 30 s counts until 90 s");
    }

    #[test]
    fn what_is_asked_twice_is_noticed_and_a_script_comes_before_the_dice() {
        let (mut ledger, now) = ledger(Config { script: vec![Some(Fault::Internal), None], ..Config::default() });
        let failing = ledger.arrive(&arrival(1), now).unwrap();
        assert_eq!(failing.fault, Some(Fault::Internal));
        ledger.depart(failing, Some(500), 0, now);
        assert_eq!(ledger.arrive(&arrival(1), now).unwrap().fault, None);
        let stats = ledger.stats(now);
        assert_eq!((stats.failed, stats.repeated), (1, 1));
    }
}
