//! The semaphore's one word: how many permits are free, how many are held, and whether the fast
//! path is open. One word, so that the numbers agree with each other at every instant.
//!
//! ```text
//!  63..61  grants   counts grants modulo 8; a carry every 8 keeps the exact total elsewhere
//!  60..32  held     permits in somebody's hands
//!  31..2   free     permits in nobody's hands, offset by MAX_PERMITS: negative means owed
//!   1      CLOSED
//!   0      QUEUED   somebody is in line, or it is closed: only the lock's holder may take from `free`,
//!                   and whoever has added to it serves the line
//! ```
//!
//! Always `-held <= free` and `free + held <= MAX_PERMITS`, so no field runs into its neighbour.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::sync::AtomicU64;

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

    /// `free` permits and nothing else.
    pub(super) fn new(free: u32) -> Self {
        Self((FREE_ZERO as u64 + u64::from(free)) << FREE_SHIFT)
    }

    #[inline]
    pub(super) fn free(self) -> i64 {
        ((self.0 >> FREE_SHIFT) & FREE_MASK) as i64 - FREE_ZERO
    }

    /// What can be handed out: zero while permits are owed.
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

    /// Nobody is in line, it is open, and there are `n` to be had.
    #[inline]
    pub(super) fn can_take(self, n: u32) -> bool {
        self.0 & (QUEUED | CLOSED) == 0 && self.free() >= i64::from(n)
    }

    /// `n` from free to held, counted as one grant. For `can_take(n)`, or `n` of zero.
    #[inline]
    pub(super) fn take(self, n: u32) -> Self {
        // The count wraps around the top of the word.
        Self(self.transfer(n).0.wrapping_add(GRANTS_ONE))
    }

    /// `n` from free to held, counted elsewhere.
    #[inline]
    pub(super) fn transfer(self, n: u32) -> Self {
        Self(self.0 - u64::from(n) * FREE_ONE + u64::from(n) * HELD_ONE)
    }

    /// `n` from held to free.
    #[inline]
    pub(super) fn give(self, n: u32) -> Self {
        Self(self.0 - u64::from(n) * HELD_ONE + u64::from(n) * FREE_ONE)
    }

    /// `n` more, free, if no more than `ceiling` then exist.
    #[inline]
    pub(super) fn grow(self, n: u32, ceiling: u32) -> Option<Self> {
        (n <= ceiling.saturating_sub(self.capacity())).then(|| Self(self.0 + u64::from(n) * FREE_ONE))
    }

    /// `n` fewer at once; what is not free is owed. `None` if there are not as many.
    pub(super) fn shrink(self, n: u32) -> Option<Self> {
        (n <= self.capacity()).then(|| Self(self.0 - u64::from(n) * FREE_ONE))
    }

    /// `n` of the held cease to exist. What was owed beyond those still held is forgiven.
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

    /// Replaces `current` by `next`; the error is what was there instead.
    #[inline]
    pub(super) fn replace(&self, current: Word, next: Word) -> Result<(), Word> {
        self.0.compare_exchange_weak(current.0, next.0, AcqRel, Acquire).map(drop).map_err(Word)
    }

    /// Changes the word by whatever lies between `from` and `to`, though another field may have
    /// been changed meanwhile; the fields are summed, each for itself. Returns the word as it is now.
    #[inline]
    pub(super) fn shift(&self, from: Word, to: Word) -> Word {
        if from == to {
            return to;
        }
        let by = to.0.wrapping_sub(from.0);
        Word(self.0.fetch_add(by, AcqRel).wrapping_add(by))
    }

    /// `n` from held to free, whatever is there; what was there comes back. One write that cannot fail, where reading
    /// first and then comparing would fetch the word from another core twice.
    ///
    /// The word must have counted the `n` as held.
    #[inline]
    pub(super) fn give(&self, n: u32) -> Word {
        let by = (u64::from(n) * FREE_ONE).wrapping_sub(u64::from(n) * HELD_ONE);
        let before = Word(self.0.fetch_add(by, AcqRel));
        debug_assert!(before.held() >= n, "given back before it was counted as held");
        before
    }

    /// Applies `change` to whatever is there; `None` leaves it. Returns the word before and after.
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
