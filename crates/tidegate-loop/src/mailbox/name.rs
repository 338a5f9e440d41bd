//! Names of tasks: (loop, slot, generation) in one machine word. A waker is such a name and nothing else,
//! so cloning and dropping it does nothing and a stale one is recognised when it is used.

use std::num::NonZeroU64;

/// Sixteen million tasks per loop.
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
const LOOP_BITS: u32 = 12;
const _: () = assert!(SLOT_BITS + GENERATION_BITS + LOOP_BITS == u64::BITS);
const _: () = assert!(usize::BITS == u64::BITS, "a waker's data pointer must hold a whole name");

/// Slots a loop's task table can have. The last number is no slot's.
pub(crate) const SLOTS_MAX: usize = (1 << SLOT_BITS) - 1;
/// Loops that can be alive at one time in a process. The last two ids are no loop's, so that a word can hold a name or
/// something else.
pub(crate) const LOOPS_MAX: usize = (1 << LOOP_BITS) - 2;

/// Never zero: generations start at 1, and that leaves the small numbers to [`Waiting`](crate::task::raw::Waiting).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Name(NonZeroU64);

const _: () = assert!(size_of::<Option<Name>>() == size_of::<u64>());

impl Name {
    /// Where the loop's id begins.
    pub(crate) const LOOP_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;

    /// What no name has in its topmost bits: the first of the ids that are no loop's.
    pub(crate) const NO_LOOP: u64 = LOOPS_MAX as u64;

    /// A number that no slot has.
    pub(crate) const NO_SLOT: u32 = SLOTS_MAX as u32;

    /// The smallest value a name can have; everything below is free for other meanings.
    pub(crate) const MIN: u64 = 1 << SLOT_BITS;

    #[inline]
    pub(crate) fn new(loop_id: u16, slot: u32, generation: Generation) -> Name {
        debug_assert!((loop_id as usize) < LOOPS_MAX && slot <= Name::NO_SLOT);
        let bits = (u64::from(loop_id) << Name::LOOP_SHIFT) | (u64::from(generation.0) << SLOT_BITS) | u64::from(slot);
        Name(NonZeroU64::new(bits).expect("generations start at 1"))
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Option<Name> {
        NonZeroU64::new(bits).map(Name)
    }

    #[inline]
    pub(crate) fn from_word(word: NonZeroU64) -> Name {
        Name(word)
    }

    #[inline]
    pub(crate) fn word(self) -> NonZeroU64 {
        self.0
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn loop_id(self) -> u16 {
        (self.bits() >> Name::LOOP_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        (self.bits() as u32) & ((1 << SLOT_BITS) - 1)
    }

    #[inline]
    pub(crate) fn generation(self) -> Generation {
        Generation((self.bits() >> SLOT_BITS) as u32 & Generation::MASK)
    }
}

/// How often a slot has been used, modulo 2^28 and never 0. It wraps, which is harmless for wakes (a spurious
/// poll); whatever must not be wrong about identity holds a counted reference instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(u32);

impl Generation {
    const MASK: u32 = (1 << GENERATION_BITS) - 1;

    /// Where the `n`th loop of the process starts counting. Loop ids are reused, so two loops of one id must
    /// not start alike: a dead loop's name would wake a stranger.
    pub(crate) fn first(n: u32) -> Generation {
        // An odd multiplier visits every value of the range once before it repeats one.
        Generation((n.wrapping_mul(0x9E37_79B1) & Self::MASK).max(1))
    }

    #[inline]
    pub(crate) fn next(self) -> Generation {
        let next = (self.0 + 1) & Self::MASK;
        Generation(if next == 0 { 1 } else { next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_back_its_parts() {
        let generation = Generation(Generation::MASK);
        let name = Name::new(4093, (SLOTS_MAX - 1) as u32, generation);
        assert_eq!((name.loop_id(), name.slot(), name.generation()), (4093, (SLOTS_MAX - 1) as u32, generation));
        assert_eq!(Name::from_bits(name.bits()), Some(name));
    }

    #[test]
    fn generations_wrap_past_zero() {
        assert_eq!(Generation(Generation::MASK).next(), Generation(1));
        assert!(Name::new(0, 0, Generation(1)).bits() >= Name::MIN);
    }
}
