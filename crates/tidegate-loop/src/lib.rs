//! A single-threaded event loop with asyncio's semantics: one documented order of events, cancellation that can be
//! caught, context that is inherited, exact timers, traces, virtual time, and runs that can be replayed from a seed.
//!
//! ```
//! use tidegate_loop::{Duration, gather, run, sleep, spawn};
//!
//! async fn func(n: u64) -> u64 {
//!     sleep(Duration::from_millis(n)).await;
//!     n
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let results = run(async { gather([spawn(func(1)), spawn(func(2))]).await })??;
//!     assert_eq!(results, [1, 2]);
//!     Ok(())
//! }
//! ```
//!
//! One loop runs on one thread, so tasks need not be `Send`, and no atomics stand between them. Other threads reach a loop
//! through a [`RemoteHandle`], or by waking a task; [`to_thread`] runs what blocks; [`run_loops`] runs several loops.
//!
//! # Coming from tokio or asyncio
//! | tokio | asyncio | here |
//! |---|---|---|
//! | `block_on`, `#[main]` | `asyncio.run`, `Runner` | [`run`], [`run_fallible`], [`Runner`] |
//! | `spawn`, `JoinHandle::abort` | `create_task`, `Task.cancel` | [`spawn`], [`Task::cancel`]; a cancellation can be caught: [`catch_cancel`] |
//! | `JoinSet` | – | [`JoinSet`] |
//! | – | `TaskGroup` | [`TaskGroup`] |
//! | `select!`, `join!` | `wait`, `gather` | [`select!`], [`join!`], [`race`], [`zip`] inside a task; [`wait()`], [`gather`], [`as_completed`] over tasks |
//! | `time::sleep`, `timeout`, `interval` | `sleep`, `timeout` | [`sleep()`], [`timeout`], [`interval`] |
//! | `Instant::now` | `loop.time` | [`now`]: `std`'s `Instant::now` does not know virtual time |
//! | `spawn_blocking` | `to_thread` | [`to_thread`] |
//! | `Handle::spawn` | `run_coroutine_threadsafe` | [`RemoteHandle::spawn`] |
//! | `sync::oneshot` | `Future` | [`Deferred`], [`LoopHandle::create_future`] |
//! | `task_local!` | `ContextVar` | [`ContextVar`] |
//! | `time::pause` | – | [`EventLoop::simulated`], [`Builder::virtual_time`] |
//!
//! Semaphores, events, queues and mutexes are in `tidegate-sync`. Crates that need tokio's own reactor run under
//! `Runtime::enter`.
//!
//! # The tick
//! As in asyncio: drop cancelled timers, work out the time-out, ask the selector, move due timers to the ready queue, run
//! what *was* ready. What that makes ready waits for the next tick. While something is always ready the selector and the
//! clock are looked at every [`STEPS_BETWEEN_POLLS`] steps, or once a tick with [`Builder::strict`].
//!
//! # Where to read
//! `kernel/` is the loop: `mod.rs` the tick, `poll.rs` how it waits, `ready.rs` its queue, `step.rs` how a task takes a step,
//! `timers.rs` and `clock.rs` time. `task/` is what it runs: a task in memory, what tasks await, how they end early.
//! `mailbox/` is the way in from other threads. `runtime/` is the surface over all of that; `deferred.rs`, `time/` and
//! `combine/` are what tasks await. `observe/`, `trace/` look into it; `coroutine/` stands alone.
//!
//! The world outside: `reactor/` knows which task waits for which descriptor, its `selector/` and `uring/` wait for them,
//! `net/`, `pipe.rs` and `stream/` are what programs use; `threads/` is for what blocks, `signal/` and `process/` for what
//! their names say.

mod combine;
mod context;
mod deferred;
mod kernel;
mod mailbox;
mod observe;
mod reactor;
mod runtime;
mod task;
mod threads;
mod time;

pub mod coroutine;
pub mod net;
pub mod pipe;
pub mod process;
pub mod signal;
pub mod stream;
pub mod trace;

pub use std::time::{Duration, Instant};

pub use combine::{
    AsCompleted, Either, EmptyWait, Gather, GatherAll, GatherError, GroupClosed, GroupError, GroupFailure, JoinSet,
    Race, Shield, TaskGroup, Waited, When, Zip, as_completed, gather, gather_all, race, shield, wait, zip,
};
pub use context::{ContextVar, ContextVars, ResetError, Token};
pub use deferred::{Awaiting, Deferred, FutureError, InvalidState};
pub use kernel::STEPS_BETWEEN_POLLS;
pub use kernel::clock::IntoDelay;
pub use observe::dump::{TaskDump, TaskEntry, TaskState};
pub use observe::metrics::Metrics;
pub use observe::report::{Report, ReportKind};
pub use observe::{CallbackRef, LoopEvent, Observer, WaitsFor};
pub use reactor::selector::{SelectorKind, UnknownSelector};
pub use runtime::builder::Builder;
pub use runtime::callback::{Handle, TimerHandle};
pub use runtime::error::{CleanupError, CloseError, Interrupt, LoopClosed, RunError, interrupt};
pub use runtime::event_loop::{EventLoop, LoopHandle};
pub use runtime::explore::explore;
pub use runtime::loops::{LoopError, run_loops};
pub use runtime::on_loop::{OnLoop, WrongLoop};
pub use runtime::remote::RemoteHandle;
pub use runtime::remote_task::RemoteTask;
pub use runtime::runner::{Runner, run, run_fallible};
pub use task::cancel::{Cancelled, CatchCancel, catch_cancel};
pub use task::{
    AsTask, CallbackId, Finished, JoinError, JoinHandle, Outcome, Panic, Task, TaskBuilder, TaskId, YieldNow, spawn,
    spawn_fallible, yield_now,
};
pub use threads::{
    JobError, RunningJob, StillRunning, ThreadJob, ThreadPool, ThreadPoolBuilder, ThreadStats, ToThread, to_thread,
};
pub use time::interval::{Interval, interval};
pub use time::now;
pub use time::sleep::{Sleep, sleep, sleep_until};
pub use time::timeout::{Deadline, Elapsed, Timeout, timeout, timeout_at, wait_for};
