//! Calendar windows: a count, and the instant at which it restarts.
//!
//! They use the wall clock. If it is set back, the count continues, together with what was counted in the later period. If
//! it is set ahead, for example after the machine was suspended, the new time is used.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::moment::{Moment, Wall, WallNanos};

/// An ordinary day.
const DAY: WallNanos = 86_400_000_000_000;

/// The number of days to come that are looked up one by one.
const DAYS_EXACTLY: i64 = 1_000;

/// How the wall clock is divided into periods.
#[derive(Clone, Debug)]
pub(crate) enum Periods {
    /// Periods of this number of nanoseconds since 1970: minutes begin at second 00.
    Aligned(u64),
    /// From midnight to midnight in a time zone: 23, 24 or 25 hours.
    Days(TimeZone),
}

impl Periods {
    /// Returns the period of `wall`: its first instant, and the first instant after it.
    fn around(&self, wall: WallNanos) -> (WallNanos, WallNanos) {
        match self {
            Periods::Aligned(length) => {
                let length = i64::try_from(*length).unwrap_or(i64::MAX);
                let start = wall.saturating_sub(wall.rem_euclid(length));
                (start, start.saturating_add(length))
            }
            Periods::Days(zone) => days_around(zone, wall).unwrap_or_else(|| {
                // At the ends of the calendar, where zones have no rules.
                Periods::Aligned(DAY as u64).around(wall)
            }),
        }
    }
}

fn days_around(zone: &TimeZone, wall: WallNanos) -> Option<(WallNanos, WallNanos)> {
    let today = Timestamp::from_nanosecond(wall.into()).ok()?.to_zoned(zone.clone()).date();
    // A day may begin after 0:00 in zones that change their clocks at midnight; `to_zoned` handles that.
    let begins =
        |date: jiff::civil::Date| i64::try_from(date.to_zoned(zone.clone()).ok()?.timestamp().as_nanosecond()).ok();
    Some((begins(today)?, begins(today.checked_add(1.day()).ok()?)?))
}

#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    amount: u64,
    periods: Periods,
    /// What was counted in this period.
    used: u64,
    /// What was counted in the period before, in case the wall clock is set back to it.
    used_before: u64,
    /// Set when the wall clock was set back: the beginning of the later period, and what had been counted in the one before
    /// it. When that period comes again, what was counted since counts in it.
    went_back: Option<(WallNanos, u64)>,
    begins: WallNanos,
    ends: WallNanos,
    /// The moment of `ends` by the current wall clock.
    resets_at: Moment,
    /// The moment since which `used` has been counted. Earlier bookings are not in it.
    counted_from: Moment,
}

impl Calendar {
    pub(crate) fn new(amount: u64, periods: Periods, now: Moment, wall: Wall) -> Calendar {
        let (begins, ends) = periods.around(wall.of(now));
        let resets_at = wall.moment(ends);
        Calendar {
            amount,
            periods,
            used: 0,
            used_before: 0,
            went_back: None,
            begins,
            ends,
            resets_at,
            counted_from: Moment::ZERO,
        }
    }

    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    pub(crate) fn set_amount(&mut self, amount: u64) {
        self.amount = amount;
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn resets_at(&self) -> Moment {
        self.resets_at
    }

    /// Returns when the `count`-th period after that of `from` begins, by the current wall clock.
    pub(crate) fn begins_after(&self, count: u64, from: Moment, wall: Wall) -> Moment {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let (mut begins, mut ends) = self.periods.around(wall.of(from));
        match self.periods {
            Periods::Aligned(_) => {
                let rest = ends.saturating_sub(begins).saturating_mul(count - 1);
                wall.moment(ends.saturating_add(rest))
            }
            Periods::Days(_) => {
                // After some years it does not matter which of the days have 23 hours.
                let exactly = count.min(DAYS_EXACTLY);
                for _ in 0..exactly {
                    begins = ends;
                    ends = self.periods.around(begins).1;
                }
                wall.moment(begins.saturating_add((count - exactly).saturating_mul(DAY)))
            }
        }
    }

    pub(crate) fn begins(&self) -> WallNanos {
        self.begins
    }

    /// Returns the length of this period.
    pub(crate) fn length(&self) -> u64 {
        u64::try_from(self.ends.saturating_sub(self.begins)).unwrap_or(0)
    }

    /// Begins the next period if it is due.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment, wall: Wall) {
        if now >= self.resets_at {
            self.begin_next(now, wall);
        }
    }

    #[cold]
    fn begin_next(&mut self, now: Moment, wall: Wall) {
        let (begins, ends) = self.periods.around(wall.of(now));
        let again = match self.went_back {
            Some((period, before)) if period == begins => self.used.saturating_sub(before),
            _ => 0,
        };
        self.went_back = self.went_back.filter(|(period, _)| *period > begins);
        self.used_before = if begins == self.ends { self.used } else { 0 };
        self.used = again;
        (self.begins, self.ends) = (begins, ends);
        self.resets_at = wall.moment(ends).max(now.plus(1));
        self.counted_from = now;
    }

    /// Handles a wall clock that was set.
    pub(crate) fn wall_moved(&mut self, now: Moment, wall: Wall) {
        if wall.of(now) < self.begins {
            // For the server, what was counted in the later period may belong to this one.
            let before = std::mem::take(&mut self.used_before);
            self.went_back = self.went_back.or(Some((self.begins, before)));
            (self.begins, self.ends) = self.periods.around(wall.of(now));
            self.used = self.used.saturating_add(before);
            self.counted_from = Moment::ZERO;
        }
        self.resets_at = wall.moment(self.ends);
        self.expire(now, wall);
    }

