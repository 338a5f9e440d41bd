//! Back-off delays with full jitter, computed from a random number that the caller passes.

use std::time::Duration;

/// Delays that double up to a cap, each drawn evenly between zero and its ceiling ("full jitter").
///
/// Clients that fail together would retry together if they waited the same time; a delay drawn from the whole range spreads
/// them evenly. A delay that the server asks for is a lower bound.
///
/// Pure: the random number is an argument, so the same numbers give the same delays.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::Backoff;
///
/// let backoff = Backoff::default();
/// // The ceilings: 0.5 s, 1 s, 2 s, … up to 60 s.
/// assert_eq!(backoff.ceiling(0), Duration::from_millis(500));
/// assert_eq!(backoff.ceiling(3), Duration::from_secs(4));
/// assert_eq!(backoff.ceiling(100), Duration::from_secs(60));
///
/// // Half of the range of random numbers: half of the ceiling.
/// let half = u64::MAX / 2;
/// assert_eq!(backoff.delay(3, half, None), Some(Duration::from_secs(2)));
/// // The server's delay is used if it is longer.
/// assert_eq!(backoff.delay(3, half, Some(Duration::from_secs(20))), Some(Duration::from_secs(20)));
/// // No delay after the last retry.
/// assert_eq!(backoff.delay(8, half, None), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The ceiling of the first delay; not zero.
    base: Duration,
    /// The highest ceiling; at least `base`.
    cap: Duration,
    retries_max: u32,
}

impl Default for Backoff {
    /// From half a second up to a minute, eight retries: about a minute in total on average.
    fn default() -> Backoff {
        Backoff { base: Duration::from_millis(500), cap: Duration::from_secs(60), retries_max: 8 }
    }
}

impl Backoff {
    /// Creates delays from `base` to `cap`, with the default number of retries. A base of zero is replaced by a millisecond,
    /// because zero never grows; a cap below the base is replaced by the base.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_limit::Backoff;
    ///
    /// let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).with_retries(3);
    /// assert!(backoff.delay(2, u64::MAX, None).unwrap() <= Duration::from_millis(400));
    /// assert_eq!(backoff.delay(3, 0, None), None);
    /// ```
    pub fn new(base: Duration, cap: Duration) -> Backoff {
        let base = if base.is_zero() { Duration::from_millis(1) } else { base };
        Backoff { base, cap: cap.max(base), ..Backoff::default() }
    }

    /// Sets the number of retries; there is one attempt more than that.
    pub fn with_retries(mut self, retries: u32) -> Backoff {
        self.retries_max = retries;
        self
    }

    /// Returns the longest delay of retry number `retry` (from 0), unless the server asks for more.
    pub fn ceiling(&self, retry: u32) -> Duration {
        let doubled = 2u32.checked_pow(retry).and_then(|factor| self.base.checked_mul(factor));
        doubled.map_or(self.cap, |ceiling| ceiling.min(self.cap))
    }

    /// Returns the delay before retry number `retry` (from 0), or `None` after the last retry. `random` is drawn evenly from
    /// all numbers; `asked` is the delay that the server asked for.
    pub fn delay(&self, retry: u32, random: u64, asked: Option<Duration>) -> Option<Duration> {
        if retry >= self.retries_max {
            return None;
        }
        let nanos = self.ceiling(retry).as_nanos().min(u128::from(u64::MAX));
        // At most 64 bits times 64 bits, so it fits. Rounded up, so that the result can be the ceiling.
        let drawn = (nanos * u128::from(random)).div_ceil(u128::from(u64::MAX)) as u64;
        Some(Duration::from_nanos(drawn).max(asked.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn delays_fill_the_whole_range_evenly() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10)).with_retries(u32::MAX);
        let mut state = 1;
        for retry in [0, 1, 5, 40, u32::MAX - 1] {
            let ceiling = backoff.ceiling(retry);
            let mut quarters = [0; 4];
            for _ in 0..4_000 {
                let delay = backoff.delay(retry, random(&mut state), None).unwrap();
                assert!(delay <= ceiling);
                quarters[((delay.as_secs_f64() / ceiling.as_secs_f64() * 4.0) as usize).min(3)] += 1;
            }
            assert!(quarters.iter().all(|&n| (850..1_150).contains(&n)), "{quarters:?}");
        }
        assert_eq!(backoff.delay(0, 0, None), Some(Duration::ZERO));
        assert_eq!(backoff.delay(0, u64::MAX, None), Some(Duration::from_millis(100)));
    }

    #[test]
    fn ceilings_double_and_never_fall() {
        let backoff = Backoff::new(Duration::from_millis(3), Duration::from_secs(7));
        let mut last = Duration::ZERO;
        for retry in 0..200 {
            let ceiling = backoff.ceiling(retry);
            assert!(ceiling >= last && ceiling <= Duration::from_secs(7));
            last = ceiling;
        }
        assert_eq!(last, Duration::from_secs(7));
    }

    #[test]
    fn the_servers_delay_is_a_floor() {
        let backoff = Backoff::default();
        let asked = Duration::from_secs(20);
        let mut state = 2;
        for retry in 0..8 {
            let random = random(&mut state);
            assert_eq!(backoff.delay(retry, random, Some(asked)), backoff.delay(retry, random, None).max(Some(asked)));
        }
    }

    #[test]
    fn absurd_settings_have_a_meaning() {
        let backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(backoff.ceiling(9), Duration::from_millis(1));
        let backoff = Backoff::new(Duration::MAX, Duration::ZERO).with_retries(u32::MAX);
        assert!(backoff.delay(31, u64::MAX, None).is_some());
        assert_eq!(Backoff::default().with_retries(0).delay(0, 7, None), None);
    }
}
