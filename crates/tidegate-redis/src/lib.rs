//! Redis on tidegate's loop: one pipelined connection, and the gate that machines share through it.
//!
//! [`Client`] is the connection: everybody's commands are drained from one queue, written together, and answered in order
//! through futures. [`SharedGate`] holds limits in common: requests, tokens, days and slots of all machines that make a
//! gate of the same name.
//!
//! Called by workers and batches that run on more than one machine. It leaves out everything of Redis that these do not
//! need: clusters, sentinels, transactions, typed commands.
//!
//! # What the shared gate promises
//! - **One decision.** A script decides over all limits at once, at Redis' own time: no machine's clock matters. All
//!   limits grant, or none has counted anything.
//! - **Never over.** A strict limit lets no more than its amount through in *any* window, on all machines together. It is
//!   counted in 1,024 buckets, each until its end has left the window: bounded memory (about 100 KiB in Redis a limit), at
//!   most a thousandth below the limit.
//! - **Asked twice, answered once.** A call whose connection broke is made again under its number; Redis answers what it
//!   answered.
//! - **A dead machine holds nothing.** Slots are leased: without a sign of life they are free after the
//!   [lease](SharedBuilder::lease). What it booked of a rate stays booked.
//! - **First come, first served** on a machine; machines take turns, by tickets. One whose turn it is and who does not come
//!   holds up the others for 50 ms.
//! - **Nothing polls.** One call at a time, with all there is to tell and to ask. Between calls a machine sleeps until the
//!   instant that Redis told; when another one makes room, Redis tells the next in line (a push on the same connection).
//!   While it holds or waits, it gives a sign of life every third of a lease.
//! - **Nothing is granted in advance.** There are no blocks of permits for a machine to spend on its own: they could not be
//!   taken back from one that dies, and strict windows would count them when they are handed out.
//!
//! # When Redis is lost
//! [`OnLoss`] says what happens until it is back; then everything goes on by itself. A Redis that comes back without its
//! memory, or with an older one, is noticed by any machine that had been there before: everything is then taken for used
//! for one window, and no slot is free for one lease. Only if a *new* machine comes first, between the restart and the
//! first sign of life of an old one, could it be let in too early; a Redis with `appendonly yes` and `maxmemory-policy
//! noeviction` leaves no such gap.
//!
//! # Reading order
//! `wire.rs`, `scan.rs` (bounds of replies) and `pipeline.rs` are the protocol, without I/O; `client/` the connection around it. `shared/decide.lua` is the
//! decision; `shared/spec.rs` its limits, `shared/core.rs` what one machine knows (no I/O either), `shared/driver.rs` who
//! calls when, `shared/lease.rs` what callers hold, `shared/local.rs` the local share, `shared/agree.rs`
//! whether all mean the same, `shared/common.rs` the gate behind a local one.

#![forbid(unsafe_code)]

mod address;
mod client;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod pipeline;
mod scan;
mod shared;
mod wire;

pub use address::{Address, AddressError};
pub use client::{Client, ClientOptions, ClientStats};
pub use error::{CallError, ConnectError, Refusal, RefusalKind};
pub use shared::{
    AgreeError, OnLoss, SharedBuilder, SharedConfigError, SharedEnter, SharedGate, SharedLease, SharedLimitStats,
    SharedStats,
};
pub use wire::{Command, Value};
