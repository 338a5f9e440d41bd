//! How many requests in flight fill the quota. By Little's law that is the rate which the limits allow times the time that an
//! answer takes. Decisions are pure: looks at the gate in, numbers out; [`AutoConcurrency::attend`] carries them out.
//!
//! A server that is saturated answers later the more requests it has, so by that rule alone they would only become more. Each
//! step is therefore checked: if it brought less than half of the answers that it should have, it is taken back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_limit::{Admission, Cost, Dimension, Limit, Snapshot, Window};
use tidegate_loop::{LoopHandle, sleep};

use crate::quotas::GLOBAL_CONCURRENCY;

/// The most requests in flight that are ever derived; more have to be stated.
pub const AUTO_CONCURRENCY_MAX: u64 = 4_096;

/// The most files that are ever open at once, unless more are stated: each is read by a process of its own.
pub const AUTO_FILES_MAX: usize = 32;

/// What is in flight beyond the mean: answers take longer at times, and a window is used up sooner than it ends.
const HEADROOM: f64 = 1.5;

/// The largest step at once, and the smallest, as factors. What a smaller one brings cannot be told from chance.
const STEP_MAX: u64 = 3;
const STEP_MIN: f64 = 1.1;

/// A limit over this time or longer may be used up at once.
const DAY: Duration = Duration::from_secs(24 * 3_600);

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The least time in which answers are counted.
const MEASURED_MIN: Duration = Duration::from_secs(1);

/// How long after a step that was taken back the next is tried; twice as long each time.
const HOLD: Duration = Duration::from_secs(60);

/// Derives the concurrency of a run from its limits and the answer times seen, within bounds.
///
/// ```
/// use std::time::Duration;
/// use tidegate_batch::{AutoConcurrency, Quotas};
/// use tidegate_limit::Cost;
///
/// let quotas = Quotas { rpm: Some(3_000), ..Quotas::default() };
/// let auto = AutoConcurrency::new(&quotas.limits());
/// // 50 requests per second that take 6 s each, and half as many again.
/// assert_eq!(auto.needed(&Cost::request(), Duration::from_secs(6)), Some(450));
/// assert_eq!(auto.requests_max(100).needed(&Cost::request(), Duration::from_secs(6)), Some(100));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AutoConcurrency {
    rates: Vec<Rate>,
    requests_max: u64,
    files_max: usize,
}

/// A limit's rate.
#[derive(Clone, Debug, PartialEq)]
struct Rate {
    limit: Arc<str>,
    dimension: Dimension,
    amount: u64,
    seconds: f64,
}

impl AutoConcurrency {
    /// Derives the concurrency from these limits. Limits per day do not count: they may be used up at once.
    #[must_use]
    pub fn new(limits: &[Limit]) -> AutoConcurrency {
        let rate = |limit: &Limit| {
            let (dimension, window) = limit.rated()?;
            let length = match window {
                Window::Strict(length) | Window::Aligned(length) | Window::Bucket { per: length, .. } => length,
                _ => return None,
            };
            (*length < DAY).then(|| Rate {
                limit: limit.name().into(),
                dimension,
                amount: limit.amount(),
                seconds: length.as_secs_f64(),
            })
        };
        let rates = limits.iter().filter_map(rate).collect();
        AutoConcurrency { rates, requests_max: AUTO_CONCURRENCY_MAX, files_max: AUTO_FILES_MAX }
    }

    /// The same with at most this many requests in flight.
    #[must_use]
    pub fn requests_max(mut self, most: u64) -> AutoConcurrency {
        self.requests_max = most.max(1);
        self
    }

    /// The same with at most this many files open.
    #[must_use]
    pub fn files_max(mut self, most: usize) -> AutoConcurrency {
        self.files_max = most.max(1);
        self
    }

