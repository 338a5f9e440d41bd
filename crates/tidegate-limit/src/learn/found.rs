//! What a finder has found, and what it is doing: for display and for the next run.

use std::fmt;
use std::time::Duration;

use super::{Finder, FinderMode};
use crate::moment::Moment;

/// The limits that a gate has found, beyond those that were stated.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::{Found, FoundWindow};
///
/// let window = FoundWindow { amount: 10, length: Duration::from_millis(1_020), is_pace: false };
/// let found = Found { in_flight: Some(20), window: Some(window), ..Found::default() };
/// assert_eq!(found.to_string(), "20 requests in flight, 10 requests per second");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Found {
    /// The most requests in flight.
    pub in_flight: Option<u64>,
    /// Requests per length of time.
    pub window: Option<FoundWindow>,
    /// What it is doing.
    pub state: FoundState,
    /// Requests that were refused.
    pub refused: u64,
    /// Of all requests, sent to find out whether the server accepts again.
    pub probes: u64,
    /// The limits are those of an earlier run, not contradicted so far.
    pub remembered: bool,
}

/// A window or a pace that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FoundWindow {
    /// Requests per `length`.
    pub amount: u64,
    /// The length, with what is added for the wire.
    pub length: Duration,
    /// No window fits what the server does: only the rate means something.
    pub is_pace: bool,
}

/// What a finder is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FoundState {
    /// Requests are sent within what is known.
    #[default]
    Open,
    /// The server refuses: one probe at a time.
    Searching {
        /// How long it has been refusing.
        refused_for: Duration,
        /// When the next probe is due.
        next_in: Duration,
        /// Probes so far.
        probes: u64,
    },
    /// The server has asked for a pause.
    Waiting {
        /// How long it still lasts.
        remaining: Duration,
    },
    /// The server does not answer: one attempt at a time.
    Down {
        /// For how long.
        down_for: Duration,
        /// When the next attempt is due.
        next_in: Duration,
    },
}

impl Found {
    /// Returns `true` if a limit was found.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.in_flight.is_some() || self.window.is_some()
    }
}

impl FoundWindow {
    /// Requests per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.amount as f64 / self.length.as_secs_f64()
    }

    /// The length without what is added for the wire, as far as that can be told: a second, ten, or a minute, or the length
    /// as it is.
    #[must_use]
    pub fn nominal(&self) -> Duration {
        let near = |common: &Duration| self.length.abs_diff(*common) <= common.mul_f64(0.1);
        [1, 10, 60].map(Duration::from_secs).into_iter().find(near).unwrap_or(self.length)
    }
}

impl fmt::Display for FoundWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = if self.amount == 1 { "request" } else { "requests" };
        if self.is_pace {
            let rate = self.per_second();
            let digits = usize::from(rate < 10.0) + usize::from(rate < 1.0);
            return write!(f, "about {rate:.digits$} requests per second; no fixed window fits");
        }
        match self.nominal().as_millis() {
            1_000 => write!(f, "{} {requests} per second", self.amount),
            60_000 => write!(f, "{} {requests} per minute", self.amount),
            millis => write!(f, "{} {requests} per {} s", self.amount, millis as f64 / 1_000.0),
        }
    }
}

/// The limits alone: `20 requests in flight, 600 requests per minute`; `no limit` if there is none.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.in_flight, &self.window) {
            (None, None) => f.write_str("no limit"),
            (None, Some(window)) => window.fmt(f),
            (Some(in_flight), window) => {
                write!(f, "{in_flight} {} in flight", if in_flight == 1 { "request" } else { "requests" })?;
                window.iter().try_for_each(|window| write!(f, ", {window}"))
            }
        }
    }
}

impl Finder {
    /// What is known, and what it is doing at `now`.
    pub(crate) fn found(&self, now: Moment) -> Found {
        let window = self.window.filter(|window| window.learnt);
        Found {
            in_flight: self.cap,
            window: window.map(|window| FoundWindow {
                amount: window.amount,
                length: window.length,
                is_pace: window.pace.is_some(),
            }),
            state: self.state(now),
            refused: self.tally.refused,
            probes: self.tally.probes,
            remembered: self.tally.remembered && self.tally.found_at.is_none(),
        }
    }

    fn state(&self, now: Moment) -> FoundState {
        match self.mode {
            FinderMode::Down { since, next } => {
                FoundState::Down { down_for: now.since(since), next_in: next.since(now) }
            }
            FinderMode::Settling { .. } | FinderMode::Searching => FoundState::Searching {
                refused_for: now.since(self.search.first),
                next_in: self.search.next.max(self.hinted_until).since(now),
                probes: self.tally.probes_in_row,
            },
            FinderMode::Open if now + super::RESEND_AFTER < self.hinted_until => {
                FoundState::Waiting { remaining: self.hinted_until.since(now) }
            }
            FinderMode::Open => FoundState::Open,
        }
    }
}
