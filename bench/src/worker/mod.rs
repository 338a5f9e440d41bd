//! Group `worker`: the queue in a SQLite file, publishes synced. What is compared is the time a task takes on its way
//! through the queue; the work itself is nothing.
//!
//! Reading order: this list; `queue.rs` (one process), `processes.rs` (several), `python.rs` (huey).

mod processes;
mod python;
mod queue;

use std::process::ExitCode;

use crate::harness::{BASELINE, Goal, Line};
use python::Huey;

const HUEY: &str = "huey, SQLite, fsync";

pub(crate) fn lines() -> Vec<Line> {
    vec![through_line(1_000), through_line(1), backlog_line(), four_line(), latency_line(), idle_line()]
}

/// Published, claimed and settled within one process.
fn through_line(in_flight: usize) -> Line {
    let huey = Huey::find();
    let name = format!("publish → claim → settle, {in_flight} in flight");
    let mut line = Line::new(name, "µs")
        .rounds_max(7)
        .note("one process; tidegate publishes one task a call; huey has one in flight at most")
        .contestant_if(BASELINE, move || queue::through(in_flight))
        .contestant_if(HUEY, move || huey.through(400));
    if in_flight > 1 {
        line = line
            .goal(Goal::Ratio { against: &[HUEY], limit: 20.0, aim: 20.0 })
            .goal(Goal::Below { limit: 60.0, aim: 20.0 });
    }
    line
}

/// The same hundred at a time, in front of a short and of a long queue.
fn backlog_line() -> Line {
    const SHORT: &str = "1,000 waiting";
    let (mut long, mut short) = (queue::Backlog::of(1_000_000), queue::Backlog::of(1_000));
    Line::new("claim and settle with 1,000,000 waiting", "µs")
        .rounds_max(15)
        .goal(Goal::Ratio { against: &[SHORT], limit: 0.667, aim: 0.667 })
        .note("a hundred at a time; the ratio is the short queue's cost against the long one's")
        .contestant_if(BASELINE, move || long.sample())
        .contestant_if(SHORT, move || short.sample())
}

/// Everybody in a process of its own.
fn four_line() -> Line {
    Line::new("2 producers + 2 workers, four processes", "µs")
        .rounds_max(5)
        .goal(Goal::Below { limit: 100.0, aim: 20.0 })
        .note("batches of 100; it fails if one of the four gets less than a tenth of its share")
        .contestant_if(BASELINE, processes::four)
}

fn latency_line() -> Line {
    Line::new("enqueue to start, idle, two processes", "ms")
        .rounds_max(5)
        .goal(Goal::Below { limit: 2.0, aim: 0.5 })
        .note("from the call of publish to the worker's hand; the sync of the publish is in it")
        .contestant_if(BASELINE, processes::latency)
}

fn idle_line() -> Line {
    Line::new("a waiting worker", "% CPU")
        .rounds_max(3)
        .goal(Goal::Below { limit: 0.1, aim: 0.05 })
        .contestant_if(BASELINE, processes::idle)
}

/// This binary as one of the processes, if that is what it was started for.
pub(crate) fn child_if_asked() -> Option<ExitCode> {
    processes::child_if_asked()
}
