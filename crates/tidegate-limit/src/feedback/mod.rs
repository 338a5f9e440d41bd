//! What a server's answer says about its limits, as plain values: status, headers, body and the time in, the next move
//! out. Nothing here waits or asks for the time but [`Listener`], which tells a gate.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_limit::feedback::{Provider, Verdict};
//!
//! let body = br#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM):
//!     Limit 200000, Used 198414, Requested 2829. Please try again in 372ms.","type":"tokens","code":"rate_limit_exceeded"}}"#;
//! let headers = [("x-ratelimit-remaining-requests", "499"), ("x-ratelimit-limit-requests", "500")];
//!
//! let feedback = Provider::OpenAi.read(429, &headers, body, jiff::Timestamp::now());
//! let Verdict::Wait { delay, limits } = &feedback.verdict else { panic!("{feedback:?}") };
//! assert_eq!(*delay, Duration::from_millis(372));
//! assert_eq!(limits[0].to_string(), "tokens a minute");
//! assert_eq!(feedback.quotas[0].remaining, 499);
//! ```
//!
//! # What is believed
//! - Delays that are negative, zero or not a number are as good as none. None is longer than [`DELAY_MAX`].
//! - A `reset` is when the counter is *full* again; nobody has to wait that long, so it never becomes a delay.
//! - Counters only ever tighten. A triple of limit, remaining and reset that contradicts itself (`-1`, more left than
//!   there is, a limit of 0) is ignored.
//! - Dates are counted on the server's clock if it sends `Date`, so that a skewed clock on our side does no harm.
//! - What is not understood becomes [`Verdict::BackOff`] or [`Verdict::Other`], by its status. No input panics.

mod anthropic;
mod body;
mod gemini;
mod headers;
mod listener;
mod openai;
mod steering;
mod time;

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

pub use headers::Headers;
pub use listener::{Listener, Report};
pub use steering::{Action, PROBE_FIRST, PROBE_RAREST, PROBED_BEYOND, Steering, Timing};
pub use time::DELAY_MAX;

/// Whose dialect an answer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// OpenAI and what is compatible: vLLM, Groq, OpenRouter, Azure, a litellm proxy.
    OpenAi,
    /// Anthropic's Messages API.
    Anthropic,
    /// Gemini's `generateContent`; a day's quota comes back at midnight in Los Angeles.
    Gemini,
}

impl Provider {
    /// Reads an answer that came at `now`. `body` may be empty; for a success it is not looked at.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Provider, Stop, Verdict};
    ///
    /// let body = br#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
    /// let none: [(&str, &str); 0] = [];
    /// let feedback = Provider::OpenAi.read(429, &none, body, jiff::Timestamp::now());
    /// assert_eq!(feedback.verdict, Verdict::Stop(Stop::InsufficientQuota));
    /// assert!(!feedback.verdict.may_retry());
    /// ```
    pub fn read(self, status: u16, headers: &impl Headers, body: &[u8], now: Timestamp) -> Feedback {
        match self {
            Provider::OpenAi => openai::read(status, headers, body, now),
            Provider::Anthropic => anthropic::read(status, headers, body, now),
            Provider::Gemini => gemini::read(status, headers, body, now),
        }
    }
}

/// What an answer says: what to do next, and what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The next move.
    pub verdict: Verdict,
    /// The counters of the headers that make sense, whatever the verdict.
    pub quotas: Vec<Quota>,
}

/// The next move.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The request was served.
    Proceed,
    /// Throttled, and the server says for how long.
    Wait {
        /// How long; between a nanosecond and [`DELAY_MAX`].
        delay: Duration,
        /// Which limits are used up; empty if the server does not say.
        limits: Vec<Which>,
    },
    /// Throttled, and the server does not say for how long.
    BackOff {
        /// Which limits are used up; empty if the server does not say.
        limits: Vec<Which>,
    },
    /// A day's quota is used up. Whatever short delay came along is wrong.
    Park {
        /// When the quota comes back.
        until: Timestamp,
        /// Which limits are used up.
        limits: Vec<Which>,
    },
    /// The server has too much to do: nobody's limit.
    Overloaded {
        /// How long to leave it alone, if it says so.
        delay: Option<Duration>,
    },
    /// This request alone can never fit; others can.
    TooLarge {
        /// What it was counted as, if the server says so.
        requested: Option<u64>,
        /// The limit it does not fit under.
        limit: Option<u64>,
    },
    /// No request will succeed until somebody acts.
    Stop(Stop),
    /// Nothing about limits: the status has to be dealt with by other means.
    Other {
        /// The answer's status.
        status: u16,
    },
}

