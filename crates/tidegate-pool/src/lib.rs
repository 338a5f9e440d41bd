//! A bounded pool without a queue: a task starts when a slot is free, and until then its submitter waits.
//!
//! ```
//! use tidegate_loop::{run, sleep, Duration};
//! use tidegate_pool::Pool;
//!
//! run(async {
//!     let pool = Pool::new(5);
//!     for page in 0..50 {
//!         // Returns once the page is being fetched; with five of them under way, waits for one to end.
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
//! Called by the batch and the worker, and by programs that make more work than they can do at once. What it holds in
//! memory is the tasks that run; who would add more is held back.
//!
//! # What it promises
//! - **Never one over.** At no instant do more tasks hold slots than there are, under any interleaving, cancellation or
//!   panic; and none idles while somebody waits for it.
//! - **First come, first served.** Slots go to submitters in the order they came. [`Pool::try_submit`] does not pass
//!   anybody.
//! - **Slots are guards.** A task owns its slot. Whether it returns, panics or is cancelled, the slot comes back with
//!   the task's last drop, after what the future held is gone and before anybody hears of the end: no clean-up task, no
//!   callback.
//! - **Exact changes.** [`resize`](Pool::resize), [`pause`](Pool::pause), [`set_watermarks`](Pool::set_watermarks),
//!   [`close`](Pool::close) are in effect when they return; they even take back a slot that somebody was told of but has
//!   not come for.
//! - **Nothing polls.** A submitter is woken when there is a slot for it, and not before.
//!
//! | what happens | what becomes of it |
//! |---|---|
//! | a submitter is dropped while it waits | it leaves the line; its future is dropped unpolled; a slot kept for it goes to the next |
//! | a task panics | its slot is freed, it counts as failed, its handle or promise has the panic |
//! | a handle is dropped | the task goes on |
//! | a handle is cancelled | the task keeps its slot until it has ended, and counts as cancelled unless it caught that |
//! | the pool is closed while submitters wait | they get their futures back; running tasks go on |
//! | the last [`Pool`] is dropped | running tasks go on |
//!
//! # What is left out
//! Queues: put one before the pool (`tidegate-sync` has it) if submitters must not wait. Rates: `tidegate-limit`.
//! Priorities. Time-outs: wrap the future. It does not build on `tidegate-sync`'s semaphore, because a permit once given
//! can be neither taken back by a resize nor held back by a watermark; both are decided here, in one place, with the
//! counts.
//!
//! # Executors
//! [`TidegateLoop`] (feature `tidegate`, the default): futures need not be `Send`, and nothing is atomic. [`Tokio`] and
//! [`TokioLocal`] (feature `tokio`): any of its runtimes with `Send` futures, a `LocalSet` with others. [`Executor`] and
//! [`Spawn`] are what another one needs to supply.
//!
//! # Reading order
//! `admission.rs` decides who starts, over `line.rs` (who waits) and `roster.rs` (who runs): plain values, no executor.
//! `share.rs` and `executor.rs` are what it stands on, `slot.rs` is a task and its slot, `submit.rs` the wait for one,
//! `pool.rs` the surface. `completed.rs` and `map.rs` gather results; `on_tidegate.rs` and `on_tokio.rs` are the
//! executors.

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
