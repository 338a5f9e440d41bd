//! The limits that a run has found, for reports and programs.

use serde::{Deserialize, Serialize};
use tidegate_limit::{Found, FoundState};

/// Limits that were found, beyond those that were stated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FoundReport {
    /// The most requests in flight.
    pub in_flight: Option<u64>,
    /// Requests per window.
    pub amount: Option<u64>,
    /// The window's length; none if only the rate means something.
    pub window_seconds: Option<f64>,
    /// Requests per second.
    pub per_second: Option<f64>,
    /// `open`, `searching`, `waiting` or `down`.
    pub state: String,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were sent to find out whether the server accepts again.
    pub probes: u64,
    /// The limits are those of an earlier run, not contradicted so far.
    #[serde(default)]
    pub remembered: bool,
    /// For people: `10 requests per second`, `no limit`.
    pub text: String,
}

impl From<Found> for FoundReport {
    fn from(found: Found) -> FoundReport {
        let window = found.window.filter(|window| !window.is_pace);
        let state = match found.state {
            FoundState::Searching { .. } => "searching",
            FoundState::Waiting { .. } => "waiting",
            FoundState::Down { .. } => "down",
            _ => "open",
        };
        FoundReport {
            in_flight: found.in_flight,
            amount: window.map(|window| window.amount),
            window_seconds: window.map(|window| window.length.as_secs_f64()),
            per_second: found.window.map(|window| window.per_second()),
            state: state.into(),
            refused: found.refused,
            probes: found.probes,
            remembered: found.remembered,
            text: found.to_string(),
        }
    }
}
