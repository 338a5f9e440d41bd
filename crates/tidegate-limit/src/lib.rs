//! The gate: layered limits, decided at once and waited for exactly.
//!
//! A request to an LLM API is bounded by several limits: the slots of its file, the slots of the process, requests per
//! minute, tokens per minute, requests per day. The gate decides on all of them at once. A request holds no slot while it
//! waits for tokens, a refused request counts nothing, and a waiting one is woken at the instant at which there is room.
//!
//! ```
//! use tidegate_limit::{Cost, Gate, Limit};
//!
//! # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
//! let gate = Gate::builder()
//!     .limit(Limit::concurrency("global", 200))
//!     .limit(Limit::rpm(150))
//!     .limit(Limit::tpm(1_000_000))
//!     .limit(Limit::rpd(10_000, "America/Los_Angeles"))
//!     .build()?;
//! let file = gate.scope("report.pdf", 50);
//!
//! let mut lease = gate.enter(&file, Cost::tokens(1_200)).await?;
//! lease.sent(); // from here on it counts, whatever the answer is
//! lease.answered();
//! lease.settle(Cost::tokens(934)); // what the answer says it cost
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
//! ```
//!
//! Used by the batch, by the worker, and by programs that call servers with limits.
//!
//! # What it promises
//! - **One decision.** All limits admit an entry, or none counts anything. A denial names the limit and the instant until
//!   which the entry has to wait, to the nanosecond.
//! - **Never over.** A strict limit admits at most its amount in *any* window, and lowering it takes effect at once. Only
//!   an entry that cost more than its caller declared can exceed it; [`stats`](Gate::stats) shows by how much.
//! - **Not idle either.** While there is work, a strict limit is used to at least 99 %. While a large entry waits at the
//!   head of the line, smaller ones use the capacity that it cannot use yet, without delaying it: see [`SkipAhead`].
//! - **First come, first served** within a scope and across scopes that have room. A full scope blocks no other scope.
//! - **No polling.** One timer, the gate's own, is set to the instant at which the next entry can be admitted. With nothing
//!   due, there are no wake-ups.
//! - **No leaks.** Dropping a lease frees its slots, and takes back its booking unless it was sent. Dropping a future
//!   leaves the line.
//! - **Thread-safe.** Event loops on any number of threads can share a gate. The lock is released before a waker, the timer
//!   or the journal is called.
//!
//! # Time
//! Strict windows and buckets use the monotonic clock. Calendar windows use the wall clock, which is read at most once per
//! second: if it was set back, nothing is given back; if it was set ahead, the new time is used. An instant earlier than
//! one seen before is treated as that one. On a loop in virtual time all clocks are virtual, and there is no margin.
//!
//! A strict server counts requests as they arrive, and requests take different times to arrive. So entries of strict limits
//! count for a margin longer than their window. The margin covers how much later than the fastest the slowest answer of the
//! last window was, from [`sent`](Lease::sent) to [`answered`](Lease::answered), within bounds (see [`Builder::margin`]).
//!
//! # Odd input
//! | input | effect |
//! |---|---|
//! | a limit, a burst or a window of zero; an unknown time zone; one name twice | [`ConfigError`] when the gate is built |
//! | a concurrency [set](Gate::set) to zero | no entry is admitted until it is raised |
//! | a rate set to zero | every cost above zero is refused, including entries in line |
//! | a cost above what ever fits | refused at once, or admitted when the limit can be [drained](Oversize::Drain) |
//! | a cost of zero in a dimension | passes that limit and counts nothing |
//! | amounts up to `u64::MAX` | saturate, on the safe side |
//!
//! # What is left out
//! HTTP, retries of requests, priorities. Limits that machines share are implemented in a layer above, as [`SharedLimits`];
//! callers use [`Admission`] with or without them.
//!
//! # Executors
//! [`LoopTimer`] (feature `tidegate-loop`, the default), `TokioTimer` (feature `tokio`), or [`ThreadTimer`], which needs no
//! executor. For another one, implement [`Timer`]. With the feature `serde`, a [`Snapshot`] can be serialised.
//!
//! # Reading order
//! 1. Decisions, with time as an argument: `limits.rs` over `slot.rs` (one limit), `window/` (how it counts) and `hold.rs`
//!    (pauses); `outlook.rs` computes how long more entries would wait.
//! 2. Waiting: `line.rs` (the entries in line), `pump.rs` (which is admitted next), `gate.rs` (the lock and the timer
//!    around them), `blocked.rs` (what each entry waits for), `enter.rs` and `lease.rs` (what callers hold),
//!    `admission.rs` (the same with shared limits behind the gate).
//! 3. Timers: `timer.rs`, `wanted.rs`, `on_tidegate.rs`, `on_tokio.rs`; `margin.rs` measures the time on the wire.
//! 4. Restarts: `ledger.rs` and `journal.rs`, `others.rs` (other processes on the same journal), `store/` (SQLite).
//! 5. Servers: `feedback/` parses their answers, `learn/` finds limits that were not stated.

#![forbid(unsafe_code)]

mod admission;
mod backoff;
mod blocked;
mod builder;
mod cost;
mod enter;
mod error;
pub mod feedback;
mod gate;
mod hold;
pub mod journal;
mod learn;
mod lease;
mod ledger;
mod limit;
mod limits;
mod line;
mod margin;
mod moment;
#[cfg(feature = "tidegate-loop")]
mod on_tidegate;
#[cfg(feature = "tokio")]
mod on_tokio;
mod others;
mod outlook;
mod pump;
mod scope;
mod slot;
mod stats;
#[cfg(feature = "sqlite")]
pub mod store;
mod timer;
#[cfg(any(feature = "tidegate-loop", feature = "tokio"))]
mod wanted;
mod window;

pub use admission::{Admission, Admitted, EnterSharedLimits, SharedLimits, SharedLimitsLease};
pub use backoff::Backoff;
pub use blocked::{Blocked, Place, SetError};
pub use builder::Builder;
pub use cost::{Cost, Dimension};
pub use enter::Enter;
pub use error::{ConfigError, EnterError, TryEnterError, UnknownLimit};
pub use gate::Gate;
pub use learn::{Found, FoundState, FoundWindow};
pub use lease::Lease;
pub use limit::{Limit, Oversize, Start, Window};
pub use limits::{Booking, Denied, LimitId, Limits, Refusal, Until};
pub use moment::Moment;
#[cfg(feature = "tidegate-loop")]
pub use on_tidegate::LoopTimer;
#[cfg(feature = "tokio")]
pub use on_tokio::TokioTimer;
pub use pump::SkipAhead;
pub use scope::Scope;
pub use stats::{LimitSnapshot, ScopeSnapshot, Snapshot};
pub use timer::{ThreadTimer, Timer};
