//! The server's own book-keeping of one limit: plain values, the time is an argument. It judges clients, so it shares no
//! code with any of them: every entry is kept until it has left its window, nothing is rounded.

use std::collections::VecDeque;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::error::ParseError;
use crate::text::duration;

/// How a limit counts over time.
///
/// Written as text: `strict`, `bucket`, `bucket-full`, `aligned`, `day` (in Los Angeles) or `day:Europe/Berlin`.
///
/// ```
/// use tidegate_rehearsal::Window;
///
/// assert_eq!("bucket-full".parse::<Window>().unwrap(), Window::Bucket { full: true });
/// assert!("fortnight".parse::<Window>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// Never more in any stretch of time as long as the window.
    Strict,
    /// A bucket that fills continuously and holds the amount of one window.
    Bucket {
        /// Whether it starts full; otherwise empty.
        full: bool,
    },
    /// Counted from zero whenever the clock passes a multiple of the window, as at second 00.
    Aligned,
    /// Counted from zero at midnight in this time zone; the window's length does not matter.
    Day(
        /// An IANA name.
        String,
    ),
}

impl FromStr for Window {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Window, ParseError> {
        Ok(match text {
            "strict" => Window::Strict,
            "bucket" => Window::Bucket { full: false },
            "bucket-full" => Window::Bucket { full: true },
            "aligned" | "minute" => Window::Aligned,
            "day" => Window::Day(PACIFIC.to_owned()),
            _ => match text.strip_prefix("day:") {
                Some(zone) => Window::Day(zone.to_owned()),
                None => {
                    return Err(ParseError::new(
                        text,
                        "a window",
                        "strict, bucket, bucket-full, aligned, day or day:ZONE",
                    ));
                }
            },
        })
    }
}

/// Where the day of the best-known daily quota begins.
pub(crate) const PACIFIC: &str = "America/Los_Angeles";

/// One limit: an amount per window.
///
/// Written as text: an amount, or an amount, `/` and the window's length: `100/2s`.
///
/// ```
/// use std::time::Duration;
/// use tidegate_rehearsal::{Limit, Window};
///
/// let limit = Limit::new(100).per(Duration::from_secs(2)).window(Window::Strict);
/// assert_eq!("100/2s".parse::<Limit>().unwrap(), limit);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) amount: u64,
    pub(crate) length: Duration,
    pub(crate) window: Window,
}

impl Limit {
    /// Returns a limit of `amount` in any 60 seconds.
    #[must_use]
    pub fn new(amount: u64) -> Limit {
        Limit { amount, length: Duration::from_secs(60), window: Window::Strict }
    }

    /// Sets the window's length. Short windows keep tests short.
    #[must_use]
    pub fn per(mut self, length: Duration) -> Limit {
        self.length = length.max(Duration::from_nanos(1));
        self
    }

    /// Sets how the limit counts over time.
    #[must_use]
    pub fn window(mut self, window: Window) -> Limit {
        self.window = window;
        self
    }
}

impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Limit, ParseError> {
        let (amount, length) = match text.split_once('/') {
            Some((amount, length)) => (amount, Some(length)),
            None => (text, None),
        };
        let unreadable = || ParseError::new(text, "a limit", "an amount such as 500, or 100/2s for a shorter window");
        let amount = amount.trim().replace('_', "").parse().map_err(|_| unreadable())?;
        let limit = Limit::new(amount);
        match length {
            None => Ok(limit),
            Some(length) => match duration(length.trim()) {
                Some(length) if !length.is_zero() => Ok(limit.per(length)),
                _ => Err(unreadable()),
            },
        }
    }
}

/// An instant on both clocks: windows slide by one, calendars turn by the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) wall: SystemTime,
}

/// One limit and what it has counted.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) limit: Limit,
    model: Model,
    /// What was accepted, and the worst stretch of it.
    accepted: Track,
    /// What came, accepted or not: by how much a client would have been over.
    offered: Track,
    first: Option<Now>,
    last: Option<Instant>,
    total: u64,
}

#[derive(Debug)]
enum Model {
    Strict(Track),
    Bucket {
        /// What is in it, in units of a nanosecond's inflow over the window's length: exact, as no fraction is dropped.
        level: u128,
        at: Option<Instant>,
    },
    Period {
        zone: Option<TimeZone>,
        /// Which window of the clock `used` belongs to.
        index: i128,
        used: u64,
    },
}

