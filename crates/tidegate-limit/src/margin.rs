//! The margin for the time on the wire. A strict server counts requests as they arrive. If a request takes longer to arrive
//! than a later one, the two arrive closer together than they were sent. Pure: samples in, a margin out.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::moment::{Moment, nanos_of};

/// The largest margin as a share of the window.
const SHARE: u32 = 40;

/// The number of parts of a window for each of which the slowest answer is kept.
const SLOTS_PER_WINDOW: u64 = 8;

/// One more than the parts of a window, to cover every entry that is still in it.
const SLOTS: usize = SLOTS_PER_WINDOW as usize + 1;

/// Added to the largest difference, because a later answer may be slower than all so far.
const MORE: Duration = Duration::from_millis(2);

/// The difference between the slowest answer of the last window and the fastest ever, within bounds.
///
/// A request that arrived late stays longer in the server's window than in the local one. The margin covers all requests
/// that are still in the window, and no earlier ones: samples do not fade, and a refusal changes nothing.
///
/// The difference includes the time that the server computes, which cannot be separated from the time on the wire. So the
/// margin is at most a fortieth of the window, to keep long answers from using up a short window.
#[derive(Clone, Debug)]
pub(crate) struct Margin {
    floor: u64,
    ceiling: u64,
    /// The length of a part of the window.
    slot: u64,
    /// The shortest time from sent to answered, in nanoseconds.
    fastest: u64,
    /// The number of the last slot with a sample.
    last: u64,
    /// The slowest answer of each slot, by its number modulo `SLOTS`; zero without a sample.
    slowest: [u64; SLOTS],
}

impl Margin {
    /// Creates a margin within `bounds` for limits with this shortest strict window.
    pub(crate) fn new(bounds: &RangeInclusive<Duration>, window: Option<Duration>) -> Margin {
        let floor = nanos_of(*bounds.start());
        let ceiling = nanos_of(*bounds.end()).max(floor);
        let slot = (nanos_of(window.unwrap_or(Duration::from_secs(60))) / SLOTS_PER_WINDOW).max(1);
        Margin { floor, ceiling, slot, fastest: u64::MAX, last: 0, slowest: [0; SLOTS] }
    }

    /// Limits the margin to a fortieth of the window.
    pub(crate) fn of_window(self, window: Duration) -> Margin {
        let ceiling = nanos_of(window / SHARE).clamp(self.floor, self.ceiling);
        Margin { ceiling, ..self }
    }

    /// Adds an answer that arrived at `now`, `took` after its request was sent.
    pub(crate) fn sample(&mut self, took: Duration, now: Moment) {
        let took = nanos_of(took);
        self.fastest = self.fastest.min(took);
        let number = (now.as_nanos() / self.slot).max(self.last);
        // Slots that were skipped have no samples: their values are from an earlier window.
        for skipped in (self.last + 1..=number).rev().take(SLOTS) {
            self.slowest[place(skipped)] = 0;
        }
        self.last = number;
        let slowest = &mut self.slowest[place(number)];
        *slowest = took.max(*slowest);
    }

    pub(crate) fn get(&self) -> Duration {
        let slowest = self.slowest.iter().copied().max().unwrap_or(0);
        let lateness = match slowest.checked_sub(self.fastest) {
            Some(lateness) => lateness.saturating_add(nanos_of(MORE)),
            None => 0,
        };
        Duration::from_nanos(lateness.clamp(self.floor, self.ceiling))
    }
}

fn place(slot: u64) -> usize {
    (slot % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Moment {
        Moment::ZERO + ms(millis)
    }

    #[test]
    fn it_is_the_largest_lateness_within_its_bounds() {
        let mut margin = Margin::new(&(ms(1)..=ms(250)), Some(ms(8_000)));
        assert_eq!(margin.get(), ms(1));
        margin.sample(ms(80), at(0));
        assert_eq!(margin.get(), ms(2), "one answer is not late");
        margin.sample(ms(120), at(10));
        assert_eq!(margin.get(), ms(42));
        margin.sample(ms(70), at(20));
        assert_eq!(margin.get(), ms(52));
        margin.sample(ms(5_000), at(30));
        assert_eq!(margin.get(), ms(250));
    }

    #[test]
    fn a_late_answer_counts_as_long_as_its_request_is_in_the_window() {
        let mut margin = Margin::new(&(ms(1)..=ms(250)), Some(ms(8_000)));
        margin.sample(ms(50), at(100));
        margin.sample(ms(120), at(900));
        for second in 1..=8 {
            margin.sample(ms(50), at(second * 1_000 + 500));
            assert_eq!(margin.get(), ms(72), "after {second} s");
        }
        margin.sample(ms(50), at(9_000));
        assert_eq!(margin.get(), ms(2));
        // After a long silence nothing old is left.
        margin.sample(ms(150), at(9_100));
        margin.sample(ms(50), at(900_000));
        assert_eq!(margin.get(), ms(2));
    }

    #[test]
    fn long_answers_cost_a_short_window_a_fortieth() {
        let of = |window: Duration| Margin::new(&(ms(1)..=ms(250)), Some(window)).of_window(window);
        let mut margin = of(ms(2_000));
        margin.sample(ms(10), at(0));
        margin.sample(ms(900), at(1));
        assert_eq!(margin.get(), ms(50));
        assert_eq!(of(ms(60_000)).ceiling, 250_000_000);
        assert_eq!(of(ms(10)).ceiling, 1_000_000);
    }

    #[test]
    fn without_bounds_to_move_in_it_stays_zero() {
        let mut off = Margin::new(&(ms(0)..=ms(0)), None);
        off.sample(ms(3), at(0));
        off.sample(ms(9), at(0));
        assert_eq!(off.get(), ms(0));
    }
}
