//! What lies behind a queue's lock: the items, and the two lines in front of them.
//!
//! An item never leaves the store before its receiver's `poll` returns it. A receiver in line is
//! woken with a *promise*: one item inside is spoken for, though not which. So a receiver that is
//! dropped after its wake-up loses nothing: its promise passes to the next.

use std::collections::VecDeque;

use super::error::TryRecvError;
use super::list::{List, Verdict};
use super::lock::Wakes;
use super::sync::{expect_writes_behind, here};

/// What every push and receive writes comes first: while nobody waits, one cache line travels between the cores.
#[repr(C)]
pub(super) struct Store<T> {
    /// Never more than `capacity`.
    items: VecDeque<T>,
    /// A push that finds fewer items than this goes in, and that is all: there is room, in the buffer as well, the queue
    /// is open, and nobody is in line. Zero if one of these is not so, or not known to be: settling finds out.
    easy_below: usize,
    /// Items that have left.
    taken: u64,
    /// Receivers that have been woken for an item and have not yet come for it. Never more than
    /// there are items.
    promised: usize,
    /// In line only while every item is promised.
    pub(super) receivers: List<()>,
    /// In line only while the store is full; each with the value it brings.
    pub(super) pushers: List<Option<T>>,
    capacity: usize,
    /// The most items that anybody found who took some. Between two such there are only more and more, so a push need
    /// not count.
    peak: usize,
    pub(super) blocked: u64,
    /// The thread that woke a receiver last.
    pub(super) woken_by: usize,
    closed: bool,
}

/// What became of a push.
#[derive(Clone, Copy)]
pub(super) enum Pushed {
    In,
    Full,
    Closed,
}

impl<T> Store<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            items: VecDeque::new(),
            promised: 0,
            receivers: List::default(),
            pushers: List::default(),
            capacity,
            easy_below: 0,
            taken: 0,
            peak: 0,
            blocked: 0,
            woken_by: 0,
            closed: false,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The most items that ever were inside.
    pub(super) fn peak(&self) -> usize {
        self.peak.max(self.items.len())
    }

    /// Items that ever went in.
    pub(super) fn total(&self) -> u64 {
        self.taken + self.items.len() as u64
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.easy_below = 0;
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.items.len() >= self.capacity
    }

    /// Items that nobody was promised.
    #[inline]
    fn unpromised(&self) -> usize {
        self.items.len() - self.promised
    }

    /// Whether a producer who comes now has to wait. Room alone will not do: with a crowd of producers being let in, those
    /// who are still in line come first.
    #[inline]
    pub(super) fn keeps_producers(&self) -> bool {
        !self.closed && (self.is_full() || !self.pushers.is_empty())
    }

    /// Whether a consumer who comes now has to wait; with a crowd being served, as above.
    #[inline]
    pub(super) fn keeps_consumers(&self) -> bool {
        if self.unpromised() == 0 { !self.closed } else { !self.receivers.is_empty() }
    }

    /// Somebody who has to wait is about to join a line.
    pub(super) fn note_blocked(&mut self) {
        self.blocked += 1;
        self.easy_below = 0;
    }

    /// Takes `value` in if that is all there is to do, as it mostly is: nothing has to be settled then.
    #[inline]
    pub(super) fn push_easily(&mut self, value: &mut Option<T>) -> bool {
        if self.items.len() < self.easy_below
            && let Some(value) = value.take()
        {
            self.items.push_back(value);
            if let Some(last) = self.items.back() {
                expect_writes_behind(last);
            }
            return true;
        }
        false
    }

    /// Takes an item out if that is all there is to do.
    #[inline]
    pub(super) fn take_easily(&mut self) -> Option<T> {
        if self.easy_below > 0 && self.promised == 0 { self.take(VecDeque::pop_front) } else { None }
    }

    /// Takes `value` in if it can.
    pub(super) fn push(&mut self, value: &mut Option<T>) -> Pushed {
        self.easy_below = 0;
        if self.closed {
            return Pushed::Closed;
        }
        if self.keeps_producers() {
            return Pushed::Full;
        }
        if let Some(value) = value.take() {
            self.items.push_back(value);
        }
        Pushed::In
    }

    /// Lets `take` have the items, and counts.
    #[inline]
    fn take<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let (before, room) = (self.items.len(), self.items.capacity());
        // Written when it changes, which is seldom, and not each time: see above.
        if before > self.peak {
            self.peak = before;
        }
        let taken = take(&mut self.items);
        self.taken += (before - self.items.len()) as u64;
        if self.items.capacity() != room {
            self.easy_below = 0;
        }
        taken
    }

    /// For somebody who is not in line: lets `take` have the items that nobody was promised, of which there is one at
    /// least.
    #[inline]
    pub(super) fn receive<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> Result<R, TryRecvError> {
        let unpromised = self.unpromised();
        if unpromised > 0 && self.receivers.is_empty() {
            return Ok(self.take(|items| take(items, unpromised)));
        }
        Err(if unpromised == 0 && self.closed { TryRecvError::Closed } else { TryRecvError::Empty })
    }

    /// For somebody who was promised an item: the same, with that one.
    #[inline]
    pub(super) fn redeem<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> R {
        self.unpromise();
        let unpromised = self.unpromised();
        self.take(|items| take(items, unpromised))
    }

    /// For [`receive`](Self::receive) and [`redeem`](Self::redeem).
    #[inline]
    pub(super) fn take_one(items: &mut VecDeque<T>, _unpromised: usize) -> T {
        items.pop_front().expect("an unpromised item")
    }

    /// A promise is kept or passed on: the item it stood for is anybody's.
    #[inline]
    pub(super) fn unpromise(&mut self) {
        self.promised -= 1;
    }

    /// Moves both lines on after any change, as far as that goes. True if there is more to be done
    /// once `wakes` has been emptied.
    #[inline]
    pub(super) fn settle(&mut self, wakes: &mut Wakes) -> bool {
        self.easy_below == 0 && self.settle_lines(wakes)
    }

    #[inline(never)]
    fn settle_lines(&mut self, wakes: &mut Wakes) -> bool {
        let more = self.serve(wakes);
        if !self.closed && self.receivers.is_empty() && self.pushers.is_empty() {
            self.easy_below = self.capacity.min(self.items.capacity());
        }
        more
    }

    fn serve(&mut self, wakes: &mut Wakes) -> bool {
        while !wakes.is_full() {
            if !self.settle_one(wakes) {
                return false;
            }
        }
        true
    }

    /// Serves one of those in line, if one can be served.
    fn settle_one(&mut self, wakes: &mut Wakes) -> bool {
        if self.unpromised() > 0 && !self.receivers.is_empty() {
            self.promised += 1;
            self.woken_by = here();
            self.receivers.serve_front(Verdict::Granted, wakes);
        } else if self.closed && !self.receivers.is_empty() {
            self.receivers.serve_front(Verdict::Refused, wakes);
        } else if self.closed && !self.pushers.is_empty() {
            self.pushers.serve_front(Verdict::Refused, wakes);
        } else if !self.closed
            && !self.is_full()
            && let Some(value) = self.pushers.front(Option::take).flatten()
        {
            self.pushers.serve_front(Verdict::Granted, wakes);
            self.items.push_back(value);
        } else {
            return false;
        }
        true
    }
}
