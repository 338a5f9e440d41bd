//! Additive increase, multiplicative decrease.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Adaptive, Bounded, LastCut, Outcome, Sample};

/// What is left of the limit after a refusal.
const CUT: f64 = 0.9;

/// One more slot a round trip, a tenth fewer on a refusal, once a round trip: the limit swings between nine tenths of
/// what the server takes and one more than that. Until the first refusal it doubles every round trip.
///
/// Grows only while the limit is used up: a limit nobody leans on shows nothing.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::adaptive::{Adaptive, Aimd};
///
/// // Answers later than 30 s count as refusals.
/// let aimd = Aimd::new(20, 4..=200).with_latency_max(Duration::from_secs(30));
/// assert_eq!(aimd.limit(), 20);
/// ```
#[derive(Clone, Debug)]
pub struct Aimd {
    limit: Bounded,
    latency_max: Option<Duration>,
    last_cut: LastCut,
    /// Nobody was refused yet.
    starting: bool,
}

impl Aimd {
    /// Starts at `initial` and stays within `bounds`, which begin at 1 if they begin below.
    pub fn new(initial: usize, bounds: RangeInclusive<usize>) -> Aimd {
        Aimd { limit: Bounded::new(initial, &bounds), latency_max: None, last_cut: LastCut::default(), starting: true }
    }

    /// Takes answers later than `latency` for refusals.
    pub fn with_latency_max(mut self, latency: Duration) -> Aimd {
        self.latency_max = Some(latency);
        self
    }
}

impl Adaptive for Aimd {
    fn on_sample(&mut self, sample: &Sample) -> usize {
        let late = self.latency_max.is_some_and(|max| sample.latency > max);
        match sample.outcome {
            Outcome::Unrelated => {}
            Outcome::Served if !late => {
                if self.limit.is_used_up(sample.inflight) {
                    // A round trip brings as many samples as the limit is wide.
                    let step = if self.starting { 1.0 } else { 1.0 / self.limit.value };
                    self.limit.set(self.limit.value + step);
                }
            }
            Outcome::Served | Outcome::Overloaded => {
                self.starting = false;
                if self.last_cut.allows(sample) {
                    // At least one slot, or a small limit would never shrink.
                    self.limit.set((self.limit.value * CUT).min(self.limit.value.floor() - 1.0));
                }
            }
        }
        self.limit.get()
    }

    fn limit(&self) -> usize {
        self.limit.get()
    }
}
