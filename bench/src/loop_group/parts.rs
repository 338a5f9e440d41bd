//! Small parts that the workloads share and that belong to no runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Wakes its own task and is pending once: the same switch on every runtime.
#[derive(Default)]
pub(crate) struct SelfWaking {
    polled: bool,
}

impl Future for SelfWaking {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.polled {
            return Poll::Ready(());
        }
        self.polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

pub(crate) fn ns_per(elapsed: Duration, count: u32) -> f64 {
    elapsed.as_nanos() as f64 / f64::from(count)
}

/// CPU time of the whole process, for workloads that spend wall time waiting: async-io may do its
/// work on a thread of its own, which must be billed as well.
pub(crate) struct CpuTime(Timespec);

impl CpuTime {
    pub(crate) fn now() -> Self {
        Self(clock_gettime(ClockId::ProcessCPUTime))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        let nanos = (now.tv_sec - self.0.tv_sec) * 1_000_000_000 + (now.tv_nsec - self.0.tv_nsec);
        Duration::from_nanos(nanos.unsigned_abs())
    }
}

/// Scatters `index` over 0..`spread` µs, the same way every time and for every contestant.
pub(crate) fn spread_us(index: u32, spread: u32) -> Duration {
    let hash = index.wrapping_mul(0x9E37_79B9) >> 4;
    Duration::from_micros(u64::from(hash % spread.max(1)))
}
