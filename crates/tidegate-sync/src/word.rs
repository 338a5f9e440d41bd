//! The semaphore's state in one word: how many permits are free, how many are held, and whether the fast path is open. In
//! one word, these numbers agree with each other at every instant.
//!
//! ```text
//!  63..61  grants   grants modulo 8; `Counter::grants_carried` counts the overflows
//!  60..32  held     permits that were granted and not given back
//!  31..2   free     permits to be granted, plus MAX_PERMITS: a smaller value means permits are owed
//!   1      CLOSED   set by `close`, never cleared; implies QUEUED
//!   0      QUEUED   set by the first waiter and by `close`, cleared when the line is empty. While it is set, only the
//!                   lock's holder takes from `free`, and a thread that adds to `free` serves the line
//! ```
//!
//! Always `-held <= free` and `free + held <= MAX_PERMITS`, so no field runs into its neighbour.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::shim::AtomicU64;

/// The most permits one [`Semaphore`](super::Semaphore) can have: 536,870,911, held and free together.
pub const MAX_PERMITS: usize = (1 << 29) - 1;

const QUEUED: u64 = 1;
const CLOSED: u64 = 1 << 1;
const FREE_SHIFT: u32 = 2;
const FREE_ONE: u64 = 1 << FREE_SHIFT;
const FREE_MASK: u64 = (1 << 30) - 1;
const FREE_ZERO: i64 = MAX_PERMITS as i64;
const HELD_SHIFT: u32 = 32;
const HELD_ONE: u64 = 1 << HELD_SHIFT;
const HELD_MASK: u64 = (1 << 29) - 1;
const GRANTS_SHIFT: u32 = 61;
const GRANTS_ONE: u64 = 1 << GRANTS_SHIFT;

const _: () = assert!(MAX_PERMITS as u64 <= HELD_MASK && 2 * MAX_PERMITS as u64 <= FREE_MASK);
const _: () = assert!(FREE_SHIFT + FREE_MASK.count_ones() == HELD_SHIFT);
const _: () = assert!(HELD_SHIFT + HELD_MASK.count_ones() == GRANTS_SHIFT);

/// One value of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    /// Grants per carry.
    pub(super) const GRANTS: u64 = 1 << (64 - GRANTS_SHIFT);

    /// `free` permits, none held, open.
    pub(super) fn new(free: u32) -> Self {
        Self((FREE_ZERO as u64 + u64::from(free)) << FREE_SHIFT)
    }

    #[inline]
    pub(super) fn free(self) -> i64 {
        ((self.0 >> FREE_SHIFT) & FREE_MASK) as i64 - FREE_ZERO
    }

    /// Permits that can be granted: zero while permits are owed.
    #[inline]
    pub(super) fn available(self) -> usize {
        self.free().max(0) as usize
    }

    #[inline]
    pub(super) fn held(self) -> u32 {
        ((self.0 >> HELD_SHIFT) & HELD_MASK) as u32
    }

    /// Permits in existence.
    #[inline]
    pub(super) fn capacity(self) -> u32 {
        (self.free() + i64::from(self.held())) as u32
    }

    #[inline]
    pub(super) fn grants(self) -> u64 {
        self.0 >> GRANTS_SHIFT
    }

    #[inline]
    pub(super) fn is_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    #[inline]
    pub(super) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Returns whether no waiter is in line, the semaphore is open, and `n` permits are free.
    #[inline]
    pub(super) fn can_take(self, n: u32) -> bool {
        self.0 & (QUEUED | CLOSED) == 0 && self.free() >= i64::from(n)
    }

    /// Moves `n` from free to held and counts one grant. Requires `can_take(n)`, or an `n` of zero.
    #[inline]
    pub(super) fn take(self, n: u32) -> Self {
        // The count wraps around the top of the word.
        Self(self.transfer(n).0.wrapping_add(GRANTS_ONE))
    }

    /// Moves `n` from free to held; the grant is counted by the line.
    #[inline]
    pub(super) fn transfer(self, n: u32) -> Self {
        Self(self.0 - u64::from(n) * FREE_ONE + u64::from(n) * HELD_ONE)
    }

    /// Moves `n` from held to free.
    #[inline]
    pub(super) fn give(self, n: u32) -> Self {
        Self(self.0 - u64::from(n) * HELD_ONE + u64::from(n) * FREE_ONE)
    }

    /// Adds `n` free permits. Returns `None` if more than `ceiling` would exist.
    #[inline]
    pub(super) fn grow(self, n: u32, ceiling: u32) -> Option<Self> {
        (n <= ceiling.saturating_sub(self.capacity())).then(|| Self(self.0 + u64::from(n) * FREE_ONE))
    }

    /// Removes `n` permits; those that are not free are owed. Returns `None` if fewer than `n` exist.
    pub(super) fn shrink(self, n: u32) -> Option<Self> {
        (n <= self.capacity()).then(|| Self(self.0 - u64::from(n) * FREE_ONE))
    }

    /// Removes `n` held permits. Permits owed beyond those still held are no longer owed.
    pub(super) fn forget(self, n: u32) -> Self {
        let rest = Self(self.0 - u64::from(n) * HELD_ONE);
        let short = -rest.free() - i64::from(rest.held());
        Self(rest.0 + short.max(0) as u64 * FREE_ONE)
    }

    pub(super) fn queued(self, queued: bool) -> Self {
        Self(if queued { self.0 | QUEUED } else { self.0 & !QUEUED })
    }

    pub(super) fn closed(self) -> Self {
        Self(self.0 | CLOSED | QUEUED)
    }
}

/// The word as it is shared.
pub(super) struct AtomicWord(AtomicU64);

impl AtomicWord {
    pub(super) fn new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }

    #[inline]
    pub(super) fn load(&self) -> Word {
        Word(self.0.load(Acquire))
    }

    /// Replaces `current` by `next`. The error is the word that was there instead.
    #[inline]
    pub(super) fn replace(&self, current: Word, next: Word) -> Result<(), Word> {
        self.0.compare_exchange_weak(current.0, next.0, AcqRel, Acquire).map(drop).map_err(Word)
    }

    /// Adds the difference between `from` and `to`. Other threads may have changed fields meanwhile: each field is summed
    /// by itself. Returns the new word.
    #[inline]
    pub(super) fn shift(&self, from: Word, to: Word) -> Word {
        if from == to {
            return to;
        }
        let by = to.0.wrapping_sub(from.0);
        Word(self.0.fetch_add(by, AcqRel).wrapping_add(by))
    }

    /// Moves `n`, which the word must count as held, from held to free. Returns the word before.
    ///
    /// One addition that cannot fail: a load and a compare-and-swap would fetch the word's cache line from another core
    /// twice.
    #[inline]
    pub(super) fn give(&self, n: u32) -> Word {
        let by = (u64::from(n) * FREE_ONE).wrapping_sub(u64::from(n) * HELD_ONE);
        let before = Word(self.0.fetch_add(by, AcqRel));
        debug_assert!(before.held() >= n, "given back before it was counted as held");
        before
    }

    /// Applies `change` to the current word, again if another thread changes it meanwhile. Returns the word before and
    /// after, or, if `change` returns `None`, an error with the unchanged word.
    #[inline]
    pub(super) fn update(&self, mut change: impl FnMut(Word) -> Option<Word>) -> Result<(Word, Word), Word> {
        let mut current = self.load();
        loop {
            let next = change(current).ok_or(current)?;
            match self.replace(current, next) {
                Ok(()) => return Ok((current, next)),
                Err(actual) => current = actual,
            }
        }
    }
}
