//! The entries that wait: a line per scope, and an index of the scopes that have both room and a waiting entry, by the
//! arrival of the first. Plain values over indices; `pump.rs` decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use crate::cost::Cost;
use crate::error::EnterError;
use crate::limits::Booking;
use crate::moment::Moment;

const NONE: u32 = u32::MAX;

/// The scope of entries without one.
pub(crate) const UNSCOPED: ScopeId = ScopeId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ScopeId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u32);

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) scope: ScopeId,
    /// Increases with each entry that joins a line.
    pub(crate) arrival: u64,
    pub(crate) since: Moment,
    pub(crate) cost: Cost,
    /// How often a later entry was admitted while this was the first in line.
    pub(crate) passed: u32,
    pub(crate) fate: WaiterFate,
    before: u32,
    after: u32,
}

/// The state of an entry that joined a line.
#[derive(Debug)]
pub(crate) enum WaiterFate {
    /// In line.
    Waiting(Waker),
    /// Out of line; its future has not taken the lease yet.
    Granted(Booking),
    /// Out of line, refused.
    Refused(EnterError),
}

#[derive(Debug)]
pub(crate) struct LineScope {
    pub(crate) name: Arc<str>,
    pub(crate) cap: u64,
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) waiting: usize,
    pub(crate) granted: u64,
    /// Its last handle was dropped. It is removed with its last lease.
    abandoned: bool,
    first: u32,
    last: u32,
    /// Its key in `Line::eligible`, if it is there.
    eligible: Option<u64>,
}

impl LineScope {
    pub(crate) fn has_room(&self) -> bool {
        self.used < self.cap
    }
}

#[derive(Debug)]
pub(crate) struct Line {
    waiters: Vec<Option<Waiter>>,
    free_waiters: Vec<u32>,
    scopes: Vec<Option<LineScope>>,
    free_scopes: Vec<u32>,
    /// Scopes with room and a waiting entry, by the arrival of the first.
    eligible: BTreeSet<(u64, ScopeId)>,
    arrivals: u64,
    waiting: usize,
}

impl Line {
    pub(crate) fn new() -> Line {
        let mut line = Line {
            waiters: Vec::new(),
            free_waiters: Vec::new(),
            scopes: Vec::new(),
            free_scopes: Vec::new(),
            eligible: BTreeSet::new(),
            arrivals: 0,
            waiting: 0,
        };
        let unscoped = line.add_scope("unscoped".into(), u64::MAX);
        debug_assert_eq!(unscoped, UNSCOPED);
        line
    }

    pub(crate) fn add_scope(&mut self, name: Arc<str>, cap: u64) -> ScopeId {
        let scope = LineScope {
            name,
            cap,
            used: 0,
            peak: 0,
            waiting: 0,
            granted: 0,
            abandoned: false,
            first: NONE,
            last: NONE,
            eligible: None,
        };
        match self.free_scopes.pop() {
            Some(at) => {
                self.scopes[at as usize] = Some(scope);
                ScopeId(at)
            }
            None => {
                self.scopes.push(Some(scope));
                ScopeId(self.scopes.len() as u32 - 1)
            }
        }
    }

    pub(crate) fn scope(&self, id: ScopeId) -> &LineScope {
        self.scopes[id.0 as usize].as_ref().expect("a scope is kept while its id is in use")
    }

