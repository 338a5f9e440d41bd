//! The decision: who goes in now, and for what the gate waits. Everything under the gate's one lock; what has to happen
//! outside of it (wakers, timers, the journal) is handed back as [`Effects`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::cost::Cost;
use crate::error::EnterError;
use crate::hold::Hold;
use crate::journal::Reservation;
use crate::limits::{Booking, Denied, LimitId, Limits, Until};
use crate::line::{Fate, Line, ScopeId, WaiterId};
use crate::margin::Margin;
use crate::moment::{Moment, nanos_of};

/// Who may go in before somebody who came first and does not fit yet.
///
/// Whatever is chosen, nobody who came later delays the first in line: somebody passes only if the first could go at the
/// very same instant afterwards, and would find a slot. Equal costs never pass each other.
///
/// ```
/// use tidegate_limit::{Gate, Limit, SkipAhead};
/// let gate = Gate::builder().limit(Limit::tpm(1_000)).skip_ahead(SkipAhead::OFF).build().unwrap();
/// # let _ = gate;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipAhead {
    /// How many of those behind the first in line are looked at.
    pub look_ahead: usize,
    /// How often somebody at the head of the line is passed at the most.
    pub passes_max: u32,
}

impl SkipAhead {
    /// First come, first served, even if capacity lies idle meanwhile.
    pub const OFF: SkipAhead = SkipAhead { look_ahead: 0, passes_max: 0 };
}

/// Looks at eight, lets a thousand pass.
impl Default for SkipAhead {
    fn default() -> SkipAhead {
        SkipAhead { look_ahead: 8, passes_max: 1_000 }
    }
}

/// What remains to be done when the lock is released.
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
    /// All who wait do so for their scopes.
    Scopes,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limits: Limits,
    pub(crate) line: Line,
    pub(crate) margin: Margin,
    pub(crate) skip_ahead: SkipAhead,
    pub(crate) waiting_max: usize,
    pub(crate) closed: bool,
    /// When somebody in line can go, if nothing else happens before.
    pub(crate) due: Option<Moment>,
    /// What the timer is set to, as far as the gate knows.
    pub(crate) timer_set: Option<Moment>,
    /// Somebody is setting it, outside of the lock, and looks again afterwards.
    pub(crate) timer_busy: bool,
    /// What the journal has not been given yet.
    pub(crate) unwritten: VecDeque<(LimitId, Reservation)>,
    /// Somebody is giving it to the journal, outside of the lock, and looks again afterwards.
    pub(crate) journal_busy: bool,
    pub(crate) tally: Tally,
    blocker: Option<(Blocker, Moment)>,
    /// Kept for its memory.
    next: Vec<WaiterId>,
}

/// What is counted for `stats`.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    pub(crate) granted: u64,
    pub(crate) blocked: u64,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    pub(crate) abandoned: u64,
    pub(crate) refunded: u64,
    pub(crate) waited: Duration,
    /// Nanoseconds; zero as long as nobody was answered.
    pub(crate) answer_time: u64,
    pub(crate) alarms: u64,
    pub(crate) idle_alarms: u64,
    pub(crate) by_limit: Vec<Blocked>,
    pub(crate) by_scopes: Blocked,
}

