//! Several tasks at once: `wait`, `gather`, `as_completed`, `shield`, task groups. Built from done-callbacks and settable
//! futures in the same steps as asyncio's, so that who goes on in which tick is the same too.

mod as_completed;
mod gather;
mod group;
mod shield;
mod wait;

pub use as_completed::{AsCompleted, as_completed};
pub use gather::{Gather, GatherAll, GatherError, gather, gather_all};
pub use group::{GroupClosed, GroupError, GroupFailure, TaskGroup};
pub use shield::{Shield, shield};
pub use wait::{EmptyWait, Waited, When, wait};
