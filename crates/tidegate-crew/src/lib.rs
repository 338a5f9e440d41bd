//! Pages as tasks: one process publishes questions, workers on any number of machines answer them.
//!
//! [`Crew`] is the asker's side: a provider like any other, which publishes each question to a queue and waits for its
//! result. A run with it caches results, shows progress and writes outputs as with any provider. [`PageHandler`] is the
//! worker's side: it calls the server, within the worker's own gate.
//!
//! Called by the commands `explain --broker` and `worker --handler explain`. Queues, gates and files are
//! not here: they belong to `tidegate-worker`, `tidegate-limit` and `tidegate-batch`.
//!
//! # What it promises
//! - **A task has everything that decides the answer**: prompt, text or picture, neighbours, model, parameters. It has no
//!   path of the asker's machine and no key. The key is the worker's, which sends it only to the server that it was started
//!   for. A task for another server is refused, and so is one for a model that the worker does not allow ([`Allowed`]).
//! - **Nothing is paid for twice.** The id of a question's task is a digest of everything that decides the answer. A
//!   question that is asked again while its task waits or runs is not published again. An answer that arrived while no
//!   asker was running is fetched by the next one.
//! - **A worker that dies costs what it had in flight.** Its tasks return to the queue.
//! - **An asker that stops revokes its tasks**: [`Crew::withdraw`] revokes those that no worker has received; the others
//!   will be answered, and the next run finds their answers.
//!
//! # Reading order
//! `form.rs` is the message format, `asker.rs` publishes and waits, `handler.rs` answers.

#![forbid(unsafe_code)]

mod asker;
mod form;
mod handler;

pub use asker::{Crew, Withdrawn};
pub use form::{Server, TASK};
pub use handler::{Allowed, Asks, PageHandler};
