//! Rehearsals in virtual time: client, gate, HTTP and strict server are on one loop, and its clock moves only while nothing is
//! on the way between them. The result does not depend on how fast the machine is or on what else it does.

use std::future::Future;
use std::time::Duration;

use tidegate_limit::Gate;
use tidegate_loop::{EventLoop, JoinHandle, LoopHandle, spawn, yield_now};
use tidegate_rehearsal::Handle;

/// The clock moves in steps of this length: timers are late by less than that, and never early.
const STEP: Duration = Duration::from_millis(1);

/// Ticks between two steps: what a timer wakes is admitted before the clock moves on.
const TICKS: usize = 4;

/// Runs a rehearsal on a loop whose clock stands still until [`keep_time`] moves it.
pub(crate) fn in_virtual_time<F: Future + 'static>(rehearsal: F) -> F::Output {
    EventLoop::builder().manual_clock().build().unwrap().run_until_complete(rehearsal).unwrap()
}

/// Moves the clock while every request that `gate` has admitted is in flight at `server`. Otherwise a request or an answer is
/// on its way, or a lease is about to be given back, and the clock stands still.
pub(crate) fn keep_time(gate: &Gate, server: &Handle) -> JoinHandle<()> {
    let (gate, server) = (gate.clone(), server.clone());
    spawn(async move {
        loop {
            for _ in 0..TICKS {
                yield_now().await;
            }
            if gate.stats().current == server.stats().in_flight {
                LoopHandle::current().advance(STEP);
            }
        }
    })
}
