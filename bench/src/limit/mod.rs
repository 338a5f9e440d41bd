//! Group `limit`: the gate beside governor, leaky-bucket, tokio's semaphore, pollers, and two of Python's limiters.
//!
//! `admission.rs` is what a decision costs, `pace.rs` what happens in real time, `python.rs` how the Python limiters run;
//! the strict server is tidegate-limit's example of that name.

mod admission;
mod pace;
mod python;

#[allow(dead_code, reason = "a program of its own, of which only the race is run here")]
#[path = "../../../crates/tidegate-limit/examples/strict_server.rs"]
mod strict_server;

use crate::harness::Line;

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = admission::lines();
    lines.extend(pace::lines());
    lines
}
