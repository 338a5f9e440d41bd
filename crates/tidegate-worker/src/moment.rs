//! Sums of instants and durations that don't overflow.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// `from` plus `by`; beyond what a timestamp can say, the last it can.
pub(crate) fn after(from: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| from.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

/// How long after `earlier` `later` is; zero if it is not.
pub(crate) fn since(later: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(after(Timestamp::MAX, Duration::from_secs(1)), Timestamp::MAX);
        assert_eq!(after(Timestamp::UNIX_EPOCH, Duration::MAX), Timestamp::MAX);
        assert_eq!(since(Timestamp::UNIX_EPOCH, Timestamp::MAX), Duration::ZERO);
    }
}
