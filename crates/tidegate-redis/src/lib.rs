//! Redis on tidegate's loop: one pipelined connection, and the gate that machines share through it.
//!
//! [`Client`] is the connection: the commands of all callers are drained from one queue, written together, and answered in
//! order through futures. [`SharedGate`] has shared limits: the requests, tokens, daily counts and slots of all machines
//! that use a gate of the same name.
//!
//! Used by workers and batches that run on more than one machine. What they do not need is not here: clusters, sentinels,
//! transactions, typed commands.
//!
//! # What the shared gate promises
//! - **One decision.** A script decides over all limits at once, by the clock of Redis; the clocks of the machines do not
//!   matter. Either all limits admit an entry, or none has counted it.
//! - **Never over.** A strict limit admits no more than its amount in *any* window, on all machines together. It is counted
//!   in 1,024 buckets, each until its end has left the window. So its memory is bounded (about 100 KiB in Redis per limit),
//!   and at most a thousandth of the limit is lost.
//! - **A repeated call counts once.** A call whose connection broke is sent again with the same number, and Redis returns
//!   the answer that it stored for it.
//! - **A dead machine holds no slot.** Slots are leased: without a renewal they are free after the
//!   [lease](SharedBuilder::lease). What the machine booked of a rate stays booked.
//! - **First come, first served** on a machine; machines take turns, by tickets. A machine that does not use its turn delays
//!   the others by 50 ms.
//! - **Nothing polls.** One call at a time carries all reports and requests. Between calls a machine sleeps until the instant
//!   that Redis returned. When another machine makes room, Redis notifies the next in line (a push on the same connection).
//!   While a machine holds slots or waits, it renews its lease every third of it.
//! - **Nothing is granted in advance.** A machine gets no permits to spend later: they could not be taken back from a machine
//!   that dies, and strict windows would count them when they are granted.
//!
//! # When Redis is lost
//! [`OnLoss`] says what happens until Redis is back; then everything goes on by itself. A Redis that restarts without its
//! data, or with older data, is noticed by every machine that used it before: all limits then count as used up for one
//! window, and no slot is free for one lease. Only a *new* machine that calls between the restart and the first call of an
//! old one could be admitted too early. With `appendonly yes` and `maxmemory-policy noeviction` this cannot happen.
//!
//! # Reading order
//! `wire.rs`, `scan.rs` (bounds of replies) and `pipeline.rs` are the protocol, without I/O; `client/` is the connection.
//! `shared/decide.lua` is the decision, `shared/spec.rs` the limits, `shared/core.rs` the state of one machine (without I/O),
//! `shared/driver.rs` the calls, `shared/lease.rs` what callers hold, `shared/local.rs` the local share, `shared/agree.rs` the
//! check that all machines state the same limits, `shared/common.rs` the shared gate behind a local one.

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
