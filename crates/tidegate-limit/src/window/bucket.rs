//! The bucket: refilled continuously, emptied by bookings (GCRA). Its state is one instant.

use std::collections::VecDeque;

use crate::moment::Moment;

/// Instants and intervals in fractions of a nanosecond, so that a rate that does not divide its period stays exact for
/// years: intervals are rounded up, by less than a millionth of a nanosecond per unit.
const FRACTION: u32 = 20;

/// The number of instants for which the bucket's level is remembered.
const LOWS_MAX: usize = 64;

type Fine = u128;

fn fine(at: Moment) -> Fine {
    Fine::from(at.as_nanos()) << FRACTION
}

fn coarse_up(at: Fine) -> Moment {
    let rounded = at.saturating_add((1 << FRACTION) - 1) >> FRACTION;
    Moment::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX))
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The amount that flows in during `per`.
    amount: u64,
    /// The capacity.
    burst: u64,
    /// Whether `burst` changes with `amount`.
    burst_is_amount: bool,
    per: u64,
    /// The time in which one unit flows in.
    interval: Fine,
    /// The time in which all of it flows in: `interval` times `burst`.
    fills_in: Fine,
    /// When it will be full if nothing is booked. In the past if it is full.
    full_at: Fine,
    /// When the rate was last changed. What was booked before is taken back on the safe side.
    changed_at: Moment,
    /// Instants just before bookings, with what was missing then; only those after which it never was nearer to full. So both
    /// values rise from front to back. If there are too many, neighbours are merged into the fuller one.
    lows: VecDeque<(Moment, Fine)>,
}

impl Bucket {
    pub(crate) fn new(amount: u64, per: u64, burst: Option<u64>) -> Bucket {
        let (burst_is_amount, burst) = (burst.is_none(), burst.unwrap_or(amount));
        let interval = interval(amount, per);
        Bucket {
            amount,
            burst,
            burst_is_amount,
            per,
            interval,
            fills_in: times(interval, burst),
            full_at: 0,
            changed_at: Moment::ZERO,
            // All the memory that it ever needs, so that booking never allocates.
            lows: VecDeque::with_capacity(LOWS_MAX + 1),
        }
    }

    /// Empties the bucket.
    pub(crate) fn drain(&mut self, now: Moment) {
        self.full_at = fine(now).saturating_add(self.fills_in);
    }

    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    pub(crate) fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the time from empty to full.
    pub(crate) fn fills_in(&self) -> u64 {
        u64::try_from(self.fills_in >> FRACTION).unwrap_or(u64::MAX)
    }

    /// Changes the rate; what is missing from the bucket stays missing.
    pub(crate) fn set_amount(&mut self, amount: u64, now: Moment) {
        let missing = self.used(now);
        self.amount = amount;
        if self.burst_is_amount {
            self.burst = amount;
        }
        self.interval = interval(amount, self.per);
        self.fills_in = self.time_for(self.burst);
        self.full_at = fine(now).saturating_add(self.time_for(missing));
        self.changed_at = now;
        // The level was computed at another rate; the bucket is taken for full, which is the safe side.
        self.lows.clear();
        self.lows.push_back((now, 0));
    }

