//! Decides from a server's feedback what to change at a gate. Pure: time is an argument; see `listener.rs` for the caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::time::{DELAY_MAX, until};
use super::{Feedback, Per, Quota, Unit, Verdict, Which};

/// During a longer delay, probes are sent: a delay that the server states too long by hours must not cost hours.
pub const PROBED_BEYOND: Duration = Duration::from_secs(10 * 60);
/// The time from the refusal to the first probe of a parked limit.
pub const PROBE_FIRST: Duration = Duration::from_secs(60);
/// The longest time between probes. Each refused probe doubles the time to the next, up to this: some thirty per day.
pub const PROBE_RAREST: Duration = Duration::from_secs(3600);
/// A counter without a reset time is used for this long.
const UNDATED: Duration = Duration::from_secs(1);

/// A change to one of a gate's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Block the limit for `delay`.
    Pause {
        /// The limit's name.
        limit: Arc<str>,
        /// How long.
        delay: Duration,
    },
    /// Block the limit until `until`, except for one request per `probe_every`.
    Park {
        /// The limit's name.
        limit: Arc<str>,
        /// When the parking ends.
        until: Timestamp,
        /// The time between probes.
        probe_every: Duration,
    },
    /// End a parking early, because a probe was served.
    Resume {
        /// The limit's name.
        limit: Arc<str>,
    },
    /// Block the limit until it is resumed.
    Shut {
        /// The limit's name.
        limit: Arc<str>,
        /// The reason, for the errors of waiting entries.
        reason: Arc<str>,
    },
    /// Reduce what is left to `remaining`, until all of it is back in `full_in`.
    Tighten {
        /// The limit's name.
        limit: Arc<str>,
        /// What is left.
        remaining: u64,
        /// The time until all of it is back.
        full_in: Duration,
    },
}

/// When the request was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// When it was sent.
    pub sent: Instant,
    /// When its answer arrived; not before `sent`.
    pub answered: Instant,
    /// `answered` on the wall clock.
    pub answered_wall: Timestamp,
}

/// Decides for each answer what to change at the gate.
///
/// | verdict | change |
/// |---|---|
/// | [`Wait`](Verdict::Wait) | limits of tokens or days that the server names and the gate has are paused for the delay; with more than 10 minutes, the limit is parked; otherwise none: see [`Listener::report`](super::Listener::report) |
/// | [`BackOff`](Verdict::BackOff) | none: see [`Listener::report`](super::Listener::report) |
/// | [`Park`](Verdict::Park) | the limits are parked until the quota is reset; one probe after a minute, then after 2, 4, … up to 60 minutes; a probe that is served ends the parking |
/// | [`Overloaded`](Verdict::Overloaded) | with a delay, all requests are paused, or parked beyond 10 minutes; without one, none: only the request backs off |
/// | [`Stop`](Verdict::Stop) | the gate is shut; waiting entries fail with the reason |
/// | [`Proceed`](Verdict::Proceed), [`TooLarge`](Verdict::TooLarge), [`Other`](Verdict::Other) | none |
///
/// If an answer names no limit, or one that the gate does not have, the limit of requests per minute is used, which applies
/// to every request. Refusals of requests that were sent before the last refusal arrived do not count again. A counter in
/// the headers reduces what is left under its limit; what has come back since the request was sent is added, because an
/// answer may take long.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate_limit::feedback::{Action, Provider, Steering, Timing};
///
/// let mut steering = Steering::new(["rpm", "tpm", "rpd"]);
/// let now = Instant::now();
/// let wall = jiff::Timestamp::now();
/// let headers = [("retry-after", "20")];
/// let body = br#"{"error":{"type":"rate_limit_error","message":"limit of 50,000 input tokens per minute"}}"#;
/// let feedback = Provider::Anthropic.read(429, &headers, body, wall);
///
/// let timing = Timing { sent: now, answered: now, answered_wall: wall };
/// let actions = steering.on_feedback(&feedback, timing);
/// assert_eq!(actions, [Action::Pause { limit: "tpm".into(), delay: Duration::from_secs(20) }]);
/// ```
#[derive(Clone, Debug)]
pub struct Steering {
    /// The names of the gate's limits.
    limits: Vec<Arc<str>>,
    /// The gate's limits for the server's; all of them are in `limits`.
    bindings: Vec<(Which, Arc<str>)>,
    refusals: HashMap<Arc<str>, Refusals>,
}

