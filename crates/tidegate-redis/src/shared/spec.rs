//! The limits of a shared gate in the form that the script expects, and the days around an instant.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tidegate_limit::{ConfigError, Cost, Dimension, EnterError, Limit, Limits, Moment, Oversize, Start, Window};

use crate::wire::Command;

/// Buckets of a strict window. They bound its memory; at most a thousandth of the limit is lost.
pub(crate) const BUCKETS: u64 = 1024;

/// The margin grows to at most this many times its configured value.
const MARGIN_GROWTH: u64 = 4;

/// Redis' scripts count in doubles: whole numbers are exact below this.
const EXACT_MAX: u64 = 1 << 53;

/// Why a shared gate could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedConfigError {
    /// As for a gate that is not shared.
    Limit(ConfigError),
    /// Redis could not count that exactly.
    TooLarge {
        /// Which limit.
        limit: Arc<str>,
    },
    /// There is no limit, so there is nothing to share.
    Nothing,
    /// A lease below 100 ms could not be renewed in time.
    Lease(Duration),
    /// A share is above 0 and at most 1.
    Share,
}

impl fmt::Display for SharedConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedConfigError::Limit(error) => error.fmt(f),
            SharedConfigError::TooLarge { limit } => write!(
                f,
                "limit {limit} cannot be shared: Redis counts exactly up to 9e15 (of a bucket: burst times microseconds); \
                 make its amount or its window smaller"
            ),
            SharedConfigError::Nothing => f.write_str("a shared gate needs a limit"),
            SharedConfigError::Lease(lease) => write!(f, "a lease of {lease:?} is too short; 100 ms is the least"),
            SharedConfigError::Share => f.write_str("a share of the quota is above 0 and at most 1"),
        }
    }
}

impl std::error::Error for SharedConfigError {}

pub(crate) struct LimitSpec {
    pub(crate) limit: Limit,
    pub(crate) name: Arc<str>,
    kind: Kind,
    /// Its place among the dimensions, from 1; 0 for concurrency.
    dimension: usize,
    /// What one entry can cost at most.
    pub(crate) capacity: u64,
    /// Its name in the state: another window is another count.
    field: String,
}

pub(crate) enum Kind {
    Concurrency,
    Strict { window_us: u64 },
    Bucket { per_us: u64, burst: u64, cold: bool },
    Aligned { length_us: u64 },
    Day(Days),
}

/// A zone's days around the last time that Redis told.
pub(crate) struct Days {
    zone: TimeZone,
    /// Three midnights, in microseconds.
    around: [u64; 3],
}

impl Days {
    fn new(zone: TimeZone, now_us: u64) -> Days {
        let mut days = Days { zone, around: [0; 3] };
        days.look(now_us);
        days
    }

    fn look(&mut self, now_us: u64) {
        const DAY_US: u64 = 86_400_000_000;
        let from = now_us - now_us % DAY_US;
        self.around = midnights(&self.zone, now_us).unwrap_or([from, from + DAY_US, from + 2 * DAY_US]);
    }
}

fn midnights(zone: &TimeZone, now_us: u64) -> Option<[u64; 3]> {
    let today = Timestamp::from_microsecond(i64::try_from(now_us).ok()?).ok()?.to_zoned(zone.clone()).date();
    // A day need not begin at 0:00, where the clocks are changed at midnight; `to_zoned` knows.
    let begins = |days: i32| {
        let date = today.checked_add(days.days()).ok()?;
        u64::try_from(date.to_zoned(zone.clone()).ok()?.timestamp().as_microsecond()).ok()
    };
    Some([begins(0)?, begins(1)?, begins(2)?])
}

pub(crate) struct Spec {
    pub(crate) limits: Vec<LimitSpec>,
    pub(crate) dimensions: Vec<Dimension>,
    /// Grows up to the second with refusals.
    margin_us: u64,
    margin_max_us: u64,
}

