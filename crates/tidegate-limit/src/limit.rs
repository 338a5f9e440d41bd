//! The configuration of a limit: its name, what it counts, the amount and the window.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::cost::Dimension;
use crate::error::ConfigError;
use crate::moment::{Moment, Wall, nanos_of};
use crate::window::{Bucket, Calendar, Log, Model, Periods};

/// One limit of a gate: a number of leases at once, or an amount per window.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::{Dimension, Limit, Limits, Moment, Window};
///
/// # let wall = std::time::SystemTime::now();
/// let limits = [
///     Limit::concurrency("global", 200),
///     Limit::rpm(150),
///     Limit::tpm(1_000_000).window(Window::bucket(Duration::from_secs(60))),
///     Limit::rpd(10_000, "America/Los_Angeles"),
///     Limit::rate("images", Dimension::named("images"), 5, Window::strict(Duration::from_secs(10))),
/// ];
/// assert!(Limits::new(limits, Moment::ZERO, wall).is_ok());
///
/// // An impossible configuration is an error when the limits are created.
/// let nowhere = Limits::new([Limit::rpd(1, "Mars/Olympus")], Moment::ZERO, wall);
/// assert!(nowhere.unwrap_err().to_string().contains("Mars/Olympus"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) name: Arc<str>,
    pub(crate) amount: u64,
    pub(crate) kind: LimitKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    Concurrency,
    Found,
    Rate { dimension: Dimension, window: Window, oversize: Oversize, journaled: Option<u64> },
}

/// What a limit does with a cost that is above its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversize {
    /// Refuses it at once, because it would never fit.
    #[default]
    Refuse,
    /// Admits it when the whole capacity is free, and counts the capacity.
    Drain,
}

/// How a rate is counted. Use the one that the server uses.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::{Start, Window};
///
/// assert_eq!(Window::minute(), Window::strict(Duration::from_secs(60)));
/// let one_per_second = Window::Bucket { per: Duration::from_secs(60), burst: Some(1), start: Start::Full };
/// # let _ = one_per_second;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// At most the amount in *any* window of this length. Up to 4,096 bookings are kept exactly. Beyond that, bookings
    /// within 1/4,096 of the window are merged and count until the latest of them leaves it: never over the limit, at most
    /// 0.03 % below it, in bounded memory.
    Strict(Duration),
    /// A bucket that is refilled continuously with the amount per `per`.
    Bucket {
        /// The time in which the amount flows in.
        per: Duration,
        /// The capacity; the amount if `None`.
        burst: Option<u64>,
        /// The content at first.
        start: Start,
    },
    /// Windows aligned to the clock: with 60 s they begin at second 00. Almost twice the amount fits into a minute that is
    /// not aligned, as with servers that count like this.
    Aligned(Duration),
    /// Calendar days in a time zone (an IANA name such as `America/Los_Angeles`), of 23, 24 or 25 hours.
    Day(Arc<str>),
}

/// The content of a bucket at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Full: almost twice the amount can be admitted in the first window.
    Full,
    /// Empty: at most the amount is admitted in the first window.
    #[default]
    Cold,
}

impl Window {
    /// At most the amount in any window of this length.
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::Window};
    /// assert!(matches!(Window::strict(Duration::from_secs(6)), Window::Strict(_)));
    /// ```
    #[must_use]
    pub fn strict(length: Duration) -> Window {
        Window::Strict(length)
    }

    /// A strict minute.
    ///
    /// ```
    /// # use tidegate_limit::Window;
    /// assert!(matches!(Window::minute(), Window::Strict(_)));
    /// ```
    #[must_use]
    pub fn minute() -> Window {
        Window::Strict(Duration::from_secs(60))
    }

    /// A bucket as large as the amount, which starts cold.
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Start, Window}};
    /// assert!(matches!(Window::bucket(Duration::from_secs(60)), Window::Bucket { start: Start::Cold, .. }));
    /// ```
    #[must_use]
    pub fn bucket(per: Duration) -> Window {
        Window::Bucket { per, burst: None, start: Start::Cold }
    }

    /// Minutes that begin at second 00.
    ///
    /// ```
    /// # use tidegate_limit::Window;
    /// assert!(matches!(Window::clock_minute(), Window::Aligned(_)));
    /// ```
    #[must_use]
    pub fn clock_minute() -> Window {
        Window::Aligned(Duration::from_secs(60))
    }

    /// Calendar days in a time zone.
    ///
    /// ```
    /// # use tidegate_limit::Window;
    /// assert!(matches!(Window::day("Europe/Berlin"), Window::Day(_)));
    /// ```
    #[must_use]
    pub fn day(zone: impl Into<Arc<str>>) -> Window {
        Window::Day(zone.into())
    }
}

