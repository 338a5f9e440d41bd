//! Several tasks at once: `wait`, `gather`, `as_completed`, `shield`, task groups. Built from done-callbacks and settable
//! futures in the same steps as asyncio's, so that a waiter goes on in the same tick, too. `race.rs` is about several
//! futures inside one task.

mod arrivals;
mod as_completed;
mod gather;
mod group;
mod join_set;
mod race;
mod shield;
mod wait;

pub use as_completed::{AsCompleted, as_completed};
pub use gather::{Gather, GatherAll, GatherError, gather, gather_all};
pub use group::{GroupClosed, GroupError, GroupFailure, TaskGroup};
pub use join_set::JoinSet;
pub use race::{Either, Race, Zip, race, zip};
pub use shield::{Shield, shield};
pub use wait::{EmptyWait, Waited, When, wait};