    #[inline]
    pub(crate) fn fits(&self, amount: u64) -> bool {
        amount <= self.amount.saturating_sub(self.used)
    }

    /// Returns the earliest instant at which `amount` fits, if nothing but `extra`, now, is booked until then.
    pub(crate) fn ready_at(&self, amount: u64, extra: u64, now: Moment) -> Moment {
        let wanted = u128::from(self.used) + u128::from(extra) + u128::from(amount);
        if wanted <= u128::from(self.amount) { now } else { self.resets_at }
    }

    #[inline]
    pub(crate) fn book(&mut self, amount: u64) {
        self.used = self.used.saturating_add(amount);
    }

    pub(crate) fn unbook(&mut self, amount: u64, at: Moment) {
        if at >= self.counted_from {
            self.used = self.used.saturating_sub(amount);
        }
    }

    /// Returns whether what was booked at `at` is counted in this period.
    pub(crate) fn has_counted(&self, at: Moment) -> bool {
        at >= self.counted_from
    }

    /// Makes what was booked at `at` count from `now` on. After a reset, the server counts it in the new period.
    pub(crate) fn restamp(&mut self, amount: u64, at: Moment) {
        if at < self.counted_from {
            self.book(amount);
        }
    }

    /// Raises the count until at most `remaining` is left.
    pub(crate) fn tighten(&mut self, remaining: u64) {
        self.used = self.used.max(self.amount.saturating_sub(remaining));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::wall_time;

    const HOUR: u64 = 3_600_000_000_000;

    fn wall_at(text: &str) -> Wall {
        let at = text.parse::<Timestamp>().unwrap().as_nanosecond();
        Wall::at(Moment::ZERO, wall_time(i64::try_from(at).unwrap()))
    }

    fn day_in(zone: &str, start: &str) -> u64 {
        let wall = wall_at(start);
        let zone = TimeZone::get(zone).unwrap();
        Calendar::new(1, Periods::Days(zone), Moment::ZERO, wall).resets_at().as_nanos()
    }

    #[test]
    fn days_have_as_many_hours_as_they_have() {
        // Midnight in Los Angeles, before an ordinary day, the day the clocks go ahead, and the day they go back.
        assert_eq!(day_in("America/Los_Angeles", "2026-03-07T08:00:00Z"), 24 * HOUR);
        assert_eq!(day_in("America/Los_Angeles", "2026-03-08T08:00:00Z"), 23 * HOUR);
        assert_eq!(day_in("America/Los_Angeles", "2026-11-01T07:00:00Z"), 25 * HOUR);
        // Where the clocks are changed at midnight the day begins at 1:00.
        assert_eq!(day_in("America/Asuncion", "2023-09-30T04:00:00Z"), 24 * HOUR);
        assert_eq!(day_in("America/Asuncion", "2023-10-01T04:00:00Z"), 23 * HOUR);
    }

    #[test]
    fn minutes_begin_at_second_zero() {
        let wall = wall_at("2026-01-01T00:00:42.5Z");
        let calendar = Calendar::new(1, Periods::Aligned(60_000_000_000), Moment::ZERO, wall);
        assert_eq!(calendar.resets_at().as_nanos(), 17_500_000_000);
    }

    #[test]
    fn a_wall_clock_set_back_gives_nothing_back() {
        let start = wall_at("2026-01-01T23:00:00Z");
        let mut calendar = Calendar::new(10, Periods::Days(TimeZone::UTC), Moment::ZERO, start);
        calendar.book(7);
        let after = Moment::from_nanos(2 * HOUR);
        calendar.expire(after, start);
        assert_eq!(calendar.used(), 0, "a new day");
        calendar.book(2);
        // An hour and a half back: it is still the first, and nine have gone.
        let back = Wall::at(after, wall_time(start.of(Moment::from_nanos(HOUR / 2))));
        calendar.wall_moved(after, back);
        assert_eq!(calendar.used(), 9);
        assert!(!calendar.fits(2));
        assert_eq!(calendar.ready_at(2, 0, after), after.plus(HOUR / 2));
    }

    #[test]
    fn a_wall_clock_set_ahead_is_believed() {
        let start = wall_at("2026-01-01T12:00:00Z");
        let mut calendar = Calendar::new(10, Periods::Days(TimeZone::UTC), Moment::ZERO, start);
        calendar.book(10);
        calendar.wall_moved(Moment::ZERO, wall_at("2026-01-02T12:00:00Z"));
        assert!(calendar.fits(10));
        assert_eq!(calendar.resets_at().as_nanos(), 12 * HOUR);
    }

    #[test]
    fn what_was_booked_yesterday_is_not_taken_off_today() {
        let start = wall_at("2026-01-01T23:00:00Z");
        let mut calendar = Calendar::new(10, Periods::Days(TimeZone::UTC), Moment::ZERO, start);
        calendar.book(3);
        calendar.expire(Moment::from_nanos(2 * HOUR), start);
        calendar.book(5);
        calendar.unbook(3, Moment::ZERO);
        assert_eq!(calendar.used(), 5);
    }
}