impl Limit {
    /// At most `amount` leases at once.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::concurrency("global", 200).name(), "global");
    /// ```
    #[must_use]
    pub fn concurrency(name: impl Into<Arc<str>>, amount: u64) -> Limit {
        Limit { name: name.into(), amount, kind: LimitKind::Concurrency }
    }

    /// `found`: limits that were not stated or were stated too high. They are found from what the server refuses, and are in
    /// effect in addition to the other limits of the gate.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::found().name(), "found");
    /// ```
    #[must_use]
    pub fn found() -> Limit {
        Limit { name: "found".into(), amount: u64::MAX, kind: LimitKind::Found }
    }

    /// At most `amount` of `dimension` per window.
    ///
    /// ```
    /// # use tidegate_limit::{Dimension, Limit, Window};
    /// let limit = Limit::rate("images", Dimension::named("images"), 50, Window::minute());
    /// # let _ = limit;
    /// ```
    #[must_use]
    pub fn rate(name: impl Into<Arc<str>>, dimension: Dimension, amount: u64, window: Window) -> Limit {
        let kind = LimitKind::Rate { dimension, window, oversize: Oversize::Refuse, journaled: None };
        Limit { name: name.into(), amount, kind }
    }

    /// `rpm`: requests in any minute.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::rpm(150).name(), "rpm");
    /// ```
    #[must_use]
    pub fn rpm(amount: u64) -> Limit {
        Limit::rate("rpm", Dimension::REQUESTS, amount, Window::minute())
    }

    /// `tpm`: tokens in any minute.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::tpm(1_000_000).name(), "tpm");
    /// ```
    #[must_use]
    pub fn tpm(amount: u64) -> Limit {
        Limit::rate("tpm", Dimension::TOKENS, amount, Window::minute())
    }

    /// `itpm`: tokens of prompts in any minute, for servers that limit them separately.
    ///
    /// ```
    /// # use tidegate_limit::{Dimension, Limit};
    /// assert_eq!(Limit::itpm(50_000).rated().unwrap().0, Dimension::INPUT_TOKENS);
    /// ```
    #[must_use]
    pub fn itpm(amount: u64) -> Limit {
        Limit::rate("itpm", Dimension::INPUT_TOKENS, amount, Window::minute())
    }

    /// `otpm`: tokens of answers in any minute, for servers that limit them separately. Book the largest possible answer,
    /// and settle by the actual one.
    ///
    /// ```
    /// # use tidegate_limit::{Dimension, Limit};
    /// assert_eq!(Limit::otpm(10_000).rated().unwrap().0, Dimension::OUTPUT_TOKENS);
    /// ```
    #[must_use]
    pub fn otpm(amount: u64) -> Limit {
        Limit::rate("otpm", Dimension::OUTPUT_TOKENS, amount, Window::minute())
    }

    /// `rpd`: requests in a calendar day of a time zone.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::rpd(10_000, "America/Los_Angeles").name(), "rpd");
    /// ```
    #[must_use]
    pub fn rpd(amount: u64, zone: impl Into<Arc<str>>) -> Limit {
        Limit::rate("rpd", Dimension::REQUESTS, amount, Window::day(zone))
    }

    /// Sets another window. A concurrency limit has none and is not changed.
    ///
    /// ```
    /// # use tidegate_limit::{Limit, Window};
    /// let limit = Limit::rpm(60).window(Window::clock_minute());
    /// # let _ = limit;
    /// ```
    #[must_use]
    pub fn window(mut self, to: Window) -> Limit {
        if let LimitKind::Rate { window, .. } = &mut self.kind {
            *window = to;
        }
        self
    }

    /// Sets another name.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::rpm(60).named("gpt rpm").name(), "gpt rpm");
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Limit {
        self.name = name.into();
        self
    }

    /// What it does with a cost that is above its capacity.
    ///
    /// ```
    /// # use tidegate_limit::{Limit, Oversize};
    /// let limit = Limit::tpm(1_000).oversize(Oversize::Drain);
    /// # let _ = limit;
    /// ```
    #[must_use]
    pub fn oversize(mut self, to: Oversize) -> Limit {
        if let LimitKind::Rate { oversize, .. } = &mut self.kind {
            *oversize = to;
        }
        self
    }

