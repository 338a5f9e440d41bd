//! The margin for the wire. A strict server counts arrivals: if one request takes longer on its way than a later one,
//! they arrive closer together than they left. Pure: samples in, a margin out.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::moment::nanos_of;

/// The share by which what was seen fades with each sample.
const FADE: u64 = 512;

/// Of a window, the share that may be given to the wire before the server itself says that it takes more.
const SHARE: u32 = 40;

/// The spread between the fastest and the slowest answer of late, and a quarter more, within bounds.
///
/// A slow answer widens it at once; it narrows by 1/512 a sample. A refusal that should not have been doubles it.
///
/// Answers differ by what the server thought as well as by the wire, and nobody can tell the two apart from here. So that
/// long thoughts do not cost a short window its quota, the spread counts up to a fortieth of the window; refusals are of
/// the wire alone, and raise that bound.
#[derive(Clone, Debug)]
pub(crate) struct Margin {
    floor: u64,
    ceiling: u64,
    /// As far as refusals raise the ceiling.
    ceiling_max: u64,
    /// Nanoseconds from sent to answered, of late.
    fastest: u64,
    slowest: u64,
    samples: u64,
}

impl Margin {
    pub(crate) fn new(bounds: &RangeInclusive<Duration>) -> Margin {
        let floor = nanos_of(*bounds.start());
        let ceiling = nanos_of(*bounds.end()).max(floor);
        Margin { floor, ceiling, ceiling_max: ceiling, fastest: 0, slowest: 0, samples: 0 }
    }

    /// Of a window like this, a fortieth at the most, until refusals say otherwise.
    pub(crate) fn of_window(self, window: Duration) -> Margin {
        let ceiling = nanos_of(window / SHARE).clamp(self.floor, self.ceiling_max);
        Margin { ceiling, ..self }
    }

    pub(crate) fn sample(&mut self, took: Duration) {
        let took = nanos_of(took);
        if self.samples == 0 {
            (self.fastest, self.slowest) = (took, took);
        } else {
            let fade = (self.slowest - self.fastest).div_ceil(FADE);
            self.slowest = took.max(self.slowest - fade);
            self.fastest = took.min(self.fastest + fade).min(self.slowest);
        }
        self.samples += 1;
    }

    /// The server refused what should have fitted.
    pub(crate) fn refused(&mut self) {
        let spread = (self.slowest - self.fastest).clamp(self.floor, self.ceiling).max(1_000_000);
        self.ceiling = self.ceiling.saturating_mul(2).min(self.ceiling_max);
        self.slowest = self.fastest.saturating_add(spread.saturating_mul(2).min(self.ceiling));
    }

    pub(crate) fn get(&self) -> Duration {
        let spread = self.slowest - self.fastest;
        // What was seen so far is seldom the worst there is.
        Duration::from_nanos(spread.saturating_add(spread / 4).clamp(self.floor, self.ceiling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn it_follows_the_spread_within_its_bounds() {
        let mut margin = Margin::new(&(ms(1)..=ms(250)));
        assert_eq!(margin.get(), ms(1));
        margin.sample(ms(80));
        assert_eq!(margin.get(), ms(1), "one answer has no spread");
        margin.sample(ms(120));
        assert_eq!(margin.get(), ms(50));
        margin.sample(ms(5_000));
        assert_eq!(margin.get(), ms(250));
    }

    #[test]
    fn what_was_seen_fades() {
        let mut margin = Margin::new(&(ms(0)..=ms(250)));
        margin.sample(ms(10));
        margin.sample(ms(110));
        for _ in 0..8_000 {
            margin.sample(ms(10));
        }
        assert!(margin.get() < ms(1), "{:?}", margin.get());
    }

    #[test]
    fn a_refusal_doubles_it_up_to_the_ceiling() {
        let mut margin = Margin::new(&(ms(4)..=ms(20)));
        margin.refused();
        assert_eq!(margin.get(), ms(10));
        margin.refused();
        assert_eq!(margin.get(), ms(20));
        margin.refused();
        assert_eq!(margin.get(), ms(20));
    }

    #[test]
    fn thoughts_cost_a_short_window_a_fortieth_and_refusals_more() {
        let mut margin = Margin::new(&(ms(1)..=ms(250))).of_window(ms(2_000));
        margin.sample(ms(10));
        margin.sample(ms(900));
        assert_eq!(margin.get(), ms(50));
        margin.refused();
        assert_eq!(margin.get(), ms(100));
        for _ in 0..9 {
            margin.refused();
        }
        assert_eq!(margin.get(), ms(250));
        let long = Margin::new(&(ms(1)..=ms(250))).of_window(ms(60_000));
        assert_eq!(long.ceiling, 250_000_000);
        let tiny = Margin::new(&(ms(1)..=ms(250))).of_window(ms(10));
        assert_eq!(tiny.ceiling, 1_000_000);
    }

    #[test]
    fn without_bounds_to_move_in_it_stays_zero() {
        let mut off = Margin::new(&(ms(0)..=ms(0)));
        off.refused();
        off.sample(ms(9));
        assert_eq!(off.get(), ms(0));
    }
}
