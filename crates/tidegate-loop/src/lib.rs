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
//! `kernel.rs` is the loop, `polling.rs` how it waits, `ready.rs` its queue, `step.rs` how a task takes its turn, `task/`
//! what it runs, `future.rs` and `awaited.rs` what it awaits, `cancel.rs` how tasks end early, `timers.rs` and `clock.rs`
//! time, `waker.rs` and `inbox.rs` the way in from other threads; `event_loop.rs` is the surface over all of that.
//! `combine/`, `timeout.rs`, `sleep.rs` and `runner.rs` are built on the surface. `observe.rs`, `trace/`, `dump.rs`,
//! `metrics.rs` look into it; `coroutine/` stands alone.
//!
//! The world outside: `selector/` and `uring/` wait for it, `io/` knows who waits for what, `net/`, `pipe.rs` and `stream/`
//! are what programs use; `threads/` is for what blocks, `signal/`, `process/`, `loops.rs` for several loops at once.

mod awaited;
mod builder;
mod cancel;
mod clock;
mod combine;
mod context;
mod current;
mod dump;
mod error;
mod event_loop;
mod explore;
mod future;
mod handle;
mod inbox;
mod io;
mod kernel;
mod local;
mod loops;
mod metrics;
mod name;
mod observe;
mod on_loop;
mod polling;
mod punctual;
mod ready;
mod remote;
mod report;
mod runner;
mod selector;
mod sleep;
mod step;
mod sync;
mod task;
mod threads;
mod timeout;
mod timers;
mod uring;
mod waker;

pub mod coroutine;
pub mod net;
pub mod pipe;
pub mod process;
pub mod signal;
pub mod stream;
pub mod trace;

pub use std::time::{Duration, Instant};

pub use builder::Builder;
pub use cancel::{Cancelled, CatchCancel, catch_cancel};
pub use clock::IntoDelay;
pub use combine::{
    AsCompleted, EmptyWait, Gather, GatherAll, GatherError, GroupClosed, GroupError, GroupFailure, Shield, TaskGroup,
    Waited, When, as_completed, gather, gather_all, shield, wait,
};
pub use context::{Context, ContextVar, ResetError, Token};
pub use dump::{TaskDump, TaskEntry, TaskState};
pub use error::{CloseError, Interrupt, LoopClosed, RunError, interrupt};
pub use event_loop::{EventLoop, LoopHandle};
pub use explore::explore;
pub use future::{Awaiting, Future, FutureError, InvalidState};
pub use handle::{Handle, TimerHandle};
pub use kernel::STEPS_BETWEEN_POLLS;
pub use loops::{LoopError, run_loops};
pub use metrics::Metrics;
pub use observe::{CallbackRef, Event, Observer, WaitsFor};
pub use on_loop::{OnLoop, WrongLoop};
pub use remote::RemoteHandle;
pub use report::{Report, ReportKind};
pub use runner::{Runner, run};
pub use selector::{SelectorKind, UnknownSelector};
pub use sleep::{Sleep, sleep, sleep_until};
pub use task::{
    AsTask, CallbackId, Finished, JoinError, JoinHandle, Outcome, Panic, Task, TaskBuilder, TaskId, YieldNow, spawn,
    spawn_fallible, yield_now,
};
pub use threads::{
    JobError, RunningJob, StillRunning, ThreadJob, ThreadPool, ThreadPoolBuilder, ThreadStats, ToThread, to_thread,
};
pub use timeout::{Deadline, Elapsed, Timeout, timeout, timeout_at, wait_for};