/// The refusals of a limit in a row.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    /// At least 1.
    count: u32,
    /// When the last one arrived. The answers to requests sent before it are not counted.
    last: Instant,
    /// The limit is parked, so a request that is served ends the parking.
    parked: bool,
}

impl Steering {
    /// Creates a steering for a gate with limits of these names. `rpm`, `tpm`, `itpm`, `otpm`, `rpd` and `tpd` have their
    /// usual meaning; other names have to be [bound](Self::bind).
    ///
    /// ```
    /// # use tidegate_limit::feedback::Steering;
    /// let steering = Steering::new(["rpm", "rpd"]);
    /// # let _ = steering;
    /// ```
    pub fn new<N: Into<Arc<str>>>(limits: impl IntoIterator<Item = N>) -> Steering {
        let limits: Vec<Arc<str>> = limits.into_iter().map(Into::into).collect();
        let mut steering = Steering { limits, bindings: Vec::new(), refusals: HashMap::new() };
        for (name, unit, per) in [
            ("rpm", Unit::Requests, Per::Minute),
            ("tpm", Unit::Tokens, Per::Minute),
            ("rpd", Unit::Requests, Per::Day),
            ("tpd", Unit::Tokens, Per::Day),
            ("itpm", Unit::InputTokens, Per::Minute),
            ("otpm", Unit::OutputTokens, Per::Minute),
        ] {
            steering = steering.bind(Which::new(unit, per), name);
        }
        steering
    }

    /// Binds the server's limit `which` to the gate's `limit`. A name that the gate does not have is ignored.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Per, Steering, Unit, Which};
    /// let steering = Steering::new(["flash rpm"]).bind(Which::new(Unit::Requests, Per::Minute), "flash rpm");
    /// # let _ = steering;
    /// ```
    #[must_use]
    pub fn bind(mut self, which: Which, limit: &str) -> Steering {
        if let Some(limit) = self.limits.iter().find(|known| &***known == limit) {
            self.bindings.retain(|(bound, _)| *bound != which);
            self.bindings.push((which, Arc::clone(limit)));
        }
        self
    }

    /// Returns the changes that an answer leads to.
    pub fn on_feedback(&mut self, feedback: &Feedback, timing: Timing) -> Vec<Action> {
        let mut actions: Vec<Action> = feedback.quotas.iter().filter_map(|quota| self.tighten(quota, timing)).collect();
        match &feedback.verdict {
            Verdict::Proceed => self.served(timing, &mut actions),
            Verdict::Wait { delay, limits } if *delay > PROBED_BEYOND => {
                for limit in self.resolve(limits) {
                    actions.push(self.park(limit, *delay, timing));
                }
            }
            Verdict::Wait { delay, limits } => {
                let paused = self.stated(limits).into_iter();
                actions.extend(paused.map(|limit| Action::Pause { limit, delay: *delay }));
            }
            Verdict::Park { until: at, limits } => {
                // If it has passed by the local clock, a probe after a minute shows whether it has by the server's.
                let delay = until(*at, timing.answered_wall).unwrap_or(PROBE_FIRST).min(DELAY_MAX);
                for limit in self.resolve(limits) {
                    actions.push(self.park(limit, delay, timing));
                }
            }
            Verdict::Overloaded { delay: Some(delay) } => {
                let limit = self.everything();
                actions.extend(limit.map(|limit| match *delay > PROBED_BEYOND {
                    true => self.park(limit, *delay, timing),
                    false => Action::Pause { limit, delay: *delay },
                }));
            }
            Verdict::Stop(stop) => {
                actions.extend(self.everything().map(|limit| Action::Shut { limit, reason: stop.to_string().into() }));
            }
            Verdict::BackOff { .. }
            | Verdict::Overloaded { delay: None }
            | Verdict::TooLarge { .. }
            | Verdict::Other { .. } => {}
        }
        actions
    }

