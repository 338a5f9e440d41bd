//! The loop's clock: the machine's, or a virtual one that moves only when told to. Everything inside the loop
//! counts nanoseconds from the loop's birth; this is the only file that asks the machine for the time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Nanoseconds since the loop was made; negative for instants before it.
pub(crate) type Nanos = i64;

pub(crate) struct Clock {
    base: Instant,
    /// `None`: real time.
    offset: Option<Cell<Nanos>>,
}

impl Clock {
    pub(crate) fn real() -> Clock {
        Clock { base: Instant::now(), offset: None }
    }

    pub(crate) fn simulated() -> Clock {
        Clock { base: Instant::now(), offset: Some(Cell::new(0)) }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.offset.is_some()
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match &self.offset {
            None => self.base.elapsed().as_nanos() as Nanos,
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

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::time::Duration {}
    impl Sealed for f64 {}
}
