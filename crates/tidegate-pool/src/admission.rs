//! Decides which task starts, and when. No clock, no lock, no executor: the caller holds the lock, passes the time, and
//! wakes the wakers that a decision returns after it has released the lock.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use crate::line::{LeftLine, Line, LineTicket};
use crate::roster::{Roster, RosterKey};
use crate::stats::Stats;

/// Two marks that keep a pool from starting tasks one by one at its limit: once `high` tasks are running, none starts
/// until at most `low` are.
///
/// ```
/// use tidegate_pool::{Pool, Watermarks};
/// let pool: Pool = Pool::new(100);
/// pool.set_watermarks(Some(Watermarks { high: 80, low: 20 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// With this number of tasks running, the pool stops starting tasks.
    pub high: usize,
    /// With this number of tasks running, the pool starts tasks again. Less than `high`.
    pub low: usize,
}

/// How a task ended, as the pool counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

/// The result of a request for a slot.
pub(crate) enum Admit {
    Slot(RosterKey),
    /// No slot is free, or the free ones are kept for submitters in line.
    Full,
    Closed,
}

/// Wakers taken under the lock, woken when this is dropped. If one panics, the others are woken all the same.
#[derive(Default)]
#[must_use = "wake them after the lock is released"]
pub(crate) struct Wakes {
    /// Apart from `rest`, so that the usual case does not allocate.
    first: Option<Waker>,
    rest: VecDeque<Waker>,
}

impl Wakes {
    fn push(&mut self, waker: Waker) {
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.rest.push_back(waker),
        }
    }

    /// Wakes them, as dropping does.
    #[inline]
    pub(crate) fn wake(self) {}

    #[inline(never)]
    fn wake_all(&mut self) {
        struct Rest<'a>(&'a mut VecDeque<Waker>);

        impl Rest<'_> {
            fn wake_all(&mut self) {
                while let Some(waker) = self.0.pop_front() {
                    waker.wake();
                }
            }
        }

        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                self.wake_all();
            }
        }

        let mut rest = Rest(&mut self.rest);
        if let Some(waker) = self.first.take() {
            waker.wake();
        }
        rest.wake_all();
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        if self.first.is_some() {
            self.wake_all();
        }
    }
}

/// A pool's whole state. `C` cancels a task.
pub(crate) struct Admission<C> {
    /// The most tasks that may run at once.
    cap: usize,
    marks: Option<Watermarks>,
    /// Set when the high mark is reached, cleared when the low one is.
    above_high: bool,
    paused: bool,
    closed: bool,
    /// Set together with `closed`: a task that is just being spawned is cancelled when its canceller is filed.
    aborted: bool,
    /// Slots held. Starts and new grants keep it, plus the grants in `line`, at or below [`limit`](Self::limit).
    running: usize,
    line: Line,
    roster: Roster<C>,
    /// The wakers of futures that wait for the last task to end. Vacant entries are used again.
    drained: Vec<Option<Waker>>,
    /// Without `running` and `waiting`, which [`stats`](Self::stats) fills in.
    counts: Stats,
}

impl<C> Admission<C> {
    pub(crate) fn new(cap: usize) -> Self {
        Admission {
            cap,
            marks: None,
            above_high: false,
            paused: false,
            closed: false,
            aborted: false,
            running: 0,
            line: Line::new(),
            roster: Roster::new(),
            drained: Vec::new(),
            counts: Stats::default(),
        }
    }

    /// The number of tasks that may run at present.
    #[inline]
    fn limit(&self) -> usize {
        if self.paused || self.closed || self.above_high {
            return 0;
        }
        self.marks.map_or(self.cap, |marks| marks.high.min(self.cap))
    }

    /// Decides on a request that is not in line.
    #[inline]
    pub(crate) fn admit(&mut self) -> Admit {
        if self.closed {
            Admit::Closed
        } else if self.running + self.line.granted() < self.limit() {
            // There are as many grants as free slots if the line is that long, so a slot without a grant means that every
            // submitter in line has one.
            Admit::Slot(self.start())
        } else {
            Admit::Full
        }
    }

    pub(crate) fn join_line(&mut self, waker: Waker, now: Instant) -> LineTicket {
        self.line.join(waker, now)
    }

    /// Decides on a request in line. Returns the ticket as an error if it has no grant yet.
    pub(crate) fn claim(&mut self, ticket: LineTicket, now: Instant) -> Result<(Admit, Option<Waker>), LineTicket> {
        if !self.closed && !self.line.is_granted(&ticket) {
            return Err(ticket);
        }
        let left = self.line.leave(ticket);
        self.count_wait(&left, now);
        let admit = if self.closed { Admit::Closed } else { Admit::Slot(self.start()) };
        self.check();
        Ok((admit, left.waker))
    }

    pub(crate) fn waits_with(&self, ticket: &LineTicket, waker: &Waker) -> bool {
        self.line.waits_with(ticket, waker)
    }

