//! Decides which entry is admitted next, and what the gate waits for. All of it runs under the gate's lock; calls that must
//! be made without the lock (wakers, the timer, the journal) are returned as [`Effects`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::cost::Cost;
use crate::error::EnterError;
use crate::hold::Hold;
use crate::journal::Reservation;
use crate::limits::{Booking, Denied, LimitId, Limits, Until};
use crate::line::{Line, ScopeId, WaiterFate, WaiterId};
use crate::margin::Margin;
use crate::moment::{Moment, nanos_of};

/// Which entries may be admitted before the first in line while that does not fit yet.
///
/// With any setting, a later entry never delays the first in line: it is admitted only if the first could still be admitted
/// at the same instant, and would find a slot. Entries of equal cost never overtake each other.
///
/// ```
/// use tidegate_limit::{Gate, Limit, SkipAhead};
/// let gate = Gate::builder().limit(Limit::tpm(1_000)).skip_ahead(SkipAhead::OFF).build().unwrap();
/// # let _ = gate;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipAhead {
    /// How many entries behind the first in line are considered.
    pub look_ahead: usize,
    /// How often the first in line can be overtaken.
    pub passes_max: u32,
}

impl SkipAhead {
    /// Strictly first come, first served, even if capacity is idle meanwhile.
    pub const OFF: SkipAhead = SkipAhead { look_ahead: 0, passes_max: 0 };
}

/// Considers 8 entries, and lets 1,000 pass.
impl Default for SkipAhead {
    fn default() -> SkipAhead {
        SkipAhead { look_ahead: 8, passes_max: 1_000 }
    }
}

/// The calls to be made after the lock is released.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) wake: Vec<Waker>,
    pub(crate) journal: Vec<(LimitId, Reservation)>,
    pub(crate) rearm: bool,
}

/// What the first in line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocker {
    Limit(LimitId),
    /// All entries in line wait for their scopes.
    Scopes,
}

#[derive(Debug)]
pub(crate) struct GateState {
    pub(crate) limits: Limits,
    pub(crate) line: Line,
    pub(crate) margin: Margin,
    pub(crate) skip_ahead: SkipAhead,
    pub(crate) waiting_max: usize,
    pub(crate) closed: bool,
    /// When the next entry in line can be admitted, if nothing else happens before.
    pub(crate) due: Option<Moment>,
    /// What the timer was last set to.
    pub(crate) timer_set: Option<Moment>,
    /// Set while a thread sets the timer without the lock; it checks `due` again afterwards.
    pub(crate) timer_busy: bool,
    /// Reservations to be passed to the journal.
    pub(crate) unwritten: VecDeque<(LimitId, Reservation)>,
    /// Set while a thread passes them to the journal without the lock; it checks `unwritten` again afterwards.
    pub(crate) journal_busy: bool,
    pub(crate) tally: GateTally,
    blocker: Option<(Blocker, Moment)>,
    /// Scratch space of [`pass`](Self::pass), kept to avoid allocations.
    next: Vec<WaiterId>,
}

/// The counts for [`Snapshot`](crate::Snapshot).
#[derive(Debug, Default)]
pub(crate) struct GateTally {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    pub(crate) granted: u64,
    pub(crate) blocked: u64,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    pub(crate) abandoned: u64,
    pub(crate) refunded: u64,
    pub(crate) waited: Duration,
    /// Mean in nanoseconds; zero before the first answer.
    pub(crate) answer_time: u64,
    pub(crate) alarms: u64,
    pub(crate) idle_alarms: u64,
    pub(crate) by_limit: Vec<BlockedTally>,
    pub(crate) by_scopes: BlockedTally,
}

