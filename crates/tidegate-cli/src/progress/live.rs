//! Scenes from a run, and from a gate.

use std::time::SystemTime;

use serde_json::{Value, json};
use tidegate_batch::{FileProgress, FileState, Progress, Watch};
use tidegate_limit::{LimitSnapshot, Snapshot};

use super::Run;
use super::scene::{Blocker, File, Gauge, Queue, Scene, State, Unit};

impl Run for Watch {
    fn scene(&self) -> Scene {
        scene(&self.progress())
    }

    fn json(&self) -> Value {
        json!({"event": "progress", "progress": self.progress()})
    }
}

fn scene(progress: &Progress) -> Scene {
    Scene {
        unit: Unit::Pages,
        elapsed: progress.elapsed,
        pages: progress.pages,
        more: progress.more,
        done: progress.done,
        kept: progress.kept,
        failed: progress.failed,
        skipped: progress.skipped,
        pages_per_minute: progress.pages_per_minute,
        remaining: progress.remaining,
        tokens: progress.tokens.total(),
        stopping: progress.stopping,
        files: progress.files.iter().map(file).collect(),
        gauges: gauges(&progress.gate),
        queue: queue(&progress.gate),
    }
}

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

fn file(progress: &FileProgress) -> File {
    let FileProgress { name, pages, done, failed, skipped, asking, .. } = progress;
    let state = match progress.state {
        FileState::Running => State::Running,
        FileState::Writing => State::Writing,
        FileState::Done => State::Done,
        FileState::Failed => State::Failed,
        _ => State::Waiting,
    };
    let (pages, done, failed, skipped, asking) = (*pages, *done, *failed, *skipped, *asking);
    File { name: name.clone(), state, pages, done, failed, skipped, asking }
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
