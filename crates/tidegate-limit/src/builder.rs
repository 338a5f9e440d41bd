//! The builder of a gate.

#[cfg(feature = "sqlite")]
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ConfigError;
use crate::gate::Gate;
use crate::journal::{Journal, Restored};
use crate::limit::{Limit, LimitKind, Window};
use crate::limits::Limits;
use crate::margin::Margin;
use crate::moment::{Moment, nanos_of};
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::pump::{GateState, SkipAhead};
use crate::timer::Timer;

/// The default bounds of the margin.
const MARGIN_DEFAULT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(250);

/// [`Moment::ZERO`] is this long before the gate was built. So what earlier runs booked in a window of 24 hours has a
/// moment, even if a virtual clock is a little behind the real one.
const BEFORE: Duration = Duration::from_secs(72 * 3600);

/// Builds a [`Gate`].
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::{Gate, Limit, SkipAhead};
///
/// let gate = Gate::builder()
///     .limit(Limit::concurrency("global", 200))
///     .limit(Limit::rpm(150))
///     .max_waiting(10_000)
///     .skip_ahead(SkipAhead { look_ahead: 4, passes_max: 100 })
///     .margin(Duration::from_millis(5)..=Duration::from_millis(100))
///     .build()
///     .unwrap();
/// # let _ = gate;
/// ```
#[must_use = "a builder does nothing until build is called"]
pub struct Builder {
    limits: Vec<Limit>,
    waiting_max: usize,
    skip_ahead: SkipAhead,
    margin: Option<RangeInclusive<Duration>>,
    timer: Option<Box<dyn Timer>>,
    journal: Option<Box<dyn Journal>>,
    restored: Vec<Restored>,
    /// By limit, what its store contains: each reservation, for a journaled limit, and their sums, for another.
    #[cfg(feature = "sqlite")]
    pub(crate) stored: BTreeMap<Arc<str>, (Vec<Taken>, Vec<Restored>)>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            limits: Vec::new(),
            waiting_max: usize::MAX,
            skip_ahead: SkipAhead::default(),
            margin: None,
            timer: None,
            journal: None,
            restored: Vec::new(),
            #[cfg(feature = "sqlite")]
            stored: BTreeMap::new(),
        }
    }

    /// Adds a limit. A gate without limits admits every entry.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).limit(Limit::tpm(90_000)).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn limit(mut self, limit: Limit) -> Builder {
        self.limits.push(limit);
        self
    }

    /// Adds several limits.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limits([Limit::rpm(60), Limit::tpm(90_000)]).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Builder {
        self.limits.extend(limits);
        self
    }

    /// Refuses new entries while `waiting_max` are in line. Default: no bound.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, EnterError, Gate, Limit};
    /// # tidegate_loop::run(async {
    /// let gate = Gate::builder().limit(Limit::concurrency("one", 1)).max_waiting(0).build().unwrap();
    /// let lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
    /// let error = gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err();
    /// assert_eq!(error, EnterError::Crowded { waiting_max: 0 });
    /// # drop(lease);
    /// # }).unwrap();
    /// ```
    pub fn max_waiting(mut self, waiting_max: usize) -> Builder {
        self.waiting_max = waiting_max;
        self
    }

    /// Which entries may be admitted before the first in line while that does not fit yet.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit, SkipAhead};
    /// let gate = Gate::builder().limit(Limit::tpm(1_000)).skip_ahead(SkipAhead::OFF).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn skip_ahead(mut self, skip_ahead: SkipAhead) -> Builder {
        self.skip_ahead = skip_ahead;
        self
    }

    /// The bounds of the margin by which entries of strict windows count longer, for the time on the wire. The margin is the
    /// difference between the slowest and the fastest answer of the last window, from [`sent`](crate::Lease::sent) to
    /// [`answered`](crate::Lease::answered), plus 2 ms. In virtual time it is zero.
    ///
    /// Default: 1 ms to 250 ms, and at most a fortieth of the shortest strict window, because the difference includes the
    /// time that the server computes.
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Gate, Limit}};
    /// let exact = Duration::ZERO..=Duration::ZERO;
    /// let gate = Gate::builder().limit(Limit::rpm(60)).margin(exact).build().unwrap();
    /// assert!(gate.stats().margin.is_zero());
    /// ```
    pub fn margin(mut self, bounds: RangeInclusive<Duration>) -> Builder {
        self.margin = Some(bounds);
        self
    }

    /// The clock and timer. Default: those of tidegate's loop; tokio's if only that feature is enabled; a thread if neither
    /// is.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit, ThreadTimer};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).timer(ThreadTimer::default()).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn timer(mut self, timer: impl Timer) -> Builder {
        self.timer = Some(Box::new(timer));
        self
    }

    /// The journal to which [journaled](Limit::journaled) limits write what they are about to book.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// # use tidegate_limit::journal::{Journal, Receipt, Reservation};
    /// struct Nowhere;
    /// impl Journal for Nowhere {
    ///     fn write(&self, _: Reservation, receipt: Receipt) { receipt.written() }
    /// }
    /// let gate = Gate::builder().limit(Limit::rpm(60).journaled(10)).journal(Nowhere).build().unwrap();
    /// # let _ = gate;
    /// ```
    pub fn journal(mut self, journal: impl Journal) -> Builder {
        self.journal = Some(Box::new(journal));
        self
    }

    /// Counts what was booked before a restart.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Gate, Limit}, tidegate_limit::journal::Restored};
    /// let before = [Restored::new("rpm", 12, SystemTime::now())];
    /// let gate = Gate::builder().limit(Limit::rpm(60)).restore(before).build().unwrap();
    /// assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 48);
    /// ```
    pub fn restore(mut self, restored: impl IntoIterator<Item = Restored>) -> Builder {
        self.restored.extend(restored);
        self
    }

    /// Builds the gate. Inside a loop in virtual time, it uses that loop's time.
    ///
    /// # Errors
    /// [`ConfigError`] names the limit that is impossible, and why.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// assert!(Gate::builder().limit(Limit::rpm(60)).limit(Limit::rpm(90)).build().is_err());
    /// ```
    pub fn build(self) -> Result<Gate, ConfigError> {
        if self.journal.is_none()
            && let Some(limit) = self.limits.iter().find(|limit| limit.is_journaled())
        {
            return Err(ConfigError::NoJournal { limit: limit.name.clone() });
        }
        let timer = self.timer.unwrap_or_else(default_timer);
        let now: Instant = timer.now();
        let epoch = now.checked_sub(BEFORE).unwrap_or(now);
        let begins = Moment::from_nanos(nanos_of(now - epoch));
        let shortest = self.limits.iter().filter_map(Limit::strict_window).min();
        let margin = match (&self.margin, shortest) {
            (Some(bounds), shortest) => Margin::new(bounds, shortest),
            (None, Some(window)) => Margin::new(&MARGIN_DEFAULT, shortest).of_window(window),
            (None, None) => Margin::new(&MARGIN_DEFAULT, None),
        };
        let mut limits = Limits::new(self.limits, begins, timer.wall())?;
        limits.set_margin(if timer.is_virtual() { Duration::ZERO } else { margin.get() });
        let mut restored = self.restored;
        restored.sort_by_key(|restored| restored.until);
        for restored in &restored {
            limits.restore(restored, begins);
        }
        #[cfg(feature = "sqlite")]
        for (limit, (taken, restored)) in &self.stored {
            if !limits.begin_beside(limit, taken, begins) {
                restored.iter().for_each(|restored| limits.restore(restored, begins));
            }
        }
        Ok(Gate::new(GateState::new(limits, margin, self.skip_ahead, self.waiting_max), timer, self.journal, epoch))
    }
}

impl Limit {
    fn is_journaled(&self) -> bool {
        matches!(self.kind, LimitKind::Rate { journaled: Some(_), .. })
    }

    fn strict_window(&self) -> Option<Duration> {
        match self.kind {
            LimitKind::Rate { window: Window::Strict(length), .. } => Some(length),
            _ => None,
        }
    }
}

fn default_timer() -> Box<dyn Timer> {
    #[cfg(feature = "tidegate-loop")]
    return Box::new(crate::on_tidegate::LoopTimer::new());
    #[cfg(all(feature = "tokio", not(feature = "tidegate-loop")))]
    return Box::new(crate::on_tokio::TokioTimer::new());
    #[cfg(not(any(feature = "tokio", feature = "tidegate-loop")))]
    return Box::new(crate::timer::ThreadTimer::default());
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("limits", &self.limits)
            .field("waiting_max", &self.waiting_max)
            .field("skip_ahead", &self.skip_ahead)
            .field("margin", &self.margin)
            .finish_non_exhaustive()
    }
}
