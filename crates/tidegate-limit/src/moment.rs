//! Time as the limits see it: nanoseconds on a monotonic scale, and where the wall clock stands beside it. Nothing here
//! asks a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant: nanoseconds since a beginning that whoever passes it has chosen. A gate counts from its first look at the
/// clock; a simulation may start at zero.
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
    /// Later than everything: 584 years.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// So many nanoseconds after the beginning.
    ///
    /// ```
    /// # use tidegate_limit::Moment;
    /// assert_eq!(Moment::from_nanos(7).as_nanos(), 7);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the beginning.
    ///
    /// ```
    /// # use tidegate_limit::Moment;
    /// assert_eq!(Moment::ZERO.as_nanos(), 0);
    /// ```
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this; zero if that is not earlier.
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

    /// The time between the two, whichever is earlier.
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

/// What does not fit (584 years) is as good as for ever.
#[inline]
pub(crate) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970 on the wall clock; before that and after 2262 the nearest that fits.
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

/// Where the wall clock stands beside the monotonic one. Between two looks at it, it is taken to run at the same pace.
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

    /// The moment at which the wall clock will show `wall`; what lies before the beginning is the beginning.
    pub(crate) fn moment(self, wall: WallNanos) -> Moment {
        Moment(u64::try_from(wall.saturating_sub(self.offset)).unwrap_or(0))
    }
}

fn saturating_i64(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
