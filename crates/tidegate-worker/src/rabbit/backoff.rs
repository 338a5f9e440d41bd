//! How long to wait before the next attempt. Pure but for the dice.

use std::time::Duration;

/// Doubles with every failure, up to a limit; half of it is left to chance, so that workers who lost the same broker do not
/// come back all at once.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most, failures: 0 }
    }

    pub(super) fn next(&mut self) -> Duration {
        let full = self.first.saturating_mul(1 << self.failures.min(20)).min(self.most);
        self.failures += 1;
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_limit_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        for full in [100, 200, 400, 800, 1_600, 2_000, 2_000] {
            let full = Duration::from_millis(full);
            let wait = backoff.next();
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
