//! A consumer as the owner of the file knows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::{Incoming, Subscription};

use super::claim::{self, Claimed, Held};
use super::op::Feed;

pub(super) struct Reader {
    /// Its id in the file; a new one after its lease was lost, so that tags of before settle nothing.
    pub(super) owner: i64,
    pub(super) what: Subscription,
    pub(super) queues: Vec<i64>,
    pub(super) feed: Arc<Feed>,
    /// Claimed and not yet settled, by the number of the delivery.
    pub(super) held: HashMap<u64, Held>,
    /// Numbers below were given out; none is ever given out twice.
    pub(super) next_delivery: u64,
    pub(super) stopped: bool,
    pub(super) renew_at: Instant,
    /// Which of its queues begins the next claim.
    pub(super) turn: usize,
}

impl Reader {
    pub(super) fn wants(&self) -> bool {
        !self.stopped && self.held.len() < self.what.prefetch
    }

    /// Handles a lost lease: its tasks belong to other consumers now, and it goes on under a new id.
    pub(super) fn lost(&mut self, owner: i64) {
        let mut lost: Vec<u64> = self.held.drain().map(|(number, _)| number).collect();
        lost.sort_unstable();
        tracing::warn!(consumer = %self.what.consumer, tasks = lost.len(), "lost the lease; others will run these tasks again");
        let old = std::mem::replace(&mut self.owner, owner);
        self.tell(lost.into_iter().map(|number| Incoming::Lost(claim::tag(old, number))).collect());
    }

    /// What was claimed for it is committed: it has it from now on.
    pub(super) fn claimed(&mut self, claimed: Claimed) {
        self.turn = self.turn.wrapping_add(1) % self.queues.len().max(1);
        self.next_delivery += claimed.held.len() as u64;
        self.held.extend(claimed.held);
        self.tell(claimed.incoming);
    }

    pub(super) fn tell(&self, incoming: Vec<Incoming>) {
        if !incoming.is_empty() {
            // A closed feed has no reader; what it would have been told returns with its lease.
            let _ = self.feed.try_push(incoming);
        }
    }

    pub(super) fn renewed(&mut self, mono: Instant, lease: Duration) {
        self.renew_at = mono + lease / 3;
    }
}
