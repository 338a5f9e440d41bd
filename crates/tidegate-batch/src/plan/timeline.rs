//! What is remembered of a job over time: a few slices, each twice as long whenever there would be too many.

use std::time::{Duration, Instant};

use serde::Serialize;
use tidegate_limit::Snapshot;

use super::PER_FILE;

/// A timeline never has more slices than this.
pub const SLICES_MAX: usize = 48;

/// The first slices are this long.
const STEP_FIRST: Duration = Duration::from_millis(100);

/// A stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Slice {
    /// Where it begins, from the start of the job.
    #[serde(rename = "from_s", serialize_with = "super::seconds")]
    pub from: Duration,
    /// Where it ends.
    #[serde(rename = "to_s", serialize_with = "super::seconds")]
    pub to: Duration,
    /// Requests let in during it.
    pub sent: u64,
    /// Requests answered during it.
    pub answered: u64,
    /// Requests on their way at its end.
    pub in_flight: u64,
    /// What the first in line waited for longest; nothing if nobody waited for more than half of it.
    pub bound_by: Option<String>,
    /// How long, by limit.
    #[serde(skip)]
    waited: Vec<Duration>,
}

#[derive(Debug)]
pub(super) struct Timeline {
    began: Instant,
    step: Duration,
    slices: Vec<Slice>,
    /// Totals at the end of the last slice.
    sent: u64,
    answered: u64,
    waited: Vec<Duration>,
    /// The limits' names, then the parts' own caps.
    names: Vec<String>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new(Instant::now())
    }
}

impl Timeline {
    pub(super) fn new(began: Instant) -> Timeline {
        let (slices, waited, names) = (Vec::new(), Vec::new(), Vec::new());
        Timeline { began, step: STEP_FIRST, slices, sent: 0, answered: 0, waited, names }
    }

    /// How long until the next look.
    pub(super) fn step(&self) -> Duration {
        self.step
    }

    pub(super) fn sample(&mut self, now: Instant, stats: &Snapshot, answered: u64) {
        let from = self.slices.last().map_or(Duration::ZERO, |last| last.to);
        let to = now.saturating_duration_since(self.began);
        if to <= from && !self.slices.is_empty() {
            return;
        }
        let mut waited: Vec<Duration> = stats.limits.iter().map(|limit| limit.blocked_for).collect();
        waited.push(stats.blocked_by_scopes_for);
        if self.names.is_empty() {
            self.names = stats.limits.iter().map(|limit| limit.name.clone()).collect();
            self.names.push(PER_FILE.to_owned());
            self.waited = vec![Duration::ZERO; waited.len()];
        }
        let since = waited.iter().zip(&self.waited).map(|(now, before)| now.saturating_sub(*before)).collect();
        let slice = Slice {
            from,
            to,
            sent: stats.granted - self.sent,
            answered: answered - self.answered,
            in_flight: stats.current,
            bound_by: None,
            waited: since,
        };
        (self.sent, self.answered, self.waited) = (stats.granted, answered, waited);
        self.slices.push(slice);
        if self.slices.len() > SLICES_MAX {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.step *= 2;
        let merged = self.slices.chunks(2).map(|pair| match pair {
            [first, second] => Slice {
                from: first.from,
                to: second.to,
                sent: first.sent + second.sent,
                answered: first.answered + second.answered,
                in_flight: second.in_flight,
                bound_by: None,
                waited: first.waited.iter().zip(&second.waited).map(|(a, b)| *a + *b).collect(),
            },
            rest => rest[0].clone(),
        });
        self.slices = merged.collect();
    }

    pub(super) fn into_slices(mut self) -> Vec<Slice> {
        for slice in &mut self.slices {
            let longest = slice.waited.iter().enumerate().max_by_key(|(_, waited)| **waited);
            slice.bound_by = longest
                .filter(|(_, waited)| **waited * 2 > slice.to - slice.from)
                .map(|(at, _)| self.names[at].clone());
        }
        self.slices
    }
}