impl Verdict {
    /// Whether the same request may succeed later, as far as limits are concerned. [`Verdict::Other`] has to be judged
    /// by its status; of it, the faults of servers (5xx) and 408 are retried.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Stop, Verdict};
    /// assert!(Verdict::Overloaded { delay: None }.may_retry());
    /// assert!(!Verdict::Stop(Stop::InsufficientQuota).may_retry());
    /// assert!(!Verdict::Other { status: 404 }.may_retry());
    /// ```
    pub fn may_retry(&self) -> bool {
        match self {
            Verdict::Wait { .. } | Verdict::BackOff { .. } | Verdict::Park { .. } | Verdict::Overloaded { .. } => true,
            Verdict::Proceed | Verdict::TooLarge { .. } | Verdict::Stop(_) => false,
            Verdict::Other { status } => matches!(status, 408 | 500..=599),
        }
    }
}

/// Why there is no point in going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The account has no credit left.
    InsufficientQuota,
    /// The cap on spending is reached.
    SpendCap {
        /// When access comes back by itself, if the server says so.
        until: Option<Timestamp>,
    },
    /// The account has a quota of zero for this model.
    NoQuota,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::InsufficientQuota => f.write_str("the account has no credit left: add some with the provider"),
            Stop::SpendCap { until: None } => {
                f.write_str("the account's spending cap is reached: raise it with the provider")
            }
            Stop::SpendCap { until: Some(until) } => {
                write!(f, "the account's spending cap is reached: raise it with the provider, or wait until {until}")
            }
            Stop::NoQuota => {
                f.write_str("the account has no quota at all for this model: choose another model or plan")
            }
        }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unit {
    /// Requests.
    Requests,
    /// Tokens, in and out.
    Tokens,
    /// Tokens of prompts.
    InputTokens,
    /// Tokens of answers.
    OutputTokens,
}

/// How long a limit's window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Per {
    /// A minute.
    Minute,
    /// A day.
    Day,
}

/// A server's limit, as far as an answer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Which {
    /// What it counts.
    pub unit: Unit,
    /// Over how long; `None` if the answer does not say.
    pub per: Option<Per>,
}

impl Which {
    /// A limit that counts `unit` over `per`.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Per, Unit, Which};
    /// assert_eq!(Which::new(Unit::Requests, Per::Day).to_string(), "requests a day");
    /// ```
    pub fn new(unit: Unit, per: impl Into<Option<Per>>) -> Which {
        Which { unit, per: per.into() }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.unit {
            Unit::Requests => "requests",
            Unit::Tokens => "tokens",
            Unit::InputTokens => "input tokens",
            Unit::OutputTokens => "output tokens",
        })?;
        f.write_str(match self.per {
            Some(Per::Minute) => " a minute",
            Some(Per::Day) => " a day",
            None => "",
        })
    }
}

/// A counter that the headers tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Which limit it belongs to.
    pub which: Which,
    /// What the server allows in a window, if it says so; at least 1.
    pub capacity: Option<u64>,
    /// What was left when the server answered; at most `capacity`.
    pub remaining: u64,
    /// How long until all of it is back. Not how long to wait.
    pub full_in: Option<Duration>,
}

impl Quota {
    /// The triple of these names, unless it is nonsense. Most answers have none, so one look has to tell; and the time is
    /// asked for only by those that do.
    fn read(which: Which, headers: &impl Headers, now: impl Fn() -> Timestamp, names: &Names) -> Option<Quota> {
        let number = |name: &str| headers.value(name).map(|text| text.trim().parse::<u64>());
        let remaining = number(names.remaining)?.ok()?;
        let full_in = headers.value(names.reset).and_then(|text| time::reset(text, now()));
        let capacity = match number(names.limit) {
            Some(limit) => Some(limit.ok().filter(|&limit| limit > 0)?),
            None => None,
        };
        // A lone zero is what gateways send that count nothing.
        let told = capacity.is_some() || full_in.is_some() || remaining > 0;
        let sane = capacity.is_none_or(|capacity| remaining <= capacity);
        (told && sane).then_some(Quota { which, capacity, remaining, full_in })
    }
}

/// The headers of one counter.
struct Names {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

/// The longer of an exact delay and a `Retry-After` in whole seconds; of two that differ by rounding, the exact one.
fn longer(exact: Option<Duration>, whole_seconds: Option<Duration>) -> Option<Duration> {
    match (exact, whole_seconds) {
        (Some(exact), Some(rounded)) if rounded >= exact + Duration::from_secs(1) => Some(rounded),
        (Some(exact), _) => Some(exact),
        (None, rounded) => rounded,
    }
}

/// Throttled for `delay`, or for who knows how long.
fn throttled(delay: Option<Duration>, limits: Vec<Which>) -> Verdict {
    match delay {
        Some(delay) => Verdict::Wait { delay, limits },
        None => Verdict::BackOff { limits },
    }
}
