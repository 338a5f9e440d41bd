//! Who may start, and when: plain decisions. No clock, no lock, no executor; whoever calls holds the state alone, passes
//! the time, and wakes behind the lock those that a decision returns.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use crate::line::{Left, Line, Ticket};
use crate::roster::{Key, Roster};
use crate::stats::Stats;

/// Two marks that keep a pool from starting tasks one by one at its limit: once `high` are running no further task
/// starts until no more than `low` are.
///
/// ```
/// use tidegate_pool::{Pool, Watermarks};
/// let pool: Pool = Pool::new(100);
/// pool.set_watermarks(Some(Watermarks { high: 80, low: 20 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Reached: no further starts.
    pub high: usize,
    /// Reached again: starts go on. Less than `high`.
    pub low: usize,
}

/// How a task ended, as the pool counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    Failed,
    Cancelled,
}

/// What became of an attempt to start.
pub(crate) enum Admit {
    /// Here is the slot.
    Slot(Key),
    /// No slot, or others were first.
    Full,
    Closed,
}

/// Wakers taken under the lock, to be woken behind it. Dropped, it wakes them too, so a waker that panics costs nobody
/// but itself the wake-up.
#[derive(Default)]
#[must_use = "wake them behind the lock"]
pub(crate) struct Wakes {
    /// The usual case needs no vector.
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

    /// What dropping it does, said aloud.
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
    /// The most that may run at once.
    cap: usize,
    marks: Option<Watermarks>,
    /// The high mark was reached, the low one not yet again.
    above_high: bool,
    paused: bool,
    closed: bool,
    /// Set with `closed`: who is on the way in is cancelled at the door.
    aborted: bool,
    /// Slots held. With the grants in `line` it never grows past [`limit`](Self::limit).
    running: usize,
    line: Line,
    roster: Roster<C>,
    /// Those who wait for the last task to end, each at a place of its own; empty ones are used again.
    drained: Vec<Option<Waker>>,
    /// `running` and `waiting` are kept elsewhere and filled in when asked for.
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

    /// How many may run at present.
    #[inline]
    fn limit(&self) -> usize {
        if self.paused || self.closed || self.above_high {
            return 0;
        }
        self.marks.map_or(self.cap, |marks| marks.high.min(self.cap))
    }

    /// For somebody who is not in line.
    #[inline]
    pub(crate) fn admit(&mut self) -> Admit {
        if self.closed {
            Admit::Closed
        } else if self.running + self.line.granted() < self.limit() {
            // As many have a grant as there are slots for, so a slot that is left is left by all in line.
            Admit::Slot(self.start())
        } else {
            Admit::Full
        }
    }

    pub(crate) fn join_line(&mut self, waker: Waker, now: Instant) -> Ticket {
        self.line.join(waker, now)
    }

    /// For somebody in line. `Err` gives the ticket back: the turn has not come.
    pub(crate) fn claim(&mut self, ticket: Ticket, now: Instant) -> Result<(Admit, Option<Waker>), Ticket> {
        if !self.closed && !self.line.is_granted(&ticket) {
            return Err(ticket);
        }
        let left = self.line.leave(ticket);
        self.count_wait(&left, now);
        let admit = if self.closed { Admit::Closed } else { Admit::Slot(self.start()) };
        self.check();
        Ok((admit, left.waker))
    }

    pub(crate) fn waits_with(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.line.waits_with(ticket, waker)
    }

    pub(crate) fn wait_with(&mut self, ticket: &Ticket, waker: Waker) -> Option<Waker> {
        self.line.wait_with(ticket, waker)
    }

    /// Gives up a place in line; a grant goes to the next.
    pub(crate) fn give_up(&mut self, ticket: Ticket, now: Instant) -> (Wakes, Option<Waker>) {
        let left = self.line.leave(ticket);
        self.count_wait(&left, now);
        (self.settle(), left.waker)
    }

    #[inline]
    fn start(&mut self) -> Key {
        self.running += 1;
        debug_assert!(self.running <= self.limit(), "a task started past the limit");
        self.counts.submitted += 1;
        self.counts.peak = self.counts.peak.max(self.running);
        self.above_high = self.marks.is_some_and(|marks| self.running >= marks.high);
        self.roster.enter()
    }

    /// Files what cancels the task of `key`. What comes back is of no use here; if the flag is set, use it.
    #[inline]
    pub(crate) fn file(&mut self, key: Key, canceller: C) -> (Option<C>, bool) {
        if self.aborted {
            return (Some(canceller), true);
        }
        (self.roster.file(key, canceller), false)
    }

    #[inline]
    pub(crate) fn end(&mut self, key: Key, ending: Ending) -> (Wakes, Option<C>) {
        let canceller = self.roster.strike(key);
        self.running -= 1;
        match ending {
            Ending::Completed => self.counts.completed += 1,
            Ending::Failed => self.counts.failed += 1,
            Ending::Cancelled => self.counts.cancelled += 1,
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

    /// Gives as many grants as there are slots, or takes back those for which there are none any more.
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

    /// No slot idles while somebody waits for one, and none is promised twice.
    #[inline]
    fn check(&self) {
        let free = self.limit().saturating_sub(self.running);
        debug_assert_eq!(self.line.granted(), free.min(self.line.len()), "grants and slots do not match");
    }

    fn count_wait(&mut self, left: &Left, now: Instant) {
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

    /// Closes, and returns what cancels the running.
    pub(crate) fn abort(&mut self) -> (Wakes, Vec<C>)
    where
        C: Clone,
    {
        self.aborted = true;
        let running = self.roster.cancellers().cloned().collect();
        (self.close(), running)
    }

    /// Whether nothing runs; if something does, `waker` is woken when nothing does any more. `place` is where the caller
    /// has waited before. A waker that is not needed comes back.
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

    /// Somebody no longer waits for the last task to end.
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
