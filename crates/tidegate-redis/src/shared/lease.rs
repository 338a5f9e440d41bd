//! The future that waits at a shared gate, and the lease of an admitted entry.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tidegate_limit::{Cost, EnterError};

use super::core::{Fate, Grant, Waiter};
use super::{Handle, SharedGate};

/// The future of [`SharedGate::enter`].
#[must_use = "futures do nothing unless polled"]
pub struct SharedEnter {
    handle: Rc<Handle>,
    step: Step,
}

enum Step {
    Begin(Cost),
    Waiting(Rc<Waiter>),
    Done,
}

impl SharedEnter {
    pub(super) fn new(gate: &SharedGate, cost: Cost) -> SharedEnter {
        SharedEnter { handle: gate.handle.clone(), step: Step::Begin(cost) }
    }
}

impl Future for SharedEnter {
    type Output = Result<SharedLease, EnterError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match std::mem::replace(&mut this.step, Step::Done) {
            Step::Begin(cost) => {
                let shared = &this.handle.shared;
                if let Some(why) = &*shared.closed.borrow() {
                    return Poll::Ready(Err(why.clone()));
                }
                let cost = match shared.core.borrow().spec.clamp(cost) {
                    Ok(cost) => cost,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                let fate = RefCell::new(Fate::Waiting(cx.waker().clone()));
                let waiter = Rc::new(Waiter { cost, since: shared.now(), fate });
                this.step = Step::Waiting(waiter.clone());
                let look = shared.core.borrow_mut().join(waiter);
                if look {
                    shared.wake();
                }
                Poll::Pending
            }
            Step::Waiting(waiter) => {
                let mut fate = waiter.fate.borrow_mut();
                if let Fate::Waiting(known) = &mut *fate {
                    if !known.will_wake(cx.waker()) {
                        let before = std::mem::replace(known, cx.waker().clone());
                        drop(fate);
                        drop(before);
                    } else {
                        drop(fate);
                    }
                    this.step = Step::Waiting(waiter);
                    return Poll::Pending;
                }
                let told = std::mem::replace(&mut *fate, Fate::Over);
                drop(fate);
                Poll::Ready(match told {
                    Fate::Granted(grant) => {
                        let cost = waiter.cost.clone();
                        Ok(SharedLease { handle: this.handle.clone(), cost, grant: Some(grant), sent: false })
                    }
                    Fate::Refused(error) => Err(error),
                    Fate::Waiting(_) | Fate::Over => unreachable!("looked at above"),
                })
            }
            Step::Done => panic!("polled after it was ready"),
        }
    }
}

impl Drop for SharedEnter {
    fn drop(&mut self) {
        let Step::Waiting(waiter) = std::mem::replace(&mut self.step, Step::Done) else { return };
        let told = waiter.fate.replace(Fate::Over);
        match told {
            // Granted and not taken: the same as a lease that is dropped.
            Fate::Granted(grant) => {
                let (handle, cost) = (self.handle.clone(), waiter.cost.clone());
                drop(SharedLease { handle, cost, grant: Some(grant), sent: false });
            }
            told => {
                drop(told);
                let shared = &self.handle.shared;
                let look = shared.core.borrow_mut().abandon();
                if look {
                    shared.wake();
                }
            }
        }
    }
}

impl fmt::Debug for SharedEnter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEnter").finish_non_exhaustive()
    }
}

/// An admitted entry: its slot, until it is dropped, and what it booked under rate limits, for all machines.
///
/// | what happens | slot | rates |
/// |---|---|---|
/// | dropped before [`sent`](Self::sent) | freed | taken back: there was no request |
/// | dropped after [`sent`](Self::sent) | freed | counted as booked, or as settled |
/// | [`settle`](Self::settle)d | kept | the actual cost |
/// | [`refund`](Self::refund)ed | freed | taken back |
/// | its process dies | freed when the lease expires | counted as booked |
///
/// None of these methods waits: the next call, which is sent at once, reports the change to Redis.
#[must_use = "a lease that is dropped before `sent` is taken back"]
pub struct SharedLease {
    handle: Rc<Handle>,
    cost: Cost,
    /// `None` only within `drop`.
    grant: Option<Grant>,
    sent: bool,
}

impl SharedLease {
    /// Marks the request as sent: it counts, whatever becomes of it. If this is late (by half of the gate's margin or more),
    /// strict limits count it from now instead of from its admission. Only the first call has an effect.
    pub fn sent(&mut self) {
        if std::mem::replace(&mut self.sent, true) {
            return;
        }
        let shared = &self.handle.shared;
        match self.grant.as_mut().expect("there until it is dropped") {
            Grant::Local(lease) => lease.sent(),
            Grant::Shared { booked, asked_at } => {
                if shared.now().saturating_duration_since(*asked_at) > shared.late_after {
                    shared.core.borrow_mut().restamp(booked, &self.cost);
                    shared.wake();
                }
            }
        }
    }

    /// Sets the actual cost, in all dimensions. If it is below the estimate, the rest is free for all machines. If it is
    /// above, the difference is booked now, and nothing is admitted until the limits have room again.
    pub fn settle(&mut self, actual: Cost) {
        match self.grant.as_mut().expect("there until it is dropped") {
            Grant::Local(lease) => lease.settle(actual.clone()),
            Grant::Shared { booked, .. } => {
                let shared = &self.handle.shared;
                shared.core.borrow_mut().settle(booked, &self.cost, Some(&actual));
                shared.wake();
            }
        }
        self.cost = actual;
    }

    /// Returns all bookings although the request was sent, because the server does not count it.
    pub fn refund(mut self) {
        self.sent = false;
    }

    /// Returns the cost that is booked.
    #[must_use]
    pub fn cost(&self) -> &Cost {
        &self.cost
    }

    /// Returns `true` if it was admitted by the local share, while Redis was lost.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.grant, Some(Grant::Local(_)))
    }
}

impl Drop for SharedLease {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        let shared = &self.handle.shared;
        let mut core = shared.core.borrow_mut();
        match grant {
            Grant::Local(lease) => {
                core.release();
                core.stats.refunded += u64::from(!self.sent);
                drop(core);
                if self.sent {
                    drop(lease);
                } else {
                    lease.refund();
                }
            }
            Grant::Shared { mut booked, .. } => {
                if !self.sent {
                    core.stats.refunded += 1;
                    core.settle(&mut booked, &self.cost, None);
                }
                core.release();
                drop(core);
                shared.slot_freed();
            }
        }
        shared.wake();
    }
}

impl fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLease").field("cost", &self.cost).field("sent", &self.sent).finish_non_exhaustive()
    }
}
