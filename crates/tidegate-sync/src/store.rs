//! What lies behind a queue's lock: the items, and the two lines in front of them.
//!
//! An item never leaves the store before its receiver's `poll` returns it. A receiver in line is
//! woken with a *promise*: one item inside is spoken for, though not which. So a receiver that is
//! dropped after its wake-up loses nothing: its promise passes to the next.

use std::collections::VecDeque;

use super::error::TryRecvError;
use super::list::{List, Verdict};
use super::lock::Wakes;

/// What every push and receive writes comes first: while nobody waits, one cache line travels between the cores.
#[repr(C)]
pub(super) struct Store<T> {
    /// Never more than `capacity`.
    items: VecDeque<T>,
    pub(super) total: u64,
    /// Receivers that have been woken for an item and have not yet come for it. Never more than
    /// there are items.
    promised: usize,
    /// In line only while every item is promised.
    pub(super) receivers: List<()>,
    /// In line only while the store is full; each with the value it brings.
    pub(super) pushers: List<Option<T>>,
    capacity: usize,
    pub(super) peak: usize,
    pub(super) blocked: u64,
    pub(super) closed: bool,
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
            closed: false,
            peak: 0,
            total: 0,
            blocked: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
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

    /// Takes `value` in if it can.
    #[inline]
    pub(super) fn push(&mut self, value: &mut Option<T>) -> Pushed {
        if self.closed {
            return Pushed::Closed;
        }
        if self.keeps_producers() {
            return Pushed::Full;
        }
        if let Some(value) = value.take() {
            self.insert(value);
        }
        Pushed::In
    }

    #[inline]
    fn insert(&mut self, value: T) {
        self.items.push_back(value);
        self.total += 1;
        // Written when it changes, which is seldom, and not each time: see above.
        if self.items.len() > self.peak {
            self.peak = self.items.len();
        }
    }

    /// For somebody who is not in line: lets `take` have the items that nobody was promised, of which there is one at
    /// least.
    #[inline]
    pub(super) fn receive<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> Result<R, TryRecvError> {
        let unpromised = self.unpromised();
        if unpromised > 0 && self.receivers.is_empty() {
            return Ok(take(&mut self.items, unpromised));
        }
        Err(if unpromised == 0 && self.closed { TryRecvError::Closed } else { TryRecvError::Empty })
    }

    /// For somebody who was promised an item: the same, with that one.
    #[inline]
    pub(super) fn redeem<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> R {
        self.unpromise();
        let unpromised = self.unpromised();
        take(&mut self.items, unpromised)
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
        !(self.receivers.is_empty() && self.pushers.is_empty()) && self.settle_lines(wakes)
    }

    #[inline(never)]
    fn settle_lines(&mut self, wakes: &mut Wakes) -> bool {
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
            self.insert(value);
        } else {
            return false;
        }
        true
    }
}
