//! Whether a lease has run out, though clocks may be set. Decisions only: both times are arguments.

use std::time::{Duration, Instant};

/// The clocks of one machine drift apart by far less than this between two looks.
const JUMP: Duration = Duration::from_secs(2);

/// Decides when leases may be expired. Leases are stored by the wall clock, so it compares that with the monotonic clock, which
/// is never set. A suspended machine shows as a jump too: the monotonic clock stands still meanwhile.
///
/// After a jump no lease is expired for the length of one lease, so that live consumers can renew first. The same holds
/// after the start of this process, which cannot know whether the clock was set just before, and after a time in which it could
/// not write: then others could not renew either.
#[derive(Debug)]
pub(super) struct ClockGuard {
    last: Option<(i64, Instant)>,
    /// No lease is expired before this instant.
    quiet_until: Option<Instant>,
}

impl ClockGuard {
    pub(super) fn new() -> ClockGuard {
        ClockGuard { last: None, quiet_until: None }
    }

    /// Notes that a transaction began at `mono` after it had waited for the file's lock. Renewals are due every third of a lease;
    /// a shorter wait kept no consumer from renewing in time.
    pub(super) fn waited_for_lock(&mut self, waited: Duration, mono: Instant, lease: Duration) {
        if waited >= lease / 3 {
            self.quiet_until = mono.checked_add(lease);
        }
    }

    /// Notes the time. Returns `true` if leases may be expired now, where none is longer than `lease`.
    pub(super) fn may_expire(&mut self, wall_ms: i64, mono: Instant, lease: Duration) -> bool {
        if self.last.is_none() {
            self.quiet_until = mono.checked_add(lease);
        }
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

    /// Returns `true` if no lease may be expired at `mono`.
    pub(super) fn is_quiet(&self, mono: Instant) -> bool {
        self.quiet_until.is_some_and(|until| mono < until)
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
        guard.may_expire(0, at(0), LEASE);
        assert!(guard.may_expire(30_000, at(30), LEASE));
        assert!(!guard.may_expire(3_600_000, at(31), LEASE), "an hour ahead");
        assert!(!guard.may_expire(3_629_000, at(60), LEASE));
        assert!(guard.may_expire(3_630_000, at(61), LEASE));
        assert!(!guard.may_expire(0, at(62), LEASE), "an hour back");
    }

    #[test]
    fn a_process_that_slept_expires_as_ever() {
        let (mut guard, start) = (ClockGuard::new(), Instant::now());
        guard.may_expire(0, start, LEASE);
        assert!(guard.may_expire(600_000, start + Duration::from_secs(600), LEASE), "both clocks went on");
    }

    #[test]
    fn a_process_that_has_just_started_expires_nothing_for_one_lease() {
        let (mut guard, start) = (ClockGuard::new(), Instant::now());
        assert!(!guard.may_expire(0, start, LEASE));
        assert!(!guard.may_expire(29_999, start + Duration::from_millis(29_999), LEASE));
        assert!(guard.may_expire(30_000, start + LEASE, LEASE));
    }

    #[test]
    fn after_a_long_wait_for_the_lock_nothing_is_expired_for_one_lease() {
        let (mut guard, start) = (ClockGuard::new(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        guard.may_expire(0, at(0), LEASE);
        guard.waited_for_lock(Duration::from_secs(9), at(50), LEASE);
        assert!(guard.may_expire(50_000, at(50), LEASE), "the others could renew in time");
        guard.waited_for_lock(Duration::from_secs(10), at(60), LEASE);
        assert!(!guard.may_expire(89_000, at(89), LEASE));
        assert!(guard.may_expire(90_000, at(90), LEASE));
    }
}