/// Entries of the last window, and the most there ever was in one.
#[derive(Debug)]
struct Track {
    entries: VecDeque<(Instant, u64)>,
    sum: u64,
    worst: u64,
}

impl Track {
    fn new() -> Track {
        Track { entries: VecDeque::new(), sum: 0, worst: 0 }
    }

    fn expire(&mut self, now: Instant, length: Duration) {
        while let Some(&(at, cost)) = self.entries.front() {
            if now.saturating_duration_since(at) < length {
                break;
            }
            self.sum -= cost;
            self.entries.pop_front();
        }
    }

    fn add(&mut self, now: Instant, cost: u64) {
        self.entries.push_back((now, cost));
        self.sum += cost;
        self.worst = self.worst.max(self.sum);
    }
}

impl Meter {
    /// Returns an empty meter; `None` if the time zone is unknown.
    pub(crate) fn new(limit: Limit) -> Option<Meter> {
        let model = match &limit.window {
            Window::Strict => Model::Strict(Track::new()),
            Window::Bucket { full } => {
                let level = if *full { u128::from(limit.amount) * limit.length.as_nanos() } else { 0 };
                Model::Bucket { level, at: None }
            }
            Window::Aligned => Model::Period { zone: None, index: i128::MIN, used: 0 },
            Window::Day(zone) => Model::Period { zone: Some(TimeZone::get(zone).ok()?), index: i128::MIN, used: 0 },
        };
        let (accepted, offered) = (Track::new(), Track::new());
        Some(Meter { limit, model, accepted, offered, first: None, last: None, total: 0 })
    }

    /// Brings everything up to date.
    pub(crate) fn advance(&mut self, now: Now) {
        let length = self.limit.length;
        self.accepted.expire(now.instant, length);
        self.offered.expire(now.instant, length);
        match &mut self.model {
            Model::Strict(track) => track.expire(now.instant, length),
            Model::Bucket { level, at } => {
                // A bucket that starts empty begins to fill with the first request.
                let since = now.instant.saturating_duration_since(at.unwrap_or(now.instant));
                let full = u128::from(self.limit.amount) * length.as_nanos();
                *level = full.min(*level + u128::from(self.limit.amount) * since.as_nanos());
                *at = Some(at.map_or(now.instant, |at| at.max(now.instant)));
            }
            Model::Period { zone, index, used } => {
                let current = period(zone.as_ref(), length, now.wall);
                // A clock that was set back does not free anything.
                if current > *index {
                    (*index, *used) = (current, 0);
                }
            }
        }
    }

    /// Returns what is in use. Call [`advance`](Self::advance) first, as for all methods below.
    pub(crate) fn used(&self) -> u64 {
        match &self.model {
            Model::Strict(track) => track.sum,
            Model::Bucket { level, .. } => {
                self.limit.amount - u64::try_from(*level / self.limit.length.as_nanos()).unwrap_or(self.limit.amount)
            }
            Model::Period { used, .. } => *used,
        }
    }

    pub(crate) fn fits(&self, cost: u64) -> bool {
        match &self.model {
            Model::Bucket { level, .. } => u128::from(cost) * self.limit.length.as_nanos() <= *level,
            _ => self.used().saturating_add(cost) <= self.limit.amount,
        }
    }

    /// Counts a request that arrived, admitted or not.
    pub(crate) fn offer(&mut self, cost: u64, now: Now) {
        self.offered.add(now.instant, cost);
    }

    /// Books a cost. It must fit, unless refused requests count too.
    pub(crate) fn book(&mut self, cost: u64, now: Now) {
        match &mut self.model {
            Model::Strict(track) => track.add(now.instant, cost),
            Model::Bucket { level, .. } => {
                *level = level.saturating_sub(u128::from(cost) * self.limit.length.as_nanos());
            }
            Model::Period { used, .. } => *used = used.saturating_add(cost),
        }
    }

    /// Counts a request that was admitted.
    pub(crate) fn accept(&mut self, cost: u64, now: Now) {
        self.accepted.add(now.instant, cost);
        self.first.get_or_insert(now);
        self.last = Some(now.instant);
        self.total = self.total.saturating_add(cost);
    }

