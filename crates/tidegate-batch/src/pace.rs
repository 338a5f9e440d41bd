//! How long a run still takes. Two things can hold it up: the limits, which are known exactly, and everything else (the
//! server, the slots, this machine), which is as fast as it was lately. What lately was slow because a limit held it up,
//! or fast because a window had just opened, says nothing about that; so the time during which a limit was waited for is
//! left out of the rate, and what the limits allow is asked of them. Pure: looks at a run in, a time out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The rate is that of this long.
const RECENT: Duration = Duration::from_secs(20);

/// Looks that are remembered, at the most.
const LOOKS_MAX: usize = 256;

/// Counts what happened in the last minute. The rate is a count, not an estimate: after ten seconds it is that of ten
/// seconds, so a burst at the start does not look like a rate above the limit.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate_batch::LastMinute;
///
/// let (began, seconds) = (Instant::now(), Duration::from_secs);
/// let mut rate = LastMinute::default();
/// rate.count(began, 60);
/// rate.count(began + seconds(30), 1);
/// assert_eq!(rate.per_minute(began + seconds(30)), 61);
/// assert_eq!(rate.per_minute(began + seconds(61)), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LastMinute {
    /// The first instant of a second and the count in it; the oldest first.
    seconds: VecDeque<(Instant, u64)>,
}

impl LastMinute {
    /// Counts `number` more at `now`.
    pub fn count(&mut self, now: Instant, number: u64) {
        match self.seconds.back_mut() {
            Some((at, count)) if now.saturating_duration_since(*at) < Duration::from_secs(1) => *count += number,
            _ => self.seconds.push_back((now, number)),
        }
        while self.seconds.front().is_some_and(|(at, _)| !is_within_minute(*at, now)) {
            self.seconds.pop_front();
        }
    }

    /// Returns the count of the minute before `now`.
    #[must_use]
    pub fn per_minute(&self, now: Instant) -> u64 {
        self.seconds.iter().filter(|(at, _)| is_within_minute(*at, now)).map(|(_, count)| count).sum()
    }
}

fn is_within_minute(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < Duration::from_secs(60)
}

/// A run at one instant, as far as it matters to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: Instant,
    /// What was answered or has failed until then; not what was kept from an earlier run.
    pub settled: u64,
    /// What has to be, still.
    pub left: u64,
    /// How long limits have held it up until then.
    pub held_up: Duration,
    /// How long the limits hold up the last of those left; `None`: for ever, as things are.
    pub quota: Option<Duration>,
    /// How long an answer takes; zero if nobody knows.
    pub answer_time: Duration,
}

/// Remembers some looks at a run, and says how long it still takes.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate_batch::{Look, Pace};
///
/// let (began, seconds) = (Instant::now(), Duration::from_secs);
/// let mut pace = Pace::new(began);
/// let look = Look { at: began + seconds(10), settled: 50, left: 100, held_up: seconds(0), quota: Some(seconds(0)), answer_time: seconds(1) };
/// assert_eq!(pace.time_left(look), Some(seconds(20)), "as fast as it was");
///
/// let bound = Look { quota: Some(seconds(180)), held_up: seconds(9), ..look };
/// assert_eq!(pace.time_left(bound), Some(seconds(181)), "as fast as it may be, and an answer after the last");
/// ```
#[derive(Clone, Debug)]
pub struct Pace {
    began: Instant,
    /// Not empty after the first look; the oldest is as old as `RECENT`, or the first there was.
    looks: VecDeque<Look>,
}

impl Pace {
    /// Of a run that begins now.
    #[must_use]
    pub fn new(began: Instant) -> Pace {
        Pace { began, looks: VecDeque::new() }
    }

    /// How long it takes until nothing is left; `None` while nobody can tell.
    pub fn time_left(&mut self, look: Look) -> Option<Duration> {
        let per_second = self.per_second(look);
        self.remember(look);
        time_left(look, per_second)
    }

    /// The same for a look as if limits were others, which is not remembered. `slots`: how many requests may be in flight, and
    /// how many there might be.
    pub(crate) fn time_left_if(&self, look: Look, slots: Option<(u64, u64)>) -> Option<Duration> {
        /// From this share of what the slots allow on, they are what held the run back.
        const BOUND: f64 = 0.8;
        let per_second = self.per_second(look);
        let Some((now, then)) = slots.filter(|_| !look.answer_time.is_zero()) else {
            return time_left(look, per_second);
        };
        let allowed = |slots: u64| slots as f64 / look.answer_time.as_secs_f64();
        let per_second = match per_second {
            Some(seen) if seen < allowed(now) * BOUND => seen.min(allowed(then)),
            _ => allowed(then),
        };
        if then == 0 && look.left > 0 { None } else { time_left(look, Some(per_second)) }
    }

    /// Answers a second while no limit held them up, lately if there were any, or else since it began.
    fn per_second(&self, look: Look) -> Option<f64> {
        let since = |settled: u64, at: Instant, held_up: Duration| {
            let settled = look.settled.checked_sub(settled).filter(|settled| *settled > 0)?;
            let free = look.at.saturating_duration_since(at).saturating_sub(look.held_up.saturating_sub(held_up));
            // Where a limit was waited for all the time, there is no telling how fast it would have been.
            Some(settled as f64 / free.as_secs_f64())
        };
        let lately = self.looks.front().and_then(|first| since(first.settled, first.at, first.held_up));
        lately.or_else(|| since(0, self.began, Duration::ZERO))
    }

    fn remember(&mut self, look: Look) {
        let too_old = |next: &Look| look.at.saturating_duration_since(next.at) >= RECENT;
        while self.looks.get(1).is_some_and(too_old) {
            self.looks.pop_front();
        }
        // Whoever looks all the time need not have every look remembered.
        let every = RECENT / LOOKS_MAX as u32;
        if self.looks.back().is_none_or(|last| look.at.saturating_duration_since(last.at) >= every) {
            self.looks.push_back(look);
        }
    }
}

