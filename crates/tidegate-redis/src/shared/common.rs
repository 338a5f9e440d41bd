//! A shared gate used as the limits behind a local gate.

use std::time::Duration;

use tidegate_limit::{Cost, EnterError, EnterSharedLimits, SharedLimits, SharedLimitsLease, Snapshot};

use super::spec::Pause;
use super::{SharedGate, SharedLease};

impl SharedGate {
    fn tell(&self, limit: &str, pause: Pause) {
        let shared = &self.handle.shared;
        let told = {
            let mut core = shared.core.borrow_mut();
            let limit = core.spec.find(limit);
            limit.map(|limit| core.pause(limit, pause))
        };
        if told.is_some() {
            shared.wake();
        }
    }
}

impl SharedLimits for SharedGate {
    fn enter(&self, cost: Cost) -> EnterSharedLimits {
        let entering = SharedGate::enter(self, cost);
        Box::pin(async move { Ok(Box::new(entering.await?) as Box<dyn SharedLimitsLease>) })
    }

    fn pause(&self, limit: &str, duration: Duration) {
        self.tell(limit, Pause::For(duration));
    }

    fn resume(&self, limit: &str) {
        self.tell(limit, Pause::Over);
    }

    fn refused(&self) {
        SharedGate::refused(self);
    }

    fn complete(&self, stats: &mut Snapshot) {
        let ours = self.stats();
        // Entries that wait here have passed the local gate and are not in flight yet.
        stats.current = stats.current.saturating_sub(ours.waiting as u64);
        if ours.granted > 0 {
            stats.peak = ours.peak;
        }
        stats.waiting += ours.waiting;
        stats.waited += ours.waited;
        let fault = ours.fault.as_ref().map(|fault| format!("Redis: {fault}"));
        let blocked_by = fault.or_else(|| ours.blocked_by.as_deref().map(ToOwned::to_owned));
        if ours.waiting > 0 {
            stats.blocked_by = blocked_by.or(stats.blocked_by.take());
        }
        for limit in &mut stats.limits {
            let Some(ours) = ours.limit(&limit.name) else { continue };
            limit.used = limit.used.max(ours.used);
            limit.remaining = limit.remaining.min(limit.amount.saturating_sub(ours.used));
            limit.blocked += ours.blocked;
            limit.blocked_for += ours.blocked_for;
        }
    }

    fn close(&self, why: EnterError) {
        self.handle.shared.close_now(why);
    }
}

impl SharedLimitsLease for SharedLease {
    fn sent(&mut self) {
        SharedLease::sent(self);
    }

    fn settle(&mut self, actual: Cost) {
        SharedLease::settle(self, actual);
    }

    fn refund(self: Box<Self>) {
        SharedLease::refund(*self);
    }
}