    /// Returns the most requests that it ever has in flight.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.requests_max
    }

    /// Returns how many requests that cost `cost` have to be in flight to fill the quota, if each is answered after
    /// `answer_time`; `None` if no limit bounds their rate.
    #[must_use]
    pub fn needed(&self, cost: &Cost, answer_time: Duration) -> Option<u64> {
        let rates = self.rates.iter().filter(|rate| cost.of(rate.dimension) > 0);
        let per_second = rates.map(|rate| rate.amount as f64 / rate.seconds / cost.of(rate.dimension) as f64);
        let per_second = per_second.reduce(f64::min)?;
        let in_flight = (per_second * answer_time.as_secs_f64() * HEADROOM).ceil();
        Some((in_flight as u64).clamp(1, self.requests_max))
    }

    /// Returns how many requests may be in flight in all if `needed` fill the quota: not fewer than without a stated limit.
    #[must_use]
    pub fn in_flight(&self, needed: Option<u64>) -> u64 {
        needed.unwrap_or(0).max(GLOBAL_CONCURRENCY).min(self.requests_max)
    }

    /// Returns how many pages of a file may be in flight: `own` by its size, or its part of what is needed by `files` files.
    #[must_use]
    pub fn pages_of_file(own: u32, needed: Option<u64>, files: usize) -> u32 {
        let part = needed.unwrap_or(0).div_ceil(files.max(1) as u64);
        own.max(u32::try_from(part).unwrap_or(u32::MAX))
    }

    /// Returns `true` if one more file should be opened: those that are open have at most `pages` in flight together.
    #[must_use]
    pub fn needs_file(&self, needed: Option<u64>, files: usize, pages: u64) -> bool {
        files < self.files_max && needed.is_some_and(|needed| pages < needed)
    }

    /// Takes over amounts that were changed while the gate is in use.
    fn follow(&mut self, stats: &Snapshot) {
        for rate in &mut self.rates {
            if let Some(limit) = stats.limit(&rate.limit) {
                rate.amount = limit.amount;
            }
        }
    }

    /// Looks at `gate` twice per second, raises its limit `global`, and passes on what the run should do. Never ends. A limit
    /// `global` that a person [set](tidegate_limit::Gate::set) meanwhile stays as it is.
    ///
    /// # Cancel safety
    /// Dropped, the limit stays as it is.
    pub async fn attend(self, gate: Admission, cost: impl Fn() -> Cost, apply: impl Fn(Wanted)) {
        let mut controller = Controller::new(self, LoopHandle::current().time());
        loop {
            sleep(LOOK_EVERY).await;
            let stats = gate.stats();
            let before = controller.allowed;
            controller.look(LoopHandle::current().time(), &stats, &cost());
            if controller.allowed != before {
                // A gate without that limit has no bound to raise.
                let _ = gate.gate().adjust("global", controller.allowed);
            }
            apply(controller.wanted());
        }
    }
}

