//! The master's phases: one table, and nothing else decides what comes next.
//!
//! ```text
//!              failed                 warm                 idle
//! Connecting ─────────► Closing   Running ─────► Draining ─────► Settling ──► Closing ──► Stopped
//!     │ connected          ▲        │   ▲  cold      │ late, cold    ▲  settled, late  closed, late
//!     ▼            failed  │        │   │            ▼               │
//! StartingPool ────────────┘        │   └─ started  Cancelling ──────┘
//!     └───────── started ───────────┘ cold ───────────▲      idle, late
//! ```

use std::fmt;

/// Where a master is between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The connection is being made.
    Connecting,
    /// What runs tasks is being made ready.
    StartingPool,
    /// Tasks are received and run.
    Running,
    /// Nothing is received or begun any more; what runs may finish.
    Draining,
    /// Running tasks have been cancelled.
    Cancelling,
    /// Nothing runs; the last settlements are being written.
    Settling,
    /// The connection is being closed; what was not settled returns.
    Closing,
    /// Over.
    Stopped,
}

/// What moves a master on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Connected,
    Started,
    Failed,
    Warm,
    Cold,
    /// Nothing runs any more.
    Idle,
    /// Everything is settled.
    Settled,
    Closed,
    /// The phase's time is over.
    Late,
}

/// A move that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Illegal(pub(crate) Phase, pub(crate) Event);

impl Phase {
    pub(crate) fn next(self, event: Event) -> Result<Phase, Illegal> {
        Ok(match (self, event) {
            (Phase::Connecting, Event::Connected) => Phase::StartingPool,
            (Phase::StartingPool, Event::Started) => Phase::Running,
            (Phase::Connecting | Phase::StartingPool, Event::Failed) => Phase::Closing,
            (Phase::Running, Event::Warm) => Phase::Draining,
            (Phase::Running, Event::Cold) => Phase::Cancelling,
            (Phase::Draining, Event::Idle) => Phase::Settling,
            (Phase::Draining, Event::Late | Event::Cold) => Phase::Cancelling,
            (Phase::Cancelling, Event::Idle | Event::Late) => Phase::Settling,
            (Phase::Settling, Event::Settled | Event::Late) => Phase::Closing,
            (Phase::Closing, Event::Closed | Event::Late) => Phase::Stopped,
            (phase, event) => return Err(Illegal(phase, event)),
        })
    }

    /// As in logs and at `/healthz`.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Connecting => "connecting",
            Phase::StartingPool => "starting-pool",
            Phase::Running => "running",
            Phase::Draining => "draining",
            Phase::Cancelling => "cancelling",
            Phase::Settling => "settling",
            Phase::Closing => "closing",
            Phase::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 9] = [
        Event::Connected,
        Event::Started,
        Event::Failed,
        Event::Warm,
        Event::Cold,
        Event::Idle,
        Event::Settled,
        Event::Closed,
        Event::Late,
    ];

    fn reachable(from: Phase) -> Vec<Phase> {
        let mut seen = vec![from];
        let mut at = 0;
        while at < seen.len() {
            for event in EVENTS {
                if let Ok(next) = seen[at].next(event)
                    && !seen.contains(&next)
                {
                    seen.push(next);
                }
            }
            at += 1;
        }
        seen
    }

    #[test]
    fn every_phase_leads_to_the_end_and_none_leads_back() {
        for phase in reachable(Phase::Connecting) {
            let ahead = reachable(phase);
            assert!(ahead.contains(&Phase::Stopped), "{phase} is a dead end");
            for later in ahead.into_iter().filter(|later| *later != phase) {
                assert!(!reachable(later).contains(&phase), "{later} leads back to {phase}");
            }
        }
        assert_eq!(reachable(Phase::Connecting).len(), 8);
    }

    #[test]
    fn every_phase_of_a_stop_ends_by_the_clock_if_by_nothing_else() {
        for phase in [Phase::Draining, Phase::Cancelling, Phase::Settling, Phase::Closing] {
            assert!(phase.next(Event::Late).is_ok(), "{phase} has no time limit");
        }
    }

    #[test]
    fn what_finished_is_settled_before_anything_is_closed() {
        for phase in [Phase::Running, Phase::Draining, Phase::Cancelling] {
            for event in EVENTS {
                assert_ne!(phase.next(event), Ok(Phase::Closing), "{phase} skips settling at {event:?}");
            }
        }
    }
}
