//! Group `loop`: the lines, their batch sizes and their goals.
//!
//! Reading order: this list, `workloads.rs` (what is timed), one vocabulary a runtime
//! (`tidegate.rs`, `tokio_current.rs`, `tokio_local.rs`, `smol.rs`), `python.rs`.

mod baton;
mod parts;
mod python;
#[allow(clippy::duplicate_mod, reason = "the same workloads, compiled once a runtime")]
mod smol;
#[allow(clippy::duplicate_mod, reason = "the same workloads, compiled once a runtime")]
mod tidegate;
#[allow(clippy::duplicate_mod, reason = "the same workloads, compiled once a runtime")]
mod tokio_current;
#[allow(clippy::duplicate_mod, reason = "the same workloads, compiled once a runtime")]
mod tokio_local;

use std::time::Duration;

use crate::harness::{BASELINE, Goal, Line};
use crate::python::Python;
use baton::Helper;

const TOKIO: &str = "tokio";
const TOKIO_LOCAL: &str = "tokio LocalRuntime";
const SMOL: &str = "smol";
const ASYNCIO: &str = "asyncio";
const UVLOOP: &str = "uvloop";

/// Adds one workload as run by tidegate and both of tokio's runtimes, and by smol unless it has
/// no such thing.
macro_rules! contest {
    ($line:expr, $workload:ident ( $($arg:expr),* )) => {
        contest!(@three $line, workloads, $workload($($arg),*))
            .contestant(SMOL, || smol::workloads::$workload($($arg),*))
    };
    ($line:expr, ping_pong :: $workload:ident ( $($arg:expr),* )) => {
        contest!(@three $line, ping_pong, $workload($($arg),*))
    };
    (@three $line:expr, $of:ident, $workload:ident ( $($arg:expr),* )) => {
        $line
            .contestant(BASELINE, || tidegate::$of::$workload($($arg),*))
            .contestant(TOKIO, || tokio_current::$of::$workload($($arg),*))
            .contestant(TOKIO_LOCAL, || tokio_local::$of::$workload($($arg),*))
    };
}

/// Goals speak of tokio as the better of its two runtimes.
const fn against_tokio(limit: f64, aim: f64) -> Goal {
    Goal::Ratio { against: &[TOKIO, TOKIO_LOCAL], limit, aim }
}

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = tasks();
    lines.extend(ping_pong());
    lines.extend(timers());
    lines.extend(threads());
    lines.push(memory());
    lines.push(python_switch());
    lines
}

fn tasks() -> Vec<Line> {
    vec![
        contest!(Line::new("spawn+join, batches of 1,000", "ns"), spawn_join(1_000, 50)).goal(against_tokio(4.0, 7.0)),
        contest!(Line::new("spawn+join, one batch of 100k", "ns"), spawn_join(100_000, 1)),
        contest!(Line::new("switch, self-waking, 1 task", "ns"), self_wake(1, 200_000)),
        contest!(Line::new("switch, self-waking, 10 tasks", "ns"), self_wake(10, 200_000))
            .goal(against_tokio(2.2, 3.0)),
        contest!(Line::new("switch, self-waking, 1,000 tasks", "ns"), self_wake(1_000, 200_000))
            .goal(against_tokio(2.2, 3.0)),
        contest!(Line::new("switch, own yield_now, 1 task", "ns"), own_yield(1, 100_000)),
        contest!(Line::new("switch, own yield_now, 10 tasks", "ns"), own_yield(10, 200_000)),
        contest!(Line::new("switch, own yield_now, 1,000 tasks", "ns"), own_yield(1_000, 200_000)),
    ]
}

fn ping_pong() -> Vec<Line> {
    vec![
        contest!(Line::new("ping-pong, own one-shots", "ns"), ping_pong::oneshots(50_000))
            .goal(against_tokio(2.5, 4.0))
            .note("a round trip, two values: tidegate's settable Future, tokio's oneshot"),
        contest!(Line::new("ping-pong, tokio's Notify", "ns"), notify_ping_pong(50_000))
            .note("a round trip, the same Notify on every runtime"),
        contest!(Line::new("ping-pong, tokio's mpsc", "ns"), mpsc_ping_pong(50_000))
            .note("a round trip, the same unbounded channels on every runtime"),
    ]
}

fn timers() -> Vec<Line> {
    const TOGETHER: Duration = Duration::from_millis(2);
    vec![
        contest!(Line::new("timers, arm+cancel", "ns"), arm_cancel(100_000))
            .goal(against_tokio(1.8, 2.2))
            .note("an earlier timer is outstanding; sleep made, polled once, dropped"),
        contest!(Line::new("timers, 1M armed, 90% cancelled", "ns CPU"), many_timers(1_000_000))
            .rounds_max(5)
            .note("a timer: boxed sleeps, 100,000 of them fire over 100 ms"),
        contest!(Line::new("timers, firing together", "ns CPU"), firing(1_000, 10, TOGETHER, 0))
            .goal(against_tokio(1.0, 1.3))
            .note("1,000 tasks x 10 sleeps of 2 ms"),
        contest!(Line::new("timers, firing apart", "ns CPU"), firing(1_000, 10, TOGETHER, 2_000))
            .note("1,000 tasks x 10 sleeps of 2 to 4 ms; tokio rounds them up to whole ms"),
        contest!(Line::new("timeout around a ready future", "ns"), timeout_ready(200_000))
            .goal(against_tokio(1.2, 5.0)),
        contest!(Line::new("sleep(1 ms) overshoot", "µs"), overshoot(20))
            .goal(Goal::Below { limit: 200.0, aim: 80.0 })
            .note("median lateness of 20 sleeps in a row"),
    ]
}

fn threads() -> Vec<Line> {
    vec![
        contest!(Line::new("cross-thread wake", "µs"), cross_thread(1_000, Helper::Parks))
            .goal(against_tokio(1.0, 1.2))
            .note("a round trip: task, parked thread, waker, task; on one core, asleep in turn"),
        contest!(Line::new("cross-thread wake, loop busy", "µs"), cross_thread(10_000, Helper::Spins))
            .note("a round trip: the thread spins, a sibling task keeps the loop at work"),
    ]
}

fn memory() -> Line {
    contest!(Line::new("parked trivial task", "B"), parked_bytes(100_000))
        .goal(Goal::BelowPeers { against: &[TOKIO, TOKIO_LOCAL], aim: 120.0 })
        .rounds_max(1)
        .note("heap bytes as requested, 100,000 tasks; tables and queues included")
}

fn python_switch() -> Line {
    const COUNT: u32 = 100_000;
    /// A sample of two milliseconds would say how a core wakes up, not what a switch costs.
    const LONGER: u32 = 100;
    let python = Python::find();
    Line::new("100,000 x sleep(0)", "ns")
        .contestant(BASELINE, || tidegate::sleep_zero(COUNT * LONGER))
        .contestant_if(ASYNCIO, python::asyncio(&python, COUNT))
        .contestant_if(UVLOOP, python::uvloop(&python, COUNT))
        .goal(Goal::Ratio { against: &[ASYNCIO], limit: 150.0, aim: 250.0 })
        .rounds_max(7)
        .note(format!(
            "one task that gives control away; tidegate {LONGER} times as often, to run for as long; CPython {}",
            python.version()
        ))
}
