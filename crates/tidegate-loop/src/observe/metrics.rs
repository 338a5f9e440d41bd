//! What the loop counts about itself. Counting costs a few additions a tick, so it is always on.

use std::cell::Cell;
use std::time::Duration;

use crate::kernel::clock::Nanos;

/// Buckets of [`Metrics::lag_counts`].
pub(crate) const LAG_BUCKETS: usize = 32;

struct LagCounts([Cell<u64>; LAG_BUCKETS]);

impl Default for LagCounts {
    fn default() -> LagCounts {
        LagCounts(std::array::from_fn(|_| Cell::new(0)))
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) ticks: Cell<u64>,
    polls: Cell<u64>,
    poll_time: Cell<Nanos>,
    timers_fired: Cell<u64>,
    lag_total: Cell<Nanos>,
    lag_max: Cell<Nanos>,
    lag_counts: LagCounts,
    ready_max: Cell<usize>,
    pub(crate) slow: Cell<u64>,
}

impl Counters {
    #[inline]
    pub(crate) fn batch(&self, count: usize) {
        if count > self.ready_max.get() {
            self.ready_max.set(count);
        }
    }

    #[inline]
    pub(crate) fn polled(&self, time: Nanos) {
        self.polls.set(self.polls.get() + 1);
        self.poll_time.set(self.poll_time.get() + time);
    }

    #[inline]
    pub(crate) fn late(&self, by: Nanos) {
        self.timers_fired.set(self.timers_fired.get() + 1);
        self.lag_total.set(self.lag_total.get().saturating_add(by));
        let counted = &self.lag_counts.0[Metrics::lag_bucket(positive(by))];
        counted.set(counted.get() + 1);
        if by > self.lag_max.get() {
            self.lag_max.set(by);
        }
    }

    pub(crate) fn read(&self, now: Now) -> Metrics {
        let fired = self.timers_fired.get();
        let mean = if fired == 0 { 0 } else { self.lag_total.get() / fired as Nanos };
        Metrics {
            ticks: self.ticks.get(),
            steps: now.steps,
            polls: self.polls.get(),
            poll_time: positive(self.poll_time.get()),
            timers_fired: fired,
            lag_mean: positive(mean),
            lag_max: positive(self.lag_max.get()),
            lag_counts: std::array::from_fn(|bucket| self.lag_counts.0[bucket].get()),
            ready: now.ready,
            ready_max: self.ready_max.get(),
            slow_steps: self.slow.get(),
            tasks: now.tasks,
            timers: now.timers,
            timers_cancelled: now.timers_cancelled,
        }
    }
}

fn positive(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.max(0) as u64)
}

/// What is counted nowhere but can be looked up.
pub(crate) struct Now {
    pub(crate) steps: u64,
    pub(crate) ready: usize,
    pub(crate) tasks: usize,
    pub(crate) timers: usize,
    pub(crate) timers_cancelled: usize,
}

/// The loop's figures since it was made.
///
/// ```
/// use tidegate_loop::{run, yield_now, LoopHandle};
/// run(async {
///     yield_now().await;
///     let metrics = LoopHandle::current().metrics();
///     assert_eq!((metrics.tasks, metrics.ready_max), (1, 1));
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Ticks.
    pub ticks: u64,
    /// Ready entries run: steps of tasks, callbacks, timers.
    pub steps: u64,
    /// Times the selector was asked.
    pub polls: u64,
    /// Time spent waiting there: idle time.
    pub poll_time: Duration,
    /// Timers that came due.
    pub timers_fired: u64,
    /// How late they were noticed, on average: the loop's lag.
    pub lag_mean: Duration,
    /// How late the latest was.
    pub lag_max: Duration,
    /// How many were late by how much: bucket `n` counts those below 1,024 ns times 2 to the power of `n`, and not in an earlier
    /// bucket. The difference of two readings gives the quantiles of the time between them.
    pub lag_counts: [u64; 32],
    /// Entries in the ready queue now.
    pub ready: usize,
    /// The largest number of entries that one tick ran.
    pub ready_max: usize,
    /// Debug mode: steps that took longer than the threshold.
    pub slow_steps: u64,
    /// Tasks alive.
    pub tasks: usize,
    /// Timers in the heap, cancelled ones included.
    pub timers: usize,
    /// Cancelled timers that are still in the heap.
    pub timers_cancelled: usize,
}

impl Metrics {
    fn lag_bucket(lag: Duration) -> usize {
        let units = u64::try_from(lag.as_nanos() >> 10).unwrap_or(u64::MAX);
        let bits = u64::BITS - units.leading_zeros();
        (bits as usize).min(LAG_BUCKETS - 1)
    }

    /// The lag that this share of the timers since `earlier` did not exceed, to the next power of two; `None` if none came due.
    ///
    /// ```
    /// use tidegate_loop::{Duration, EventLoop, LoopHandle, sleep};
    /// let event_loop = EventLoop::new().unwrap();
    /// let before = event_loop.metrics();
    /// assert_eq!(before.lag_quantile(&before, 0.99), None);
    /// event_loop.run_until_complete(sleep(Duration::from_millis(1))).unwrap();
    /// assert!(event_loop.metrics().lag_quantile(&before, 0.99).is_some());
    /// ```
    pub fn lag_quantile(&self, earlier: &Metrics, share: f64) -> Option<Duration> {
        let counts = || self.lag_counts.iter().zip(&earlier.lag_counts).map(|(now, then)| now.saturating_sub(*then));
        let total: u64 = counts().sum();
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bucket = counts().position(|count| {
            seen += count;
            count > 0 && seen >= rank
        })?;
        Some(Duration::from_nanos(1_024 << bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_the_end_of_its_bucket() {
        let counters = Counters::default();
        let read = || counters.read(Now { steps: 0, ready: 0, tasks: 0, timers: 0, timers_cancelled: 0 });
        let before = read();
        for _ in 0..98 {
            counters.late(1_000);
        }
        counters.late(1_000_000);
        counters.late(100_000_000);
        let quantile = |share| read().lag_quantile(&before, share).unwrap().as_nanos();
        assert_eq!(quantile(0.5), 1_024);
        assert_eq!(quantile(0.99), 1_024 << 10, "1 ms is below 1,024 us");
        assert_eq!(quantile(1.0), 1_024 << 17);
        assert_eq!(read().lag_quantile(&read(), 0.5), None);
        counters.late(Nanos::MAX);
        assert_eq!(read().lag_counts[LAG_BUCKETS - 1], 1);
    }
}