    /// Returns what is missing, rounded up.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        u64::try_from(self.full_at.saturating_sub(fine(now)).div_ceil(self.interval)).unwrap_or(u64::MAX)
    }

    #[inline]
    fn time_for(&self, amount: u64) -> Fine {
        times(self.interval, amount)
    }

    #[inline]
    pub(crate) fn fits(&self, amount: u64, now: Moment) -> bool {
        let now = fine(now);
        amount <= self.burst
            && self.full_at.max(now).saturating_add(self.time_for(amount)) <= now.saturating_add(self.fills_in)
    }

    /// Returns the earliest instant at which `amount` fits, if nothing but `extra`, now, is booked until then.
    pub(crate) fn ready_at(&self, amount: u64, extra: u64, now: Moment) -> Moment {
        let full_at =
            self.full_at.max(fine(now)).saturating_add(self.time_for(extra)).saturating_add(self.time_for(amount));
        coarse_up(full_at.saturating_sub(self.fills_in)).max(now)
    }

    /// Books `amount`. Returns until when it flows in again, as a mark for `unbook`.
    #[inline]
    pub(crate) fn book(&mut self, amount: u64, now: Moment) -> Moment {
        self.note_low(now);
        self.full_at = self.full_at.max(fine(now)).saturating_add(self.time_for(amount));
        Moment::from_nanos(u64::try_from(self.full_at >> FRACTION).unwrap_or(u64::MAX))
    }

    /// Books `amount` if it fits. Returns the mark, as [`book`](Self::book) does.
    #[inline]
    pub(crate) fn take(&mut self, amount: u64, now: Moment) -> Option<Moment> {
        let instant = fine(now);
        let full_at = self.full_at.max(instant).saturating_add(self.time_for(amount));
        if amount > self.burst || full_at > instant.saturating_add(self.fills_in) {
            return None;
        }
        self.note_low(now);
        self.full_at = full_at;
        Some(Moment::from_nanos(u64::try_from(full_at >> FRACTION).unwrap_or(u64::MAX)))
    }

    /// Takes back what was booked at `at` and has not flowed in again. What was missing at `at` flows in first. Without the
    /// booking, the bucket might have been full since and have overflowed, and that part is not given back.
    pub(crate) fn unbook(&mut self, amount: u64, at: Moment, filled_at: Moment, now: Moment) {
        let whole = self.time_for(amount);
        let filled_at = if at < self.changed_at { fine(at).saturating_add(whole) } else { fine(filled_at) };
        // Without the booking, this much less would be missing, but a bucket cannot be more than full.
        let mut since = self.lows.partition_point(|(when, _)| *when <= at);
        let Some(&(_, lowest)) = self.lows.get(since) else {
            self.full_at = self.full_at.saturating_sub(whole.min(filled_at.saturating_sub(fine(now))));
            return;
        };
        let back = whole.min(filled_at.saturating_sub(fine(now))).min(lowest);
        self.full_at = self.full_at.saturating_sub(back);
        for (_, missing) in self.lows.iter_mut().skip(since) {
            *missing -= back;
        }
        while since > 0 && self.lows[since - 1].1 >= lowest - back {
            since -= 1;
            self.lows.remove(since);
        }
    }

    /// Records the level just before a booking.
    #[inline]
    fn note_low(&mut self, now: Moment) {
        let missing = self.full_at.saturating_sub(fine(now));
        // A bucket that is hardly used is full each time, so the one entry is overwritten.
        if self.lows.len() == 1
            && let Some(only) = self.lows.front_mut()
            && only.1 >= missing
        {
            *only = (now, missing);
            return;
        }
        self.note_lower(now, missing);
    }

    fn note_lower(&mut self, now: Moment, missing: Fine) {
        while self.lows.back().is_some_and(|(_, before)| *before >= missing) {
            self.lows.pop_back();
        }
        self.lows.push_back((now, missing));
        if self.lows.len() > LOWS_MAX {
            let fuller = self.lows.pop_front().map_or(0, |(_, missing)| missing);
            self.lows[0].1 = fuller;
        }
    }

    /// Makes what was booked at `at` count from `now` on. Returns the new mark.
    pub(crate) fn restamp(&mut self, amount: u64, at: Moment, filled_at: Moment, now: Moment) -> Moment {
        self.unbook(amount, at, filled_at, now);
        self.book(amount, now)
    }

    /// Books what happened at an instant before `now`. The bucket becomes empty at most, because the amount is an upper
    /// bound. Returns the mark, as [`book`](Self::book) does.
    pub(crate) fn restore(&mut self, amount: u64, at: Moment, now: Moment) -> Moment {
        let filled_at = self.book(amount, at);
        self.full_at = self.full_at.min(fine(now).saturating_add(self.fills_in));
        filled_at.min(coarse_up(self.full_at))
    }

    /// Leaves at most `remaining` in the bucket.
    pub(crate) fn tighten(&mut self, remaining: u64, now: Moment) {
        let missing = self.time_for(self.burst.saturating_sub(remaining));
        self.full_at = self.full_at.max(fine(now).saturating_add(missing));
    }

    pub(crate) fn next_reset(&self, now: Moment) -> Option<Moment> {
        (self.full_at > fine(now)).then(|| coarse_up(self.full_at))
    }
}

/// Saturates. All but absurd intervals (five hours per unit) fit into a word, and then the product fits without a check.
#[inline]
fn times(interval: Fine, amount: u64) -> Fine {
    match u64::try_from(interval) {
        Ok(interval) => Fine::from(interval) * Fine::from(amount),
        Err(_) => interval.saturating_mul(Fine::from(amount)),
    }
}

