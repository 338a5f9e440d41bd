//! A local share of the quota, while Redis is lost.

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

/// The gate of this machine alone, and what it let in.
pub(crate) struct LocalShare {
    gate: Gate,
    /// The share of each concurrency limit, in full.
    slots: Vec<(String, u64)>,
    granted: VecDeque<(Instant, Cost)>,
}

impl LocalShare {
    /// `None` where the share of some limit is less than one: then nobody can go.
    ///
    /// What all machines used before the loss is still in the server's windows, and nobody knows how much of it. So a
    /// strict window begins full, a bucket empty; of a calendar's period there is a share of what was left.
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

    /// Leases that are its own.
    pub(super) fn held(&self) -> u64 {
        self.gate.stats().current
    }

    /// Those who were let in before the loss still hold their slots.
    pub(super) fn leave_slots(&self, held: u64) {
        for (name, slots) in &self.slots {
            let _ = self.gate.set(name, slots.saturating_sub(held));
        }
    }
}

fn cold(limit: Limit) -> Limit {
    use tidegate_limit::{Start, Window};
    match limit.rated().map(|(_, window)| window.clone()) {
        // Whatever a larger burst was made for, it is not for now.
        Some(Window::Bucket { per, .. }) => limit.window(Window::Bucket { per, burst: None, start: Start::Cold }),
        _ => limit,
    }
}

/// Lets in by the local share until Redis is back, or the gate is closed; then Redis will be told what was let in.
/// `false`: there is no share to let in by.
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

/// The first in line, once the local gate lets him in; `None` when that is over.
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
            // A nudge may be somebody giving up, or a slot that came free; neither loses the place in line.
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
