//! Those who wait for a slot, in the order they came. The first few of them may hold a grant: a slot that is kept for
//! them until they come and take it.

use std::task::Waker;
use std::time::Instant;

/// A place in the line. Whoever has it gives it back exactly once, to [`Line::leave`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

const NOBODY: u32 = u32::MAX;

/// A linked list in a vector: leaving from the middle costs as little as from the front, and a place that was left is
/// used again.
pub(crate) struct Line {
    places: Vec<Place>,
    vacant: u32,
    first: u32,
    last: u32,
    /// The last of those with a grant. They are always the first in line: nobody is passed over.
    last_granted: u32,
    granted: usize,
    len: usize,
}

struct Place {
    /// Towards the front. Unused in a vacant place.
    before: u32,
    /// Towards the back; in a vacant place the next vacant one.
    behind: u32,
    granted: bool,
    /// Taken when a grant is given: from then on a poll is on its way.
    waker: Option<Waker>,
    since: Instant,
}

/// What somebody who left the line leaves behind.
pub(crate) struct Left {
    pub(crate) since: Instant,
    /// To be dropped where a waker's code may run.
    pub(crate) waker: Option<Waker>,
}

impl Line {
    pub(crate) const fn new() -> Line {
        Line {
            places: Vec::new(),
            vacant: NOBODY,
            first: NOBODY,
            last: NOBODY,
            last_granted: NOBODY,
            granted: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many hold a grant.
    #[inline]
    pub(crate) fn granted(&self) -> usize {
        self.granted
    }

    /// Joins at the back.
    pub(crate) fn join(&mut self, waker: Waker, since: Instant) -> Ticket {
        let place = Place { before: self.last, behind: NOBODY, granted: false, waker: Some(waker), since };
        let at = match self.vacant {
            NOBODY => {
                self.places.push(place);
                u32::try_from(self.places.len() - 1).expect("fewer than 4 billion submitters wait")
            }
            at => {
                self.vacant = self.places[at as usize].behind;
                self.places[at as usize] = place;
                at
            }
        };
        match self.last {
            NOBODY => self.first = at,
            last => self.places[last as usize].behind = at,
        }
        self.last = at;
        self.len += 1;
        Ticket(at)
    }

    pub(crate) fn is_granted(&self, ticket: &Ticket) -> bool {
        self.places[ticket.0 as usize].granted
    }

    /// Keeps `waker` for the holder of `ticket`; the one it replaces comes back.
    pub(crate) fn wait_with(&mut self, ticket: &Ticket, waker: Waker) -> Option<Waker> {
        self.places[ticket.0 as usize].waker.replace(waker)
    }

    /// Whether a wake-up would reach the task behind `waker`.
    pub(crate) fn waits_with(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.places[ticket.0 as usize].waker.as_ref().is_some_and(|known| known.will_wake(waker))
    }

    /// Leaves, from wherever; a grant that was held is gone.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Left {
        let at = ticket.0;
        let place = &mut self.places[at as usize];
        let (before, behind) = (place.before, place.behind);
        let left = Left { since: place.since, waker: place.waker.take() };
        if place.granted {
            self.granted -= 1;
            if self.last_granted == at {
                self.last_granted = before;
            }
        }
        self.places[at as usize].behind = self.vacant;
        self.vacant = at;
        match before {
            NOBODY => self.first = behind,
            before => self.places[before as usize].behind = behind,
        }
        match behind {
            NOBODY => self.last = before,
            behind => self.places[behind as usize].before = before,
        }
        self.len -= 1;
        left
    }

    /// Gives the first without a grant one. Its waker is to be woken; there is none if a poll is on its way already.
    ///
    /// # Panics
    /// If all have one.
    pub(crate) fn grant(&mut self) -> Option<Waker> {
        let at = match self.last_granted {
            NOBODY => self.first,
            last => self.places[last as usize].behind,
        };
        let place = &mut self.places[at as usize];
        place.granted = true;
        self.last_granted = at;
        self.granted += 1;
        place.waker.take()
    }

    /// Takes the latest grant back: its holder stays in line, before all without one.
    ///
    /// # Panics
    /// If nobody has one.
    pub(crate) fn revoke(&mut self) {
        let place = &mut self.places[self.last_granted as usize];
        place.granted = false;
        self.last_granted = place.before;
        self.granted -= 1;
    }

    /// The wakers of all, front to back.
    pub(crate) fn take_wakers(&mut self, mut taken: impl FnMut(Waker)) {
        let mut at = self.first;
        while at != NOBODY {
            let place = &mut self.places[at as usize];
            if let Some(waker) = place.waker.take() {
                taken(waker);
            }
            at = place.behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(count: usize) -> (Line, Vec<Option<Ticket>>) {
        let mut line = Line::new();
        let since = Instant::now();
        let tickets = (0..count).map(|_| Some(line.join(Waker::noop().clone(), since))).collect();
        (line, tickets)
    }

    fn granted(line: &Line, tickets: &[Option<Ticket>]) -> Vec<bool> {
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
        assert_eq!(line.places.len(), 3);
    }
}
