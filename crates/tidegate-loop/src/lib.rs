//! A single-threaded event loop with asyncio's semantics: one documented order of events, cancellation that can be
//! caught, context that is inherited, exact timers, traces, virtual time, and runs that can be replayed from a seed.
//!
//! ```
//! use tidegate_loop::{run, sleep, spawn, wait, Duration, When};
//!
//! async fn func(n: u64) -> u64 {
//!     sleep(Duration::from_millis(n)).await;
//!     n
//! }
//!
//! let results = run(async {
//!     let tasks = [spawn(func(1)), spawn(func(2))];
//!     wait(&tasks, When::All, None).await.unwrap();
//!     tasks.map(|mut task| task.try_result().unwrap().unwrap())
//! });
//! assert_eq!(results.unwrap(), [1, 2]);
//! ```
//!
//! Called by the layers above (pool, gate, worker, batch) and by programs that want a loop they can see into. It leaves
//! out work on several threads at once: one loop, one thread, no atomics between tasks; other threads reach it through
//! a [`RemoteHandle`] or by waking a task.
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
