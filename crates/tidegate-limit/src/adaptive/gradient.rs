//! The gradient of latency: how much slower the server is than when it has nothing to wait for.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Adaptive, Bounded, LastCut, Outcome, Sample};
use crate::moment::Moment;

/// What is left of the limit after a refusal.
const CUT: f64 = 0.9;
/// Samples that a look at the latency takes at least, and at most: fewer are noise, more are slow.
const LOOK_SAMPLES_MIN: u32 = 32;
const LOOK_SAMPLES_MAX: u32 = 256;
/// Latency that is taken for noise rather than queueing.
const TOLERANCE: f64 = 1.1;
/// The limit at most halves from one look to the next.
const GRADIENT_MIN: f64 = 0.5;
/// What is left of the limit while the unloaded latency is measured again: half, which no queue survives, since the limit
/// is never far beyond the knee.
const PROBE_SHARE: f64 = 0.5;
/// How often the unloaded latency is measured again: after this much time, and not before this many of the latencies
/// themselves have passed, so that measuring costs some percent at most.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
const PROBE_LATENCIES: u32 = 64;

/// Compares the latency with that of an unloaded server, and stops where queueing begins.
///
/// A look takes as many samples as the limit is wide (32 to 256). With the *gradient* = unloaded ÷ present latency
/// (a tenth more is taken for noise; between ½ and 1), the limit becomes limit × gradient + √limit: it grows while there
/// is no queue, and comes to rest where the queue is a tenth of the knee and √limit long. With latencies that vary by half
/// either way it stays between nine tenths of the knee *k* and 1.2 *k* + 2 √*k*. Refusals cut a tenth, once a round trip.
///
/// The unloaded latency may change. It is measured again every 30 s, or 64 latencies if that is longer, with half the
/// limit for the time of a look; a lower latency seen at any time is believed at once.
///
/// ```
/// use tidegate_limit::adaptive::{Adaptive, Gradient};
/// let gradient = Gradient::new(20, 4..=200);
/// assert_eq!(gradient.limit(), 20);
/// ```
#[derive(Clone, Debug)]
pub struct Gradient {
    limit: Bounded,
    last_cut: LastCut,
    look: Look,
    /// Seconds; what a request takes when none waits before it. `None` until the first look.
    unloaded: Option<f64>,
    measured_at: Moment,
    /// The limit is halved to measure `unloaded`; what it goes back to.
    probing: Option<f64>,
    /// Samples sent before this are of another limit.
    fresh_from: Moment,
}

/// Samples that are looked at together.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    samples: u32,
    seconds: f64,
    used_up: bool,
}

impl Look {
    fn mean(&self) -> f64 {
        self.seconds / f64::from(self.samples)
    }
}

impl Gradient {
    /// Starts at `initial`, which should be on the safe side, since the first look takes the server for unloaded; stays
    /// within `bounds`, which begin at 1 if they begin below.
    pub fn new(initial: usize, bounds: RangeInclusive<usize>) -> Gradient {
        Gradient {
            limit: Bounded::new(initial, &bounds),
            last_cut: LastCut::default(),
            look: Look::default(),
            unloaded: None,
            measured_at: Moment::ZERO,
            probing: None,
            fresh_from: Moment::ZERO,
        }
    }

    fn look_is_over(&self) -> bool {
        let wanted = (self.limit.value as u32).clamp(LOOK_SAMPLES_MIN, LOOK_SAMPLES_MAX);
        self.look.samples >= wanted
    }

    fn conclude(&mut self, now: Moment) {
        let look = std::mem::take(&mut self.look);
        let latency = look.mean().max(f64::MIN_POSITIVE);
        self.fresh_from = now;
        if let Some(before) = self.probing.take() {
            self.unloaded = Some(latency);
            self.measured_at = now;
            self.limit.set(before);
            return;
        }
        let unloaded = match self.unloaded {
            Some(unloaded) if unloaded <= latency => unloaded,
            _ => {
                self.unloaded = Some(latency);
                self.measured_at = now;
                latency
            }
        };
        let interval = PROBE_INTERVAL.as_secs_f64().max(unloaded * f64::from(PROBE_LATENCIES));
        if now.since(self.measured_at).as_secs_f64() >= interval {
            self.probing = Some(self.limit.value);
            self.limit.set(self.limit.value * PROBE_SHARE);
            return;
        }
        let gradient = (TOLERANCE * unloaded / latency).clamp(GRADIENT_MIN, 1.0);
        let wanted = self.limit.value * gradient + self.limit.value.sqrt();
        if wanted < self.limit.value || look.used_up {
            self.limit.set(wanted);
        }
    }
}

impl Adaptive for Gradient {
    fn on_sample(&mut self, sample: &Sample) -> usize {
        match sample.outcome {
            Outcome::Unrelated => {}
            Outcome::Overloaded => {
                if self.last_cut.allows(sample) {
                    // A limit that is to be restored is cut as well.
                    if let Some(before) = &mut self.probing {
                        *before *= CUT;
                    } else {
                        self.limit.set((self.limit.value * CUT).min(self.limit.value.floor() - 1.0));
                    }
                }
            }
            Outcome::Served => {
                if sample.now.since(self.fresh_from) >= sample.latency {
                    self.look.samples += 1;
                    self.look.seconds += sample.latency.as_secs_f64();
                    self.look.used_up |= self.limit.is_used_up(sample.inflight);
                    if self.look_is_over() {
                        self.conclude(sample.now);
                    }
                }
            }
        }
        self.limit.get()
    }

    fn limit(&self) -> usize {
        self.limit.get()
    }
}