    /// Returns how long until `cost` fits, if no other request arrives; `None` if it never fits.
    pub(crate) fn fits_in(&self, cost: u64, now: Now) -> Option<Duration> {
        if cost > self.limit.amount {
            return None;
        }
        let over = self.used().saturating_add(cost).saturating_sub(self.limit.amount);
        Some(match &self.model {
            Model::Strict(track) => {
                let mut left = 0;
                let leaver = track.entries.iter().find(|(_, cost)| {
                    left += cost;
                    left >= over
                });
                match leaver {
                    Some((at, _)) if over > 0 => (*at + self.limit.length).saturating_duration_since(now.instant),
                    _ => Duration::ZERO,
                }
            }
            Model::Bucket { level, .. } => {
                let missing = (u128::from(cost) * self.limit.length.as_nanos()).saturating_sub(*level);
                nanos(missing.div_ceil(u128::from(self.limit.amount.max(1))))
            }
            Model::Period { .. } if over == 0 => Duration::ZERO,
            Model::Period { zone, .. } => until_next(zone.as_ref(), self.limit.length, now.wall),
        })
    }

    /// Returns how long until nothing is in use.
    pub(crate) fn full_in(&self, now: Now) -> Duration {
        match &self.model {
            Model::Strict(track) => track
                .entries
                .back()
                .map_or(Duration::ZERO, |(at, _)| (*at + self.limit.length).saturating_duration_since(now.instant)),
            Model::Bucket { level, .. } => {
                let missing = (u128::from(self.limit.amount) * self.limit.length.as_nanos()).saturating_sub(*level);
                nanos(missing.div_ceil(u128::from(self.limit.amount.max(1))))
            }
            Model::Period { used: 0, .. } => Duration::ZERO,
            Model::Period { zone, .. } => until_next(zone.as_ref(), self.limit.length, now.wall),
        }
    }

    /// The largest amount admitted within any window.
    pub(crate) fn worst_accepted(&self) -> u64 {
        self.accepted.worst
    }