    /// Writes what it is about to book to the gate's [journal](crate::journal), `batch` units ahead: after a crash, up to
    /// `batch` units too many are counted, never too few. With zero, it writes for each entry.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// let limit = Limit::rpd(10_000, "America/Los_Angeles").journaled(50);
    /// # let _ = limit;
    /// ```
    #[must_use]
    pub fn journaled(mut self, batch: u64) -> Limit {
        if let LimitKind::Rate { journaled, .. } = &mut self.kind {
            *journaled = Some(batch);
        }
        self
    }

    /// Its name.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::tpm(1).name(), "tpm");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its amount: at once, or per window.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::tpm(7).amount(), 7);
    /// ```
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Sets another amount.
    ///
    /// ```
    /// # use tidegate_limit::Limit;
    /// assert_eq!(Limit::tpm(7).with_amount(3).amount(), 3);
    /// ```
    #[must_use]
    pub fn with_amount(mut self, to: u64) -> Limit {
        self.amount = to;
        self
    }

    /// What a rate counts, and its window; `None` for concurrency.
    ///
    /// ```
    /// # use tidegate_limit::{Dimension, Limit, Window};
    /// assert_eq!(Limit::rpm(7).rated(), Some((Dimension::REQUESTS, &Window::minute())));
    /// assert_eq!(Limit::concurrency("global", 7).rated(), None);
    /// ```
    #[must_use]
    pub fn rated(&self) -> Option<(Dimension, &Window)> {
        match &self.kind {
            LimitKind::Concurrency | LimitKind::Found => None,
            LimitKind::Rate { dimension, window, .. } => Some((*dimension, window)),
        }
    }

    /// What it does with a cost that is above its capacity.
    ///
    /// ```
    /// # use tidegate_limit::{Limit, Oversize};
    /// assert_eq!(Limit::rpm(7).when_oversize(), Oversize::Refuse);
    /// ```
    #[must_use]
    pub fn when_oversize(&self) -> Oversize {
        match &self.kind {
            LimitKind::Concurrency | LimitKind::Found => Oversize::Refuse,
            LimitKind::Rate { oversize, .. } => *oversize,
        }
    }

    /// Creates the window's model, or returns an error of the configuration.
    pub(crate) fn model(&self, now: Moment, wall: Wall) -> Result<Option<Model>, ConfigError> {
        if self.amount == 0 {
            return Err(ConfigError::Zero { limit: self.name.clone() });
        }
        let LimitKind::Rate { window, .. } = &self.kind else { return Ok(None) };
        let checked = |length: Duration| match nanos_of(length) {
            0 | u64::MAX => Err(ConfigError::Window { limit: self.name.clone(), length }),
            nanos => Ok(nanos),
        };
        Ok(Some(match window {
            Window::Strict(length) => Model::Strict(Log::new(self.amount, checked(*length)?)),
            Window::Bucket { burst: Some(0), .. } => return Err(ConfigError::Zero { limit: self.name.clone() }),
            Window::Bucket { per, burst, start } => {
                let mut bucket = Bucket::new(self.amount, checked(*per)?, *burst);
                if *start == Start::Cold {
                    bucket.drain(now);
                }
                Model::Bucket(bucket)
            }
            Window::Aligned(length) => {
                Model::Calendar(Calendar::new(self.amount, Periods::Aligned(checked(*length)?), now, wall))
            }
            Window::Day(zone) => {
                let unknown = |_| ConfigError::Zone { limit: self.name.clone(), zone: zone.clone() };
                let zone = TimeZone::get(zone).map_err(unknown)?;
                Model::Calendar(Calendar::new(self.amount, Periods::Days(zone), now, wall))
            }
        }))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            LimitKind::Concurrency => write!(f, "{}: {} at once", self.name, self.amount),
            LimitKind::Found => write!(f, "{}: as many as the server accepts", self.name),
            LimitKind::Rate { dimension, window, .. } => {
                write!(f, "{}: {} {dimension} ", self.name, self.amount)?;
                match window {
                    Window::Strict(length) => write!(f, "in any {length:?}"),
                    Window::Bucket { per, .. } => write!(f, "flowing in during {per:?}"),
                    Window::Aligned(length) => write!(f, "in each {length:?} of the clock"),
                    Window::Day(zone) => write!(f, "per day in {zone}"),
                }
            }
        }
    }
}
