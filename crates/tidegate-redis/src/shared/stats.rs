//! What a shared gate has to say about itself.

use std::sync::Arc;
use std::time::Duration;

/// A shared gate's figures as one machine knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Leases out on this machine.
    pub current: u64,
    /// The most that were out at once here.
    pub peak: u64,
    /// Leases granted here, ever.
    pub granted: u64,
    /// Of those, by the local share while Redis was lost.
    pub granted_locally: u64,
    /// Leases dropped before they were sent, refunded, or not fetched.
    pub refunded: u64,
    /// Entries given up in line.
    pub abandoned: u64,
    /// Entries refused after they waited.
    pub refused: u64,
    /// In line here.
    pub waiting: usize,
    /// The most that were.
    pub waiting_peak: usize,
    /// The time spent in line by all who were granted something.
    pub waited: Duration,
    /// Calls of the script that were answered: admissions a call is what batching saves.
    pub calls: u64,
    /// Calls after which somebody had to wait.
    pub denials: u64,
    /// Of those, because it was another machine's turn.
    pub turns: u64,
    /// How often the timer went off.
    pub alarms: u64,
    /// How often another machine made room and told.
    pub notifications: u64,
    /// Bookings moved because they were sent late.
    pub restamped: u64,
    /// What was booked by settling above what had been declared.
    pub overdrawn: u64,
    /// How often Redis was lost.
    pub losses: u64,
    /// How often Redis had lost its memory, or part of it, and everything was taken for used.
    pub memory_losses: u64,
    /// What the first in line waits for: a limit's name, or `another machine's turn`.
    pub blocked_by: Option<Arc<str>>,
    /// Why Redis is not used now.
    pub fault: Option<Arc<str>>,
    /// Each limit.
    pub limits: Vec<SharedLimitStats>,
}

/// One limit, as Redis last told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedLimitStats {
    /// Its name.
    pub name: Arc<str>,
    /// What it lets through.
    pub amount: u64,
    /// What of that was in use by all machines.
    pub used: u64,
    /// How often somebody here was told to wait for it.
    pub blocked: u64,
    /// For how long the first in line here waited for it.
    pub blocked_for: Duration,
}

impl SharedStats {
    /// The figures of the limit of that name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&SharedLimitStats> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }
}