impl GateTally {
    /// Adds an answer to the moving mean.
    pub(crate) fn answered(&mut self, took: Duration) {
        /// The weight of an answer is the inverse of this.
        const SMOOTHING: u64 = 8;
        let took = nanos_of(took).max(1);
        self.answer_time = match self.answer_time {
            0 => took,
            mean => mean - mean / SMOOTHING + took / SMOOTHING,
        };
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockedTally {
    pub(crate) entries: u64,
    pub(crate) time: Duration,
}

impl GateState {
    pub(crate) fn new(limits: Limits, margin: Margin, skip_ahead: SkipAhead, waiting_max: usize) -> GateState {
        let by_limit = vec![BlockedTally::default(); limits.slots().len()];
        GateState {
            limits,
            line: Line::new(),
            margin,
            skip_ahead,
            waiting_max,
            closed: false,
            due: None,
            timer_set: None,
            timer_busy: false,
            unwritten: VecDeque::new(),
            journal_busy: false,
            tally: GateTally { by_limit, ..GateTally::default() },
            blocker: None,
            next: Vec::new(),
        }
    }

    /// Starts to look for limits that were not stated.
    pub(crate) fn find_limits(&mut self, now: Moment) {
        self.limits.find_unstated("found", now);
        self.tally.by_limit.resize(self.limits.slots().len(), BlockedTally::default());
    }

    /// Admits an entry if no other is before it and everything fits.
    #[inline]
    pub(crate) fn enter_now(&mut self, scope: ScopeId, cost: &Cost, now: Moment) -> Result<Booking, NotAdmitted> {
        if self.closed {
            return Err(NotAdmitted::Never(EnterError::Closed));
        }
        if self.line.any_eligible() {
            return Err(self.hopeless(cost, now).map_or(NotAdmitted::Behind, NotAdmitted::Never));
        }
        if !self.line.scope(scope).has_room() {
            return Err(self.hopeless(cost, now).map_or(NotAdmitted::ScopeFull, NotAdmitted::Never));
        }
        match self.limits.admit(cost, now) {
            Ok(booking) => {
                self.line.take(scope);
                self.count_in();
                Ok(booking)
            }
            Err(denied) => Err(match self.never(cost, denied) {
                Some(error) => NotAdmitted::Never(error),
                None => NotAdmitted::Denied(denied),
            }),
        }
    }

    #[inline]
    fn count_in(&mut self) {
        self.tally.current += 1;
        self.tally.granted += 1;
        self.tally.peak = self.tally.peak.max(self.tally.current);
    }

    /// Returns an error if this cost can never be admitted. Checked before the line, so that such an entry does not wait.
    fn hopeless(&mut self, cost: &Cost, now: Moment) -> Option<EnterError> {
        let denied = self.limits.check(cost, now).err()?;
        self.never(cost, denied)
    }

    fn never(&self, cost: &Cost, denied: Denied) -> Option<EnterError> {
        let slot = self.limits.slot(denied.limit);
        match (denied.until, &slot.hold) {
            (Until::TooLarge, _) => {
                let (cost, capacity) = slot.too_large(cost);
                Some(EnterError::TooLarge { limit: Arc::clone(&slot.name), cost, capacity })
            }
            (Until::Shut, Hold::Shut { reason }) => {
                Some(EnterError::Shut { limit: Arc::clone(&slot.name), reason: Arc::clone(reason) })
            }
            _ => None,
        }
    }

    /// Returns an error if the line is full. Called before [`join`](Self::join), so that no waker is dropped under the lock.
    pub(crate) fn crowded(&mut self) -> Option<EnterError> {
        (self.line.waiting() >= self.waiting_max).then(|| {
            self.tally.refused += 1;
            EnterError::Crowded { waiting_max: self.waiting_max }
        })
    }

    /// Adds an entry to the line.
    pub(crate) fn join(
        &mut self,
        scope: ScopeId,
        cost: Cost,
        waker: Waker,
        why: &NotAdmitted,
        now: Moment,
    ) -> WaiterId {
        self.tally.blocked += 1;
        let blocker = match why {
            NotAdmitted::Denied(denied) => Some(Blocker::Limit(denied.limit)),
            NotAdmitted::ScopeFull => Some(Blocker::Scopes),
            // Blocked by what blocks the entries before it.
            NotAdmitted::Behind | NotAdmitted::Never(_) => self.blocker.map(|(blocker, _)| blocker),
        };
        if let Some(blocker) = blocker {
            self.blocked(blocker).entries += 1;
        }
        self.line.join(scope, cost, waker, now)
    }

    /// Admits all entries that fit, and computes what to wait for. Called after every change that may have made room.
    pub(crate) fn pump(&mut self, now: Moment, effects: &mut Effects) {
        let mut due = None;
        let mut blocker = (self.line.waiting() > 0).then_some(Blocker::Scopes);
        while let Some(head) = self.line.head() {
            let cost = &self.line.waiter(head).cost;
            match self.limits.admit(cost, now) {
                Ok(booking) => self.grant(head, booking, now, effects),
                Err(denied) => {
                    if let Some(error) = self.never(&self.line.waiter(head).cost, denied) {
                        self.refuse(head, error, now, effects);
                        continue;
                    }
                    blocker = Some(Blocker::Limit(denied.limit));
                    match denied.until {
                        Until::At(ready_at) => due = Some(self.pass(head, ready_at, now, effects)),
                        Until::Journal => {
                            let cost = &self.line.waiter(head).cost;
                            let reservation = self.limits.reserve(denied.limit, cost, now);
                            effects.journal.extend(reservation.map(|reservation| (denied.limit, reservation)));
                        }
                        // The next release calls `pump` again.
                        _ => {}
                    }
                    break;
                }
            }
            if self.line.waiting() == 0 {
                blocker = None;
            }
        }
        self.due = due;
        self.note_blocker(blocker, now);
        effects.rearm = self.due != self.timer_set;
    }

    /// Admits entries that do not delay the head, which is due at `ready_at`. Returns when the next entry is due.
    fn pass(&mut self, head: WaiterId, ready_at: Moment, now: Moment, effects: &mut Effects) -> Moment {
        let mut due = ready_at;
        if self.skip_ahead.look_ahead == 0 || self.line.waiting() < 2 {
            return due;
        }
        let mut next = std::mem::take(&mut self.next);
        self.line.after_head(self.skip_ahead.look_ahead, &mut next);
        for &candidate in &next {
            let first = self.line.waiter(head);
            if first.passed >= self.skip_ahead.passes_max {
                break;
            }
            let waiter = self.line.waiter(candidate);
            let scope = self.line.scope(waiter.scope);
            // In the head's scope, one slot is kept for the head.
            let needed = if waiter.scope == first.scope { 2 } else { 1 };
            if scope.used.saturating_add(needed) > scope.cap
                || !self.limits.leaves_room(&first.cost, ready_at, &waiter.cost, now)
            {
                continue;
            }
            match self.limits.admit(&waiter.cost, now) {
                Ok(booking) => {
                    self.line.waiter_mut(head).passed += 1;
                    self.tally.passed += 1;
                    self.grant(candidate, booking, now, effects);
                }
                Err(Denied { until: Until::At(at), .. }) => due = due.min(at),
                Err(_) => {}
            }
        }
        self.next = next;
        due
    }

    fn grant(&mut self, id: WaiterId, booking: Booking, now: Moment, effects: &mut Effects) {
        let waiter = self.line.waiter(id);
        let (scope, waited) = (waiter.scope, now.since(waiter.since));
        effects.wake.extend(self.line.decide(id, WaiterFate::Granted(booking)));
        self.line.take(scope);
        self.tally.waited += waited;
        self.count_in();
    }

    fn refuse(&mut self, id: WaiterId, error: EnterError, now: Moment, effects: &mut Effects) {
        self.tally.waited += now.since(self.line.waiter(id).since);
        self.tally.refused += 1;
        effects.wake.extend(self.line.decide(id, WaiterFate::Refused(error)));
    }

    /// Refuses the entries in line for which `reason` returns an error.
    pub(crate) fn refuse_all(
        &mut self,
        now: Moment,
        effects: &mut Effects,
        reason: impl Fn(&Limits, &Cost) -> Option<EnterError>,
    ) {
        for id in self.line.all_waiters() {
            if let Some(error) = reason(&self.limits, &self.line.waiter(id).cost) {
                self.refuse(id, error, now, effects);
            }
        }
    }

    /// Frees the slots of a lease that has ended. What it booked under rates stays.
    #[inline]
    pub(crate) fn release(&mut self, scope: ScopeId, booking: Booking) {
        self.limits.release(booking);
        self.line.give_back(scope);
        self.tally.current -= 1;
    }

    /// Removes the entry of a future that was dropped while it waited, or before it took its lease.
    pub(crate) fn abandon(&mut self, id: WaiterId, now: Moment) -> Option<Waker> {
        let waiter = self.line.leave(id);
        match waiter.fate {
            WaiterFate::Waiting(waker) => {
                self.tally.waited += now.since(waiter.since);
                self.tally.abandoned += 1;
                Some(waker)
            }
            WaiterFate::Granted(mut booking) => {
                self.limits.refund(&mut booking, now);
                self.release(waiter.scope, booking);
                self.tally.abandoned += 1;
                None
            }
            WaiterFate::Refused(_) => None,
        }
    }

    fn note_blocker(&mut self, blocker: Option<Blocker>, now: Moment) {
        if self.blocker.map(|(blocker, _)| blocker) == blocker {
            return;
        }
        if let Some((before, since)) = self.blocker {
            self.blocked(before).time += now.since(since);
        }
        self.blocker = blocker.map(|blocker| (blocker, now));
    }

    fn blocked(&mut self, blocker: Blocker) -> &mut BlockedTally {
        match blocker {
            Blocker::Limit(limit) => &mut self.tally.by_limit[usize::from(limit.0)],
            Blocker::Scopes => &mut self.tally.by_scopes,
        }
    }

    /// Returns what the first in line waits for, and since when.
    pub(crate) fn blocker(&self) -> Option<(Blocker, Moment)> {
        self.blocker
    }
}

/// Why an entry was not admitted at once.
#[derive(Debug)]
pub(crate) enum NotAdmitted {
    Behind,
    ScopeFull,
    Denied(Denied),
    Never(EnterError),
}
