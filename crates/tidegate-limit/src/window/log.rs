//! The strict sliding log: at most so much in *any* window.
//!
//! What was booked is kept with its instant until the window has passed it. Totals are running, so whether something
//! fits is one comparison; sums of blocks of entries find the instant at which it will, without a walk over the log.

use std::collections::VecDeque;

use crate::moment::Moment;

/// Entries that are kept one by one. Beyond them, what falls into the same grain shares an entry.
const EXACT_MAX: usize = 4096;

/// Grains a window is cut into.
const GRAINS: u64 = 4096;

/// Entries whose amounts are summed up together.
const BLOCK: u64 = 64;

/// The most entries there can be: the exact ones, and one for each grain begun within the window.
const ENTRIES_MAX: usize = EXACT_MAX + GRAINS as usize + 2;

/// Departures that are remembered, once somebody asks for them.
const DEPARTURES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// When the latest of what it holds was booked: the entry counts until that leaves the window.
    at: Moment,
    amount: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Log {
    amount: u64,
    window: u64,
    grain: u64,
    /// By instant, none equal.
    entries: VecDeque<Entry>,
    /// The sum of each block of entries, blocks being counted from the first entry ever; the first and the last block
    /// may be partly outside of `entries`.
    sums: VecDeque<u64>,
    /// Entries that have left.
    left: u64,
    /// The sum of all entries.
    used: u64,
    /// When the first of what the last entry holds was booked.
    last_begun: Moment,
    /// The instant of the last entry that has left: what was booked up to it is gone.
    left_at: Option<Moment>,
    /// When entries left, and how much had left by then; not kept until somebody asks.
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

    /// How much left after `since`, as far as is remembered.
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
        // All the memory it will ever need, so that booking never allocates.
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
    fn leaves(&self, entry: Entry, margin: u64) -> Moment {
        entry.at.plus(self.window).plus(margin)
    }

    /// Forgets what the window has passed.
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

    /// Whether `amount` fits beside what is there.
    #[inline]
    pub(crate) fn fits(&self, amount: u64) -> bool {
        amount <= self.amount.saturating_sub(self.used)
    }

    /// The earliest instant at which `amount` fits, if nothing is booked until then but `extra`, now. `amount` itself
    /// must not be above the limit.
    pub(crate) fn ready_at(&self, amount: u64, extra: u64, now: Moment, margin: u64) -> Moment {
        let wanted = u128::from(self.used) + u128::from(extra) + u128::from(amount);
        // What does not fit into 64 bits is more than all that was ever booked.
        let mut surplus = u64::try_from(wanted.saturating_sub(u128::from(self.amount))).unwrap_or(u64::MAX);
        if surplus == 0 {
            return now;
        }
        // The first block may have lost entries already, its sum with them; so the walk begins where it does.
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
        // It takes `extra` itself to leave.
        now.plus(self.window).plus(margin)
    }

    /// Books `amount` at `now`, which is not before anything booked earlier.
    #[inline]
    pub(crate) fn book(&mut self, amount: u64, now: Moment) {
        // Only a caller that declared next to nothing of an absurd cost gets near this bound.
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
        self.entries.push_back(Entry { at: now, amount });
        *self.sums.back_mut().expect("just made sure") += amount;
        self.last_begun = now;
    }

    /// Takes back up to `amount` of what was booked at `at`; what the window has passed is gone already.
    pub(crate) fn unbook(&mut self, amount: u64, at: Moment) {
        if self.left_at.is_some_and(|left_at| at <= left_at) {
            return;
        }
        let index = match self.entries.back() {
            Some(last) if self.last_begun <= at && at <= last.at => self.entries.len() - 1,
            // An entry holds what was booked after the one before it, up to its own instant.
            _ => self.entries.partition_point(|entry| entry.at < at),
        };
        let Some(entry) = self.entries.get_mut(index) else { return };
        let amount = amount.min(entry.amount);
        entry.amount -= amount;
        self.used -= amount;
        self.sums[((self.left + index as u64) / BLOCK - self.left / BLOCK) as usize] -= amount;
    }

    /// How much left after `since`: what a server that looked at `since` still counted. Remembered from the first time
    /// on that this is asked.
    pub(crate) fn left_since(&mut self, since: Moment) -> u64 {
        self.departures.get_or_insert_default().since(since)
    }

    /// When the oldest entry leaves.
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
        assert_eq!(log.left_since(at(0)), 0, "nobody had asked before");
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
