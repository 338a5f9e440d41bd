//! The state behind a queue's lock: the items, the line of receivers and the line of pushers.
//!
//! An item stays in the store until its receiver's `poll` returns it. A receiver in line is woken with a *promise*: one of
//! the items is reserved for it, though not a particular one. If the receiver is dropped after its wake-up, no item is
//! lost: the promise passes to the next in line.

use std::collections::VecDeque;

use super::error::TryRecvError;
use super::list::{List, Verdict};
use super::lock::Wakes;

/// The fields that every push and receive writes come first: while no task waits, they move one cache line between the
/// cores.
#[repr(C)]
pub(super) struct Store<T> {
    /// Never more than `capacity`.
    items: VecDeque<T>,
    /// A push that finds fewer items than this adds its item and has nothing else to do: the queue is open and below its
    /// capacity, the buffer need not grow, and both lines are empty. Zero if one of these is false or not known;
    /// [`settle`](Self::settle) sets it again.
    fast_below: usize,
    /// Number of items taken so far.
    taken: u64,
    /// Number of receivers that were woken for an item and have not yet taken it. At most the number of items.
    promised: usize,
    /// Not empty only while every item is promised.
    pub(super) receivers: List<()>,
    /// Not empty only while the store is full. Each waits with the value that it pushes.
    pub(super) pushers: List<Option<T>>,
    capacity: usize,
    /// The most items found by a receiver. Between two receives the number of items only grows, so a push need not update
    /// this.
    peak: usize,
    pub(super) blocked: u64,
    closed: bool,
}

/// The result of an attempt to push.
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
            fast_below: 0,
            taken: 0,
            peak: 0,
            blocked: 0,
            closed: false,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The most items that were ever in the queue.
    pub(super) fn peak(&self) -> usize {
        self.peak.max(self.items.len())
    }

    /// Number of items pushed so far.
    pub(super) fn total(&self) -> u64 {
        self.taken + self.items.len() as u64
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.fast_below = 0;
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.items.len() >= self.capacity
    }

    /// Number of items that are not promised to a receiver.
    #[inline]
    fn unpromised(&self) -> usize {
        self.items.len() - self.promised
    }

    /// Returns whether a new push has to wait. It has to even if there is room while pushers are in line: the line is then
    /// being served in several sections, and comes first.
    #[inline]
    pub(super) fn push_waits(&self) -> bool {
        !self.closed && (self.is_full() || !self.pushers.is_empty())
    }

    /// Returns whether a new receive has to wait; while receivers are in line, as for [`push_waits`](Self::push_waits).
    #[inline]
    pub(super) fn receive_waits(&self) -> bool {
        if self.unpromised() == 0 { !self.closed } else { !self.receivers.is_empty() }
    }

    /// A pusher or receiver is about to join a line.
    pub(super) fn note_blocked(&mut self) {
        self.blocked += 1;
        self.fast_below = 0;
    }

    /// Pushes `value` if there is nothing else to do, as is the usual case: [`settle`](Self::settle) is not needed then.
    /// Returns `false` otherwise.
    #[inline]
    pub(super) fn push_fast(&mut self, value: &mut Option<T>) -> bool {
        if self.items.len() < self.fast_below
            && let Some(value) = value.take()
        {
            self.items.push_back(value);
            return true;
        }
        false
    }

    /// Takes an item if there is nothing else to do. Returns `None` otherwise.
    #[inline]
    pub(super) fn take_fast(&mut self) -> Option<T> {
        if self.fast_below > 0 && self.promised == 0 { self.take(VecDeque::pop_front) } else { None }
    }

    /// Pushes `value` if there is room.
    pub(super) fn push(&mut self, value: &mut Option<T>) -> Pushed {
        self.fast_below = 0;
        if self.closed {
            return Pushed::Closed;
        }
        if self.push_waits() {
            return Pushed::Full;
        }
        if let Some(value) = value.take() {
            self.items.push_back(value);
        }
        Pushed::In
    }

    /// Calls `take` with the items and counts those that it takes.
    #[inline]
    fn take<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let (before, room) = (self.items.len(), self.items.capacity());
        // Not written each time, because it seldom changes and lies in another cache line.
        if before > self.peak {
            self.peak = before;
        }
        let taken = take(&mut self.items);
        self.taken += (before - self.items.len()) as u64;
        if self.items.capacity() != room {
            self.fast_below = 0;
        }
        taken
    }

    /// Receives for a caller that is not in line: calls `take` with the items and the number that it may take, which is at
    /// least one.
    ///
    /// # Errors
    /// If every item is promised or receivers are in line; `Closed` if the queue is closed and has no item for the caller.
    #[inline]
    pub(super) fn receive<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> Result<R, TryRecvError> {
        let unpromised = self.unpromised();
        if unpromised > 0 && self.receivers.is_empty() {
            return Ok(self.take(|items| take(items, unpromised)));
        }
        Err(if unpromised == 0 && self.closed { TryRecvError::Closed } else { TryRecvError::Empty })
    }

    /// Receives for a caller that was promised an item, which is among those that `take` may take.
    #[inline]
    pub(super) fn redeem<R>(&mut self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> R {
        self.unpromise();
        let unpromised = self.unpromised();
        self.take(|items| take(items, unpromised))
    }

    /// A `take` for [`receive`](Self::receive) and [`redeem`](Self::redeem) that takes one item.
    #[inline]
    pub(super) fn take_one(items: &mut VecDeque<T>, _unpromised: usize) -> T {
        items.pop_front().expect("an unpromised item")
    }

    /// Ends a promise, because its receiver takes an item or was dropped.
    #[inline]
    pub(super) fn unpromise(&mut self) {
        self.promised -= 1;
    }

    /// Serves both lines as far as possible; called after every change. Returns `true` if `wakes` became full before all
    /// that can be served was.
    #[inline]
    pub(super) fn settle(&mut self, wakes: &mut Wakes) -> bool {
        self.fast_below == 0 && self.settle_lines(wakes)
    }

    #[inline(never)]
    fn settle_lines(&mut self, wakes: &mut Wakes) -> bool {
        let more = self.serve(wakes);
        if !self.closed && self.receivers.is_empty() && self.pushers.is_empty() {
            self.fast_below = self.capacity.min(self.items.capacity());
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

    /// Serves one waiter of either line. Returns `false` if none can be served.
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
            self.items.push_back(value);
        } else {
            return false;
        }
        true
    }
}
