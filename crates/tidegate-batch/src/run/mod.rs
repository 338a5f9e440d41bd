//! What a run is, whether it explains pages or sends the requests of a file: how it is steered, how far it is, and what happens
//! in it.
//!
//! [`Control`] is the handle of a run: stop, pause, retry, and everything that is read. The display, `--progress json`, the
//! metrics and the web page are readers of the same [`Progress`] and the same [`Event`]s. `explain/` and `jsonl/` are the two
//! runs; both enter the gate through an [`ItemScope`], which keeps the states of items true, and both ask `policy` what an
//! error means for the whole.
//!
//! A run never closes its gate: others may use it. The owner of the gate closes it when all its runs have ended.
//!
//! `item.rs`, `event.rs` and `progress.rs` are plain values; `board.rs` counts, `control.rs` is the handle, `figures.rs` what is read of it, `again.rs` what is
//! to be asked again, `scope.rs` the way to the gate, `policy.rs` the decisions about errors.

mod again;
mod board;
mod control;
mod event;
mod figures;
mod item;
pub(crate) mod policy;
mod progress;
mod scope;

pub use again::RetryError;
pub(crate) use again::{Again, Wish};
pub use control::Control;
pub(crate) use control::Settled;
pub use event::{Change, Event};
pub use item::{Item, ItemId, ItemState};
pub use progress::{FileProgress, FileState, Progress, Unit};
pub(crate) use scope::ItemHandle;
pub use scope::{ItemLease, ItemScope};

pub(crate) use tidegate_loop::now;
