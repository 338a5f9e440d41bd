//! The gate: layered limits, decided at once and waited for exactly.
//!
//! A request to an LLM API is bounded by many things: the slots of its file, the slots of the process, requests a
//! minute, tokens a minute, requests a day. They are one decision here. Nobody holds a slot while it waits for tokens,
//! nothing is counted for who is refused, and who waits is woken at the instant there is room, not at the next poll.
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
//! lease.sent(); // from here on it counts, whatever becomes of it
//! lease.answered();
//! lease.settle(Cost::tokens(934)); // what the answer says it cost
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
//! ```
//!
//! Called by the batch and the worker, and by programs that talk to servers with limits.
//!
//! # What it promises
//! - **One decision.** All limits grant, or none has counted anything; a denial says which limit and until when, to the
//!   nanosecond.
//! - **Never over.** A strict limit lets no more than its amount through in *any* window; lowering one takes effect at
//!   once. Only what a caller declared too low can exceed it, and [`stats`](Gate::stats) says by how much.
//! - **Not idle either.** While there is work, a strict limit is used to at least 99 %. A large request at the head of
//!   the line does not idle what it cannot use yet, and is not delayed by a nanosecond: see [`SkipAhead`].
//! - **First come, first served** within a scope and across scopes that have room; a full scope holds up nobody else.
//! - **Nothing polls.** One timer, the gate's own, set to the instant somebody can go. With nothing due, no wake-ups.
//! - **Nothing leaks.** A lease that is dropped gives its slots back, and what it booked unless it was sent; a future
//!   that is dropped leaves no trace.
//! - **Thread-safe.** One gate can be shared by event loops on any number of threads; the lock is held across no waker,
//!   no timer and no journal.
//!
//! # Time
//! Windows slide and buckets fill by the monotonic clock. Calendar windows follow the wall clock, which is looked at once
//! a second at the most: set back, nothing is given back; set ahead, it is believed. An instant earlier than one seen
//! before is taken for that one. On a loop in virtual time everything is virtual, the wall clock included, and there is
//! no margin.
//!
//! A strict server counts arrivals, and the way there does not always take the same time. So entries of strict limits
//! count for a margin longer than their window: it covers how late the answers of the last window were, from
//! [`sent`](Lease::sent) to [`answered`](Lease::answered), within bounds (see [`Builder::margin`]), and is part of the
//! figures.
//!
//! # Odd input
//! | what | what happens |
//! |---|---|
//! | a limit, a burst or a window of zero; an unknown time zone; one name twice | [`ConfigError`] when the gate is made |
//! | a concurrency [set](Gate::set) to zero | nobody gets in until it is raised |
//! | a rate set to zero | every cost above zero is refused, also of those in line |
//! | a cost above what ever fits | refused at once, or lets itself be [drained](Oversize::Drain) |
//! | a cost of zero in a dimension | passes that limit and counts nothing |
//! | amounts up to `u64::MAX` | saturate, on the safe side |
//!
//! # What is left out
//! HTTP, retries of requests, priorities. Sharing a quota between machines is for a layer above; [`Common`] is what it has to
//! supply, and [`Admission`] what callers go through, whether there is one or not.
//!
//! # Executors
//! [`LoopTimer`] (feature `tidegate-loop`, the default), `TokioTimer` (feature `tokio`), or [`ThreadTimer`], which
//! needs none. [`Timer`] is what another one has to supply. Feature `serde`: [`Snapshot`]s can be serialised.
//!
//! # Reading order
//! `limits.rs` decides, over one `slot.rs` a limit, whose windows are in `window/`, and what holds a limit up in
//! `hold.rs`; `outlook.rs` foretells: plain values, time as an argument. `blocked.rs` says what each entry waits for.
//! `line.rs` holds the waiting entries, `pump.rs` chooses the next, `gate.rs` is the lock and the timer around that, `enter.rs` and `lease.rs` what callers hold, `admission.rs`
//! the same with limits in common behind it. `timer.rs`, `wanted.rs`, `on_tidegate.rs` and
//! `on_tokio.rs` are the executors; `margin.rs` the time on the wire; `ledger.rs` and `journal.rs` what survives a
//! restart, `store/` in SQLite. `feedback/` reads what servers say, `learn/` finds the limits that were not stated.

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

pub use admission::{Admission, Admitted, Common, CommonLease, EnterCommon};
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