impl Spec {
    pub(crate) fn new(limits: Vec<Limit>, margin: Duration) -> Result<Spec, SharedConfigError> {
        let wall = SystemTime::now();
        Limits::new(limits.clone(), Moment::ZERO, wall).map_err(SharedConfigError::Limit)?;
        if limits.is_empty() {
            return Err(SharedConfigError::Nothing);
        }
        let now_us = wall.duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros);
        let mut spec = Spec {
            limits: Vec::new(),
            dimensions: Vec::new(),
            margin_us: micros(margin),
            margin_max_us: micros(margin).saturating_mul(MARGIN_GROWTH),
        };
        for limit in limits {
            let limit = spec.read(limit, now_us)?;
            spec.limits.push(limit);
        }
        Ok(spec)
    }

    fn read(&mut self, limit: Limit, now_us: u64) -> Result<LimitSpec, SharedConfigError> {
        let name: Arc<str> = limit.name().into();
        let too_large = || SharedConfigError::TooLarge { limit: name.clone() };
        let mut capacity = limit.amount();
        let (kind, dimension) = match limit.rated() {
            None => (Kind::Concurrency, 0),
            Some((dimension, window)) => {
                let at = self.dimensions.iter().position(|known| *known == dimension).unwrap_or_else(|| {
                    self.dimensions.push(dimension);
                    self.dimensions.len() - 1
                });
                let kind = match window {
                    Window::Strict(length) => Kind::Strict { window_us: micros(*length).max(1) },
                    Window::Bucket { per, burst, start } => {
                        capacity = burst.unwrap_or(capacity);
                        Kind::Bucket { per_us: micros(*per).max(1), burst: capacity, cold: *start == Start::Cold }
                    }
                    Window::Aligned(length) => Kind::Aligned { length_us: micros(*length).max(1) },
                    Window::Day(zone) => {
                        let unknown = |_| ConfigError::Zone { limit: name.clone(), zone: zone.clone() };
                        let zone = TimeZone::get(zone).map_err(unknown).map_err(SharedConfigError::Limit)?;
                        Kind::Day(Days::new(zone, now_us))
                    }
                    _ => return Err(too_large()),
                };
                (kind, at + 1)
            }
        };
        let (largest, field) = match &kind {
            Kind::Concurrency => (limit.amount(), name.to_string()),
            Kind::Strict { window_us } => (limit.amount(), format!("{name}:s{window_us}")),
            Kind::Bucket { per_us, burst, .. } => (burst.saturating_mul(*per_us), format!("{name}:b{per_us}")),
            Kind::Aligned { length_us } => (limit.amount(), format!("{name}:a{length_us}")),
            Kind::Day(_) => (limit.amount(), format!("{name}:d")),
        };
        if largest >= EXACT_MAX || limit.amount() >= EXACT_MAX {
            return Err(too_large());
        }
        Ok(LimitSpec { name, kind, dimension, capacity, field, limit })
    }

    /// The way to the server takes longer than was thought.
    pub(crate) fn widen_margin(&mut self) {
        self.margin_us = (self.margin_us * 2).min(self.margin_max_us);
    }

    /// What is booked for a cost under each limit, or why that can never be.
    pub(crate) fn clamp(&self, mut cost: Cost) -> Result<Cost, EnterError> {
        for spec in &self.limits {
            let Some((dimension, _)) = spec.limit.rated() else { continue };
            let amount = cost.of(dimension);
            if amount > spec.capacity {
                if spec.limit.when_oversize() == Oversize::Refuse {
                    return Err(EnterError::TooLarge {
                        limit: spec.name.clone(),
                        cost: amount,
                        capacity: spec.capacity,
                    });
                }
                cost = cost.and(dimension, spec.capacity);
            }
        }
        Ok(cost)
    }

    /// The keys of the state of a gate of that name: all on one node of a cluster.
    pub(crate) fn push_keys(&self, gate: &str, out: &mut Command) {
        let strict: Vec<&LimitSpec> =
            self.limits.iter().filter(|spec| matches!(spec.kind, Kind::Strict { .. })).collect();
        out.push_int(2 + 2 * strict.len() as i64);
        out.push(state_key(gate).as_bytes());
        out.push(format!("{}:holders", state_key(gate)).as_bytes());
        for spec in strict {
            out.push(format!("{}:{}:queue", state_key(gate), spec.field).as_bytes());
            out.push(format!("{}:{}:sums", state_key(gate), spec.field).as_bytes());
        }
    }

    /// Appends the limits, each with what is to be booked without asking, its pause, and what Redis last reported of it.
    pub(crate) fn push_limits(&self, books: &[u64], pauses: &[Pause], heard: &[Heard], out: &mut Command) {
        out.push_int(self.limits.len() as i64);
        for (at, spec) in self.limits.iter().enumerate() {
            let (book, heard) = (books[at], heard[at]);
            let (kind, parameters) = match &spec.kind {
                Kind::Concurrency => ("c", [0; 3]),
                Kind::Strict { window_us } => ("s", [*window_us, window_us.div_ceil(BUCKETS), self.margin_us]),
                Kind::Bucket { per_us, burst, cold } => ("b", [*per_us, *burst, u64::from(*cold)]),
                Kind::Aligned { length_us } => ("a", [*length_us, 0, 0]),
                Kind::Day(days) => ("d", days.around),
            };
            out.push(kind.as_bytes());
            out.push(spec.field.as_bytes());
            out.push_int(spec.limit.amount() as i64);
            for parameter in parameters {
                out.push_int(parameter as i64);
            }
            out.push_int(spec.dimension as i64);
            out.push_int(book as i64);
            out.push_int(heard.used as i64);
            out.push_int(heard.stamp as i64);
            out.push_int(match pauses[at] {
                Pause::None => 0,
                Pause::For(duration) => micros(duration).max(1) as i64,
                Pause::Over => -1,
            });
        }
    }

    /// Moves the calendar days to the time that Redis reported.
    pub(crate) fn look_at_calendar(&mut self, now_us: u64) {
        for spec in &mut self.limits {
            if let Kind::Day(days) = &mut spec.kind
                && !(days.around[0] <= now_us && now_us < days.around[1])
            {
                days.look(now_us);
            }
        }
    }

    /// All that machines have to agree on, in words that are compared and shown.
    pub(crate) fn describe(&self) -> String {
        let seconds = |us: u64| format!("{:?}", Duration::from_micros(us));
        let each = self.limits.iter().map(|spec| {
            let (name, amount) = (&spec.name, spec.limit.amount());
            match &spec.kind {
                Kind::Concurrency => format!("{name} {amount} at once"),
                Kind::Strict { window_us } => format!("{name} {amount} in any {}", seconds(*window_us)),
                Kind::Bucket { per_us, burst, .. } => {
                    format!("{name} {amount} each {} (bucket of {burst})", seconds(*per_us))
                }
                Kind::Aligned { length_us } => format!("{name} {amount} each {} of the clock", seconds(*length_us)),
                Kind::Day(days) => {
                    format!("{name} {amount} a day in {}", days.zone.iana_name().unwrap_or("its zone"))
                }
            }
        });
        let mut each: Vec<String> = each.collect();
        each.sort();
        each.join(", ")
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.limits.iter().position(|spec| &*spec.name == name)
    }

    /// How long a gate of other limits may still count: its windows, but not its days.
    pub(crate) fn longest_window(&self) -> Duration {
        let windows = self.limits.iter().filter(|spec| !matches!(spec.kind, Kind::Day(_)));
        windows.map(LimitSpec::counts_for).max().unwrap_or_default()
    }

    pub(crate) fn has_concurrency(&self) -> bool {
        self.limits.iter().any(|spec| matches!(spec.kind, Kind::Concurrency))
    }
}

