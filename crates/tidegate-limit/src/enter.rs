//! The future of an entry.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::blocked::Place;
use crate::cost::Cost;
use crate::error::EnterError;
use crate::gate::GateShared;
use crate::lease::Lease;
use crate::line::{ScopeId, WaiterFate, WaiterId};
use crate::pump::{Effects, NotAdmitted};

/// The future of [`Gate::enter`](crate::Gate::enter).
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::run(async {
/// let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
/// let lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
/// # drop(lease);
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Enter<'a> {
    gate: &'a Arc<GateShared>,
    scope: ScopeId,
    step: EnterStep,
}

enum EnterStep {
    /// Not polled yet.
    Begin(Cost),
    /// In line, or granted or refused since the last poll.
    Waiting(WaiterId),
    Done,
}

impl<'a> Enter<'a> {
    #[inline]
    pub(crate) fn new(gate: &'a Arc<GateShared>, scope: ScopeId, cost: Cost) -> Enter<'a> {
        Enter { gate, scope, step: EnterStep::Begin(cost) }
    }

    /// Returns its place in line while it waits; see [`Gate::line`](crate::Gate::line).
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let EnterStep::Waiting(id) = self.step else { return None };
        Some(Place(self.gate.lock().line.waiter(id).arrival))
    }

    #[inline]
    fn lease(&self, booking: crate::limits::Booking) -> Lease {
        Lease::new(Arc::clone(self.gate), self.scope, booking)
    }

    /// Joins the line, because there was no room or another entry was first.
    #[cold]
    fn join(&mut self, cost: Cost, waker: Waker) -> Poll<Result<Lease, EnterError>> {
        self.gate.attend();
        // Tries again, because the lock was released since the first attempt.
        let now = self.gate.tell_time();
        let mut effects = Effects::default();
        let mut state = self.gate.lock_at(now);
        let why = match state.enter_now(self.scope, &cost, now.moment) {
            Ok(booking) => {
                drop(state);
                return Poll::Ready(Ok(self.lease(booking)));
            }
            Err(NotAdmitted::Never(error)) => return Poll::Ready(Err(error)),
            Err(why) => why,
        };
        let ahead = state.line.waiting();
        if let Some(error) = state.crowded() {
            return Poll::Ready(Err(error));
        }
        let id = state.join(self.scope, cost, waker, &why, now.moment);
        self.step = EnterStep::Waiting(id);
        // An entry behind those that `pump` considers changes nothing.
        if !matches!(why, NotAdmitted::Behind) || ahead <= state.skip_ahead.look_ahead {
            state.pump(now.moment, &mut effects);
        }
        drop(state);
        self.gate.carry_out(effects);
        Poll::Pending
    }

    fn ask(&mut self, id: WaiterId, waker: &Waker) -> Poll<Result<Lease, EnterError>> {
        let mut state = self.gate.lock();
        if let WaiterFate::Waiting(known) = &mut state.line.waiter_mut(id).fate {
            if known.will_wake(waker) {
                return Poll::Pending;
            }
            // Wakers are foreign code: cloned and dropped without the lock.
            drop(state);
            let mut fresh = waker.clone();
            let mut state = self.gate.lock();
            if let WaiterFate::Waiting(known) = &mut state.line.waiter_mut(id).fate {
                std::mem::swap(known, &mut fresh);
                drop(state);
                drop(fresh);
                return Poll::Pending;
            }
            return self.fetch(id, state);
        }
        self.fetch(id, state)
    }

    fn fetch(
        &mut self,
        id: WaiterId,
        mut state: std::sync::MutexGuard<'_, crate::pump::GateState>,
    ) -> Poll<Result<Lease, EnterError>> {
        let waiter = state.line.leave(id);
        drop(state);
        self.step = EnterStep::Done;
        match waiter.fate {
            WaiterFate::Granted(booking) => Poll::Ready(Ok(self.lease(booking))),
            WaiterFate::Refused(error) => Poll::Ready(Err(error)),
            WaiterFate::Waiting(_) => unreachable!("checked under the same lock"),
        }
    }
}

impl Future for Enter<'_> {
    type Output = Result<Lease, EnterError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.step, EnterStep::Done) {
            EnterStep::Begin(cost) => {
                let now = self.gate.tell_time();
                let entered = self.gate.lock_at(now).enter_now(self.scope, &cost, now.moment);
                match entered {
                    Ok(booking) => Poll::Ready(Ok(self.lease(booking))),
                    Err(NotAdmitted::Never(error)) => Poll::Ready(Err(error)),
                    Err(_) => self.join(cost, cx.waker().clone()),
                }
            }
            EnterStep::Waiting(id) => {
                self.step = EnterStep::Waiting(id);
                self.ask(id, cx.waker())
            }
            EnterStep::Done => panic!("polled after it was ready"),
        }
    }
}

impl Drop for Enter<'_> {
    #[inline]
    fn drop(&mut self) {
        if let EnterStep::Waiting(id) = self.step {
            let waker = self.gate.change(|state, now, _| state.abandon(id, now));
            drop(waker);
        }
    }
}

impl fmt::Debug for Enter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            EnterStep::Begin(_) => "not polled yet",
            EnterStep::Waiting(_) => "waiting",
            EnterStep::Done => "done",
        };
        f.debug_struct("Enter").field("step", &step).finish_non_exhaustive()
    }
}
