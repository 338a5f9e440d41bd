//! How permits are counted and handed out; the public face is [`Semaphore`](super::Semaphore).
//!
//! While no task waits, taking permits is one compare-and-swap on the [`Word`], and giving them back is one addition. The
//! first waiter sets `QUEUED` in the word. Until the line is empty again, every call then goes through the lock: no
//! request is served before those in line, and every permit given back is offered to the line.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::error::{AcquireError, ReduceError, ReleaseError, TryAcquireError};
use super::list::{List, Verdict};
use super::lock::{Lock, Wakes, while_more};
use super::semaphore::Receipt;
use super::shim::{AtomicU32, AtomicU64};
use super::stats::Stats;
use super::word::{AtomicWord, MAX_PERMITS, Word};

pub(super) struct Counter {
    word: AtomicWord,
    /// The most permits ever held.
    peak: AtomicU32,
    /// Overflows of the word's grant bits, times [`Word::GRANTS`]: added to those bits, the exact number of grants.
    grants_carried: AtomicU64,
    /// The most permits that may exist.
    pub(super) ceiling: u32,
    /// How many waiters may be served before a head that needs more permits than are free.
    pub(super) skip_ahead: u32,
    line: Lock<CounterLine>,
}

#[derive(Default)]
pub(super) struct CounterLine {
    /// Each waiter with the number of permits it needs. `QUEUED` is set in the word if and only if this is not empty or
    /// the semaphore is closed.
    waiting: List<u32>,
    /// Grants to waiters; the word counts those on the fast path.
    granted: u64,
    blocked: u64,
}

impl CounterLine {
    #[inline]
    pub(super) fn waiting(&mut self) -> &mut List<u32> {
        &mut self.waiting
    }
}

/// Serves the waiters that one section left in line, even if a waker that it woke panics.
struct Unserved<'a> {
    counter: &'a Counter,
    more: bool,
}

impl Drop for Unserved<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.more {
            self.counter.serve_rest();
        }
    }
}

impl Counter {
    pub(super) fn new(permits: u32) -> Self {
        Self {
            word: AtomicWord::new(Word::new(permits)),
            peak: AtomicU32::new(0),
            grants_carried: AtomicU64::new(0),
            ceiling: MAX_PERMITS as u32,
            skip_ahead: 0,
            line: Lock::new(CounterLine::default()),
        }
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        self.word.load()
    }

    #[inline]
    pub(super) fn line(&self) -> &Lock<CounterLine> {
        &self.line
    }

    /// The fast path: takes `need` permits if they are free, no waiter is in line and `need` is not zero. The caller makes
    /// the guard for them.
    #[inline]
    pub(super) fn try_take(&self, need: u32) -> bool {
        let take = |word: Word| (need > 0 && word.can_take(need)).then(|| word.take(need));
        let taken = self.word.update(take);
        if let Ok((before, after)) = taken {
            self.note_taken(before, after);
        }
        taken.is_ok()
    }

    /// Returns the result of a `try_` request that the fast path refused.
    #[cold]
    pub(super) fn not_taken(&self, need: u32) -> Result<(), TryAcquireError> {
        if self.word().is_closed() {
            return Err(TryAcquireError::Closed);
        }
        if need > self.ceiling {
            return Err(TryAcquireError::TooMany { ceiling: self.ceiling as usize });
        }
        // A request for zero permits is granted without the fast path, which takes at least one.
        if need == 0 { Ok(()) } else { Err(TryAcquireError::NoPermits) }
    }

    #[inline]
    fn note_taken(&self, before: Word, after: Word) {
        self.note_held(after);
        if after.grants() < before.grants() {
            self.carry_grants();
        }
    }

    #[cold]
    fn carry_grants(&self) {
        self.grants_carried.fetch_add(Word::GRANTS, Relaxed);
    }

    #[inline]
    fn note_held(&self, word: Word) {
        if word.held() > self.peak.load(Relaxed) {
            self.raise_peak(word.held());
        }
    }

    #[cold]
    fn raise_peak(&self, held: u32) {
        self.peak.fetch_max(held, Relaxed);
    }

