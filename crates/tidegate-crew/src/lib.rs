//! Pages as tasks: one process asks, workers on any number of machines answer.
//!
//! [`Crew`] is the asker's side: a provider like any other, which publishes each question to a queue and waits for what
//! becomes of it. Whoever explains files with it keeps results, shows progress and writes outputs as ever. [`PageHandler`]
//! is the worker's side: it asks the server, within the worker's own gate.
//!
//! Called by the commands `explain --broker` and `worker --handler explain`. It leaves out queues, gates and files: those
//! are `tidegate-worker`'s, `tidegate-limit`'s and `tidegate-batch`'s.
//!
//! # What it promises
//! - **A task has all that decides the answer**: prompt, text or picture, neighbours, model, parameters. No path of the
//!   asker's machine, and no key: that is the worker's, which sends it to the server it was started for and to no other. A
//!   task for another server is refused, and so is one for a model that the worker does not allow ([`Allowed`]).
//! - **Nothing is paid for twice.** A question's task is named by everything that decides the answer. Asked again while it
//!   waits or runs, it is not stored again; answered while nobody listened, the answer is fetched.
//! - **A worker that dies costs what it had in flight.** Its tasks return to the queue.
//! - **Who stops asking says so**: [`Crew::withdraw`] takes back what no worker has taken; the rest will be answered, and
//!   whoever asks next finds it.
//!
//! # Reading order
//! `form.rs` is what travels, `asker.rs` who publishes and waits, `handler.rs` who answers.

#![forbid(unsafe_code)]

mod asker;
mod form;
mod handler;

pub use asker::{Crew, Withdrawn};
pub use form::{Server, TASK};
pub use handler::{Allowed, Asks, PageHandler};
