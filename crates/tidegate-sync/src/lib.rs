//! Semaphore, event, queue and mutex for any executor: first come, first served, and safe to cancel.
//!
//! Tasks wait here; nothing here runs them. The primitives speak [`std::task::Waker`] and nothing
//! else, so they work on tidegate's loop, on tokio and on a ten-line `block_on`, and between them.
//! They are `Send` and `Sync` as far as their contents are.
//!
//! # What all of them promise
//! - **First come, first served.** A place in line is taken at the first poll, and nobody gets past
//!   it: not by trying, not by coming at the right moment.
//! - **One for one.** One release wakes one waiter, one push one consumer; whoever is woken has what
//!   it was woken for.
//! - **Cancel when you like.** A future dropped at any point leaves no trace, and what it had been
//!   given goes to the next in line.
//! - **In effect when it returns.** Every call takes effect as a whole, at one instant between its
//!   start and its return. Calls from several threads take effect one after the other, in the order
//!   in which they were made, and without blocking the caller: what happens under a lock is a few
//!   dozen instructions (and the moving of items, when a queue grows or part of it is taken), and no
//!   waker is ever called, cloned or dropped there.
//! - **Nothing allocated for waiting.** The line runs through the waiting futures: 48 bytes for a
//!   semaphore's, no more than 80 for any, beside what it carries.
//! - **Countable.** [`Stats`] on each: current, peak, total, blocked, waiting. `Debug` never waits.
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
//!     pages.push(page).await?; // waits while four are lying there
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
//! A condition variable, a read-write lock, broadcast and watch channels: nothing here needs them.
//! Time-outs belong to the executor: race any of these futures against its timer.
//!
//! # Reading order
//! `list.rs` and `turn.rs` (waiting in line; most of the `unsafe`), `lock.rs` over `brief.rs` (what
//! happens under a lock, and what behind it), then `word.rs` and `counter.rs` under `semaphore.rs`
//! with `acquire.rs` and `permit.rs`; `store.rs` under `queue.rs` with `push.rs` and `recv.rs`;
//! `event.rs`; `mutex.rs`. The files name `sync.rs` instead of `std` for atomics and cells: the model
//! tests put loom's in its place.

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
mod stats;
mod store;
mod sync;
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