impl Tally {
    /// Somebody was answered: the mean follows the last ones.
    pub(crate) fn answered(&mut self, took: Duration) {
        const OF_LATE: u64 = 8;
        let took = nanos_of(took).max(1);
        self.answer_time = match self.answer_time {
            0 => took,
            mean => mean - mean / OF_LATE + took / OF_LATE,
        };
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocked {
    pub(crate) entries: u64,
    pub(crate) time: Duration,
}

impl State {
    pub(crate) fn new(limits: Limits, margin: Margin, skip_ahead: SkipAhead, waiting_max: usize) -> State {
        let by_limit = vec![Blocked::default(); limits.slots().len()];
        State {
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
            tally: Tally { by_limit, ..Tally::default() },
            blocker: None,
            next: Vec::new(),
        }
    }

    /// Looks for limits that were not stated, from now on.
    pub(crate) fn find_limits(&mut self, now: Moment) {
        self.limits.find_unstated("found", now);
        self.tally.by_limit.resize(self.limits.slots().len(), Blocked::default());
    }

    /// Goes in at once if nobody is first and everything fits.
    #[inline]
    pub(crate) fn enter_now(&mut self, scope: ScopeId, cost: &Cost, now: Moment) -> Result<Booking, Why> {
        if self.closed {
            return Err(Why::Never(EnterError::Closed));
        }
        if self.line.any_eligible() {
            return Err(self.hopeless(cost, now).map_or(Why::Behind, Why::Never));
        }
        if !self.line.scope(scope).has_room() {
            return Err(self.hopeless(cost, now).map_or(Why::ScopeFull, Why::Never));
        }
        match self.limits.admit(cost, now) {
            Ok(booking) => {
                self.line.take(scope);
                self.count_in();
                Ok(booking)
            }
            Err(denied) => Err(match self.never(cost, denied) {
                Some(error) => Why::Never(error),
                None => Why::Denied(denied),
            }),
        }
    }

    #[inline]
    fn count_in(&mut self) {
        self.tally.current += 1;
        self.tally.granted += 1;
        self.tally.peak = self.tally.peak.max(self.tally.current);
    }

    /// Why this cost would never be let in, if so: told at once, whoever waits.
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

    /// Why nobody can get into line, if so. Asked before, so that no waker has to be dropped under the lock.
    pub(crate) fn crowded(&mut self) -> Option<EnterError> {
        (self.line.waiting() >= self.waiting_max).then(|| {
            self.tally.refused += 1;
            EnterError::Crowded { waiting_max: self.waiting_max }
        })
    }

    /// Gets into line.
    pub(crate) fn join(&mut self, scope: ScopeId, cost: Cost, waker: Waker, why: &Why, now: Moment) -> WaiterId {
        self.tally.blocked += 1;
        let blocker = match why {
            Why::Denied(denied) => Some(Blocker::Limit(denied.limit)),
            Why::ScopeFull => Some(Blocker::Scopes),
            // Blocked by what blocks the entries in front of it.
            Why::Behind | Why::Never(_) => self.blocker.map(|(blocker, _)| blocker),
        };
        if let Some(blocker) = blocker {
            self.blocked(blocker).entries += 1;
        }
        self.line.join(scope, cost, waker, now)
    }

    /// Lets in everybody who can go, and works out what to wait for. After anything that may have made room.
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
                        // A release will pump again.
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

    /// Lets those pass who do not delay the head, which goes at `ready_at`. Returns when somebody can go next.
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
            // One of the scope's slots is the head's, if it is the same.
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
        effects.wake.extend(self.line.decide(id, Fate::Granted(booking)));
        self.line.take(scope);
        self.tally.waited += waited;
        self.count_in();
    }

    fn refuse(&mut self, id: WaiterId, error: EnterError, now: Moment, effects: &mut Effects) {
        self.tally.waited += now.since(self.line.waiter(id).since);
        self.tally.refused += 1;
        effects.wake.extend(self.line.decide(id, Fate::Refused(error)));
    }

    /// Refuses everybody in line for whom there is a reason.
    pub(crate) fn refuse_all(
        &mut self,
        now: Moment,
        effects: &mut Effects,
        reason: impl Fn(&Limits, &Cost) -> Option<EnterError>,
    ) {
        for id in self.line.everybody() {
            if let Some(error) = reason(&self.limits, &self.line.waiter(id).cost) {
                self.refuse(id, error, now, effects);
            }
        }
    }

    /// A lease has ended: its slots are free. What it booked stays.
    #[inline]
    pub(crate) fn release(&mut self, scope: ScopeId, booking: Booking) {
        self.limits.release(booking);
        self.line.give_back(scope);
        self.tally.current -= 1;
    }

    /// A future is done with before it was let in, or before it fetched its lease.
    pub(crate) fn abandon(&mut self, id: WaiterId, now: Moment) -> Option<Waker> {
        let waiter = self.line.leave(id);
        match waiter.fate {
            Fate::Waiting(waker) => {
                self.tally.waited += now.since(waiter.since);
                self.tally.abandoned += 1;
                Some(waker)
            }
            Fate::Granted(mut booking) => {
                self.limits.refund(&mut booking, now);
                self.release(waiter.scope, booking);
                self.tally.abandoned += 1;
                None
            }
            Fate::Refused(_) => None,
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

    fn blocked(&mut self, blocker: Blocker) -> &mut Blocked {
        match blocker {
            Blocker::Limit(limit) => &mut self.tally.by_limit[usize::from(limit.0)],
            Blocker::Scopes => &mut self.tally.by_scopes,
        }
    }

    /// What the first in line waits for now, and since when.
    pub(crate) fn blocker(&self) -> Option<(Blocker, Moment)> {
        self.blocker
    }
}

/// Why somebody did not get in at once.
#[derive(Debug)]
pub(crate) enum Why {
    Behind,
    ScopeFull,
    Denied(Denied),
    Never(EnterError),
}
