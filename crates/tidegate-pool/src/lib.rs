//! A bounded pool without a queue: a task starts when a slot is free, and its submitter waits until then.
//!
//! ```
//! use tidegate_loop::{run, sleep, Duration};
//! use tidegate_pool::Pool;
//!
//! run(async {
//!     let pool = Pool::new(5);
//!     for page in 0..50 {
//!         // Returns once the page is being fetched. With five in flight, waits for one to end.
//!         pool.submit(async move {
//!             sleep(Duration::from_micros(page)).await;
//!         })
//!         .await
//!         .unwrap()
//!         .detach();
//!     }
//!     pool.close().await;
//!     assert_eq!((pool.stats().completed, pool.stats().peak), (50, 5));
//! })
//! .unwrap();
//! ```
//!
//! Used by the batch, by the worker, and by programs that produce tasks faster than these can run. The pool holds the
//! running tasks in memory and no others: a producer waits before it creates more.
//!
//! # What it promises
//! - **Never one over.** At no instant do more tasks hold slots than there are, under any interleaving, cancellation or
//!   panic. No slot idles while a submitter waits.
//! - **First come, first served.** Submitters get slots in the order of their first polls. [`Pool::try_submit`] overtakes
//!   none of them.
//! - **Slots are guards.** A task owns its slot. Whether it returns, panics or is cancelled, the slot is freed after the
//!   future has been dropped and before its handle or promise resolves, without a clean-up task or a callback.
//! - **Exact changes.** [`resize`](Pool::resize), [`pause`](Pool::pause), [`set_watermarks`](Pool::set_watermarks) and
//!   [`close`](Pool::close) are in effect when they return. They even take back a slot that a submitter was woken for and
//!   has not taken yet.
//! - **No polling in intervals.** A submitter is woken when there is a slot for it, and not before.
//!
//! | event | effect |
//! |---|---|
//! | a submitter is dropped while it waits | it leaves the line; its future is dropped unpolled; a slot kept for it goes to the next |
//! | a task panics | its slot is freed, it counts as failed, its handle or promise has the panic |
//! | a handle is dropped | the task goes on |
//! | a handle is cancelled | the task keeps its slot until it has ended, and counts as cancelled unless it caught the cancellation |
//! | the pool is closed while submitters wait | they get their futures back; running tasks go on |
//! | the last [`Pool`] is dropped | running tasks go on |
//!
//! # What is left out
//! - Queues: put one in front of the pool (`tidegate-sync` has it) if submitters must not wait.
//! - Rates: see `tidegate-limit`. Time-outs: wrap the future. Priorities.
//! - The pool does not use `tidegate-sync`'s semaphore: a resize cannot take back a permit that was granted, and a
//!   watermark cannot hold one back. Both are decided here, together with the counts.
//!
//! # Executors
//! [`TidegateLoop`] (feature `tidegate`, the default) runs any future and uses no atomics. [`Tokio`] (feature `tokio`)
//! runs `Send` futures on any of tokio's runtimes, [`TokioLocal`] other futures on a `LocalSet`. For another executor,
//! implement [`Executor`] and [`Spawn`].
//!
//! # Reading order
//! 1. `admission.rs` decides which task starts, over `line.rs` (submitters that wait) and `roster.rs` (tasks that run):
//!    plain values, no executor.
//! 2. `share.rs` and `executor.rs`: what the pool needs of an executor.
//! 3. `slot.rs` (a task and its slot), `submit.rs` (waiting for a slot), `pool.rs` (the public type).
//! 4. `completed.rs` and `map.rs`: many results. `on_tidegate.rs` and `on_tokio.rs`: the executors.
//!
//! | token | held by | stands for |
//! |---|---|---|
//! | `LineTicket` | a submission in line | its entry in `Line` |
//! | `RosterKey` | a slot | the task's entry in `Roster`, with its canceller |
//! | `Slot` | a running task | one of the pool's slots; dropping it frees the slot |
//! | `ItemPlace` | a result on its way to a `Map` | the item's index, and its task's index in `MapTasks` |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "tidegate", feature = "tokio")),
    allow(rustdoc::broken_intra_doc_links, reason = "the executors that are left out cannot be linked to")
)]

mod admission;
mod completed;
mod error;
mod executor;
mod handle;
mod line;
mod map;
#[cfg(feature = "tidegate")]
mod on_tidegate;
#[cfg(feature = "tokio")]
mod on_tokio;
mod pool;
mod promise;
mod roster;
mod share;
mod slot;
mod stats;
mod submit;

pub use admission::Watermarks;
pub use completed::{AsCompleted, as_completed};
pub use error::{JoinError, Panic, SubmitError, TrySubmitError};
pub use executor::{Executor, Spawn};
pub use handle::JoinHandle;
pub use map::{Arrival, Iter, Map};
#[cfg(feature = "tidegate")]
pub use on_tidegate::TidegateLoop;
#[cfg(feature = "tokio")]
pub use on_tokio::{Tokio, TokioLocal};
pub use pool::{Drained, Pool};
pub use promise::Promise;
pub use share::{Share, Threaded, Unthreaded};
pub use slot::{InSlot, Promised};
pub use stats::Stats;
pub use submit::{Submit, SubmitTo};
