//! How many requests at once a server can take, found out while it is used. Plain values: samples in, a limit out; see
//! `tuner.rs` for who tells a gate.
//!
//! [`Aimd`] needs refusals (429, 503, 529, time-outs): it adds one slot a round trip and takes a tenth away when refused.
//! It suits servers that refuse early. [`Gradient`] needs latencies: it compares them with those of an unloaded server,
//! and stops where queueing begins. It suits servers that queue; what it is given must be comparable from request to
//! request (the time to the first token, or the time a token takes, rather than the time of answers of any length).

mod aimd;
mod gradient;
mod tuner;

use std::fmt;
use std::time::Duration;

use crate::moment::Moment;

pub use aimd::Aimd;
pub use gradient::Gradient;
pub use tuner::Tuner;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served.
    Served,
    /// Refused or given up because the server had too much to do.
    Overloaded,
    /// Says nothing about the server: cancelled, a bad request, a limit of ours.
    Unrelated,
}

/// One request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From sent to answered.
    pub latency: Duration,
    /// Requests under way when it ended, itself included.
    pub inflight: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// When it ended.
    pub now: Moment,
}

/// Finds a limit for what may be under way at once.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::Moment;
/// use tidegate_limit::adaptive::{Adaptive, Aimd, Outcome, Sample};
///
/// let mut aimd = Aimd::new(10, 1..=100);
/// let mut sample = Sample {
///     latency: Duration::from_secs(1),
///     inflight: 10,
///     outcome: Outcome::Overloaded,
///     now: Moment::ZERO + Duration::from_secs(1),
/// };
/// assert_eq!(aimd.on_sample(&sample), 9);
/// // It was sent before the cut, so it says nothing about the smaller limit.
/// assert_eq!(aimd.on_sample(&sample), 9);
/// sample.now = sample.now + Duration::from_secs(2);
/// assert_eq!(aimd.on_sample(&sample), 8);
/// ```
pub trait Adaptive: fmt::Debug + Send {
    /// Takes a sample in, gives the limit from now on. Samples come in the order in which requests ended.
    fn on_sample(&mut self, sample: &Sample) -> usize;

    /// The limit as it stands.
    fn limit(&self) -> usize;
}

/// A limit within its bounds. Kept as a fraction, since steps may be smaller than one.
#[derive(Clone, Copy, Debug)]
struct Bounded {
    /// Between `min` and `max`.
    value: f64,
    min: f64,
    /// At least `min`.
    max: f64,
}

impl Bounded {
    /// Bounds below 1 are 1: with no request under way nothing would ever be learnt.
    fn new(initial: usize, bounds: &std::ops::RangeInclusive<usize>) -> Bounded {
        let min = (*bounds.start()).max(1) as f64;
        let max = (*bounds.end() as f64).max(min);
        Bounded { value: (initial as f64).clamp(min, max), min, max }
    }

    fn set(&mut self, value: f64) {
        self.value = value.clamp(self.min, self.max);
    }

    fn get(&self) -> usize {
        self.value as usize
    }

    /// Whether that many under way are as many as the limit lets; fewer do not show that more would be all right.
    fn is_used_up(&self, inflight: usize) -> bool {
        inflight as f64 >= self.value.floor() * 0.9
    }
}

/// When the limit was last cut: what was sent before that says nothing about the new one.
#[derive(Clone, Copy, Debug, Default)]
struct LastCut(Option<Moment>);

impl LastCut {
    /// Whether `sample` may cause a cut; if so, notes it.
    fn allows(&mut self, sample: &Sample) -> bool {
        let allowed = self.0.is_none_or(|cut| sample.now.since(cut) >= sample.latency && sample.now > cut);
        if allowed {
            self.0 = Some(sample.now);
        }
        allowed
    }
}
