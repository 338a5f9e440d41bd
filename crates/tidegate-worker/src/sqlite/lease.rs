//! Whether a lease has run out, though clocks may be set. Decisions only: both times are arguments.

use std::time::{Duration, Instant};

/// The clocks of one machine drift apart by far less than this between two looks.
const JUMP: Duration = Duration::from_secs(2);

/// Compares the wall clock, by which leases are stored, with the monotonic clock, which is never set. A suspended machine
/// shows as a jump too: the monotonic clock stands still meanwhile.
#[derive(Debug)]
pub(super) struct ClockGuard {
    last: Option<(i64, Instant)>,
    /// After a jump no lease expires before this instant, so that live consumers can renew first.
    quiet_until: Option<Instant>,
}

impl ClockGuard {
    pub(super) fn new() -> ClockGuard {
        ClockGuard { last: None, quiet_until: None }
    }

    /// Notes the time. Says whether leases may be expired now, where none is longer than `lease`.
    pub(super) fn may_expire(&mut self, wall_ms: i64, mono: Instant, lease: Duration) -> bool {
        if let Some((last_wall, last_mono)) = self.last {
            let by_wall = i128::from(wall_ms) - i128::from(last_wall);
            let by_mono = mono.saturating_duration_since(last_mono).as_millis() as i128;
            if (by_wall - by_mono).unsigned_abs() > JUMP.as_millis() {
                self.quiet_until = mono.checked_add(lease);
            }
        }
        self.last = Some((wall_ms, mono));
        if self.quiet_until.is_some_and(|until| mono >= until) {
            self.quiet_until = None;
        }
        self.quiet_until.is_none()
    }
}

/// A lease that ends further ahead than its length was written before the clock was set back.
pub(super) fn slack_ms() -> i64 {
    JUMP.as_millis() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn after_a_jump_of_the_wall_clock_nobody_is_expired_for_one_lease() {
        let (mut guard, start) = (ClockGuard::new(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(guard.may_expire(0, at(0), LEASE));
        assert!(guard.may_expire(10_000, at(10), LEASE));
        assert!(!guard.may_expire(3_600_000, at(11), LEASE), "an hour ahead");
        assert!(!guard.may_expire(3_629_000, at(40), LEASE));
        assert!(guard.may_expire(3_630_000, at(41), LEASE));
        assert!(!guard.may_expire(0, at(42), LEASE), "an hour back");
    }

    #[test]
    fn a_process_that_slept_expires_as_ever() {
        let (mut guard, start) = (ClockGuard::new(), Instant::now());
        assert!(guard.may_expire(0, start, LEASE));
        assert!(guard.may_expire(600_000, start + Duration::from_secs(600), LEASE), "both clocks went on");
    }
}
