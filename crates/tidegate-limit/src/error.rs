//! Why a gate could not be made, or somebody did not get in.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is wrong with a configuration.
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
    /// A limit of zero lets nothing through.
    Zero {
        /// Whose.
        limit: Arc<str>,
    },
    /// A window of no length, or of centuries.
    Window {
        /// Whose.
        limit: Arc<str>,
        /// Its length.
        length: Duration,
    },
    /// There is no such time zone.
    Zone {
        /// Whose.
        limit: Arc<str>,
        /// The zone that was asked for.
        zone: Arc<str>,
    },
    /// Two limits of one name.
    Twice {
        /// The name.
        limit: Arc<str>,
    },
    /// More limits than a gate takes.
    TooMany,
    /// A limit is to be journaled, and there is no journal.
    NoJournal {
        /// Which.
        limit: Arc<str>,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Zero { limit } => {
                write!(f, "limit {limit} is 0 and would let nothing through; leave it out, or give it an amount")
            }
            ConfigError::Window { limit, length } => {
                write!(f, "limit {limit} has a window of {length:?}; it must last from a nanosecond to 500 years")
            }
            ConfigError::Zone { limit, zone } => {
                write!(f, "limit {limit}: there is no time zone {zone:?}; use an IANA name such as America/Los_Angeles")
            }
            ConfigError::Twice { limit } => write!(f, "two limits are called {limit}; rename one with Limit::named"),
            ConfigError::TooMany => f.write_str("a gate takes 1,000 limits; scopes are what there can be many of"),
            ConfigError::NoJournal { limit } => {
                write!(f, "limit {limit} is journaled, but the gate has no journal; give it one with Builder::journal")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Why [`enter`](crate::Gate::enter) will never succeed, as things are.
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
    /// It costs more than ever fits: split it.
    TooLarge {
        /// Under which limit it does not fit.
        limit: Arc<str>,
        /// What it costs in that limit's dimension.
        cost: u64,
        /// What fits.
        capacity: u64,
    },
    /// As many wait as may: try later, or produce less.
    Crowded {
        /// How many that is.
        waiting_max: usize,
    },
    /// A limit was [shut](crate::Gate::shut): somebody has to act.
    Shut {
        /// Which.
        limit: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// What is about to be booked could not be written down first.
    Journal {
        /// For which limit.
        limit: Arc<str>,
        /// What the journal said.
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
                write!(f, "{waiting_max} wait at the gate already, which is all that may; try again later")
            }
            EnterError::Shut { limit, reason } => write!(f, "limit {limit} is shut: {reason}"),
            EnterError::Journal { limit, reason } => {
                write!(f, "limit {limit} could not be written to its journal, so nothing is let through: {reason}")
            }
            EnterError::Closed => f.write_str("the gate is closed"),
        }
    }
}

impl std::error::Error for EnterError {}

/// Why [`try_enter`](crate::Gate::try_enter) did not succeed.
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
        /// The limit, or the scope, that it would have to wait for; the last of them.
        limit: Arc<str>,
        /// When there will be room if nobody else comes; `None` if that depends on others leaving.
        ready_at: Option<Instant>,
    },
    /// Others came first.
    Behind {
        /// How many wait.
        waiting: usize,
    },
    /// It will never succeed, as things are.
    Never(EnterError),
}

impl fmt::Display for TryEnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryEnterError::Later { limit, .. } => write!(f, "there is no room under limit {limit} now"),
            TryEnterError::Behind { waiting } => write!(f, "{waiting} came first and wait"),
            TryEnterError::Never(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TryEnterError {}

/// There is no limit of that name.
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
