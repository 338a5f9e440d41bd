//! How often a task is tried, and when again: plain values, chance as an argument.

use std::collections::HashMap;
use std::time::Duration;

/// What a worker does with tasks that don't succeed, for how long they may run, and for how long their results are kept.
///
/// ```
/// use std::time::Duration;
/// use tidegate_worker::Policy;
///
/// let policy = Policy { retries_max: 5, hard_limit: Some(Duration::from_secs(300)), ..Policy::default() };
/// assert_eq!(policy.backoff.delay(0, 1.0), Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// How often a task that fails or times out is tried again.
    pub retries_max: u32,
    /// When.
    pub backoff: Backoff,
    /// A task is dead-lettered after its child or worker has crashed this many times with it. At least one.
    pub crashes_max: u32,
    /// Soft time limit, unless the task states its own.
    pub soft_limit: Option<Duration>,
    /// After this long it is ended, unless the task says otherwise.
    pub hard_limit: Option<Duration>,
    /// For how long a result is kept; zero: it is not.
    pub result_ttl: Duration,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            retries_max: Policy::RETRIES_MAX,
            backoff: Backoff::default(),
            crashes_max: Policy::CRASHES_MAX,
            soft_limit: None,
            hard_limit: None,
            result_ttl: Policy::RESULT_TTL,
        }
    }
}

impl Policy {
    /// Unless set otherwise: three retries, so four tries.
    pub const RETRIES_MAX: u32 = 3;
    /// Unless set otherwise: the third crash is the last.
    pub const CRASHES_MAX: u32 = 3;
    /// Unless set otherwise: an hour.
    pub const RESULT_TTL: Duration = Duration::from_secs(3600);
}

/// Waits that double from try to try, up to a bound, and are spread by chance over their upper half: tasks that failed
/// together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first retry.
    pub min: Duration,
    /// Never longer.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { min: Duration::from_secs(1), max: Duration::from_secs(600) }
    }
}

impl Backoff {
    /// How long to wait before the retry that follows `retries` earlier ones; `chance` is between 0 and 1.
    pub fn delay(&self, retries: u32, chance: f64) -> Duration {
        let factor = 1u32.checked_shl(retries).unwrap_or(u32::MAX);
        let full = self.min.saturating_mul(factor).min(self.max);
        full / 2 + (full / 2).mul_f64(chance.clamp(0.0, 1.0))
    }
}

/// A policy for all tasks, and those of single tasks.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    all: Policy,
    by_task: HashMap<Box<str>, Policy>,
}

impl Policies {
    /// The same for every task.
    pub fn new(all: Policy) -> Policies {
        Policies { all, by_task: HashMap::new() }
    }

    /// Another one for tasks of this name.
    #[must_use]
    pub fn task(mut self, name: &str, policy: Policy) -> Policies {
        self.by_task.insert(name.into(), policy);
        self
    }

    /// The one that holds for tasks of this name.
    pub fn of(&self, name: &str) -> &Policy {
        if self.by_task.is_empty() {
            return &self.all;
        }
        self.by_task.get(name).unwrap_or(&self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { min: Duration::from_secs(2), max: Duration::from_secs(60) };

    #[test]
    fn waits_double_up_to_their_bound() {
        let full: Vec<u64> = (0..7).map(|retries| BACKOFF.delay(retries, 1.0).as_secs()).collect();
        assert_eq!(full, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(BACKOFF.delay(u32::MAX, 1.0), BACKOFF.max);
    }

    #[test]
    fn chance_spreads_a_wait_over_its_upper_half() {
        assert_eq!(BACKOFF.delay(1, 0.0), Duration::from_secs(2));
        assert_eq!(BACKOFF.delay(1, 0.5), Duration::from_secs(3));
        assert_eq!(BACKOFF.delay(1, 7.0), Duration::from_secs(4));
    }

    #[test]
    fn a_tasks_own_policy_comes_first() {
        let policies = Policies::default().task("mail", Policy { retries_max: 9, ..Policy::default() });
        assert_eq!((policies.of("mail").retries_max, policies.of("other").retries_max), (9, Policy::RETRIES_MAX));
    }
}
