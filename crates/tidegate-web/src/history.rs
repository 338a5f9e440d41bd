//! The last minutes, hours and days of a limit, in memory: 1 s for 10 minutes, 10 s for 2 hours, 1 minute for 2 days.
//!
//! Pure: samples and time come from the caller. A time without samples stays empty.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tidegate_limit::Snapshot;

/// Seconds per slot and slots of each series, finest first.
const SERIES: [(u64, usize); 3] = [(1, 600), (10, 720), (60, 2_880)];

/// After a longer time without a look, what was counted meanwhile belongs to no instant.
const GAP: Duration = Duration::from_secs(5);

/// A limit during one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The most in use.
    pub(crate) used: u64,
    /// What was allowed at the end.
    pub(crate) amount: u64,
    /// What was newly counted: requests or tokens.
    pub(crate) admitted: u64,
    /// For how long the first in line waited for it.
    pub(crate) blocked: Duration,
    /// How often the server refused.
    pub(crate) refused: u64,
    /// Whether it was paused.
    pub(crate) paused: bool,
}

impl Sample {
    pub(crate) fn merge(&mut self, later: &Sample) {
        self.used = self.used.max(later.used);
        self.amount = later.amount;
        self.admitted += later.admitted;
        self.blocked += later.blocked;
        self.refused += later.refused;
        self.paused |= later.paused;
    }
}

/// One series: samples of slots of equal length, by the number of the slot.
#[derive(Debug)]
struct Series {
    slot: u64,
    most: usize,
    samples: VecDeque<(u64, Sample)>,
}

impl Series {
    fn add(&mut self, second: u64, sample: &Sample) {
        let slot = second / self.slot;
        match self.samples.back_mut() {
            // A clock that stands or is set back adds to the last slot.
            Some((last, merged)) if slot <= *last => merged.merge(sample),
            _ => self.samples.push_back((slot, *sample)),
        }
        while self.samples.front().is_some_and(|(first, _)| first + self.most as u64 <= slot) {
            self.samples.pop_front();
        }
    }
}

/// What is remembered of one limit.
#[derive(Debug)]
struct Track {
    series: [Series; 3],
    /// As of the last sample; the next sample counts the difference.
    total: u64,
    blocked_for: Duration,
    pauses: u64,
}

/// What is remembered of a gate.
#[derive(Debug, Default)]
pub(crate) struct History {
    tracks: HashMap<String, Track>,
    last: Option<Duration>,
}

impl History {
    /// Whether the last sample is a second old.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| now.as_secs() > last.as_secs())
    }

    /// Takes a look at the gate. `now` is any clock that does not jump.
    pub(crate) fn sample(&mut self, now: Duration, gate: &Snapshot) {
        let follows = self.last.is_some_and(|last| now.saturating_sub(last) <= GAP);
        self.last = Some(now);
        for limit in &gate.limits {
            let track = self.tracks.entry(limit.name.clone()).or_insert_with(|| Track {
                series: SERIES.map(|(slot, most)| Series { slot, most, samples: VecDeque::new() }),
                total: limit.total,
                blocked_for: limit.blocked_for,
                pauses: limit.pauses,
            });
            let mut sample = Sample {
                used: limit.used,
                amount: limit.amount,
                paused: limit.held_until.is_some() || limit.shut.is_some(),
                ..Sample::default()
            };
            if follows {
                sample.admitted = limit.total.saturating_sub(track.total);
                sample.blocked = limit.blocked_for.saturating_sub(track.blocked_for);
                sample.refused = limit.pauses.saturating_sub(track.pauses);
            }
            (track.total, track.blocked_for, track.pauses) = (limit.total, limit.blocked_for, limit.pauses);
            track.series.iter_mut().for_each(|series| series.add(now.as_secs(), &sample));
        }
    }

    /// The `count` newest slots of `seconds` each up to `now`, oldest first; empty ones are `None`.
    pub(crate) fn recent(&self, limit: &str, now: Duration, seconds: u64, count: u64) -> Vec<Option<Sample>> {
        let mut slots = vec![None; usize::try_from(count).unwrap_or(0)];
        let Some(track) = self.tracks.get(limit) else { return slots };
        let fits = |series: &&Series| {
            seconds.is_multiple_of(series.slot) && series.slot * series.most as u64 >= seconds * count
        };
        // The coarsest that is fine enough has the fewest samples to read.
        let Some(series) = track.series.iter().rev().find(fits).or(track.series.first()) else { return slots };
        let last = now.as_secs() / seconds;
        let first = (last + 1).saturating_sub(count);
        for (slot, sample) in &series.samples {
            let at = slot * series.slot / seconds;
            if (first..=last).contains(&at) {
                let merged: &mut Option<Sample> = &mut slots[usize::try_from(at + count - 1 - last).unwrap_or(0)];
                match merged {
                    Some(merged) => merged.merge(sample),
                    None => *merged = Some(*sample),
                }
            }
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limit::{Cost, Gate, Limit};

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn gate() -> Gate {
        Gate::builder().limit(Limit::rpm(100)).build().unwrap()
    }

    #[test]
    fn what_was_admitted_stands_where_it_was_and_gaps_stay_empty() {
        let (gate, mut history) = (gate(), History::default());
        history.sample(secs(10), &gate.stats());
        for _ in 0..3 {
            gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
        }
        history.sample(secs(11), &gate.stats());
        gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
        history.sample(secs(300), &gate.stats());
        let recent = history.recent("rpm", secs(301), 2, 300);
        let filled: Vec<(usize, u64, u64)> = recent
            .iter()
            .enumerate()
            .filter_map(|(at, sample)| sample.map(|sample| (at, sample.used, sample.admitted)))
            .collect();
        // 10 and 11 are one slot of two seconds; the fourth was admitted in the gap.
        assert_eq!(filled, [(154, 3, 3), (299, 4, 0)]);
        assert_eq!(history.recent("tpm", secs(301), 2, 300), vec![None; 300]);
    }

    #[test]
    fn two_days_are_kept_in_bounded_memory() {
        let (gate, mut history) = (gate(), History::default());
        for second in 0..4 * 86_400 {
            if second % 7 == 0 || second > 4 * 86_400 - 700 {
                history.sample(secs(second), &gate.stats());
            }
        }
        let lengths = history.tracks["rpm"].series.each_ref().map(|series| series.samples.len());
        assert_eq!(lengths, [600, 720, 2_880]);
        let now = secs(4 * 86_400 - 1);
        assert!(history.recent("rpm", now, 60, 2_880).iter().all(Option::is_some));
        assert!(history.recent("rpm", now, 2, 300).iter().all(Option::is_some));
    }
}
