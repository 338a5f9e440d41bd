//! Names for what the kernel works on: a slot and its generation, packed into the word that comes back with every
//! completion. A completion that carries the name of an operation that is gone is ignored.

use std::mem;

/// A slot's index and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

/// What a completion is about. The discriminant is part of the kernel's word, so it never is all ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A cancellation: its own completion is ignored, its effect shows in the completion of what it cancelled.
    Nothing = 0,
    Poll = 1,
    Accept = 2,
    Receive = 3,
    Send = 4,
}

const GENERATION_BITS: u32 = 24;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

impl Key {
    pub(super) fn word(self, kind: Kind) -> u64 {
        (kind as u64) << 56 | u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The kind and the key of a word; an unknown kind was not made by this ring.
    pub(super) fn parse(word: u64) -> (Kind, Key) {
        let kind = match word >> 56 {
            1 => Kind::Poll,
            2 => Kind::Accept,
            3 => Kind::Receive,
            4 => Kind::Send,
            _ => Kind::Nothing,
        };
        (kind, Key { index: word as u32, generation: (word >> 32) as u32 & GENERATION_MASK })
    }
}

/// A table whose keys go stale when their entry leaves.
pub(super) struct Slots<T> {
    slots: Vec<RingSlot<T>>,
    /// The first vacant slot, which leads to the others.
    free: Option<u32>,
    taken: usize,
}

struct RingSlot<T> {
    /// Of the entry that is here, or of the next one.
    generation: u32,
    state: RingSlotState<T>,
}

enum RingSlotState<T> {
    Taken(T),
    Vacant { next: Option<u32> },
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: None, taken: 0 }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    pub(super) fn insert(&mut self, entry: T) -> Key {
        self.taken += 1;
        let Some(index) = self.free else {
            let index =
                u32::try_from(self.slots.len()).expect("fewer operations than descriptors, of which 2^31 exist");
            self.slots.push(RingSlot { generation: 0, state: RingSlotState::Taken(entry) });
            return Key { index, generation: 0 };
        };
        let slot = &mut self.slots[index as usize];
        if let RingSlotState::Vacant { next } = mem::replace(&mut slot.state, RingSlotState::Taken(entry)) {
            self.free = next;
        }
        Key { index, generation: slot.generation }
    }

    #[inline]
    pub(super) fn get(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize) {
            Some(RingSlot { generation, state: RingSlotState::Taken(entry) }) if *generation == key.generation => {
                Some(entry)
            }
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let slot = &mut self.slots[key.index as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        let RingSlotState::Taken(entry) = mem::replace(&mut slot.state, RingSlotState::Vacant { next: self.free })
        else {
            return None;
        };
        self.free = Some(key.index);
        self.taken -= 1;
        Some(entry)
    }

    /// The keys of all that are there.
    pub(super) fn keys(&self) -> Vec<Key> {
        let taken = self.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.state, RingSlotState::Taken(_)));
        taken.map(|(index, slot)| Key { index: index as u32, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_made() {
        let key = Key { index: 0xFFFF_FFF0, generation: GENERATION_MASK };
        for kind in [Kind::Nothing, Kind::Poll, Kind::Accept, Kind::Receive, Kind::Send] {
            assert_eq!(Key::parse(key.word(kind)), (kind, key));
        }
    }

    #[test]
    fn stale_keys_find_nobody_though_the_slot_is_taken_again() {
        let mut slots = Slots::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&mut "second"));
        assert_eq!((slots.len(), slots.keys()), (1, vec![second]));
    }
}
