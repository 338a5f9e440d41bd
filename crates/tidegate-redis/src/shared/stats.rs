//! The counters of a shared gate.

use std::sync::Arc;
use std::time::Duration;

/// The counters of a shared gate, as one machine knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Leases held on this machine.
    pub current: u64,
    /// The most leases held at once on this machine.
    pub peak: u64,
    /// Leases granted on this machine so far.
    pub granted: u64,
    /// Of `granted`: by the local share while Redis was lost.
    pub granted_locally: u64,
    /// Leases that were refunded, or dropped before they were sent or taken.
    pub refunded: u64,
    /// Entries that were dropped in line.
    pub abandoned: u64,
    /// Entries refused after they waited.
    pub refused: u64,
    /// Entries in line on this machine.
    pub waiting: usize,
    /// The most entries in line at once.
    pub waiting_peak: usize,
    /// The total time that granted entries spent in line.
    pub waited: Duration,
    /// Calls of the script that were answered. Admissions per call shows what batching saves.
    pub calls: u64,
    /// Calls after which an entry had to wait.
    pub denials: u64,
    /// Of `denials`: because it was another machine's turn.
    pub turns: u64,
    /// How often the timer fired.
    pub alarms: u64,
    /// Notifications that another machine made room.
    pub notifications: u64,
    /// Bookings moved because the request was sent late.
    pub restamped: u64,
    /// What was booked because the actual cost was above the estimate.
    pub overdrawn: u64,
    /// How often Redis was lost.
    pub losses: u64,
    /// How often Redis had lost data, so that all limits counted as used up.
    pub memory_losses: u64,
    /// What blocks the first in line: a limit's name, or `another machine's turn`.
    pub blocked_by: Option<Arc<str>>,
    /// Why Redis is not used now.
    pub fault: Option<Arc<str>>,
    /// The counters of each limit.
    pub limits: Vec<SharedLimitStats>,
}

/// The state of one limit, as Redis last reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedLimitStats {
    /// Its name.
    pub name: Arc<str>,
    /// Its amount.
    pub amount: u64,
    /// How much of it all machines used.
    pub used: u64,
    /// How often an entry on this machine had to wait for it.
    pub blocked: u64,
    /// How long the first in line on this machine waited for it.
    pub blocked_for: Duration,
}

impl SharedStats {
    /// Returns the state of the limit of that name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&SharedLimitStats> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }
}
