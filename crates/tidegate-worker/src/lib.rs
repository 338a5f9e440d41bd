//! Tasks from a broker, run in processes, threads or coroutines, under one contract.
//!
//! Read in this order: `task.rs` (what travels), `broker.rs` (what a queue must do), `mode.rs` (what runs a task),
//! `outcome.rs` (how a run ends and what follows).

#![forbid(unsafe_code)]

mod broker;
mod clock;
pub mod codec;
pub mod conformance;
mod envelope_check;
pub mod memory;
mod mode;
mod outcome;
mod share;
pub mod sqlite;
mod task;

pub use broker::{
    Broker, BrokerError, Consumer, DeadLetter, Delivery, Incoming, Local, Published, QueueStats, Selection, Settled,
    Settlement, Subscription, Tag, TaskError, TaskResult, TaskState, Verdict,
};
pub use memory::MemoryBroker;
pub use mode::{Job, Mode, ModeError, StopReason, StopSignal};
pub use outcome::Outcome;
pub use sqlite::SqliteBroker;
pub use task::{Envelope, Task, TaskId, Unique};
