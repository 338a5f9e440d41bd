//! What a gate shows in a scene.

use std::time::SystemTime;

use tidegate_limit::{LimitSnapshot, Snapshot};

use super::scene::{Blocker, Gauge, Queue};

pub(crate) fn gauges(gate: &Snapshot) -> Vec<Gauge> {
    gate.limits.iter().map(|limit| gauge(limit, gate)).collect()
}

pub(crate) fn queue(gate: &Snapshot) -> Queue {
    Queue {
        under_way: gate.current,
        waiting: gate.waiting as u64,
        blocked_by: gate.blocked_by.as_ref().map(|name| match name.as_str() {
            "scopes" => Blocker::Files,
            name => Blocker::Limit(name.to_owned()),
        }),
    }
}

fn gauge(limit: &LimitSnapshot, gate: &Snapshot) -> Gauge {
    let from_now = |at: Option<SystemTime>| at.and_then(|at| at.duration_since(gate.at).ok());
    Gauge {
        name: limit.name.clone(),
        // What the server says is gone counts as used.
        used: limit.used.max(limit.amount.saturating_sub(limit.remaining)),
        amount: limit.amount,
        back_in: from_now(limit.next_reset),
        held_for: from_now(limit.held_until),
        shut: limit.shut.clone(),
    }
}