    pub(crate) fn wait_with(&mut self, ticket: &LineTicket, waker: Waker) -> Option<Waker> {
        self.line.wait_with(ticket, waker)
    }

    /// Removes a submitter from the line; its grant goes to the next.
    pub(crate) fn leave_line(&mut self, ticket: LineTicket, now: Instant) -> (Wakes, Option<Waker>) {
        let left = self.line.leave(ticket);
        self.count_wait(&left, now);
        (self.settle(), left.waker)
    }

    #[inline]
    fn start(&mut self) -> RosterKey {
        self.running += 1;
        debug_assert!(self.running <= self.limit(), "a task started past the limit");
        self.counts.submitted += 1;
        self.counts.peak = self.counts.peak.max(self.running);
        self.above_high = self.marks.is_some_and(|marks| self.running >= marks.high);
        self.roster.enter()
    }

    /// Stores the canceller of the task of `key`. Returns a canceller that was not stored, and whether the caller has to
    /// cancel the task with it because the pool was aborted.
    #[inline]
    pub(crate) fn file(&mut self, key: RosterKey, canceller: C) -> (Option<C>, bool) {
        if self.aborted {
            return (Some(canceller), true);
        }
        (self.roster.file(key, canceller), false)
    }

    #[inline]
    pub(crate) fn end(&mut self, key: RosterKey, outcome: Outcome) -> (Wakes, Option<C>) {
        let canceller = self.roster.strike(key);
        self.running -= 1;
        match outcome {
            Outcome::Completed => self.counts.completed += 1,
            Outcome::Failed => self.counts.failed += 1,
            Outcome::Cancelled => self.counts.cancelled += 1,
        }
        if self.above_high {
            self.above_high = self.marks.is_some_and(|marks| self.running > marks.low);
        }
        let mut wakes = self.settle();
        if self.running == 0 {
            self.drained.drain(..).flatten().for_each(|waker| wakes.push(waker));
        }
        (wakes, canceller)
    }

    /// Makes the number of grants match the number of free slots: gives new ones, or takes some back.
    #[inline]
    fn settle(&mut self) -> Wakes {
        let mut wakes = Wakes::default();
        if self.line.len() > 0 {
            let free = self.limit().saturating_sub(self.running);
            while self.line.granted() > free {
                self.line.revoke();
            }
            while self.line.granted() < free.min(self.line.len()) {
                if let Some(waker) = self.line.grant() {
                    wakes.push(waker);
                }
            }
        }
        self.check();
        wakes
    }

    /// Asserts that no slot idles while a submitter waits, and that no slot is granted twice.
    #[inline]
    fn check(&self) {
        let free = self.limit().saturating_sub(self.running);
        debug_assert_eq!(self.line.granted(), free.min(self.line.len()), "grants and slots do not match");
    }

    fn count_wait(&mut self, left: &LeftLine, now: Instant) {
        self.counts.waited += now.saturating_duration_since(left.since);
    }

    pub(crate) fn resize(&mut self, cap: usize) -> Wakes {
        self.cap = cap;
        self.settle()
    }

    pub(crate) fn set_watermarks(&mut self, marks: Option<Watermarks>) -> Wakes {
        self.marks = marks;
        self.above_high = marks.is_some_and(|marks| self.running >= marks.high);
        self.settle()
    }

    pub(crate) fn set_paused(&mut self, paused: bool) -> Wakes {
        self.paused = paused;
        self.settle()
    }

    pub(crate) fn close(&mut self) -> Wakes {
        self.closed = true;
        let mut wakes = self.settle();
        self.line.take_wakers(|waker| wakes.push(waker));
        wakes
    }

    /// Closes the pool and returns the cancellers of the running tasks.
    pub(crate) fn abort(&mut self) -> (Wakes, Vec<C>)
    where
        C: Clone,
    {
        self.aborted = true;
        let running = self.roster.cancellers().cloned().collect();
        (self.close(), running)
    }

    /// Returns whether no task runs; otherwise stores `waker` to be woken when none does. `place` is the index at which
    /// the caller's waker is stored. Also returns a waker to be dropped without the lock.
    pub(crate) fn is_drained(&mut self, place: &mut Option<usize>, waker: Waker) -> (bool, Option<Waker>) {
        if self.running == 0 {
            return (true, Some(waker));
        }
        let at = *place.get_or_insert_with(|| match self.drained.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.drained.push(None);
                self.drained.len() - 1
            }
        });
        (false, self.drained[at].replace(waker))
    }

    /// Removes the waker of a future that no longer waits for the last task to end.
    pub(crate) fn leave_drained(&mut self, place: usize) -> Option<Waker> {
        self.drained.get_mut(place).and_then(Option::take)
    }

    pub(crate) fn cap(&self) -> usize {
        self.cap
    }

    pub(crate) fn watermarks(&self) -> Option<Watermarks> {
        self.marks
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { running: self.running, waiting: self.line.len(), ..self.counts }
    }
}