    /// Decides under the lock on a new request. Returns `None` if it has to wait in line.
    #[inline]
    pub(super) fn admit(&self, line: &mut CounterLine, need: u32) -> Option<Result<(), AcquireError>> {
        loop {
            let word = self.word.load();
            if word.is_queued() && !word.is_closed() && self.skip_ahead == 0 && 0 < need && need <= self.ceiling {
                line.blocked += 1;
                return None;
            }
            if word.is_closed() {
                return Some(Err(AcquireError::Closed));
            }
            if need > self.ceiling {
                return Some(Err(AcquireError::TooMany { ceiling: self.ceiling as usize }));
            }
            if need == 0 {
                return Some(Ok(()));
            }
            let fits = word.free() >= i64::from(need);
            let next = if fits && self.may_pass(line, word.free()) { word.take(need) } else { word.queued(true) };
            if next == word || self.word.replace(word, next).is_ok() {
                let taken = next.held() != word.held();
                if taken {
                    self.note_taken(word, next);
                    line.waiting.note_overtaking();
                } else {
                    line.blocked += 1;
                }
                return taken.then_some(Ok(()));
            }
        }
    }

    /// Returns whether a new request may be served before the waiters in line, if there are any. It may not if the head
    /// fits: then the line is being served in several sections, and the head is next.
    fn may_pass(&self, line: &mut CounterLine, free: i64) -> bool {
        let places = line.waiting.len();
        match line.waiting.front(|need| i64::from(*need) > free) {
            None => true,
            Some(stuck) => stuck && line.waiting.may_overtake(places, self.skip_ahead as usize),
        }
    }

    /// Returns the number of waiters, or `None` if the lock is taken. For `Debug`, which never waits.
    pub(super) fn try_waiters(&self) -> Option<usize> {
        self.line.try_peek(|line| line.waiting.len())
    }

    /// Returns permits that were taken on the fast path. No waiter was in line then, so probably none is now: adds first,
    /// and serves the line only if there is one.
    #[inline]
    pub(super) fn give_back(&self, n: u32) {
        if self.word.give(n).is_queued() {
            let _ = self.serve_rest();
        }
    }

    /// Returns permits that were granted in line. Probably there still is a line, so looks for one first.
    ///
    /// [`AtomicWord::give`] is safe in the other branch: if the thread that granted these permits has not yet counted them
    /// as held, it still holds the lock and `QUEUED` is set.
    #[inline]
    pub(super) fn pass_on(&self, n: u32) {
        if self.word.load().is_queued() {
            self.give_to_line(n);
        } else {
            self.give_back(n);
        }
    }

    #[inline(never)]
    fn give_to_line(&self, n: u32) {
        if !self.line.hand_over(|line| self.successor(line, n)) {
            let _ = self.credit(|word| Some(word.give(n)));
        }
    }

    /// Hands `n` permits from their holder to the first in line, if it needs exactly `n` and no permit is free or owed.
    /// The counts in the word then stay as they are.
    #[inline]
    fn successor(&self, line: &mut CounterLine, n: u32) -> Option<Waker> {
        let word = self.word.load();
        if word.free() != 0 || word.is_closed() || line.waiting.front(|need| *need) != Some(n) {
            return None;
        }
        let next = line.waiting.grant_front();
        line.granted += 1;
        if line.waiting.is_empty() {
            self.word.shift(word, word.queued(false));
        }
        next
    }

    /// Removes `n` held permits from existence.
    pub(super) fn forget(&self, n: u32) {
        // Under the lock: the task that was granted a permit in line may run before the granting section has counted the
        // permit as held.
        let _ = self.line.quietly(|_line| self.word.update(|word| Some(word.forget(n))));
    }

    /// A waiter left the line. If it was the head, those behind it may fit now.
    pub(super) fn left_line(&self) {
        let _ = self.credit(Some);
    }

    /// Adds permits, as `credit` computes them, and serves the line with them.
    ///
    /// # Errors
    /// If `credit` returns `None`: the word as it was, unchanged.
    #[inline]
    fn credit(&self, credit: impl Fn(Word) -> Option<Word>) -> Result<Receipt, Word> {
        let mut rest = Unserved { counter: self, more: false };
        let mut receipt = self.line.with(|line, wakes| {
            loop {
                let before = self.word.load();
                let mut after = credit(before).ok_or(before)?;
                if before.is_queued() {
                    let woken = self.serve(line, &mut after, wakes);
                    self.note_held(self.word.shift(before, after));
                    rest.more = wakes.is_full();
                    return Ok(Receipt { available: after.available(), woken });
                }
                // The line is empty, so the fast path is open and may change the word meanwhile.
                if self.word.replace(before, after).is_ok() {
                    return Ok(Receipt { available: after.available(), woken: 0 });
                }
            }
        })?;
        if std::mem::take(&mut rest.more) {
            let rest = self.serve_rest();
            receipt = Receipt { woken: receipt.woken + rest.woken, ..rest };
        }
        Ok(receipt)
    }

