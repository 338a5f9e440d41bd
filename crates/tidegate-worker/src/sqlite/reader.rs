//! A consumer as the owner of the file knows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::{Incoming, Subscription};

use super::claim::{self, Held};
use super::op::Feed;

pub(super) struct Reader {
    /// Its id in the file; a new one after its lease was lost, so that tags of before settle nothing.
    pub(super) owner: i64,
    pub(super) what: Subscription,
    pub(super) queues: Vec<i64>,
    pub(super) feed: Arc<Feed>,
    /// Claimed and not yet settled, by `seq`.
    pub(super) held: HashMap<i64, Held>,
    pub(super) stopped: bool,
    pub(super) renew_at: Instant,
    /// Which of its queues begins the next claim.
    pub(super) turn: usize,
}

impl Reader {
    pub(super) fn wants(&self) -> bool {
        !self.stopped && self.held.len() < self.what.prefetch
    }

    /// Its lease is gone: what it had is somebody else's, and it goes on under another id.
    pub(super) fn lost(&mut self, owner: i64) {
        let mut lost: Vec<i64> = self.held.drain().map(|(seq, _)| seq).collect();
        lost.sort_unstable();
        tracing::warn!(consumer = %self.what.consumer, tasks = lost.len(), "lost the lease; others will run these tasks again");
        let old = std::mem::replace(&mut self.owner, owner);
        self.tell(lost.into_iter().map(|seq| Incoming::Lost(claim::tag(old, seq))).collect());
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