    #[inline]
    fn scope_mut(&mut self, id: ScopeId) -> &mut LineScope {
        self.scopes[id.0 as usize].as_mut().expect("a scope is kept while its id is in use")
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = &LineScope> {
        self.scopes.iter().flatten()
    }

    pub(crate) fn resize(&mut self, id: ScopeId, cap: u64) {
        self.scope_mut(id).cap = cap;
        self.refresh(id);
    }

    /// The last handle was dropped, so no future waits in the scope; leases may remain.
    pub(crate) fn abandon(&mut self, id: ScopeId) {
        self.scope_mut(id).abandoned = true;
        self.remove_if_done(id);
    }

    fn remove_if_done(&mut self, id: ScopeId) {
        let scope = self.scope(id);
        if scope.abandoned && scope.used == 0 {
            self.scopes[id.0 as usize] = None;
            self.free_scopes.push(id.0);
        }
    }

    /// Takes a slot of the scope.
    #[inline]
    pub(crate) fn take(&mut self, id: ScopeId) {
        let scope = self.scope_mut(id);
        scope.used += 1;
        scope.granted += 1;
        scope.peak = scope.peak.max(scope.used);
        if scope.waiting > 0 {
            self.refresh(id);
        }
    }

    /// Frees a slot of the scope.
    #[inline]
    pub(crate) fn give_back(&mut self, id: ScopeId) {
        let scope = self.scope_mut(id);
        scope.used -= 1;
        if scope.waiting > 0 {
            self.refresh(id);
        } else if scope.abandoned {
            self.remove_if_done(id);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether an entry waits whose scope has room.
    #[inline]
    pub(crate) fn any_eligible(&self) -> bool {
        !self.eligible.is_empty()
    }

    pub(crate) fn join(&mut self, scope: ScopeId, cost: Cost, waker: Waker, now: Moment) -> WaiterId {
        self.arrivals += 1;
        let before = self.scope(scope).last;
        let waiter = Waiter {
            scope,
            arrival: self.arrivals,
            since: now,
            cost,
            passed: 0,
            fate: WaiterFate::Waiting(waker),
            before,
            after: NONE,
        };
        let at = match self.free_waiters.pop() {
            Some(at) => {
                self.waiters[at as usize] = Some(waiter);
                at
            }
            None => {
                self.waiters.push(Some(waiter));
                self.waiters.len() as u32 - 1
            }
        };
        if before == NONE {
            self.scope_mut(scope).first = at;
        } else {
            self.waiter_at(before).after = at;
        }
        let in_scope = self.scope_mut(scope);
        in_scope.last = at;
        in_scope.waiting += 1;
        self.waiting += 1;
        self.refresh(scope);
        WaiterId(at)
    }

    fn waiter_at(&mut self, at: u32) -> &mut Waiter {
        self.waiters[at as usize].as_mut().expect("the entry exists")
    }

    pub(crate) fn waiter(&self, id: WaiterId) -> &Waiter {
        self.waiters[id.0 as usize].as_ref().expect("an entry exists until its future is done")
    }

    pub(crate) fn waiter_mut(&mut self, id: WaiterId) -> &mut Waiter {
        self.waiter_at(id.0)
    }

    /// Takes an entry out of line with `fate`. Returns the waker to wake.
    pub(crate) fn decide(&mut self, id: WaiterId, fate: WaiterFate) -> Option<Waker> {
        self.unlink(id);
        let waiter = self.waiter_mut(id);
        match std::mem::replace(&mut waiter.fate, fate) {
            WaiterFate::Waiting(waker) => Some(waker),
            _ => None,
        }
    }

    fn unlink(&mut self, id: WaiterId) {
        let waiter = self.waiter(id);
        let (scope, before, after) = (waiter.scope, waiter.before, waiter.after);
        match before {
            NONE => self.scope_mut(scope).first = after,
            before => self.waiter_at(before).after = after,
        }
        match after {
            NONE => self.scope_mut(scope).last = before,
            after => self.waiter_at(after).before = before,
        }
        self.scope_mut(scope).waiting -= 1;
        self.waiting -= 1;
        self.refresh(scope);
    }

    /// Removes an entry whose future is done, from the line as well if it waits.
    pub(crate) fn leave(&mut self, id: WaiterId) -> Waiter {
        if matches!(self.waiter(id).fate, WaiterFate::Waiting(_)) {
            self.unlink(id);
        }
        let waiter = self.waiters[id.0 as usize].take().expect("the entry exists");
        self.free_waiters.push(id.0);
        if self.waiters.len() == self.free_waiters.len() && self.waiters.len() > 1024 {
            // Frees the memory of a long line when it is empty.
            self.waiters = Vec::new();
            self.free_waiters = Vec::new();
        }
        waiter
    }

    /// Updates the scope's key in `eligible`.
    fn refresh(&mut self, id: ScopeId) {
        let scope = self.scope(id);
        let key = (scope.first != NONE && scope.has_room())
            .then(|| self.waiters[scope.first as usize].as_ref().expect("in line").arrival);
        let before = scope.eligible;
        if key != before {
            if let Some(before) = before {
                self.eligible.remove(&(before, id));
            }
            if let Some(key) = key {
                self.eligible.insert((key, id));
            }
            self.scope_mut(id).eligible = key;
        }
    }

    /// Returns the first entry, by arrival, whose scope has room.
    pub(crate) fn head(&self) -> Option<WaiterId> {
        let (_, scope) = self.eligible.first()?;
        Some(WaiterId(self.scope(*scope).first))
    }

    /// Puts the `count` entries after the head, by arrival, into `into`.
    pub(crate) fn after_head(&self, count: usize, into: &mut Vec<WaiterId>) {
        into.clear();
        // Merges the lines of the first scopes: takes the earliest of their next entries each time.
        let mut next: Vec<u32> = self.eligible.iter().take(count + 1).map(|(_, id)| self.scope(*id).first).collect();
        let waiter = |at: u32| self.waiters[at as usize].as_ref().expect("in line");
        for taken in 0..=count {
            let Some(slot) =
                (0..next.len()).filter(|slot| next[*slot] != NONE).min_by_key(|slot| waiter(next[*slot]).arrival)
            else {
                break;
            };
            if taken > 0 {
                into.push(WaiterId(next[slot]));
            }
            next[slot] = waiter(next[slot]).after;
        }
    }

    /// Returns the entries in line, in no particular order.
    pub(crate) fn all_waiters(&self) -> Vec<WaiterId> {
        let in_line = |(at, waiter): (usize, &Option<Waiter>)| match waiter {
            Some(Waiter { fate: WaiterFate::Waiting(_), .. }) => Some(WaiterId(at as u32)),
            _ => None,
        };
        self.waiters.iter().enumerate().filter_map(in_line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(line: &mut Line, scope: ScopeId) -> WaiterId {
        line.join(scope, Cost::request(), Waker::noop().clone(), Moment::ZERO)
    }

    #[test]
    fn the_head_is_the_first_waiter_of_a_scope_with_room() {
        let mut line = Line::new();
        let (a, b) = (line.add_scope("a".into(), 1), line.add_scope("b".into(), 1));
        let (first, second, third) = (join(&mut line, a), join(&mut line, b), join(&mut line, a));
        assert_eq!(line.head(), Some(first));
        line.take(a);
        assert_eq!(line.head(), Some(second), "a full scope is passed over");
        line.take(b);
        assert_eq!(line.head(), None);
        line.give_back(a);
        line.leave(first);
        assert_eq!(line.head(), Some(third));
    }

    #[test]
    fn those_after_the_head_come_by_arrival_whatever_their_scope() {
        let mut line = Line::new();
        let (a, b) = (line.add_scope("a".into(), 1), line.add_scope("b".into(), 1));
        let order: Vec<_> = [a, b, b, a, b, a].into_iter().map(|scope| join(&mut line, scope)).collect();
        let mut next = Vec::new();
        line.after_head(3, &mut next);
        assert_eq!(next, order[1..4]);
        line.after_head(50, &mut next);
        assert_eq!(next, order[1..]);
        line.leave(order[2]);
        line.after_head(2, &mut next);
        assert_eq!(next, [order[1], order[3]]);
    }

    #[test]
    fn an_abandoned_scope_goes_with_its_last_lease() {
        let mut line = Line::new();
        let scope = line.add_scope("a".into(), 2);
        line.take(scope);
        line.abandon(scope);
        assert_eq!(line.scopes().count(), 2);
        line.give_back(scope);
        assert_eq!(line.scopes().count(), 1);
        assert_eq!(line.add_scope("b".into(), 1), scope, "its place is used again");
    }
}
