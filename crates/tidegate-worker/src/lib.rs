//! Tasks from a broker, run in processes, threads or coroutines, under one contract.
//!
//! Read in this order: `task.rs` (what travels), `broker.rs` (what a queue must do), `mode.rs` (what runs a task),
//! `outcome.rs` (how a run ends and what follows); then the rooms: `master.rs` (start and stop), `connection.rs` (receive
//! and settle), `pool.rs` (run).

#![forbid(unsafe_code)]

mod arguments;
mod at_once;
mod broker;
mod clock;
pub mod codec;
pub mod conformance;
mod connection;
mod context;
mod coroutine;
mod cron;
mod envelope_check;
pub mod faulty;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handlers;
mod hands;
mod hash;
mod http_handler;
pub mod json;
mod lane;
mod limits;
mod master;
pub mod memory;
mod metrics;
mod middleware;
mod mode;
mod moment;
mod outcome;
mod phase;
mod pool;
mod process;
#[cfg(feature = "amqp")]
pub mod rabbit;
mod retry;
mod settings;
mod share;
mod signals;
pub mod sqlite;
mod status;
mod task;
mod thread;
mod watchdog;

pub use arguments::{Arguments, FromTask};
pub use broker::{
    Broker, BrokerError, Capabilities, Consumer, DeadLetter, Delivery, Incoming, Local, Published, QueueStats,
    Selection, Settled, Settlement, Subscription, Tag, TaskError, TaskResult, TaskState, Verdict,
};
pub use context::TaskContext;
pub use coroutine::Coroutines;
pub use cron::{Cron, CronError, Schedule};
pub use envelope_check::BODY_BYTES_MAX;
pub use handlers::{BlockingHandler, BlockingHandlers, BlockingTaskFn, Handler, HandlerError, Handlers, TaskFn};
pub use http_handler::HttpHandler;
pub use limits::Limits;
pub use master::{Master, MasterError, MasterHandle, Report, Stop, WorkerStats};
pub use memory::MemoryBroker;
pub use metrics::{Text as MetricsText, escaped as escape_label};
pub use middleware::{Middleware, TaskInfo};
pub use mode::{Begun, Figure, Job, Mode, ModeError, StopReason, StopSignal};
pub use outcome::{Circumstances, Decision, Outcome, OutcomeKind, RETRY_AFTER_MAX, before_run, decide};
pub use phase::Phase;
pub use pool::Decode;
pub use process::{
    CHILD_VARIABLE, EXIT_RETRY, Exec, Inherited, MAX_FRAME, PROTOCOL_VERSION, ProcessMode, ProcessOptions,
    ProcessStats, SOCKET_VARIABLE,
};
pub use retry::{Backoff, Policies, Policy};
pub use settings::Settings;
pub use signals::Signals;
pub use sqlite::SqliteBroker;
pub use status::{BadStatusToken, MetricsPage, StatusToken};
pub use task::{Envelope, Task, TaskId, Unique};
pub use thread::Threads;
pub use watchdog::Watchdog;
