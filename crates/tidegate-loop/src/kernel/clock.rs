//! The loop's clock: the machine's, or a virtual one that moves only when told to. Everything inside the loop
//! counts nanoseconds from the loop's birth; this is the only file that asks the machine for the time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

/// Nanoseconds since the loop was made; negative for instants before it.
pub(crate) type Nanos = i64;

pub(crate) struct Clock {
    base: Instant,
    /// `CLOCK_MONOTONIC` read just after `base`, so that `now()` never runs ahead of `Instant::now()`: a deadline that has
    /// passed here has passed there.
    base_raw: Nanos,
    /// `None`: real time.
    offset: Option<Cell<Nanos>>,
}

/// The clock behind `Instant`. Read directly because every timer that is armed reads it, and taking two instants apart
/// costs as much as the reading.
#[inline]
fn monotonic() -> Nanos {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `now` and keeps nothing.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    debug_assert_eq!(result, 0, "Linux has this clock");
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

impl Clock {
    pub(crate) fn real() -> Clock {
        Clock { base: Instant::now(), base_raw: monotonic(), offset: None }
    }

    pub(crate) fn simulated() -> Clock {
        Clock { offset: Some(Cell::new(0)), ..Clock::real() }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.offset.is_some()
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match &self.offset {
            None => monotonic() - self.base_raw,
            Some(offset) => offset.get(),
        }
    }

    /// Moves a virtual clock forward to `to`; a clock never goes back.
    pub(crate) fn jump(&self, to: Nanos) {
        let offset = self.offset.as_ref().expect("only a virtual clock can be moved");
        offset.set(offset.get().max(to));
    }

    pub(crate) fn instant(&self, at: Nanos) -> Instant {
        let distance = Duration::from_nanos(at.unsigned_abs());
        let moved = if at >= 0 { self.base.checked_add(distance) } else { self.base.checked_sub(distance) };
        moved.unwrap_or(self.base)
    }

    pub(crate) fn nanos(&self, at: Instant) -> Nanos {
        match at.checked_duration_since(self.base) {
            Some(after) => nanos_of(after),
            None => -nanos_of(self.base.duration_since(at)),
        }
    }
}

/// The machine's time, for what happens outside of any loop.
pub(crate) fn machine_now() -> Instant {
    Instant::now()
}

/// A duration as nanoseconds; what does not fit (292 years) is as good as for ever.
#[inline]
pub(crate) fn nanos_of(duration: Duration) -> Nanos {
    // Whole seconds first: the multiplication cannot overflow below this bound, and 128-bit arithmetic is spared.
    const SECONDS_MAX: u64 = (Nanos::MAX / 1_000_000_000) as u64 - 1;
    if duration.as_secs() > SECONDS_MAX {
        return Nanos::MAX;
    }
    duration.as_secs() as Nanos * 1_000_000_000 + Nanos::from(duration.subsec_nanos())
}

/// As the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// A delay: a [`Duration`], or seconds as `f64` the way asyncio counts them.
///
/// Seconds may be negative: such a deadline lies in the past, is due at once, and among due deadlines the earlier
/// comes first. They must be finite.
pub trait IntoDelay: sealed::Sealed {
    #[doc(hidden)]
    fn into_nanos(self) -> Nanos;
}

impl IntoDelay for Duration {
    fn into_nanos(self) -> Nanos {
        nanos_of(self)
    }
}

impl IntoDelay for f64 {
    #[track_caller]
    fn into_nanos(self) -> Nanos {
        assert!(
            self.is_finite(),
            "a delay must be a finite number of seconds, not {self}; for \"never\", arm no timer"
        );
        // `as` saturates, which is what a delay of centuries should do.
        (self * 1e9).round() as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_one_behind_instant_and_never_ahead_of_it() {
        let clock = Clock::real();
        for _ in 0..1_000 {
            let before = Instant::now();
            let now = clock.instant(clock.now());
            let after = Instant::now();
            assert!(now <= after, "ahead: a sleep would end early");
            assert!(now + Duration::from_millis(1) >= before, "another clock");
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::time::Duration {}
    impl Sealed for f64 {}
}
