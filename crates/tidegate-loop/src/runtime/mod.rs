//! The loop as programs see it: how one is made (`builder.rs`), run (`event_loop.rs`, `runner.rs`, `loops.rs`), and reached
//! from its own thread (`event_loop.rs`, `callback.rs`) and from others (`remote.rs`, `remote_task.rs`, `on_loop.rs`).

pub(crate) mod builder;
pub(crate) mod callback;
pub(crate) mod error;
pub(crate) mod event_loop;
pub(crate) mod explore;
pub(crate) mod loops;
mod main_task;
pub(crate) mod on_loop;
pub(crate) mod remote;
pub(crate) mod remote_task;
pub(crate) mod runner;
