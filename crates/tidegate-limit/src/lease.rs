//! What somebody who was let in holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cost::Cost;
use crate::gate::Shared;
use crate::limits::{Booking, Refusal};
use crate::line::ScopeId;
use crate::moment::Moment;
use crate::pump::Effects;

/// An entry that was granted: its slots, until it is dropped, and what it booked under rate limits.
///
/// | what happens | slots | rates |
/// |---|---|---|
/// | dropped before [`sent`](Self::sent) | freed | taken back: there was no request |
/// | dropped after [`sent`](Self::sent) | freed | counted as booked, or as settled |
/// | [`settle`](Self::settle)d | kept | what it really cost |
/// | [`refund`](Self::refund)ed | freed | taken back |
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::run(async {
/// let gate = Gate::builder().limit(Limit::tpm(1_000)).build().unwrap();
/// let mut lease = gate.enter(gate.unscoped(), Cost::tokens(800)).await.unwrap();
/// lease.sent();
/// lease.settle(Cost::tokens(300));
/// assert_eq!(gate.stats().limit("tpm").unwrap().remaining, 700);
/// # }).unwrap();
/// ```
#[must_use = "a lease that is dropped before `sent` is taken back"]
pub struct Lease {
    gate: Arc<Shared>,
    scope: ScopeId,
    /// `None` only while it is being dropped.
    booking: Option<Booking>,
    sent: Option<Moment>,
}

impl Lease {
    #[inline]
    pub(crate) fn new(gate: Arc<Shared>, scope: ScopeId, booking: Booking) -> Lease {
        Lease { gate, scope, booking: Some(booking), sent: None }
    }

    /// The request is on its way, and counts, whatever becomes of it. Call it where the request is written: what was
    /// booked counts from now on, not from when it was granted (unless that was within a quarter of the margin), so that
    /// time spent connecting is not taken for time in the server's window. Only the first call counts.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// lease.sent();
    /// drop(lease);
    /// assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 59);
    /// ```
    #[inline]
    pub fn sent(&mut self) {
        if self.sent.is_none() {
            let now = self.gate.now();
            self.sent = Some(now);
            let booking = self.booking.as_mut().expect("there until it is dropped");
            if self.gate.is_late(booking.at, now) {
                self.gate.restamp(booking, now);
            }
        }
    }

    /// The answer begins to come in: the time since [`sent`](Self::sent) is a sample for the margin that the gate keeps
    /// at the edges of strict windows. Never called, the margin stays at its floor.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// lease.sent();
    /// lease.answered();
    /// ```
    pub fn answered(&mut self) {
        if let Some(sent) = self.sent {
            let now = self.gate.now();
            let took = now.since(sent);
            let is_virtual = self.gate.is_virtual();
            let mut state = self.gate.lock();
            state.margin.sample(took, now);
            state.tally.answered(took);
            self.gate.apply_margin(&mut state, is_virtual);
        }
    }

    /// The server accepted the request: no limit refused it, whatever the answer says. For limits that are
    /// [found](crate::Limit::found); what is not reported counts as sent.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::found()).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// lease.sent();
    /// lease.served();
    /// ```
    pub fn served(&mut self) {
        let booking = self.booking.as_ref().expect("there until it is dropped");
        let now = self.gate.now();
        // Whatever that makes room for goes when this lease is dropped.
        self.gate.lock().limits.served(booking, now);
    }

    /// A limit refused the request: it is taken out of the strict windows, and a limit that was not stated is looked for if
    /// the gate is to [find](crate::Limit::found) it.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit, Refusal};
    /// # let gate = Gate::builder().limit(Limit::found()).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// lease.sent();
    /// lease.refused(Refusal::default());
    /// assert_eq!(gate.stats().found.unwrap().refused, 1);
    /// ```
    pub fn refused(&mut self, refusal: Refusal) {
        let booking = self.booking.as_ref().expect("there until it is dropped");
        self.gate.change(|state, now, _| state.limits.refused(booking, refusal, now));
    }

    /// The server did not answer, or said that it is not there. Returns for how long it has been down, if it is.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::found()).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// assert_eq!(lease.failed(), None, "once is not an outage");
    /// ```
    pub fn failed(&mut self) -> Option<Duration> {
        let booking = self.booking.as_ref().expect("there until it is dropped");
        self.gate.change(|state, now, _| state.limits.failed(booking, now))
    }

    /// What it really cost, in all dimensions. Less than booked: the rest is free at once. More: that is booked now, and
    /// nobody is let in until the limits are kept again.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::tpm(1_000)).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::tokens(500)).unwrap();
    /// lease.settle(Cost::tokens(600));
    /// assert_eq!(gate.stats().limit("tpm").unwrap().remaining, 400);
    /// ```
    pub fn settle(&mut self, actual: Cost) {
        let booking = self.booking.as_mut().expect("there until it is dropped");
        let journal = self.gate.change(|state, now, _| {
            state.limits.settle(booking, actual, now);
            state.limits.overdrafts(now)
        });
        self.gate.carry_out(Effects { journal, ..Effects::default() });
    }

    /// Takes everything back, though it was sent: the server does not count it.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// lease.sent();
    /// lease.refund();
    /// assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 60);
    /// ```
    pub fn refund(mut self) {
        self.sent = None;
    }

    /// What is booked for it.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// let lease = gate.try_enter(gate.unscoped(), Cost::tokens(5)).unwrap();
    /// assert_eq!(lease.cost().of(Dimension::TOKENS), 5);
    /// ```
    #[must_use]
    pub fn cost(&self) -> &Cost {
        &self.booking.as_ref().expect("there until it is dropped").cost
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        let Some(booking) = self.booking.take() else { return };
        if self.sent.is_some() {
            self.gate.release(self.scope, booking);
        } else {
            self.gate.take_back(self.scope, booking);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("cost", self.cost()).field("sent", &self.sent.is_some()).finish_non_exhaustive()
    }
}

impl Shared {
    #[inline]
    fn release(self: &Arc<Self>, scope: ScopeId, booking: Booking) {
        let mut state = self.lock();
        state.release(scope, booking);
        let waiting = state.line.any_eligible();
        drop(state);
        if waiting {
            self.change(|_, _, _| ());
        }
    }

    fn take_back(self: &Arc<Self>, scope: ScopeId, mut booking: Booking) {
        let now = self.tell_time();
        let mut state = self.lock_at(now);
        state.limits.refund(&mut booking, now.moment);
        state.tally.refunded += 1;
        state.release(scope, booking);
        let waiting = state.line.any_eligible();
        drop(state);
        if waiting {
            self.change(|_, _, _| ());
        }
    }

    /// What was booked earlier happens now. Whoever waits may have to wait a little longer, so the timer is looked at.
    fn restamp(self: &Arc<Self>, booking: &mut Booking, now: Moment) {
        let mut state = self.lock();
        state.limits.restamp(booking, now);
        let journal = state.limits.overdrafts(now);
        let waiting = state.line.any_eligible();
        drop(state);
        self.carry_out(Effects { journal, ..Effects::default() });
        if waiting {
            self.change(|_, _, _| ());
        }
    }
}