/// What is left takes as long as the limits say for the last of it to be let in, and an answer more; or longer, where the
/// rest is slower than the limits.
fn time_left(look: Look, per_second: Option<f64>) -> Option<Duration> {
    if look.left == 0 {
        return Some(Duration::ZERO);
    }
    let quota = look.quota?;
    match per_second {
        Some(per_second) => {
            let by_rate = Duration::try_from_secs_f64(look.left as f64 / per_second).ok()?;
            Some(by_rate.max(quota + look.answer_time))
        }
        // Nobody has answered yet; but the limits are known.
        None => (!quota.is_zero()).then(|| quota + look.answer_time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limit::{Admission, Cost, Gate, Limit, LoopTimer};
    use tidegate_loop::{EventLoop, LoopHandle, sleep};

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn look(began: Instant, second: u64, settled: u64, left: u64) -> Look {
        let (held_up, quota, answer_time) = (Duration::ZERO, Some(Duration::ZERO), secs(2));
        Look { at: began + secs(second), settled, left, held_up, quota, answer_time }
    }

    #[test]
    fn without_limits_it_is_as_fast_as_it_was_lately() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        for second in 1..=100 {
            pace.time_left(look(began, second, second, 500));
        }
        assert_eq!(pace.time_left(look(began, 101, 101, 60)), Some(secs(60)));
        for second in 102..=200 {
            pace.time_left(look(began, second, 101 + (second - 101) / 3, 60));
        }
        let slower = pace.time_left(look(began, 201, 134, 10)).unwrap();
        assert!((secs(27)..=secs(33)).contains(&slower), "a third as fast for long: {slower:?}");
        assert_eq!(pace.time_left(look(began, 202, 144, 0)), Some(Duration::ZERO));
    }

    #[test]
    fn while_nobody_answers_it_is_as_fast_as_since_the_beginning() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        assert_eq!(pace.time_left(look(began, 1, 0, 10)), None, "nobody can tell");
        pace.time_left(look(began, 10, 10, 10));
        for second in 11..=40 {
            pace.time_left(look(began, second, 10, 10));
        }
        assert_eq!(pace.time_left(look(began, 40, 10, 10)), Some(secs(40)));
    }

    #[test]
    fn a_limit_that_binds_is_believed_and_not_the_rate_of_the_moment() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        // Twenty went at once, and fifty-five are left: neither ten a second nor none at all.
        let bound = |second: u64, quota: u64| Look {
            held_up: secs(second - 1),
            quota: Some(secs(quota)),
            ..look(began, second, 20, 55)
        };
        assert_eq!(pace.time_left(bound(2, 178)), Some(secs(180)));
        for second in 3..=50 {
            assert_eq!(pace.time_left(bound(second, 180 - second)), Some(secs(182 - second)), "{second}");
        }
    }

    #[test]
    fn before_the_first_answer_the_limits_are_known_and_shut_ones_tell_nothing() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        let quota = |quota| Look { quota, answer_time: Duration::ZERO, ..look(began, 1, 0, 55) };
        assert_eq!(pace.time_left(quota(Some(secs(120)))), Some(secs(120)));
        assert_eq!(pace.time_left(quota(None)), None);
    }

    #[test]
    fn a_server_slower_than_the_limits_decides() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        pace.time_left(look(began, 1, 1, 100));
        let slow = Look { quota: Some(secs(30)), ..look(began, 11, 11, 100) };
        assert_eq!(pace.time_left(slow), Some(secs(100)));
    }

    /// A whole run in virtual time: at every moment it is told how long it still takes, and then it takes that long.
    #[test]
    fn a_run_under_a_limit_takes_as_long_as_was_said_at_any_time() {
        EventLoop::simulated(3)
            .run_until_complete(async {
                let gate = Gate::builder()
                    .limit(Limit::concurrency("global", 10))
                    .limit(Limit::rpm(20))
                    .timer(LoopTimer::new())
                    .build()
                    .unwrap();
                let admission = Admission::from(&gate);
                let began = LoopHandle::current().time();
                let settled = std::rc::Rc::new(std::cell::Cell::new(0_u64));
                for _ in 0..75 {
                    let (gate, settled) = (gate.clone(), std::rc::Rc::clone(&settled));
                    tidegate_loop::spawn(async move {
                        let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
                        lease.sent();
                        sleep(secs(2)).await;
                        lease.answered();
                        settled.set(settled.get() + 1);
                    });
                }
                let mut pace = Pace::new(began);
                let mut said = Vec::new();
                while settled.get() < 75 {
                    sleep(Duration::from_millis(500)).await;
                    let now = LoopHandle::current().time();
                    let stats = admission.stats();
                    let left = 75 - settled.get();
                    let look = Look {
                        at: now,
                        settled: settled.get(),
                        left,
                        held_up: stats.limit("rpm").unwrap().blocked_for,
                        quota: admission.outlook(left - stats.current, &Cost::request()),
                        answer_time: stats.answer_time,
                    };
                    said.push((now, pace.time_left(look)));
                }
                let ended = LoopHandle::current().time();
                assert!((secs(180)..secs(190)).contains(&(ended - began)), "{:?}", ended - began);
                for (at, left) in said {
                    let really = (ended - at).as_secs_f64();
                    let left = left.unwrap_or_else(|| panic!("nothing was said {:?} after the start", at - began));
                    assert!(
                        (left.as_secs_f64() - really).abs() <= 5.0,
                        "{:?} after the start: {left:?} said, {really} s came",
                        at - began
                    );
                }
            })
            .unwrap();
    }
}
