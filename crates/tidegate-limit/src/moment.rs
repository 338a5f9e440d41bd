//! Time in the limits: nanoseconds on a monotonic scale, and the offset of the wall clock. Nothing here reads a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant: nanoseconds since a beginning that the caller chooses. A gate counts from 72 hours before it was built; a
/// simulation may start at zero.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::Moment;
///
/// let later = Moment::ZERO + Duration::from_secs(1);
/// assert_eq!(later.since(Moment::ZERO), Duration::from_secs(1));
/// assert_eq!(Moment::ZERO.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The beginning.
    pub const ZERO: Moment = Moment(0);
    /// The latest moment: after 584 years.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Creates the moment `nanos` nanoseconds after the beginning.
    ///
    /// ```
    /// # use tidegate_limit::Moment;
    /// assert_eq!(Moment::from_nanos(7).as_nanos(), 7);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Returns the nanoseconds since the beginning.
    ///
    /// ```
    /// # use tidegate_limit::Moment;
    /// assert_eq!(Moment::ZERO.as_nanos(), 0);
    /// ```
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this; zero if `earlier` is not earlier.
    ///
    /// ```
    /// # use tidegate_limit::Moment;
    /// assert_eq!(Moment::from_nanos(5).since(Moment::from_nanos(3)).as_nanos(), 2);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[inline]
    pub(crate) fn plus(self, nanos: u64) -> Moment {
        Moment(self.0.saturating_add(nanos))
    }

    /// Saturates at [`Moment::ZERO`].
    pub(crate) fn minus(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos_of(duration)))
    }

    /// Returns the time between the two, in either order.
    pub(crate) fn distance(self, other: Moment) -> Duration {
        Duration::from_nanos(self.0.abs_diff(other.0))
    }
}

/// Saturates at [`Moment::NEVER`].
impl std::ops::Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        self.plus(nanos_of(duration))
    }
}

/// Converts to nanoseconds. Saturates after 584 years.
#[inline]
pub(crate) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970 on the wall clock. Saturates before 1678 and after 2262.
pub(crate) type WallNanos = i64;

pub(crate) fn wall_nanos(at: SystemTime) -> WallNanos {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

pub(crate) fn wall_time(at: WallNanos) -> SystemTime {
    let distance = Duration::from_nanos(at.unsigned_abs());
    if at >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// The offset of the wall clock from the monotonic one. Between two readings, both are assumed to run at the same pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    /// Wall clock minus monotonic time.
    offset: WallNanos,
}

impl Wall {
    pub(crate) fn at(now: Moment, wall: SystemTime) -> Wall {
        Wall { offset: wall_nanos(wall).saturating_sub(saturating_i64(now.0)) }
    }

    pub(crate) fn of(self, moment: Moment) -> WallNanos {
        saturating_i64(moment.0).saturating_add(self.offset)
    }

    /// Returns the moment at which the wall clock shows `wall`; the beginning if that is earlier.
    pub(crate) fn moment(self, wall: WallNanos) -> Moment {
        Moment(u64::try_from(wall.saturating_sub(self.offset)).unwrap_or(0))
    }
}

fn saturating_i64(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
