//! Reads what a server's answer states about its limits: status, headers, body and time in, the next action out, as plain
//! values. Only [`Listener`] reads a clock and changes a gate.
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
//! assert_eq!(limits[0].to_string(), "tokens per minute");
//! assert_eq!(feedback.quotas[0].remaining, 499);
//! ```
//!
//! # How input is treated
//! - Delays that are negative, zero or not a number are ignored. None is taken to be longer than [`DELAY_MAX`].
//! - A `reset` is the time until the counter is *full* again. A request need not wait that long, so it is not a delay.
//! - Counters only reduce what is left. A triple of limit, remaining and reset that contradicts itself (`-1`, more left than
//!   the limit, a limit of 0) is ignored.
//! - Dates are compared with the server's clock if it sends `Date`, so that a wrong local clock does no harm.
//! - Other input becomes [`Verdict::BackOff`] or [`Verdict::Other`], depending on its status. No input panics.

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

/// The API format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// OpenAI and compatible servers: vLLM, Groq, OpenRouter, Azure, a litellm proxy.
    OpenAi,
    /// Anthropic's Messages API.
    Anthropic,
    /// Gemini's `generateContent`. A daily quota is reset at midnight in Los Angeles.
    Gemini,
}

impl Provider {
    /// Reads an answer that arrived at `now`. `body` may be empty; that of a success is not read.
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

/// What an answer states: what to do next, and what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// What to do next.
    pub verdict: Verdict,
    /// The valid counters of the headers, with any verdict.
    pub quotas: Vec<Quota>,
}

/// What to do after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The request was served.
    Proceed,
    /// The request was throttled, for a stated time.
    Wait {
        /// How long; between a nanosecond and [`DELAY_MAX`].
        delay: Duration,
        /// The limits that are used up; empty if not stated.
        limits: Vec<Which>,
    },
    /// The request was throttled, without a stated time.
    BackOff {
        /// The limits that are used up; empty if not stated.
        limits: Vec<Which>,
    },
    /// A daily quota is used up. A short delay in the same answer is ignored.
    Park {
        /// When the quota is reset.
        until: Timestamp,
        /// The limits that are used up.
        limits: Vec<Which>,
    },
    /// The server is overloaded; no limit of this client is used up.
    Overloaded {
        /// How long to wait, if stated.
        delay: Option<Duration>,
    },
    /// This request can never fit; smaller ones can.
    TooLarge {
        /// The amount that the request counted as, if stated.
        requested: Option<u64>,
        /// The limit under which it does not fit, if stated.
        limit: Option<u64>,
    },
    /// No request will succeed until the account is changed.
    Stop(Stop),
    /// The answer is not about limits; the caller has to handle the status.
    Other {
        /// The answer's status.
        status: u16,
    },
}

impl Verdict {
    /// Whether the same request may succeed later. Of [`Verdict::Other`], these are server errors (5xx) and 408.
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

/// Why no request will succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The account has no credit left.
    InsufficientQuota,
    /// The cap on spending is reached.
    SpendCap {
        /// When access is restored without a change, if stated.
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
    /// Tokens of prompts and answers together.
    Tokens,
    /// Tokens of prompts.
    InputTokens,
    /// Tokens of answers.
    OutputTokens,
}

/// The length of a limit's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Per {
    /// A minute.
    Minute,
    /// A day.
    Day,
}

/// A server's limit, as named by an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Which {
    /// What it counts.
    pub unit: Unit,
    /// The window; `None` if the answer does not state it.
    pub per: Option<Per>,
}

impl Which {
    /// Creates the name of a limit that counts `unit` per `per`.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Per, Unit, Which};
    /// assert_eq!(Which::new(Unit::Requests, Per::Day).to_string(), "requests per day");
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
            Some(Per::Minute) => " per minute",
            Some(Per::Day) => " per day",
            None => "",
        })
    }
}

/// A counter in the headers of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The limit that it belongs to.
    pub which: Which,
    /// The amount per window, if stated; at least 1.
    pub capacity: Option<u64>,
    /// What was left when the server answered; at most `capacity`.
    pub remaining: u64,
    /// The time until all of it is back, which is longer than a request has to wait.
    pub full_in: Option<Duration>,
}

impl Quota {
    /// Reads the headers of these names, unless they are invalid. Most answers have none, so one look-up has to be enough
    /// for them, and the time is read only if it is needed.
    fn read(which: Which, headers: &impl Headers, now: impl Fn() -> Timestamp, names: &QuotaNames) -> Option<Quota> {
        let number = |name: &str| headers.value(name).map(|text| text.trim().parse::<u64>());
        let remaining = number(names.remaining)?.ok()?;
        let full_in = headers.value(names.reset).and_then(|text| time::reset(text, now()));
        let capacity = match number(names.limit) {
            Some(limit) => Some(limit.ok().filter(|&limit| limit > 0)?),
            None => None,
        };
        // Gateways that count nothing send a zero alone.
        let counts = capacity.is_some() || full_in.is_some() || remaining > 0;
        let is_valid = capacity.is_none_or(|capacity| remaining <= capacity);
        (counts && is_valid).then_some(Quota { which, capacity, remaining, full_in })
    }
}

/// The headers of one counter.
struct QuotaNames {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

/// Returns the longer of an exact delay and a `Retry-After` in whole seconds. If they differ by rounding, returns the exact
/// one.
fn longer(exact: Option<Duration>, whole_seconds: Option<Duration>) -> Option<Duration> {
    match (exact, whole_seconds) {
        (Some(exact), Some(rounded)) if rounded >= exact + Duration::from_secs(1) => Some(rounded),
        (Some(exact), _) => Some(exact),
        (None, rounded) => rounded,
    }
}

/// The verdict of a throttled request, with or without a stated delay.
fn throttled(delay: Option<Duration>, limits: Vec<Which>) -> Verdict {
    match delay {
        Some(delay) => Verdict::Wait { delay, limits },
        None => Verdict::BackOff { limits },
    }
}
