//! The lease of an admitted entry.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cost::Cost;
use crate::gate::GateShared;
use crate::limits::{Booking, Refusal};
use crate::line::ScopeId;
use crate::moment::Moment;
use crate::pump::Effects;

/// An admitted entry: its slots, until it is dropped, and what it booked under rate limits.
///
/// | event | slots | rates |
/// |---|---|---|
/// | dropped before [`sent`](Self::sent) | freed | taken back: there was no request |
/// | dropped after [`sent`](Self::sent) | freed | counted as booked, or as settled |
/// | [`settle`](Self::settle)d | kept | the actual cost |
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
    gate: Arc<GateShared>,
    scope: ScopeId,
    /// `None` only while it is being dropped.
    booking: Option<Booking>,
    sent: Option<Moment>,
}

impl Lease {
    #[inline]
    pub(crate) fn new(gate: Arc<GateShared>, scope: ScopeId, booking: Booking) -> Lease {
        Lease { gate, scope, booking: Some(booking), sent: None }
    }

    /// Reports that the request is being sent; from now on it counts, whatever the answer is. Call this where the request is
    /// written: what was booked counts from this instant instead of from the admission (unless that was less than a quarter
    /// of the margin ago), so that time spent connecting does not count as time in the server's window. Further calls do
    /// nothing.
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

    /// Reports that the answer begins to arrive. The time since [`sent`](Self::sent) is a sample for the margin that the
    /// gate adds to strict windows. Without samples, the margin stays at its lower bound.
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

    /// Reports that no limit of the server refused the request, whatever the answer is. For limits that are
    /// [found](crate::Limit::found); a request without a report counts as sent.
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
        // Entries for which this makes room are admitted when this lease is dropped.
        self.gate.lock().limits.served(booking, now);
    }

    /// Reports that a limit of the server refused the request: it is removed from the strict windows, and a limit that was
    /// not stated is looked for if the gate [finds](crate::Limit::found) limits.
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

    /// Reports that the server did not answer, or with an error that means that it is down. Returns for how long it has been
    /// down, if it is.
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

    /// Replaces what was booked by the actual cost, in all dimensions. If it is less, the rest is free at once. If it is
    /// more, the rest is booked now, and no entry is admitted until the limits are kept again.
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

    /// Takes everything back although it was sent, for a request that the server does not count.
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

    /// Returns the cost that is booked.
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

impl GateShared {
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

    /// Makes a booking count from `now` on. Entries in line may have to wait a little longer, so the timer is updated.
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
