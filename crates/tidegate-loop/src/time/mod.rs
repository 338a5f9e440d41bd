//! Sleeping, time-outs and intervals, and what time it is.

pub(crate) mod interval;
pub(crate) mod sleep;
pub(crate) mod timeout;

use std::time::Instant;

use crate::kernel::clock::machine_now;
use crate::kernel::current;

/// Returns the time of the loop that runs on this thread, which is virtual if the loop's is; outside of a loop, the
/// machine's. Deadlines for [`sleep_until`](crate::sleep_until) and [`timeout_at`](crate::timeout_at) are counted from it:
/// `Instant::now()` does not know virtual time.
///
/// ```
/// use tidegate_loop::{Duration, EventLoop, now, sleep};
/// let hour = Duration::from_secs(3600);
/// let slept = EventLoop::simulated(1).run_until_complete(async move {
///     let before = now();
///     sleep(hour).await;
///     now() - before
/// });
/// assert_eq!(slept.unwrap(), hour);
/// ```
#[must_use]
pub fn now() -> Instant {
    current::with(|kernel| kernel.map_or_else(machine_now, |kernel| kernel.clock.instant(kernel.now())))
}
