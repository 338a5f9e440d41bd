//! A delivery, and which attempt at which task it is.

use std::time::Instant;

use super::plan::{Plan, Step};
use crate::broker::Tag;
use crate::rabbit::core::Place;
use crate::rabbit::message::Stored;
use crate::task::TaskId;

/// A task that a quorum queue has delivered this often is not put back but written anew: the queue gives up one that was
/// delivered 50 times.
pub(in crate::rabbit) const DELIVERED_MAX: u32 = 25;

/// One attempt at a task. A copy of it has another: more retries or crashes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::rabbit) struct Attempt {
    pub(in crate::rabbit) id: TaskId,
    pub(in crate::rabbit) retries: u32,
    /// As its message says, without what the broker counts.
    pub(in crate::rabbit) crashes: u32,
}

/// A delivery.
#[derive(Debug)]
pub(in crate::rabbit) struct Held {
    /// The place of its queue in the subscription.
    pub(in crate::rabbit) at: usize,
    pub(in crate::rabbit) tag: Tag,
    pub(in crate::rabbit) amqp: tidegate_amqp::Tag,
    pub(in crate::rabbit) stored: Stored,
    /// How many of its crashes its message does not say: the broker counts them, or this worker.
    pub(in crate::rabbit) counted: u32,
    /// How often a quorum queue has delivered it before.
    pub(in crate::rabbit) delivered: u32,
    /// It comes from the queue of due tasks.
    pub(in crate::rabbit) due: bool,
    /// Since when the worker has it.
    pub(in crate::rabbit) handed_out: Option<Instant>,
}

impl Held {
    /// Where a copy of it goes that takes its place.
    fn place(&self) -> Place {
        if self.due { Place::Due } else { Place::Head }
    }

    fn crashes(&self) -> u32 {
        self.stored.crashes.saturating_sub(self.counted)
    }

    pub(in crate::rabbit) fn attempt(&self) -> Attempt {
        let Stored { envelope, retries, .. } = &self.stored;
        Attempt { id: envelope.id.clone(), retries: *retries, crashes: self.crashes() }
    }

    pub(super) fn is_of(&self, attempt: &Attempt) -> bool {
        let Attempt { id, retries, crashes } = attempt;
        self.stored.envelope.id == *id && self.stored.retries == *retries && self.crashes() == *crashes
    }

    pub(super) fn id(&self) -> &TaskId {
        &self.stored.envelope.id
    }

    /// What is to be done for a task that goes back to its place, uncounted.
    pub(in crate::rabbit) fn return_plan(&self) -> Plan {
        if self.delivered < DELIVERED_MAX {
            return Plan::new([Step::Note(self.attempt()), Step::Requeue]);
        }
        // A quorum queue counts every return, and gives up a task that was delivered too often.
        let mut stored = self.stored.clone();
        stored.crashes = self.crashes();
        Plan::new([Step::Copy(Box::new((stored, self.place()))), Step::Ack])
    }

    /// A copy with the crash that its message does not say, since only a new message can carry the count.
    pub(super) fn recount_plan(&self) -> Plan {
        let mut stored = self.stored.clone();
        stored.crashes += 1;
        Plan::new([Step::Recount(Box::new((stored, self.place()))), Step::Ack])
    }

    /// Takes back deliveries of a quorum queue that no worker died with.
    pub(super) fn discount(&mut self, innocent: u32) {
        let innocent = innocent.min(self.counted);
        self.counted -= innocent;
        self.stored.crashes = self.stored.crashes.saturating_sub(innocent);
    }
}