    /// Returns whether stated limits handle the refusal: it states how long to wait, for limits that the gate has and that do
    /// not count requests per minute. A refusal by requests per minute is left to the limits that are found.
    pub(super) fn takes_care_of(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Wait { delay, limits } => *delay > PROBED_BEYOND || !self.stated(limits).is_empty(),
            _ => false,
        }
    }

    /// Returns the gate's limits for those that the server names, if the gate has all of them and all count tokens or days.
    fn stated(&self, which: &[Which]) -> Vec<Arc<str>> {
        let bound = |which: &Which| match (which.unit, which.per) {
            (Unit::Requests, None | Some(Per::Minute)) => None,
            (unit, Some(per)) => self.bound(unit, per),
            (unit, None) => self.bound(unit, Per::Minute).or_else(|| self.bound(unit, Per::Day)),
        };
        let found: Option<Vec<Arc<str>>> = which.iter().map(bound).collect();
        let mut found = found.unwrap_or_default();
        found.sort();
        found.dedup();
        found
    }

    fn park(&mut self, limit: Arc<str>, delay: Duration, timing: Timing) -> Action {
        let (count, _) = self.refused(&limit, timing);
        if let Some(refusals) = self.refusals.get_mut(&limit) {
            refusals.parked = true;
        }
        let probe_every = PROBE_FIRST * 2_u32.saturating_pow(count - 1).min(PROBE_RAREST.as_secs() as u32);
        let until = timing.answered_wall.saturating_add(delay).unwrap_or(Timestamp::MAX);
        Action::Park { limit, until, probe_every: probe_every.min(PROBE_RAREST) }
    }

    /// Counts a refusal. Returns the number of refusals in a row, and whether this one was counted.
    fn refused(&mut self, limit: &Arc<str>, timing: Timing) -> (u32, bool) {
        match self.refusals.get_mut(limit) {
            None => {
                self.refusals.insert(Arc::clone(limit), Refusals { count: 1, last: timing.answered, parked: false });
                (1, true)
            }
            Some(refusals) => {
                let news = timing.sent >= refusals.last;
                if news {
                    refusals.count = refusals.count.saturating_add(1);
                    refusals.last = refusals.last.max(timing.answered);
                }
                (refusals.count, news)
            }
        }
    }

    /// A request was served. If it was sent after a limit's last refusal, that limit admits requests again.
    fn served(&mut self, timing: Timing, actions: &mut Vec<Action>) {
        self.refusals.retain(|limit, refusals| {
            let back = timing.sent >= refusals.last;
            if back && refusals.parked {
                actions.push(Action::Resume { limit: Arc::clone(limit) });
            }
            !back
        });
    }

    fn tighten(&self, quota: &Quota, timing: Timing) -> Option<Action> {
        // A counter without a window is taken for one of a minute: emptying a day by mistake would cost the day.
        let per = quota.which.per.unwrap_or(Per::Minute);
        let limit = match quota.which.unit {
            // A counter of answers is much smaller than a limit of all tokens, so it is applied only to its own limit.
            Unit::OutputTokens => self.exactly(Unit::OutputTokens, per),
            unit => self.bound(unit, per),
        }?;
        let late = timing.answered.saturating_duration_since(timing.sent);
        let full_in = quota.full_in.unwrap_or(late + UNDATED);
        let left = full_in.checked_sub(late).filter(|left| !left.is_zero())?;
        let missing = quota.capacity.unwrap_or(quota.remaining).saturating_sub(quota.remaining);
        let back = match quota.full_in {
            Some(_) => missing as f64 * (late.as_secs_f64() / full_in.as_secs_f64()),
            None => 0.0,
        };
        let remaining = quota.remaining.saturating_add(back as u64);
        Some(Action::Tighten { limit, remaining, full_in: left })
    }

    /// Returns the gate's limits for those that the server names, or the one that applies to every request.
    fn resolve(&self, which: &[Which]) -> Vec<Arc<str>> {
        let mut found: Vec<Arc<str>> = Vec::new();
        for which in which {
            let limit = match which.per {
                Some(per) => self.bound(which.unit, per),
                None => self.bound(which.unit, Per::Minute).or_else(|| self.bound(which.unit, Per::Day)),
            };
            found.extend(limit);
        }
        if found.is_empty() {
            found.extend(self.everything());
        }
        found.sort();
        found.dedup();
        found
    }

    fn bound(&self, unit: Unit, per: Per) -> Option<Arc<str>> {
        // A gate without separate limits for prompts and answers has one for both.
        self.exactly(unit, per).or_else(|| match unit {
            Unit::InputTokens | Unit::OutputTokens => self.exactly(Unit::Tokens, per),
            Unit::Requests | Unit::Tokens => None,
        })
    }

    fn exactly(&self, unit: Unit, per: Per) -> Option<Arc<str>> {
        let which = Which::new(unit, per);
        self.bindings.iter().find(|(bound, _)| *bound == which).map(|(_, limit)| Arc::clone(limit))
    }

    /// Returns a limit that applies to every request.
    fn everything(&self) -> Option<Arc<str>> {
        self.bound(Unit::Requests, Per::Minute)
            .or_else(|| self.bound(Unit::Requests, Per::Day))
            .or_else(|| self.limits.first().cloned())
    }
}