    /// Serves the waiters that one section could not serve because [`Wakes`] was full, or whose permits were added without
    /// the lock.
    #[inline(never)]
    fn serve_rest(&self) -> Receipt {
        let mut receipt = Receipt { available: 0, woken: 0 };
        while_more(|| {
            self.line.with(|line, wakes| {
                let before = self.word.load();
                let mut after = before;
                receipt.woken += self.serve(line, &mut after, wakes);
                receipt.available = after.available();
                self.note_held(self.word.shift(before, after));
                wakes.is_full()
            })
        });
        receipt
    }

    /// Grants free permits from the front of the line until the next request does not fit or `wakes` is full. Opens the
    /// fast path when the line is empty. Returns the number of waiters served.
    #[inline(always)]
    fn serve(&self, line: &mut CounterLine, word: &mut Word, wakes: &mut Wakes) -> usize {
        let mut served = 0;
        if !word.is_closed() {
            while word.free() > 0
                && !wakes.is_full()
                && let Some(need) = self.serve_one(&mut line.waiting, word.free(), wakes)
            {
                *word = word.transfer(need);
                served += 1;
            }
            line.granted += served as u64;
            if line.waiting.is_empty() {
                *word = word.queued(false);
            }
        }
        served
    }

    #[inline(always)]
    fn serve_one(&self, waiting: &mut List<u32>, free: i64, wakes: &mut Wakes) -> Option<u32> {
        let need = waiting.front(|need| *need)?;
        if i64::from(need) <= free {
            waiting.serve_front(Verdict::Granted, wakes);
            return Some(need);
        }
        self.skip_ahead_one(waiting, free, wakes)
    }

    #[cold]
    fn skip_ahead_one(&self, waiting: &mut List<u32>, free: i64, wakes: &mut Wakes) -> Option<u32> {
        let mut passing = 0;
        let fits = |need: &mut u32| {
            passing = *need;
            i64::from(passing) <= free
        };
        waiting.grant_behind_front(self.skip_ahead as usize, fits, wakes).then_some(passing)
    }

    /// Creates `n` permits.
    ///
    /// # Errors
    /// If more than `ceiling` would exist.
    #[inline]
    pub(super) fn release(&self, n: u32) -> Result<Receipt, ReleaseError> {
        let grow = |word: Word| if word.is_queued() { None } else { word.grow(n, self.ceiling) };
        let released = match self.word.update(grow) {
            Ok((_, after)) => Ok(Receipt { available: after.available(), woken: 0 }),
            Err(word) if word.is_queued() => self.credit(|word| word.grow(n, self.ceiling)),
            Err(word) => Err(word),
        };
        released.map_err(|word| ReleaseError { capacity: word.capacity() as usize, ceiling: self.ceiling as usize })
    }

    pub(super) fn reduce(&self, n: u32) -> Result<(), ReduceError> {
        // Under the lock: while there is a line, only the lock's holder may change the number of free permits.
        self.line
            .quietly(|_line| self.word.update(|word| word.shrink(n)))
            .map(drop)
            .map_err(|word| ReduceError { capacity: word.capacity() as usize })
    }

    pub(super) fn close(&self) {
        while_more(|| {
            self.line.with(|line, wakes| {
                let _ = self.word.update(|word| Some(word.closed()));
                while !line.waiting.is_empty() && !wakes.is_full() {
                    line.waiting.serve_front(Verdict::Refused, wakes);
                }
                !line.waiting.is_empty()
            })
        });
    }

    pub(super) fn stats(&self) -> Stats {
        self.line.quietly(|line| {
            let word = self.word.load();
            Stats {
                current: word.held() as usize,
                peak: self.peak.load(Relaxed) as usize,
                total: line.granted + self.grants_carried.load(Relaxed) + word.grants(),
                blocked: line.blocked,
                waiting: line.waiting.len(),
            }
        })
    }
}

/// Converts a number of permits to the word's type. Saturates: no semaphore can grant `u32::MAX` permits or more.
#[inline]
pub(super) fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
