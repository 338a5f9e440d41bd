//! Errors of configurations and of entries.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Error of a configuration.
///
/// ```
/// use tidegate_limit::{ConfigError, Gate, Limit};
///
/// let error = Gate::builder().limit(Limit::rpm(0)).build().unwrap_err();
/// assert!(matches!(error, ConfigError::Zero { .. }));
/// assert!(error.to_string().contains("rpm"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit of zero would admit nothing.
    Zero {
        /// The limit's name.
        limit: Arc<str>,
    },
    /// A window of zero length, or of centuries.
    Window {
        /// The limit's name.
        limit: Arc<str>,
        /// The window's length.
        length: Duration,
    },
    /// The time zone does not exist.
    Zone {
        /// The limit's name.
        limit: Arc<str>,
        /// The unknown zone.
        zone: Arc<str>,
    },
    /// Two limits have the same name.
    Twice {
        /// The name.
        limit: Arc<str>,
    },
    /// There are more limits than a gate supports.
    TooMany,
    /// A limit is journaled, but the gate has no journal.
    NoJournal {
        /// The limit's name.
        limit: Arc<str>,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Zero { limit } => {
                write!(f, "limit {limit} is 0 and would admit nothing; leave it out, or give it an amount")
            }
            ConfigError::Window { limit, length } => {
                write!(f, "limit {limit} has a window of {length:?}; it must last from a nanosecond to 500 years")
            }
            ConfigError::Zone { limit, zone } => {
                write!(f, "limit {limit}: there is no time zone {zone:?}; use an IANA name such as America/Los_Angeles")
            }
            ConfigError::Twice { limit } => write!(f, "two limits are called {limit}; rename one with Limit::named"),
            ConfigError::TooMany => f.write_str("a gate can have at most 1,000 limits; use scopes for larger numbers"),
            ConfigError::NoJournal { limit } => {
                write!(f, "limit {limit} is journaled, but the gate has no journal; give it one with Builder::journal")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Error of [`enter`](crate::Gate::enter): the entry cannot be admitted.
///
/// ```
/// use tidegate_limit::{Cost, EnterError, Gate, Limit};
///
/// # tidegate_loop::run(async {
/// let gate = Gate::builder().limit(Limit::tpm(1_000)).build().unwrap();
/// let error = gate.enter(gate.unscoped(), Cost::tokens(1_001)).await.unwrap_err();
/// assert_eq!(error.to_string(), "a cost of 1001 is above limit tpm, which is 1000; split the request, or raise the limit");
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnterError {
    /// The cost is more than ever fits: split the request.
    TooLarge {
        /// The limit under which it does not fit.
        limit: Arc<str>,
        /// The cost in that limit's dimension.
        cost: u64,
        /// The largest cost that fits.
        capacity: u64,
    },
    /// The line is [full](crate::Builder::max_waiting): try later, or produce less.
    Crowded {
        /// The largest number of waiting entries.
        waiting_max: usize,
    },
    /// A limit was [shut](crate::Gate::shut); it stays so until a person or program resumes it.
    Shut {
        /// The limit's name.
        limit: Arc<str>,
        /// Why it was shut.
        reason: Arc<str>,
    },
    /// The journal could not write a reservation.
    Journal {
        /// The limit's name.
        limit: Arc<str>,
        /// The journal's error.
        reason: Arc<str>,
    },
    /// The gate was closed.
    Closed,
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnterError::TooLarge { limit, cost, capacity } => write!(
                f,
                "a cost of {cost} is above limit {limit}, which is {capacity}; split the request, or raise the limit"
            ),
            EnterError::Crowded { waiting_max } => {
                write!(f, "{waiting_max} entries wait at the gate, which is its maximum; try again later")
            }
            EnterError::Shut { limit, reason } => write!(f, "limit {limit} is shut: {reason}"),
            EnterError::Journal { limit, reason } => {
                write!(f, "limit {limit} could not be written to its journal, so nothing is admitted: {reason}")
            }
            EnterError::Closed => f.write_str("the gate is closed"),
        }
    }
}

impl std::error::Error for EnterError {}

/// Error of [`try_enter`](crate::Gate::try_enter).
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit, TryEnterError};
///
/// # tidegate_loop::run(async {
/// let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
/// gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
/// let Err(TryEnterError::Later { limit, ready_at }) = gate.try_enter(gate.unscoped(), Cost::request()) else { panic!() };
/// assert_eq!(&*limit, "rpm");
/// assert!(ready_at.is_some());
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryEnterError {
    /// There is no room now.
    Later {
        /// The limit or scope without room; the one that blocks the entry longest if there are several.
        limit: Arc<str>,
        /// When there will be room if no other entry comes; `None` if that depends on when slots are freed.
        ready_at: Option<Instant>,
    },
    /// Other entries are in line before it.
    Behind {
        /// Number of entries in line.
        waiting: usize,
    },
    /// The entry cannot be admitted.
    Never(EnterError),
}

impl fmt::Display for TryEnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryEnterError::Later { limit, .. } => write!(f, "there is no room under limit {limit} now"),
            TryEnterError::Behind { waiting } => write!(f, "{waiting} entries are in line"),
            TryEnterError::Never(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TryEnterError {}

/// The gate has no limit of this name.
///
/// ```
/// # use tidegate_limit::{Gate, Limit};
/// let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
/// assert_eq!(gate.set("rpd", 5).unwrap_err().to_string(), "the gate has no limit \"rpd\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLimit(pub String);

impl fmt::Display for UnknownLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the gate has no limit {:?}", self.0)
    }
}

impl std::error::Error for UnknownLimit {}