/// Passes on how many requests `gate` admits at once, whenever that is changed. Looks twice per second; never ends.
pub(crate) async fn follow_slots(gate: Admission, apply: impl Fn(u64)) {
    let mut known = None;
    loop {
        let slots =
            gate.stats().limits.iter().filter(|limit| limit.dimension.is_none()).map(|limit| limit.amount).min();
        if slots != known {
            known = slots;
            slots.into_iter().for_each(&apply);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// What a run should have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wanted {
    /// What fills the quota, as far as it is allowed; `None` if that is not known or no limit bounds the rate.
    pub needed: Option<u64>,
    /// The most requests in flight.
    pub in_flight: u64,
    /// Nothing but the concurrency holds requests back at the moment.
    pub is_bound: bool,
}

/// What is allowed now, and what the last step brought.
#[derive(Debug)]
struct Controller {
    auto: AutoConcurrency,
    began: Instant,
    /// Requests that may be in flight; at least [`GLOBAL_CONCURRENCY`], within the bounds.
    allowed: u64,
    /// What fills the quota, as far as it is allowed.
    needed: Option<u64>,
    is_bound: bool,
    step: Option<Step>,
    held_until: Option<Instant>,
    hold: Duration,
    /// When the count of answers began whose rate the next step is compared with.
    counting: Counting,
}

#[derive(Clone, Copy, Debug)]
struct Counting {
    since: Instant,
    answered: u64,
}

/// A step that is not yet known to have brought anything.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: u64,
    /// Answers per second before.
    rate: f64,
    /// From when on answers are counted: those before were sent before the step.
    count_from: Instant,
    counting: Option<Counting>,
}

impl Controller {
    fn new(auto: AutoConcurrency, now: Instant) -> Controller {
        let allowed = auto.in_flight(None);
        let counting = Counting { since: now, answered: 0 };
        Controller {
            auto,
            began: now,
            allowed,
            needed: None,
            is_bound: false,
            step: None,
            held_until: None,
            hold: HOLD,
            counting,
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted { needed: self.needed, in_flight: self.allowed, is_bound: self.is_bound }
    }

    fn look(&mut self, now: Instant, stats: &Snapshot, cost: &Cost) {
        self.auto.follow(stats);
        if let Some(stated) = stats.limit("global").filter(|limit| limit.is_set) {
            self.allowed = stated.amount;
            self.needed = self.auto.needed(cost, stats.answer_time).map(|needed| needed.min(self.allowed));
            self.is_bound = matches!(stats.blocked_by.as_deref(), None | Some("global" | "scopes"));
            self.step = None;
            return;
        }
        let answered = stats.granted.saturating_sub(stats.current + stats.refunded);
        let answer_time = match stats.answer_time {
            // Nothing was answered yet: an answer takes at least as long as there was none.
            Duration::ZERO if stats.granted > 0 => now.saturating_duration_since(self.began),
            time => time,
        };
        let Some(target) = self.auto.needed(cost, answer_time).filter(|_| stats.granted > 0) else { return };
        // Whatever else holds requests back, more of them in flight would not help.
        self.is_bound = matches!(stats.blocked_by.as_deref(), None | Some("global" | "scopes"));
        if !self.check_step(now, answered, answer_time) {
            return;
        }
        let is_worth_it = target as f64 >= self.allowed as f64 * STEP_MIN;
        if self.is_bound && is_worth_it && self.held_until.is_none_or(|until| now >= until) {
            let rate = self.counting.rate(now, answered);
            self.step = Some(Step { from: self.allowed, rate, count_from: now + answer_time, counting: None });
            self.held_until = None;
            self.allowed = target.min(self.allowed.saturating_mul(STEP_MAX));
        }
        self.needed = self.needed.max(Some(target)).map(|needed| needed.min(self.allowed));
    }

    /// Returns `true` if the last step has been judged, so that the next may follow.
    fn check_step(&mut self, now: Instant, answered: u64, answer_time: Duration) -> bool {
        let Some(step) = &mut self.step else {
            if now.saturating_duration_since(self.counting.since) >= answer_time.max(MEASURED_MIN) * 2 {
                self.counting = Counting { since: now, answered };
            }
            return true;
        };
        if now < step.count_from {
            return false;
        }
        let counting = *step.counting.get_or_insert(Counting { since: now, answered });
        if now.saturating_duration_since(counting.since) < (answer_time / 2).max(MEASURED_MIN) {
            return false;
        }
        let gain = counting.rate(now, answered) / step.rate;
        let enough = 1.0 + (self.allowed as f64 / step.from as f64 - 1.0) / 2.0;
        // Where something else binds by now, the step has brought all that there was to bring.
        if self.is_bound && gain < enough {
            self.allowed = step.from;
            self.needed = self.needed.map(|needed| needed.min(self.allowed));
            self.held_until = Some(now + self.hold);
            self.hold *= 2;
        }
        self.counting = counting;
        self.step = None;
        true
    }
}

impl Counting {
    fn rate(&self, now: Instant, answered: u64) -> f64 {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        answered.saturating_sub(self.answered) as f64 / seconds.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::Quotas;
    use tidegate_limit::{Gate, LoopTimer};
    use tidegate_loop::{EventLoop, spawn};
    use tidegate_sync::Semaphore;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn auto(quotas: &Quotas) -> AutoConcurrency {
        AutoConcurrency::new(&quotas.limits())
    }

    #[test]
    fn the_tightest_limit_decides_and_a_day_does_not() {
        let quotas = Quotas { rpm: Some(600), tpm: Some(60_000), rpd: Some(10), ..Quotas::default() };
        let needed = |cost: Cost| auto(&quotas).needed(&cost, secs(10));
        assert_eq!(needed(Cost::request()), Some(150));
        assert_eq!(needed(Cost::tokens(1_000)), Some(15), "a request per second");
        assert_eq!(auto(&Quotas { rpd: Some(10), ..Quotas::default() }).needed(&Cost::request(), secs(10)), None);
        let lengths = crate::WindowLengths { rpd: Some(secs(86_400)), ..Default::default() };
        let sliding = auto(&Quotas { rpm: Some(600), rpd: Some(10), lengths, ..Quotas::default() });
        assert_eq!(sliding.needed(&Cost::request(), secs(10)), Some(150));
    }

    #[test]
    fn what_is_needed_is_spread_over_the_files_and_never_below_the_usual() {
        assert_eq!(AutoConcurrency::pages_of_file(20, None, 2), 20);
        assert_eq!(AutoConcurrency::pages_of_file(20, Some(30), 2), 20);
        assert_eq!(AutoConcurrency::pages_of_file(20, Some(451), 2), 226);
        let auto = auto(&Quotas::default()).files_max(3);
        assert!(auto.needs_file(Some(100), 2, 99));
        assert!(!auto.needs_file(Some(100), 2, 100), "enough pages");
        assert!(!auto.needs_file(Some(100), 3, 0), "enough files");
        assert!(!auto.needs_file(None, 1, 0), "no stated limit");
        assert_eq!((auto.in_flight(None), auto.in_flight(Some(300))), (200, 300));
        assert_eq!(auto.requests_max(50).in_flight(Some(300)), 50);
    }

    struct Ran {
        /// Requests sent after the warm-up, as a share of the quota.
        share: f64,
        allowed: u64,
        peak: u64,
    }

    /// Sends requests for five minutes to a server that works on `capacity` requests at a time and takes `answer_time` for each.
    /// Counts what is sent in the last four minutes.
    fn run(quotas: Quotas, answer_time: Duration, capacity: usize) -> Ran {
        EventLoop::simulated(7)
            .run_until_complete(async move {
                let (warm_up, measured) = (secs(60), secs(240));
                let gate = Gate::builder().limits(quotas.limits()).timer(LoopTimer::new()).build().unwrap();
                let auto = AutoConcurrency::new(&quotas.limits());
                let attending = spawn(auto.attend((&gate).into(), Cost::request, |_| ()));
                let (sent, server) = (Rc::new(Cell::new(0_u64)), Rc::new(Semaphore::new(capacity)));
                // As many as could ever be in flight, and more in line.
                for _ in 0..6_000 {
                    let (gate, sent, server) = (gate.clone(), Rc::clone(&sent), Rc::clone(&server));
                    spawn(async move {
                        loop {
                            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
                            lease.sent();
                            sent.set(sent.get() + 1);
                            let working = server.acquire().await.unwrap();
                            sleep(answer_time).await;
                            drop(working);
                            lease.answered();
                        }
                    });
                }
                sleep(warm_up).await;
                let before = sent.get();
                sleep(measured).await;
                attending.cancel();
                let quota = quotas.rpm.unwrap() as f64 * measured.as_secs_f64() / 60.0;
                let stats = gate.stats();
                Ran {
                    share: (sent.get() - before) as f64 / quota,
                    allowed: stats.limit("global").unwrap().amount,
                    peak: stats.peak,
                }
            })
            .unwrap()
    }

    #[test]
    fn a_quota_of_3000_per_minute_is_filled_with_answers_of_6_seconds() {
        for window in [crate::WindowKind::Strict, crate::WindowKind::Bucket, crate::WindowKind::Minute] {
            let quotas = Quotas { rpm: Some(3_000), window, ..Quotas::default() };
            let ran = run(quotas, secs(6), 1 << 20);
            assert!(ran.share >= 0.95, "{window:?}: {} of the quota", ran.share);
            assert!((300..=450).contains(&ran.allowed), "{window:?}: {} in flight", ran.allowed);
        }
    }

    #[test]
    fn answers_of_a_minute_fill_the_quota_as_well() {
        let ran = run(Quotas { rpm: Some(3_000), ..Quotas::default() }, secs(60), 1 << 20);
        assert!(ran.peak >= 3_000, "{} in flight", ran.peak);
        assert!(ran.share >= 0.6, "{} of the quota, the growth included", ran.share);
    }

    #[test]
    fn a_saturated_server_is_not_given_more_and_more() {
        // Ten requests per second, whatever is in flight.
        let ran = run(Quotas { rpm: Some(3_000), ..Quotas::default() }, secs(1), 10);
        assert!(ran.allowed <= 300, "{} in flight at the end", ran.allowed);
        assert!(ran.peak <= 900, "{} in flight: more than one step that is checked", ran.peak);
    }
}
