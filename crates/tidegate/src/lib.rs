//! tidegate runs floods of I/O-bound work through limits that hold. This crate is the front door: it re-exports the
//! layers and adds nothing.
//!
//! ```
//! use tidegate::{Duration, run, sleep, spawn};
//!
//! run(async {
//!     let task = spawn(async {
//!         sleep(Duration::from_millis(1)).await;
//!         "done"
//!     });
//!     assert_eq!(task.await.unwrap(), "done");
//! })
//! .unwrap();
//! ```
//!
//! The event loop is at the root, because every program starts there; the layers above it are modules. `http`, `redis`,
//! `worker`, `batch` and `crew` are there with the features of those names. `batch` reads PDFs with
//! the feature `pdf`, which is on by default.

#![forbid(unsafe_code)]

/// Documents and requests through an LLM API, within its quotas.
#[cfg(feature = "batch")]
pub use tidegate_batch as batch;
/// Pages as tasks: one asks, workers on any number of machines answer.
#[cfg(feature = "crew")]
pub use tidegate_crew as crew;
/// HTTP on the loop: a client, axum served, TLS.
#[cfg(feature = "http")]
pub use tidegate_http as http;
/// The gate: layered limits, decided at once and waited for exactly.
pub use tidegate_limit as limit;
pub use tidegate_loop::*;
/// The bounded pool without a queue.
pub use tidegate_pool as pool;
/// The gate shared between machines, through Redis.
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;
/// Semaphore, event, queue and mutex, for any executor.
pub use tidegate_sync as sync;
/// Tasks from a broker, run in processes, threads or coroutines.
#[cfg(feature = "worker")]
pub use tidegate_worker as worker;

/// The README's programs, so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