/// Rounded up, and never zero. Infinite for a rate of zero.
fn interval(amount: u64, per: u64) -> Fine {
    match amount {
        0 => Fine::from(u64::MAX) << FRACTION,
        _ => (Fine::from(per) << FRACTION).div_ceil(Fine::from(amount)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::new(10, SECOND, None);
        for _ in 0..10 {
            assert!(bucket.fits(1, at(0)));
            bucket.book(1, at(0));
        }
        assert!(!bucket.fits(1, at(0)));
        assert_eq!(bucket.ready_at(1, 0, at(0)), at(SECOND / 10));
        assert!(!bucket.fits(1, at(SECOND / 10 - 1)));
        assert!(bucket.fits(1, at(SECOND / 10)));
    }

    #[test]
    fn a_cold_bucket_starts_empty() {
        let mut bucket = Bucket::new(10, SECOND, None);
        bucket.drain(at(7));
        assert_eq!(bucket.ready_at(1, 0, at(7)), at(7 + SECOND / 10));
        assert_eq!(bucket.used(at(7)), 10);
    }

    #[test]
    fn a_rate_that_does_not_divide_its_period_is_held_for_years_and_never_passed() {
        // With room for one alone, what flows in during the rest of a nanosecond would run over.
        let mut bucket = Bucket::new(7, 60 * SECOND, Some(2));
        let mut now = at(0);
        for _ in 0..10_000_000_u64 {
            now = bucket.ready_at(1, 0, now);
            bucket.book(1, now);
        }
        // The first two go at once; the others take an interval each.
        let least = 9_999_998_u128 * u128::from(60 * SECOND) / 7;
        let taken = u128::from(now.as_nanos());
        assert!(taken >= least && taken - least <= 10, "{taken} {least}");
    }

    #[test]
    fn what_flowed_in_again_is_not_given_back_twice() {
        let mut bucket = Bucket::new(10, SECOND, None);
        let filled_at = bucket.book(10, at(0));
        let now = at(SECOND * 9 / 10);
        bucket.book(5, now);
        bucket.unbook(10, at(0), filled_at, now);
        // Never booked, it would have been full at 0.9 s, and lost five since.
        assert_eq!(bucket.used(now), 5);
    }

    #[test]
    fn the_lows_rise_and_are_few_whatever_is_booked_and_taken_back() {
        let mut bucket = Bucket::new(1_000, SECOND, None);
        let (mut seed, mut now) = (7_u64, at(0));
        let mut random = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let mut booked = Vec::new();
        for _ in 0..20_000 {
            now = now.plus(random(3_000_000));
            let amount = 1 + random(9);
            if bucket.fits(amount, now) {
                booked.push((amount, now, bucket.book(amount, now)));
            }
            if booked.len() > 50 {
                let (amount, at, mark) = booked.swap_remove(random(50) as usize);
                bucket.unbook(random(amount + 1), at, mark, now);
            }
            assert!(bucket.lows.iter().is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1), "{:?}", bucket.lows);
            assert!(bucket.lows.len() <= LOWS_MAX);
        }
    }

    #[test]
    fn a_change_of_rate_keeps_what_is_missing() {
        let mut bucket = Bucket::new(10, SECOND, None);
        bucket.book(4, at(0));
        bucket.set_amount(20, at(0));
        assert_eq!((bucket.used(at(0)), bucket.burst()), (4, 20));
        bucket.set_amount(3, at(0));
        assert!(!bucket.fits(1, at(0)));
    }

    #[test]
    fn a_request_that_leaves_late_counts_from_then() {
        let mut bucket = Bucket::new(10, SECOND, None);
        let filled_at = bucket.book(10, at(0));
        bucket.restamp(10, at(0), filled_at, at(SECOND / 2));
        assert_eq!(bucket.used(at(SECOND / 2)), 10);
    }

    #[test]
    fn absurd_amounts_saturate() {
        let mut bucket = Bucket::new(u64::MAX, u64::MAX, None);
        bucket.book(u64::MAX, at(u64::MAX - 1));
        assert!(!bucket.fits(1, at(u64::MAX - 1)));
        let mut nothing = Bucket::new(0, SECOND, None);
        nothing.book(u64::MAX, at(0));
        assert_eq!(nothing.ready_at(1, 0, at(0)), Moment::NEVER);
    }
}
