//! Descriptors on the loop. `table.rs` stands above the selector and knows what is registered; `callbacks.rs` is
//! `add_reader` and `add_writer`; `source.rs` is what sockets and pipes are made of; `describe.rs` says in a
//! dump which task waits at which.

mod callbacks;
mod describe;
pub(crate) mod methods;
pub(crate) mod selector;
mod source;
mod table;
pub(crate) mod uring;

pub(crate) use callbacks::IoCallback;
pub(crate) use source::{Direction, Source};
pub(crate) use table::{Due, IoTable};