impl Action {
    /// Returns the name of the limit.
    ///
    /// ```
    /// # use tidegate_limit::feedback::Action;
    /// assert_eq!(&**Action::Resume { limit: "rpd".into() }.limit(), "rpd");
    /// ```
    pub fn limit(&self) -> &Arc<str> {
        match self {
            Action::Pause { limit, .. }
            | Action::Park { limit, .. }
            | Action::Resume { limit }
            | Action::Shut { limit, .. }
            | Action::Tighten { limit, .. } => limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::*;

    const RPM: Which = Which { unit: Unit::Requests, per: Some(Per::Minute) };
    const RPD: Which = Which { unit: Unit::Requests, per: Some(Per::Day) };

    struct Desk {
        steering: Steering,
        start: Instant,
        wall: Timestamp,
    }

    impl Desk {
        fn new() -> Desk {
            let wall = "2026-11-15T20:00:00Z".parse().unwrap();
            Desk { steering: Steering::new(["global", "rpm", "tpm", "rpd"]), start: Instant::now(), wall }
        }

        fn at(&self, secs: f64) -> Instant {
            self.start + Duration::from_secs_f64(secs)
        }

        /// What comes of an answer to a request sent and answered at these seconds.
        fn answer(&mut self, sent: f64, answered: f64, verdict: Verdict, quotas: Vec<Quota>) -> Vec<Action> {
            let timing = Timing {
                sent: self.at(sent),
                answered: self.at(answered),
                answered_wall: self.wall + Duration::from_secs_f64(answered),
            };
            self.steering.on_feedback(&Feedback { verdict, quotas }, timing)
        }

        fn verdict(&mut self, sent: f64, answered: f64, verdict: Verdict) -> Vec<Action> {
            self.answer(sent, answered, verdict, Vec::new())
        }

        fn pause(&self, limit: &str, secs: f64) -> Action {
            Action::Pause { limit: limit.into(), delay: Duration::from_secs_f64(secs) }
        }

        fn midnight(&self) -> Verdict {
            Verdict::Park { until: "2026-11-16T08:00:00Z".parse().unwrap(), limits: vec![RPD] }
        }
    }

    #[test]
    fn a_limit_of_tokens_or_of_a_day_that_was_named_is_paused_and_no_other() {
        let mut desk = Desk::new();
        let wait = |unit, per| Verdict::Wait { delay: Duration::from_secs(20), limits: vec![Which { unit, per }] };
        for (unit, per, limit) in [
            (Unit::Tokens, Some(Per::Minute), "tpm"),
            (Unit::InputTokens, Some(Per::Minute), "tpm"),
            (Unit::Tokens, None, "tpm"),
            (Unit::Requests, Some(Per::Day), "rpd"),
        ] {
            let actions = desk.verdict(0.0, 1.0, wait(unit, per));
            assert_eq!(actions, [desk.pause(limit, 20.0)]);
            assert!(desk.steering.takes_care_of(&wait(unit, per)));
        }
    }

    #[test]
    fn other_refusals_are_left_to_what_finds_limits() {
        let mut desk = Desk::new();
        let delay = Duration::from_secs(20);
        for limits in [vec![], vec![RPM], vec![RPM, RPD], vec![Which::new(Unit::Tokens, Per::Day)]] {
            for verdict in [Verdict::Wait { delay, limits: limits.clone() }, Verdict::BackOff { limits }] {
                assert!(!desk.steering.takes_care_of(&verdict), "{verdict:?}");
                assert_eq!(desk.verdict(0.0, 1.0, verdict), []);
            }
        }
    }

    #[test]
    fn a_parked_day_is_probed_ever_more_rarely_and_ends_with_a_probe_that_is_served() {
        let mut desk = Desk::new();
        let midnight: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
        let mut sent = 0.0;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let probe_every = Duration::from_secs(minutes * 60);
            let park = Action::Park { limit: "rpd".into(), until: midnight, probe_every };
            let refused = desk.midnight();
            assert_eq!(desk.verdict(sent, sent + 1.0, refused.clone()), std::slice::from_ref(&park));
            // Others that were in flight change nothing.
            assert_eq!(desk.verdict(sent - 1.0_f64.min(sent), sent + 1.0, refused), [park]);
            sent += 1.0 + probe_every.as_secs_f64();
        }
        assert_eq!(desk.verdict(0.0, sent, Verdict::Proceed), [], "it was sent before the refusal");
        assert_eq!(desk.verdict(sent, sent + 1.0, Verdict::Proceed), [Action::Resume { limit: "rpd".into() }]);
        assert_eq!(desk.verdict(sent + 2.0, sent + 3.0, Verdict::Proceed), []);
    }

    #[test]
    fn a_delay_of_hours_is_probed_too() {
        let mut desk = Desk::new();
        let wait = Verdict::Wait { delay: Duration::from_secs(7200), limits: vec![RPD] };
        let until = desk.wall + Duration::from_secs(7201);
        let park = Action::Park { limit: "rpd".into(), until, probe_every: PROBE_FIRST };
        assert_eq!(desk.verdict(0.0, 1.0, wait), [park]);
    }

    #[test]
    fn overload_pauses_all_requests_only_if_the_server_asks_for_it() {
        let mut desk = Desk::new();
        let delay = Some(Duration::from_secs(5));
        assert_eq!(desk.verdict(0.0, 1.0, Verdict::Overloaded { delay }), [desk.pause("rpm", 5.0)]);
        let delay = Some(DELAY_MAX);
        let until = desk.wall + DELAY_MAX + Duration::from_secs(1);
        let park = Action::Park { limit: "rpm".into(), until, probe_every: PROBE_FIRST };
        assert_eq!(desk.verdict(0.0, 1.0, Verdict::Overloaded { delay }), [park], "hours are probed");
        assert_eq!(desk.verdict(0.0, 1.0, Verdict::Overloaded { delay: None }), []);
        assert_eq!(desk.verdict(0.0, 1.0, Verdict::Other { status: 500 }), []);
        assert_eq!(desk.verdict(0.0, 1.0, Verdict::TooLarge { requested: None, limit: None }), []);
    }

    #[test]
    fn the_end_shuts_the_gate_and_says_why() {
        let mut desk = Desk::new();
        let [Action::Shut { limit, reason }] = &desk.verdict(0.0, 1.0, Verdict::Stop(Stop::InsufficientQuota))[..]
        else {
            panic!()
        };
        assert_eq!(&**limit, "rpm");
        assert!(reason.contains("no credit left"));
    }

    fn quota(unit: Unit, remaining: u64, full_in: Option<u64>) -> Quota {
        Quota {
            which: Which { unit, per: None },
            capacity: Some(100),
            remaining,
            full_in: full_in.map(Duration::from_secs),
        }
    }

    #[test]
    fn what_came_back_while_the_model_was_thinking_is_counted_in() {
        let mut desk = Desk::new();
        let tighten =
            |remaining, secs| Action::Tighten { limit: "rpm".into(), remaining, full_in: Duration::from_secs(secs) };
        let actions = desk.answer(0.0, 0.0, Verdict::Proceed, vec![quota(Unit::Requests, 40, Some(60))]);
        assert_eq!(actions, [tighten(40, 60)]);
        // Half of the 60 missing are back after half of the time, and all after all of it.
        let actions = desk.answer(0.0, 30.0, Verdict::Proceed, vec![quota(Unit::Requests, 40, Some(60))]);
        assert_eq!(actions, [tighten(70, 30)]);
        let actions = desk.answer(0.0, 61.0, Verdict::Proceed, vec![quota(Unit::Requests, 0, Some(60))]);
        assert_eq!(actions, []);
        // Without a date there is little to go by.
        let actions = desk.answer(0.0, 30.0, Verdict::Proceed, vec![quota(Unit::Requests, 0, None)]);
        assert_eq!(actions, [tighten(0, 1)]);
    }

    #[test]
    fn a_counter_of_answers_tightens_their_limit_and_no_other() {
        let now = Instant::now();
        let timing = Timing { sent: now, answered: now, answered_wall: Timestamp::UNIX_EPOCH };
        let counters = [quota(Unit::InputTokens, 70, Some(60)), quota(Unit::OutputTokens, 5, Some(60))];
        let feedback = Feedback { verdict: Verdict::Proceed, quotas: counters.to_vec() };
        let tightened = |limits: &[&str]| {
            let actions = Steering::new(limits.iter().copied()).on_feedback(&feedback, timing);
            actions
                .into_iter()
                .map(|action| match action {
                    Action::Tighten { limit, remaining, .. } => (limit.to_string(), remaining),
                    other => panic!("{other:?}"),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(tightened(&["rpm", "itpm", "otpm"]), [("itpm".into(), 70), ("otpm".into(), 5)]);
        assert_eq!(tightened(&["tpm", "otpm"]), [("tpm".into(), 70), ("otpm".into(), 5)]);
        assert_eq!(tightened(&["tpm"]), [("tpm".into(), 70)], "five tokens of answers are not five of everything");
    }

    #[test]
    fn a_counter_of_unknown_window_never_empties_the_day() {
        let wall = Timestamp::UNIX_EPOCH;
        let now = Instant::now();
        let timing = Timing { sent: now, answered: now, answered_wall: wall };
        let feedback = Feedback {
            verdict: Verdict::Proceed,
            quotas: vec![quota(Unit::Requests, 0, Some(60)), quota(Unit::Tokens, 0, None)],
        };
        assert_eq!(Steering::new(["rpd"]).on_feedback(&feedback, timing), []);
        assert_eq!(Steering::new(Vec::<Arc<str>>::new()).on_feedback(&feedback, timing), []);
    }
}