impl LimitSpec {
    /// How long after it was booked something may still count.
    pub(crate) fn counts_for(&self) -> Duration {
        match &self.kind {
            Kind::Concurrency => Duration::ZERO,
            Kind::Strict { window_us: length_us }
            | Kind::Bucket { per_us: length_us, .. }
            | Kind::Aligned { length_us } => Duration::from_micros(*length_us),
            Kind::Day(_) => Duration::from_secs(25 * 3600),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn cost_of(&self, cost: &Cost) -> u64 {
        self.limit.rated().map_or(0, |(dimension, _)| cost.of(dimension))
    }
}

/// A change to a limit's pause, for all machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pause {
    #[default]
    None,
    /// Nothing is admitted for this long.
    For(Duration),
    /// Ends the pause.
    Over,
}

impl Pause {
    /// Combines this change with an earlier one that has not been sent.
    pub(crate) fn after(self, before: Pause) -> Pause {
        match (before, self) {
            (Pause::For(one), Pause::For(other)) => Pause::For(one.max(other)),
            (before, Pause::None) => before,
            (_, new) => new,
        }
    }
}

/// What Redis last reported of a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// The bucket or the period that bookings had.
    pub(crate) stamp: u64,
    pub(crate) used: u64,
}

pub(crate) fn state_key(gate: &str) -> String {
    format!("tidegate:{{{gate}}}")
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(EXACT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(limit: Limit) -> Result<Spec, SharedConfigError> {
        Spec::new(vec![limit], Duration::ZERO)
    }

    #[test]
    fn days_follow_the_zone_through_a_change_of_clocks() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        // 2026-03-29 has 23 hours there.
        let noon = "2026-03-29T10:00:00Z".parse::<Timestamp>().unwrap().as_microsecond() as u64;
        let [from, to, next] = midnights(&zone, noon).unwrap();
        let hours = |length: u64| length / 3_600_000_000;
        assert_eq!((hours(to - from), hours(next - to)), (23, 24));
        assert!(from <= noon && noon < to);
    }

    #[test]
    fn what_redis_cannot_count_exactly_is_refused() {
        assert!(matches!(spec(Limit::tpm(1 << 53)), Err(SharedConfigError::TooLarge { .. })));
        let bucket = Limit::tpm(200_000_000).window(Window::bucket(Duration::from_secs(60)));
        assert!(matches!(spec(bucket), Err(SharedConfigError::TooLarge { .. })));
        assert!(matches!(spec(Limit::rpm(0)), Err(SharedConfigError::Limit(_))));
        assert!(spec(Limit::tpm(100_000_000)).is_ok());
    }

    #[test]
    fn an_oversize_cost_is_refused_or_drained() {
        let refused = spec(Limit::tpm(10)).unwrap().clamp(Cost::tokens(11)).unwrap_err();
        assert!(matches!(refused, EnterError::TooLarge { cost: 11, capacity: 10, .. }));
        let drained = spec(Limit::tpm(10).oversize(Oversize::Drain)).unwrap().clamp(Cost::tokens(11)).unwrap();
        assert_eq!(drained.of(Dimension::TOKENS), 10);
    }
}
