//! How long a refusal takes to come back: the smoothed round trip and deviation of RFC 6298.

use std::time::Duration;

/// Longer than most refusals take; used until one was measured.
const FIRST: Duration = Duration::from_millis(250);
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(super) struct Echo {
    length: Duration,
    measured: Option<RoundTrip>,
}

#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    mean: Duration,
    deviation: Duration,
}

impl Default for Echo {
    fn default() -> Echo {
        Echo { length: FIRST, measured: None }
    }
}

impl Echo {
    /// A request that was not refused for this long is accepted.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// The mean round trip of refusals; zero before the first.
    pub(super) fn round_trip(&self) -> Duration {
        self.measured.map_or(Duration::ZERO, |measured| measured.mean)
    }

    /// What a length that was measured on the wire has to be longer by, to be safe.
    pub(super) fn jitter(&self) -> Duration {
        2 * self.measured.map_or(Duration::from_millis(10), |measured| measured.deviation)
    }

    /// A refusal came back after `took`.
    pub(super) fn refused(&mut self, took: Duration) {
        let measured = match self.measured {
            None => RoundTrip { mean: took, deviation: took / 2 },
            Some(RoundTrip { mean, deviation }) => RoundTrip {
                mean: mean - mean / 8 + took / 8,
                deviation: deviation - deviation / 4 + took.abs_diff(mean) / 4,
            },
        };
        self.measured = Some(measured);
        self.length = (measured.mean + 4 * measured.deviation).clamp(SHORTEST, LONGEST);
    }

    /// An answer came back after `took`: before the first refusal, that is the best there is to go by.
    pub(super) fn served(&mut self, took: Duration) {
        if self.measured.is_none() {
            self.length = self.length.min(took.max(SHORTEST));
        }
    }
}
