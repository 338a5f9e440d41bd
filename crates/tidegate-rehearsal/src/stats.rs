//! What the server saw.

use std::fmt;

use serde::Serialize;

use crate::fault::Fault;

/// What a server has counted. As JSON at `/rehearsal/stats`; see [`Handle::stats`](crate::Handle::stats).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Milliseconds since the server started.
    pub up_ms: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were admitted; each counts against the limits, also if it fails afterwards.
    pub accepted: u64,
    /// Requests that got an answer a client can use.
    pub answered: u64,
    /// Requests that were refused with 429, by the limit that refused them.
    pub refused: Refused,
    /// Requests that were wrong: no key, no such model, no sense.
    pub rejected: u64,
    /// Requests that failed because a fault was injected.
    pub failed: u64,
    /// Accepted requests whose client went away before the answer.
    pub abandoned: u64,
    /// Accepted requests whose body had been accepted before, byte for byte: work that was paid for twice.
    pub repeated: u64,
    /// Accepted requests that are not answered yet.
    pub in_flight: u64,
    /// The most there were at once.
    pub in_flight_peak: u64,
    /// Tokens of all accepted prompts.
    pub tokens_in: u64,
    /// Tokens of all answers.
    pub tokens_out: u64,
    /// Each limit there is.
    pub limits: Vec<LimitStats>,
}

/// Refusals by limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refused {
    /// Requests per minute.
    pub rpm: u64,
    /// Tokens per minute.
    pub tpm: u64,
    /// Prompt tokens per minute.
    pub itpm: u64,
    /// Output tokens per minute.
    pub otpm: u64,
    /// Requests per day.
    pub rpd: u64,
    /// Requests in flight.
    pub concurrency: u64,
}

impl Refused {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.rpm + self.tpm + self.itpm + self.otpm + self.rpd + self.concurrency
    }
}

/// One limit's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LimitStats {
    /// `rpm`, `tpm`, `itpm`, `otpm` or `rpd`.
    pub name: &'static str,
    /// How much a window holds.
    pub amount: u64,
    /// How long a window is.
    pub window_ms: u64,
    /// What is in use now.
    pub used: u64,
    /// What was accepted in all.
    pub total: u64,
    /// The most that was accepted in any stretch as long as the window.
    pub worst_window: u64,
    /// The most that came in any stretch as long as the window, refused or not.
    pub worst_offered: u64,
    /// How much of the quota was used, from the first request to the last: the time a perfect client would have taken by
    /// the time that was taken. Nothing as long as all requests fit into one window.
    pub used_share: Option<f64>,
}

impl Stats {
    /// The figures of `rpm`, `tpm`, `itpm`, `otpm` or `rpd`.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitStats> {
        self.limits.iter().find(|limit| limit.name == name)
    }

    /// The share of the limit that was used most: the one that bound.
    #[must_use]
    pub fn used_share(&self) -> Option<f64> {
        self.limits.iter().filter_map(|limit| limit.used_share).max_by(f64::total_cmp)
    }
}

impl fmt::Display for Stats {
    /// One line, for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered, {} refused", self.answered, self.refused.total())?;
        let by = [
            ("rpm", self.refused.rpm),
            ("tpm", self.refused.tpm),
            ("itpm", self.refused.itpm),
            ("otpm", self.refused.otpm),
            ("rpd", self.refused.rpd),
            ("concurrency", self.refused.concurrency),
        ];
        let by: Vec<String> = by.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        if !by.is_empty() {
            write!(f, " ({})", by.join(", "))?;
        }
        write!(f, ", {} failed, in flight {} (peak {})", self.failed, self.in_flight, self.in_flight_peak)?;
        for limit in &self.limits {
            write!(f, ", {} {}/{}", limit.name, limit.used, limit.amount)?;
            if let Some(share) = limit.used_share {
                write!(f, " ({:.1} % of the quota used)", share * 100.0)?;
            }
        }
        Ok(())
    }
}

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// Its number, from 0.
    pub number: u64,
    /// When it was there in full, in microseconds since the server started.
    pub at_us: u64,
    /// The model it asked for.
    pub model: String,
    /// What it counted against the tokens per minute.
    pub tokens: u64,
    /// Accepted requests in flight, this one included.
    pub in_flight: u64,
    /// The limit that refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<&'static str>,
    /// What went wrong on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The status it was answered with; nothing while it is in flight, and for those who never get one.
    pub status: Option<u16>,
    /// From its arrival to its answer, in microseconds.
    pub took_us: Option<u64>,
}