    /// The largest amount that arrived within any window.
    pub(crate) fn worst_offered(&self) -> u64 {
        self.offered.worst
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the time that a perfect client needs, divided by the time that this client took, from the first request to the
    /// last. A perfect client sends as much as fits at every instant. `None` while the limit has not blocked a request.
    pub(crate) fn used_share(&self) -> Option<f64> {
        let (first, last) = (self.first?, self.last?);
        let ideal = self.ideal(first);
        (!ideal.is_zero()).then(|| ideal.as_secs_f64() / (last - first.instant).as_secs_f64())
    }

    /// How long a perfect client would have needed from its first request to its last.
    fn ideal(&self, first: Now) -> Duration {
        let amount = self.limit.amount.max(1);
        // To get more than n windows' worth in takes n windows.
        let windows = self.total.div_ceil(amount).saturating_sub(1);
        let turns = |whole: u64| self.limit.length.saturating_mul(u32::try_from(whole).unwrap_or(u32::MAX));
        match &self.model {
            Model::Strict(_) => turns(windows),
            Model::Bucket { .. } => {
                let at_once = if self.limit.window == (Window::Bucket { full: true }) { amount } else { 0 };
                let rest = u128::from(self.total.saturating_sub(at_once));
                nanos(rest * self.limit.length.as_nanos() / u128::from(amount))
            }
            Model::Period { .. } if windows == 0 => Duration::ZERO,
            Model::Period { zone: None, .. } => until_next(None, self.limit.length, first.wall) + turns(windows - 1),
            Model::Period { zone, .. } => {
                until_next(zone.as_ref(), self.limit.length, first.wall) + DAY * u32::try_from(windows - 1).unwrap_or(0)
            }
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn unix_nanos(wall: SystemTime) -> i128 {
    match wall.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    }
}

/// Which window of the clock an instant is in; a day is known by its midnight.
fn period(zone: Option<&TimeZone>, length: Duration, wall: SystemTime) -> i128 {
    match zone {
        None => unix_nanos(wall).div_euclid(length.as_nanos().cast_signed()),
        Some(zone) => {
            let day = Timestamp::try_from(wall).unwrap_or_default().to_zoned(zone.clone()).start_of_day();
            day.map_or(0, |day| day.timestamp().as_nanosecond())
        }
    }
}

fn until_next(zone: Option<&TimeZone>, length: Duration, wall: SystemTime) -> Duration {
    match zone {
        None => {
            let length = length.as_nanos().cast_signed();
            nanos((length - unix_nanos(wall).rem_euclid(length)).cast_unsigned())
        }
        Some(zone) => {
            let now = Timestamp::try_from(wall).unwrap_or_default();
            let midnight = now.to_zoned(zone.clone()).tomorrow().and_then(|next| next.start_of_day());
            midnight.map_or(DAY, |next| {
                nanos((next.timestamp().as_nanosecond() - now.as_nanosecond()).max(0).cast_unsigned())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    struct Rig {
        meter: Meter,
        start: Now,
    }

    impl Rig {
        fn new(amount: u64, window: Window) -> Rig {
            let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
            let limit = Limit::new(amount).per(ms(1_000)).window(window);
            Rig { meter: Meter::new(limit).unwrap(), start: Now { instant: Instant::now(), wall } }
        }

        fn at(&self, millis: u64) -> Now {
            Now { instant: self.start.instant + ms(millis), wall: self.start.wall + ms(millis) }
        }

        fn take(&mut self, millis: u64, cost: u64) -> bool {
            let now = self.at(millis);
            self.meter.advance(now);
            self.meter.offer(cost, now);
            let fits = self.meter.fits(cost);
            if fits {
                self.meter.book(cost, now);
                self.meter.accept(cost, now);
            }
            fits
        }
    }

    #[test]
    fn a_strict_window_frees_an_entry_exactly_one_length_later() {
        let mut rig = Rig::new(2, Window::Strict);
        assert!(rig.take(0, 1) && rig.take(400, 1) && !rig.take(999, 1));
        assert_eq!(rig.meter.fits_in(1, rig.at(999)), Some(ms(1)));
        assert_eq!(rig.meter.fits_in(2, rig.at(999)), Some(ms(401)));
        assert_eq!(rig.meter.fits_in(3, rig.at(999)), None);
        assert_eq!(rig.meter.full_in(rig.at(999)), ms(401));
        assert!(rig.take(1_000, 1) && !rig.take(1_399, 1) && rig.take(1_400, 1));
        assert_eq!((rig.meter.worst_accepted(), rig.meter.worst_offered()), (2, 4));
    }

    #[test]
    fn a_cold_bucket_gives_what_flowed_in_and_a_full_one_twice_its_size_in_the_first_window() {
        let mut cold = Rig::new(10, Window::Bucket { full: false });
        assert!(!cold.take(0, 1) && cold.take(100, 1) && !cold.take(150, 1));
        assert_eq!(cold.meter.fits_in(1, cold.at(150)), Some(ms(50)));
        let mut full = Rig::new(10, Window::Bucket { full: true });
        assert!(full.take(0, 10));
        let served = (1..1_000).filter(|&at| full.take(at, 1)).count();
        assert_eq!((served, full.meter.worst_accepted()), (9, 19));
    }

    #[test]
    fn an_aligned_window_lets_twice_its_amount_through_across_its_turn() {
        let mut rig = Rig::new(5, Window::Aligned);
        assert!(rig.take(900, 5) && !rig.take(999, 1));
        assert_eq!(rig.meter.fits_in(1, rig.at(999)), Some(ms(1)));
        assert!(rig.take(1_000, 5));
        assert_eq!(rig.meter.worst_accepted(), 10);
    }

    #[test]
    fn a_day_ends_at_midnight_in_its_zone_though_it_has_25_hours() {
        let mut rig = Rig::new(1, Window::Day("America/Los_Angeles".to_owned()));
        // 00:30 on the day the clocks go back.
        rig.start.wall = "2026-11-01T00:30:00-07:00".parse::<Timestamp>().unwrap().into();
        assert!(rig.take(0, 1));
        let hours = |hours: u64| hours * 3_600_000;
        assert_eq!(rig.meter.fits_in(1, rig.at(0)), Some(ms(hours(25) - 1_800_000)));
        assert!(!rig.take(hours(24), 1) && rig.take(hours(25), 1));
        assert!(Meter::new(Limit::new(1).window(Window::Day("Mars/Olympus".to_owned()))).is_none());
    }

    #[test]
    fn the_share_compares_with_a_perfect_client() {
        let mut rig = Rig::new(10, Window::Strict);
        for burst in 0..4 {
            for _ in 0..10 {
                assert!(rig.take(burst * 1_250, 1));
            }
        }
        assert_eq!(rig.meter.used_share(), Some(0.8));
        let mut idle = Rig::new(10, Window::Strict);
        assert!(idle.take(0, 5));
        assert_eq!(idle.meter.used_share(), None, "no request had to wait");
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_back() {
        let mut rig = Rig::new(1, Window::Aligned);
        assert!(rig.take(5_000, 1));
        rig.start.wall -= Duration::from_secs(3);
        assert!(!rig.take(5_100, 1));
    }
}
