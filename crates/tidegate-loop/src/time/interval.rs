//! Something that is due again and again.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::now;
use super::sleep::{Sleep, sleep_until};

/// Ticks every `period`, the first time at once. Deadlines are counted from the first tick and do not drift; ticks that
/// were missed, because the loop or the caller was busy, are left out.
///
/// # Panics
/// When `period` is zero.
///
/// ```
/// use tidegate_loop::{Duration, EventLoop, interval, now};
/// let event_loop = EventLoop::simulated(1);
/// let took = event_loop.run_until_complete(async {
///     let start = now();
///     let mut interval = interval(Duration::from_secs(10));
///     for _ in 0..3 {
///         interval.tick().await;
///     }
///     now() - start
/// });
/// assert_eq!(took.unwrap(), Duration::from_secs(20));
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period longer than zero");
    let deadline = now();
    Interval { period, deadline, sleep: sleep_until(deadline) }
}

/// The ticks of [`interval`].
pub struct Interval {
    period: Duration,
    /// Of the next tick.
    deadline: Instant,
    sleep: Sleep,
}

impl Interval {
    /// Waits for the next tick and returns when it was due.
    ///
    /// # Cancel safety
    /// Safe: no tick is lost.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut interval = tidegate_loop::interval(tidegate_loop::Duration::from_millis(1));
    /// let first = interval.tick().await;
    /// assert!(interval.tick().await > first);
    /// # }).unwrap();
    /// ```
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Starts anew: the next tick is due one period from now.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut interval = tidegate_loop::interval(tidegate_loop::Duration::from_millis(1));
    /// interval.reset();
    /// interval.tick().await;
    /// # }).unwrap();
    /// ```
    pub fn reset(&mut self) {
        self.sleep_until(now() + self.period);
    }

    fn sleep_until(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.sleep = sleep_until(deadline);
    }

    fn poll_tick(&mut self, cx: &mut PollContext<'_>) -> Poll<Instant> {
        std::task::ready!(Pin::new(&mut self.sleep).poll(cx));
        let due = self.deadline;
        let late = now().saturating_duration_since(due);
        let missed = u32::try_from(late.as_nanos() / self.period.as_nanos()).unwrap_or(u32::MAX);
        self.sleep_until(due + self.period.saturating_mul(missed) + self.period);
        Poll::Ready(due)
    }
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Option<Instant>> {
        self.poll_tick(cx).map(Some)
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval").field("period", &self.period).finish_non_exhaustive()
    }
}
