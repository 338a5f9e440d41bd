//! How permits are counted and handed out; the public face is [`Semaphore`](super::Semaphore).
//!
//! While nobody waits, taking is one compare-and-swap on the [`Word`] and giving back one addition. The first waiter sets
//! `QUEUED` in it, which sends everybody through the lock until the line is empty again: so nobody can slip past the
//! line, and a permit given back cannot miss it.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::error::{AcquireError, ReduceError, ReleaseError, TryAcquireError};
use super::list::{List, Verdict};
use super::lock::{Lock, Wakes, while_more};
use super::semaphore::Receipt;
use super::stats::Stats;
use super::sync::{AtomicU32, AtomicU64};
use super::word::{AtomicWord, MAX_PERMITS, Word};

pub(super) struct Counter {
    word: AtomicWord,
    /// The most ever held.
    peak: AtomicU32,
    /// Grants the word has carried out of its few bits.
    grants_carried: AtomicU64,
    /// The most permits that may exist.
    pub(super) ceiling: u32,
    /// How many may be served before a head that does not fit.
    pub(super) skip_ahead: u32,
    line: Lock<Line>,
}

#[derive(Default)]
pub(super) struct Line {
    /// Each with the number of permits it needs. The word says `QUEUED` exactly when this is not
    /// empty or the semaphore is closed.
    waiting: List<u32>,
    /// Grants to waiters; the word counts the others.
    granted: u64,
    blocked: u64,
}

impl Line {
    #[inline]
    pub(super) fn waiting(&mut self) -> &mut List<u32> {
        &mut self.waiting
    }
}

/// Those who are left in line when one section was not enough and a waker panics after it.
struct Rest<'a> {
    counter: &'a Counter,
    more: bool,
}

impl Drop for Rest<'_> {
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
            line: Lock::new(Line::default()),
        }
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        self.word.load()
    }

    #[inline]
    pub(super) fn line(&self) -> &Lock<Line> {
        &self.line
    }

    /// The fast path: `need` permits without waiting, in nobody's name yet.
    #[inline]
    pub(super) fn try_take(&self, need: u32) -> bool {
        let take = |word: Word| (need > 0 && word.can_take(need)).then(|| word.take(need));
        let taken = self.word.update(take);
        if let Ok((before, after)) = taken {
            self.note_taken(before, after);
        }
        taken.is_ok()
    }

    /// What becomes of a request that could not be served on the fast path, if it will not wait.
    #[cold]
    pub(super) fn not_taken(&self, need: u32) -> Result<(), TryAcquireError> {
        if self.word().is_closed() {
            return Err(TryAcquireError::Closed);
        }
        if need > self.ceiling {
            return Err(TryAcquireError::TooMany { ceiling: self.ceiling as usize });
        }
        // Nothing was asked for, so there is nothing to wait for.
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

    /// An arrival's decision under the lock: `None` sends it into the line.
    #[inline]
    pub(super) fn admit(&self, line: &mut Line, need: u32) -> Option<Result<(), AcquireError>> {
        loop {
            let word = self.word.load();
            if word.is_queued() && !word.is_closed() && self.skip_ahead == 0 && 0 < need && need <= self.ceiling {
                // No way past those in line.
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

    /// Whether somebody who arrives may be served before those in line, if there are any. Not if the head fits: then a
    /// crowd is being served, and its turn is coming.
    fn may_pass(&self, line: &mut Line, free: i64) -> bool {
        let places = line.waiting.len();
        match line.waiting.front(|need| i64::from(*need) > free) {
            None => true,
            Some(stuck) => stuck && line.waiting.may_overtake(places, self.skip_ahead as usize),
        }
    }

    /// For `Debug`: how many are in line, unless that would mean waiting.
    pub(super) fn try_waiters(&self) -> Option<usize> {
        self.line.try_peek(|line| line.waiting.len())
    }

    /// Permits come back from whoever took them on the fast path: there was no line then, so probably there is none now.
    #[inline]
    pub(super) fn give_back(&self, n: u32) {
        if self.word.give(n).is_queued() {
            let _ = self.serve_rest();
        }
    }

    /// Permits come back from whoever got them in line. Probably there still is one; and if the word does not count them
    /// as held yet, because whoever handed them over is still at it, then it says `QUEUED`.
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

    /// Hands `n` permits straight from one holder to the next, if nothing is free or owed and the first in line needs just
    /// as many: then it is a mere change of hands, and the word stays as it is.
    #[inline]
    fn successor(&self, line: &mut Line, n: u32) -> Option<Waker> {
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

    /// Permits cease to exist in their holder's hands.
    pub(super) fn forget(&self, n: u32) {
        // Under the lock: a permit that was handed over by the line may be in its owner's hands a moment before the word
        // counts it as held.
        let _ = self.line.quietly(|_line| self.word.update(|word| Some(word.forget(n))));
    }

    /// Somebody left the line, perhaps from the head of it.
    pub(super) fn left_line(&self) {
        let _ = self.credit(Some);
    }

    /// Puts permits in, by `credit`, and serves the line with them. `None` from `credit` leaves all
    /// as it is; the error is what the word said then.
    #[inline]
    fn credit(&self, credit: impl Fn(Word) -> Option<Word>) -> Result<Receipt, Word> {
        let mut rest = Rest { counter: self, more: false };
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
                // The line has gone meanwhile: the fast path is open, and this races it.
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

    /// Serves those whom one section could not, for want of room for their wakers, or whose permits came past the lock.
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

    /// Gives out what is free, from the front of the line, until it no longer fits or enough have
    /// been collected to be woken. Opens the fast path when the line is empty.
    #[inline(always)]
    fn serve(&self, line: &mut Line, word: &mut Word, wakes: &mut Wakes) -> usize {
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

    /// New permits; the error is that there would be too many.
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
        // Under the lock: while there is a line, only its holder may change what is free.
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

/// A number of permits as the word counts them; anything beyond is as impossible as the greatest.
#[inline]
pub(super) fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
