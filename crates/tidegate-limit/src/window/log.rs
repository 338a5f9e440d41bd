//! The strict sliding log: at most the amount in *any* window.
//!
//! Each booking is kept with its instant until it has left the window. A running total makes it one comparison whether an
//! amount fits. Sums of blocks of entries find the instant at which it fits without a walk over the whole log.

use std::collections::VecDeque;

use crate::moment::Moment;

/// The number of bookings that are kept one by one. Beyond that, bookings in the same grain share an entry.
const EXACT_MAX: usize = 4096;

/// The number of grains per window.
const GRAINS: u64 = 4096;

/// The number of entries per block.
const BLOCK: u64 = 64;

/// The largest number of entries: the exact ones, and one per grain that begins within the window.
const ENTRIES_MAX: usize = EXACT_MAX + GRAINS as usize + 2;

/// The number of departures that are remembered, from the first query for them on.
const DEPARTURES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct LogEntry {
    /// The instant of its latest booking. The entry counts until that leaves the window.
    at: Moment,
    amount: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Log {
    amount: u64,
    window: u64,
    grain: u64,
    /// In the order of their instants, which are all different.
    entries: VecDeque<LogEntry>,
    /// The sum of each block of entries. Blocks are counted from the first entry ever, so the first and the last block may be
    /// partly outside of `entries`.
    sums: VecDeque<u64>,
    /// Entries that have left.
    left: u64,
    /// The sum of all entries.
    used: u64,
    /// The instant of the first booking in the last entry.
    last_begun: Moment,
    /// The instant of the last entry that has left. Bookings up to it have left too.
    left_at: Option<Moment>,
    /// When entries left, and how much had left by then. `None` before the first query.
    departures: Option<Departures>,
}

#[derive(Clone, Debug, Default)]
struct Departures {
    amount: u64,
    recent: VecDeque<(Moment, u64)>,
}

impl Departures {
    #[cold]
    fn note(&mut self, at: Moment, amount: u64) {
        if self.recent.len() == DEPARTURES_MAX {
            self.recent.pop_front();
        }
        self.amount = self.amount.wrapping_add(amount);
        self.recent.push_back((at, self.amount));
    }

    /// Returns how much left after `since`, as far as remembered.
    fn since(&self, since: Moment) -> u64 {
        let first = self.recent.partition_point(|(at, _)| *at <= since);
        let before = match first.checked_sub(1) {
            Some(last) => self.recent[last].1,
            None => return self.recent.front().map_or(0, |(_, oldest)| self.amount.wrapping_sub(*oldest)),
        };
        self.amount.wrapping_sub(before)
    }
}

impl Log {
    pub(crate) fn new(amount: u64, window: u64) -> Log {
        // All the memory that it ever needs, so that booking never allocates.
        let capacity = usize::try_from(amount).unwrap_or(usize::MAX).min(ENTRIES_MAX);
        Log {
            amount,
            window,
            grain: window / GRAINS,
            entries: VecDeque::with_capacity(capacity),
            sums: VecDeque::with_capacity(capacity / BLOCK as usize + 2),
            left: 0,
            used: 0,
            last_begun: Moment::ZERO,
            left_at: None,
            departures: None,
        }
    }

    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    pub(crate) fn set_amount(&mut self, amount: u64) {
        self.amount = amount;
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    #[inline]
    fn leaves(&self, entry: LogEntry, margin: u64) -> Moment {
        entry.at.plus(self.window).plus(margin)
    }

    /// Removes what has left the window.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment, margin: u64) {
        while let Some(&entry) = self.entries.front() {
            if self.leaves(entry, margin) > now {
                break;
            }
            self.entries.pop_front();
            self.used -= entry.amount;
            self.sums[0] -= entry.amount;
            self.left += 1;
            self.left_at = Some(entry.at);
            if let Some(departures) = &mut self.departures {
                departures.note(entry.at.plus(self.window).plus(margin), entry.amount);
            }
            if self.left.is_multiple_of(BLOCK) {
                self.sums.pop_front();
            }
        }
        if self.entries.is_empty() {
            self.sums.clear();
            self.left = 0;
        }
    }

    /// Returns whether `amount` fits.
    #[inline]
    pub(crate) fn fits(&self, amount: u64) -> bool {
        amount <= self.amount.saturating_sub(self.used)
    }

    /// Returns the earliest instant at which `amount` fits, if nothing but `extra`, now, is booked until then. `amount` must
    /// not be above the limit.
    pub(crate) fn ready_at(&self, amount: u64, extra: u64, now: Moment, margin: u64) -> Moment {
        let wanted = u128::from(self.used) + u128::from(extra) + u128::from(amount);
        // A sum that does not fit into 64 bits is more than was ever booked.
        let mut surplus = u64::try_from(wanted.saturating_sub(u128::from(self.amount))).unwrap_or(u64::MAX);
        if surplus == 0 {
            return now;
        }
        // Entries of the first block may have left, and its sum is without them, so the walk begins at its first entry.
        let mut first = 0;
        for (at, sum) in self.sums.iter().enumerate() {
            let length = if at == 0 { BLOCK - self.left % BLOCK } else { BLOCK } as usize;
            if *sum < surplus {
                surplus -= sum;
                first += length;
                continue;
            }
            for entry in self.entries.range(first..self.entries.len().min(first + length)) {
                if entry.amount >= surplus {
                    return self.leaves(*entry, margin);
                }
                surplus -= entry.amount;
            }
            unreachable!("a block's sum is the sum of its entries");
        }
        // It fits only when `extra` itself leaves.
        now.plus(self.window).plus(margin)
    }

    /// Books `amount` at `now`, which must not be before an earlier booking.
    #[inline]
    pub(crate) fn book(&mut self, amount: u64, now: Moment) {
        // Only an absurd cost that was declared as almost nothing reaches this bound.
        let amount = amount.min(u64::MAX - self.used);
        if amount == 0 {
            return;
        }
        self.used += amount;
        let exact = self.entries.len() < EXACT_MAX;
        if let Some(last) = self.entries.back_mut()
            && (last.at >= now || (!exact && now.since(self.last_begun).as_nanos() < u128::from(self.grain)))
        {
            last.at = last.at.max(now);
            last.amount += amount;
            *self.sums.back_mut().expect("an entry is in a block") += amount;
            return;
        }
        if (self.left + self.entries.len() as u64).is_multiple_of(BLOCK) || self.sums.is_empty() {
            self.sums.push_back(0);
        }
        self.entries.push_back(LogEntry { at: now, amount });
        *self.sums.back_mut().expect("just made sure") += amount;
        self.last_begun = now;
    }

    /// Takes back up to `amount` of what was booked at `at` and has not left the window.
    pub(crate) fn unbook(&mut self, amount: u64, at: Moment) {
        if self.left_at.is_some_and(|left_at| at <= left_at) {
            return;
        }
        let index = match self.entries.back() {
            Some(last) if self.last_begun <= at && at <= last.at => self.entries.len() - 1,
            // An entry has the bookings after the instant of the one before it, up to its own.
            _ => self.entries.partition_point(|entry| entry.at < at),
        };
        let Some(entry) = self.entries.get_mut(index) else { return };
        let amount = amount.min(entry.amount);
        entry.amount -= amount;
        self.used -= amount;
        self.sums[((self.left + index as u64) / BLOCK - self.left / BLOCK) as usize] -= amount;
    }

    /// Returns how much left after `since`, which a server still counted at `since`. Remembered from the first call on.
    pub(crate) fn left_since(&mut self, since: Moment) -> u64 {
        self.departures.get_or_insert_default().since(since)
    }

    /// Returns when the oldest entry leaves.
    pub(crate) fn next_reset(&self, margin: u64) -> Option<Moment> {
        self.entries.front().map(|entry| self.leaves(*entry, margin))
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn an_entry_counts_for_exactly_one_window() {
        let mut log = Log::new(2, 100);
        log.book(2, at(5));
        log.expire(at(104), 0);
        assert!(!log.fits(1));
        assert_eq!(log.ready_at(1, 0, at(104), 0), at(105));
        log.expire(at(105), 0);
        assert!(log.fits(2));
    }

    #[test]
    fn the_margin_is_waited_for_after_the_window() {
        let mut log = Log::new(1, 100);
        log.book(1, at(0));
        log.expire(at(100), 7);
        assert_eq!(log.ready_at(1, 0, at(100), 7), at(107));
    }

    #[test]
    fn the_instant_it_names_is_the_first_at_which_it_fits() {
        let mut seed = 1_u64;
        let mut random = move |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let mut log = Log::new(500, 1_000);
        let mut now = at(0);
        for _ in 0..20_000 {
            now = now.plus(random(6));
            let (amount, margin) = (1 + random(9), 3);
            log.expire(now, margin);
            if log.fits(amount) {
                log.book(amount, now);
                if random(4) == 0 {
                    log.unbook(random(amount + 1), now);
                }
            } else {
                let ready = log.ready_at(amount, 0, now, margin);
                log.expire(Moment::from_nanos(ready.as_nanos() - 1), margin);
                assert!(!log.fits(amount));
                log.expire(ready, margin);
                assert!(log.fits(amount));
                now = ready;
            }
            assert_eq!(log.used, log.entries.iter().map(|entry| entry.amount).sum::<u64>());
            assert_eq!(log.used, log.sums.iter().sum::<u64>());
        }
    }

    #[test]
    fn a_million_events_take_a_bounded_number_of_entries_and_lose_next_to_nothing() {
        let window = 60_000_000_000;
        let mut log = Log::new(1_000_000, window);
        for n in 0..1_000_000 {
            log.book(1, at(n * 59_000));
        }
        assert!(log.entries() <= ENTRIES_MAX, "{} entries", log.entries());
        assert!(!log.fits(1));
        let ready = log.ready_at(1_000_000, 0, at(window), 0).as_nanos();
        let exact = 999_999 * 59_000 + window;
        assert!(ready >= exact && ready - exact <= window / GRAINS, "{ready} {exact}");
        assert!(log.entries.capacity() <= 2 * ENTRIES_MAX);
    }

    #[test]
    fn what_left_the_window_cannot_be_taken_back() {
        let mut log = Log::new(10, 100);
        log.book(5, at(0));
        log.book(5, at(50));
        log.expire(at(100), 0);
        log.unbook(5, at(0));
        assert_eq!(log.used(), 5);
        log.unbook(3, at(50));
        assert_eq!(log.used(), 2);
    }
    #[test]
    fn what_left_of_late_is_remembered_once_it_is_asked_for() {
        let mut log = Log::new(10, 100);
        log.book(1, at(0));
        log.expire(at(100), 0);
        assert_eq!(log.left_since(at(0)), 0, "the first query remembers nothing");
        for n in 1..=5 {
            log.book(n, at(100 + n));
        }
        log.expire(at(300), 0);
        assert_eq!(log.left_since(at(203)), 4 + 5);
        assert_eq!(log.left_since(at(205)), 0);
        for n in 0..5_000 {
            log.book(1, at(1_000 + 200 * n));
            log.expire(at(1_100 + 200 * n), 0);
        }
        assert_eq!(log.left_since(at(1_000 + 200 * 4_998)), 2);
        assert!(log.left_since(at(0)) < 5_000, "the oldest are forgotten");
    }
}
