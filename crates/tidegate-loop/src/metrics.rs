//! What the loop counts about itself. Counting costs a few additions a tick, so it is always on.

use std::cell::Cell;
use std::time::Duration;

use crate::clock::Nanos;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) ticks: Cell<u64>,
    polls: Cell<u64>,
    poll_time: Cell<Nanos>,
    timers_fired: Cell<u64>,
    lag_total: Cell<Nanos>,
    lag_max: Cell<Nanos>,
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
    /// Entries in the ready queue now.
    pub ready: usize,
    /// The most entries a tick had to run.
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
