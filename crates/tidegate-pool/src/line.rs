//! The submitters that wait for a slot, in the order in which they joined. The first of them may hold grants: a grant is a
//! slot that is kept for its submitter until that is polled and takes it.

use std::task::Waker;
use std::time::Instant;

/// An entry in the line. Its owner passes it to [`Line::leave`] exactly once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTicket(u32);

const NONE: u32 = u32::MAX;

/// A linked list in a vector: leaving from the middle costs the same as from the front, and vacant entries are used again.
pub(crate) struct Line {
    entries: Vec<LineEntry>,
    vacant: u32,
    first: u32,
    last: u32,
    /// The last entry with a grant. The entries with a grant are always the first in line.
    last_granted: u32,
    granted: usize,
    len: usize,
}

struct LineEntry {
    /// Towards the front. Unused in a vacant entry.
    before: u32,
    /// Towards the back; in a vacant entry the next vacant one.
    behind: u32,
    granted: bool,
    /// Taken when a grant is given, because the task is then going to be polled.
    waker: Option<Waker>,
    since: Instant,
}

/// The rest of an entry that has left the line.
pub(crate) struct LeftLine {
    pub(crate) since: Instant,
    /// To be dropped without the lock, because a waker's drop is foreign code.
    pub(crate) waker: Option<Waker>,
}

impl Line {
    pub(crate) const fn new() -> Line {
        Line { entries: Vec::new(), vacant: NONE, first: NONE, last: NONE, last_granted: NONE, granted: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of entries with a grant.
    #[inline]
    pub(crate) fn granted(&self) -> usize {
        self.granted
    }

    /// Adds an entry at the back.
    pub(crate) fn join(&mut self, waker: Waker, since: Instant) -> LineTicket {
        let entry = LineEntry { before: self.last, behind: NONE, granted: false, waker: Some(waker), since };
        let at = match self.vacant {
            NONE => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer than 4 billion submitters wait")
            }
            at => {
                self.vacant = self.entries[at as usize].behind;
                self.entries[at as usize] = entry;
                at
            }
        };
        match self.last {
            NONE => self.first = at,
            last => self.entries[last as usize].behind = at,
        }
        self.last = at;
        self.len += 1;
        LineTicket(at)
    }

    pub(crate) fn is_granted(&self, ticket: &LineTicket) -> bool {
        self.entries[ticket.0 as usize].granted
    }

    /// Stores `waker` in the entry of `ticket` and returns the one that it replaces.
    pub(crate) fn wait_with(&mut self, ticket: &LineTicket, waker: Waker) -> Option<Waker> {
        self.entries[ticket.0 as usize].waker.replace(waker)
    }

    /// Returns whether the stored waker would wake the same task as `waker`.
    pub(crate) fn waits_with(&self, ticket: &LineTicket, waker: &Waker) -> bool {
        self.entries[ticket.0 as usize].waker.as_ref().is_some_and(|known| known.will_wake(waker))
    }

    /// Removes the entry of `ticket`, from anywhere in the line, together with its grant.
    pub(crate) fn leave(&mut self, ticket: LineTicket) -> LeftLine {
        let at = ticket.0;
        let entry = &mut self.entries[at as usize];
        let (before, behind) = (entry.before, entry.behind);
        let left = LeftLine { since: entry.since, waker: entry.waker.take() };
        if entry.granted {
            self.granted -= 1;
            if self.last_granted == at {
                self.last_granted = before;
            }
        }
        self.entries[at as usize].behind = self.vacant;
        self.vacant = at;
        match before {
            NONE => self.first = behind,
            before => self.entries[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => self.entries[behind as usize].before = before,
        }
        self.len -= 1;
        left
    }

    /// Gives a grant to the first entry without one. Returns its waker, or `None` if that was woken already for an earlier
    /// grant.
    ///
    /// # Panics
    /// If all entries have one.
    pub(crate) fn grant(&mut self) -> Option<Waker> {
        let at = match self.last_granted {
            NONE => self.first,
            last => self.entries[last as usize].behind,
        };
        let entry = &mut self.entries[at as usize];
        entry.granted = true;
        self.last_granted = at;
        self.granted += 1;
        entry.waker.take()
    }

    /// Takes the latest grant back. Its entry stays in line, before all others without a grant.
    ///
    /// # Panics
    /// If no entry has one.
    pub(crate) fn revoke(&mut self) {
        let entry = &mut self.entries[self.last_granted as usize];
        entry.granted = false;
        self.last_granted = entry.before;
        self.granted -= 1;
    }

    /// Takes the wakers of all entries, front to back.
    pub(crate) fn take_wakers(&mut self, mut taken: impl FnMut(Waker)) {
        let mut at = self.first;
        while at != NONE {
            let entry = &mut self.entries[at as usize];
            if let Some(waker) = entry.waker.take() {
                taken(waker);
            }
            at = entry.behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(count: usize) -> (Line, Vec<Option<LineTicket>>) {
        let mut line = Line::new();
        let since = Instant::now();
        let tickets = (0..count).map(|_| Some(line.join(Waker::noop().clone(), since))).collect();
        (line, tickets)
    }

    fn granted(line: &Line, tickets: &[Option<LineTicket>]) -> Vec<bool> {
        tickets.iter().flatten().map(|ticket| line.is_granted(ticket)).collect()
    }

    #[test]
    fn grants_go_from_front_to_back_and_are_taken_back_from_the_latest() {
        let (mut line, tickets) = line_of(3);
        assert!(line.grant().is_some());
        line.grant();
        assert_eq!(granted(&line, &tickets), [true, true, false]);
        line.revoke();
        assert_eq!(granted(&line, &tickets), [true, false, false]);
        line.revoke();
        assert!(line.grant().is_none(), "its waker was taken by the first grant");
        assert_eq!(granted(&line, &tickets), [true, false, false]);
    }

    #[test]
    fn leaving_from_anywhere_keeps_the_order_of_the_others() {
        for leaver in 0..4 {
            let (mut line, mut tickets) = line_of(4);
            line.grant();
            line.grant();
            line.leave(tickets[leaver].take().unwrap());
            let expected = if leaver < 2 { [true, false, false] } else { [true, true, false] };
            assert_eq!(granted(&line, &tickets), expected, "{leaver} left");
            line.grant();
            assert_eq!(line.granted(), expected.iter().filter(|&&granted| granted).count() + 1);
            assert_eq!(line.len(), 3);
        }
    }

    #[test]
    fn places_are_used_again() {
        let (mut line, mut tickets) = line_of(3);
        for round in 0..100 {
            line.leave(tickets[round % 3].take().unwrap());
            tickets[round % 3] = Some(line.join(Waker::noop().clone(), Instant::now()));
        }
        assert_eq!(line.entries.len(), 3);
    }
}
