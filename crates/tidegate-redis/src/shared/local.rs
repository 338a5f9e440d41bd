//! The local share of the limits, used while Redis is lost.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use tidegate_limit::{Cost, EnterError, Gate, Lease, Limit};

use super::Shared;
use super::core::{Fate, Grant};
use super::spec::{Kind, Spec};

/// A gate of this machine alone, and the log of what it admitted.
pub(crate) struct LocalShare {
    gate: Gate,
    /// Each concurrency limit with its share, before slots that are still held are subtracted.
    slots: Vec<(String, u64)>,
    granted: VecDeque<(Instant, Cost)>,
}

impl LocalShare {
    /// Returns `None` if the share of some limit is less than one, so that nothing can be admitted.
    ///
    /// What all machines used before the loss still counts in the server's windows, and its amount is unknown. So a strict
    /// window begins used up and a bucket empty; of a calendar period the share is of what was left.
    fn new(spec: &Spec, used: &[u64], share: f64, held: u64) -> Option<LocalShare> {
        let part = |amount: u64| (amount as f64 * share) as u64;
        let mut builder = Gate::builder();
        let mut slots = Vec::new();
        for (limit, used) in spec.limits.iter().zip(used) {
            let amount = match limit.kind() {
                Kind::Aligned { .. } | Kind::Day(_) => part(limit.limit.amount().saturating_sub(*used)),
                Kind::Concurrency | Kind::Strict { .. } | Kind::Bucket { .. } => part(limit.limit.amount()),
            };
            if amount == 0 {
                return None;
            }
            if matches!(limit.kind(), Kind::Concurrency) {
                slots.push((limit.name.to_string(), amount));
            }
            builder = builder.limit(cold(limit.limit.clone().with_amount(amount)));
        }
        let gate = builder.build().ok()?;
        for limit in &spec.limits {
            if matches!(limit.kind(), Kind::Strict { .. }) {
                gate.pause(&limit.name, limit.counts_for()).ok()?;
            }
        }
        let local = LocalShare { gate, slots, granted: VecDeque::new() };
        local.leave_slots(held);
        Some(local)
    }

    /// Returns the number of leases that this local gate has granted and that are still held.
    pub(super) fn held(&self) -> u64 {
        self.gate.stats().current
    }

    /// Leaves room for `held` leases that were granted through Redis before the loss and still hold their slots.
    pub(super) fn leave_slots(&self, held: u64) {
        for (name, slots) in &self.slots {
            let _ = self.gate.set(name, slots.saturating_sub(held));
        }
    }
}

fn cold(limit: Limit) -> Limit {
    use tidegate_limit::{Start, Window};
    match limit.rated().map(|(_, window)| window.clone()) {
        // A larger burst is not applied while Redis is lost: the bucket starts empty.
        Some(Window::Bucket { per, .. }) => limit.window(Window::Bucket { per, burst: None, start: Start::Cold }),
        _ => limit,
    }
}

/// Admits entries by the local share until Redis is back or the gate is closed; then books what it admitted, for the next
/// call. Returns `false` if the share is too small to admit anything.
pub(super) async fn serve(shared: &Rc<Shared>, share: f64) -> bool {
    let (gate, lost_at) = {
        let core = shared.core.borrow();
        let used: Vec<u64> = core.stats.limits.iter().map(|limit| limit.used).collect();
        let Some(local) = LocalShare::new(&core.spec, &used, share, core.held) else { return false };
        let gate = local.gate.clone();
        *shared.local.borrow_mut() = Some(local);
        (gate, shared.now())
    };
    tracing::warn!(gate = &*shared.name, share, "Redis is lost; going on with the local share");
    while let Some((cost, entered)) = next(shared, &gate).await {
        admit(shared, &cost, entered);
    }
    let local = shared.local.take().expect("put there above");
    let mut core = shared.core.borrow_mut();
    let now = shared.now();
    for at in 0..core.spec.limits.len() {
        let limit = &core.spec.limits[at];
        let from = now.checked_sub(limit.counts_for()).unwrap_or(lost_at);
        let counts = local.granted.iter().filter(|(when, _)| *when >= from);
        let amount = counts.map(|(_, cost)| limit.cost_of(cost)).sum();
        core.book(at, amount);
    }
    true
}

/// Waits until the local gate admits the first in line; `None` when Redis is back or the gate is closed.
async fn next(shared: &Rc<Shared>, gate: &Gate) -> Option<(Cost, Result<Lease, EnterError>)> {
    loop {
        let nudges = shared.nudges.get();
        let changes = shared.client.changes();
        let over = || shared.client.is_up() || shared.is_closed();
        if over() {
            return None;
        }
        let first = {
            let mut core = shared.core.borrow_mut();
            while core.line.front().is_some_and(|waiter| waiter.is_over()) {
                core.line.pop_front();
            }
            core.line.front().cloned()
        };
        let mut changed = pin!(shared.client.changed(changes));
        let Some(first) = first else {
            poll_fn(|cx| match changed.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => shared.poll_nudge(cx, nudges),
            })
            .await;
            continue;
        };
        let mut entering = pin!(gate.enter(gate.unscoped(), first.cost.clone()));
        let entered = poll_fn(|cx| {
            if over() || first.is_over() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(entered) = entering.as_mut().poll(cx) {
                return Poll::Ready(Some(entered));
            }
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            // A nudge may mean a dropped entry or a free slot; neither changes the first entry's position in line.
            let _ = shared.poll_nudge(cx, shared.nudges.get());
            Poll::Pending
        })
        .await;
        if let Some(entered) = entered {
            return Some((first.cost.clone(), entered));
        }
    }
}

fn admit(shared: &Shared, cost: &Cost, entered: Result<Lease, EnterError>) {
    let mut wake = Vec::new();
    let mut core = shared.core.borrow_mut();
    let Some(waiter) = core.line.pop_front() else { return };
    match entered {
        Ok(lease) => {
            core.stats.granted_locally += 1;
            let now = shared.now();
            if let Some(local) = &mut *shared.local.borrow_mut() {
                local.granted.push_back((now, cost.clone()));
            }
            core.grant(&waiter, Grant::Local(lease), now, &mut wake);
        }
        Err(error) => {
            let told = waiter.fate.replace(Fate::Refused(error));
            if let Fate::Waiting(waker) = told {
                wake.push(waker);
            }
        }
    }
    drop(core);
    wake.into_iter().for_each(std::task::Waker::wake);
}
