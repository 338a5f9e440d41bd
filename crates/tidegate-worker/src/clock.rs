//! The time as brokers see it: the only file of this crate that asks for it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_loop::LoopHandle;

/// The wall clock where the loop's time is real; where it is virtual, a date of its own that moves with the loop.
#[derive(Debug, Clone)]
pub(crate) struct LoopClock {
    /// `None`: the loop's time is the machine's.
    base: Option<(LoopHandle, Instant)>,
}

/// 2026-01-01, so that a simulated run says the same whenever it is run.
const VIRTUAL_BIRTH_S: i64 = 1_767_225_600;

impl LoopClock {
    /// Of the running loop; the machine's if there is none.
    pub(crate) fn new() -> LoopClock {
        let base = LoopHandle::try_current().filter(LoopHandle::is_virtual).map(|handle| {
            let time = handle.time();
            (handle, time)
        });
        LoopClock { base }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.base.is_some()
    }

    /// The instant beside the date, on the loop's own scale.
    pub(crate) fn instant(&self) -> Instant {
        self.base.as_ref().map_or_else(Instant::now, |(handle, _)| handle.time())
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.base {
            None => Timestamp::now(),
            Some((handle, birth)) => {
                let passed = handle.time().saturating_duration_since(*birth);
                Timestamp::from_second(VIRTUAL_BIRTH_S)
                    .and_then(|start| start.checked_add(passed))
                    .unwrap_or(Timestamp::MAX)
            }
        }
    }
}

/// The machine's two clocks.
pub(crate) fn machine() -> (Timestamp, Instant) {
    (Timestamp::now(), Instant::now())
}

/// How long it is until `at`; nothing if that has passed.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}
