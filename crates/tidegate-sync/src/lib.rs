//! Semaphore, event, queue and mutex for any executor: first come, first served, and safe to cancel.
//!
//! Tasks wait here; nothing here runs them. The primitives depend on [`std::task::Waker`] alone, so they work on
//! tidegate's loop, on tokio and on a ten-line `block_on`, and between tasks of different executors. They are `Send` and
//! `Sync` if their contents are.
//!
//! # What all of them promise
//! - **First come, first served.** A future joins the line at its first poll. No later request is served before it:
//!   neither a `try_` method nor a task that runs just when a permit or an item is free.
//! - **One for one.** One release wakes one waiter, one push wakes one consumer, and a woken task gets what it was woken
//!   for.
//! - **Safe to cancel.** A future can be dropped at any point. What it had been granted goes to the next in line.
//! - **In effect when it returns.** Every call takes effect atomically, at one instant between its start and its return,
//!   and does not block the caller. A section under the lock is a few dozen instructions (more when a queue grows or part
//!   of it is taken), and no waker is called, cloned or dropped there.
//! - **Waiting allocates nothing.** The line is linked through the waiting futures: 48 bytes for a semaphore, at most 80
//!   for any other primitive, plus the value that it carries.
//! - **Countable.** Each has [`Stats`]: current, peak, total, blocked, waiting. `Debug` never waits.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_sync::{Queue, Semaphore};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let pages = Arc::new(Queue::bounded(4));
//! let at_once = Arc::new(Semaphore::new(2));
//! let workers: Vec<_> = (0..3)
//!     .map(|_| {
//!         let (pages, at_once) = (Arc::clone(&pages), Arc::clone(&at_once));
//!         tokio::spawn(async move {
//!             let mut done = 0;
//!             while let Ok(_page) = pages.recv().await {
//!                 let _permit = at_once.acquire().await?;
//!                 done += 1;
//!             }
//!             Ok::<_, tidegate_sync::AcquireError>(done)
//!         })
//!     })
//!     .collect();
//! for page in 0..10 {
//!     pages.push(page).await?; // waits while the queue holds four pages
//! }
//! pages.close();
//! let mut done = 0;
//! for worker in workers {
//!     done += worker.await??;
//! }
//! assert_eq!(done, 10);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # What is left out
//! Condition variables, read-write locks, broadcast and watch channels: no crate of tidegate needs them. Time-outs belong
//! to the executor: race any of these futures against its timer.
//!
//! # Reading order
//! 1. `list.rs` and `turn.rs`: waiting in line; most of the `unsafe`.
//! 2. `lock.rs` over `brief.rs`: the lock, and the wakers that are woken after it is released.
//! 3. `word.rs` and `counter.rs` under `semaphore.rs`, with `acquire.rs` and `permit.rs`.
//! 4. `store.rs` under `queue.rs`, with `push.rs` and `recv.rs`.
//! 5. `event.rs`, then `mutex.rs`.
//!
//! Atomics and cells come from `shim.rs`, which the model tests replace by one with loom's types.

mod acquire;
mod brief;
mod counter;
mod error;
mod event;
mod list;
mod lock;
mod mutex;
mod permit;
mod push;
mod queue;
mod recv;
mod semaphore;
mod shim;
mod stats;
mod store;
mod turn;
mod word;

pub use acquire::Acquire;
pub use error::{
    AcquireError, Closed, PushError, ReduceError, ReleaseError, TryAcquireError, TryPushError, TryRecvError,
};
pub use event::{Event, Wait};
pub use mutex::{Locking, Mutex, MutexGuard};
pub use permit::{Holder, OwnedPermit, Permit};
pub use push::Push;
pub use queue::Queue;
pub use recv::{Recv, RecvAll, RecvAllInto, RecvUpTo};
pub use semaphore::{Receipt, Semaphore};
pub use stats::Stats;
pub use word::MAX_PERMITS;
