//! The ready queue: first in, first out. An entry is one machine word, because every switch between
//! tasks writes one and reads one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::rc::Rc;

use crate::kernel::loop_cell::Local;
use crate::kernel::timers::TimerKey;
use crate::mailbox::name::Name;
use crate::reactor::IoCallback;
use crate::runtime::callback::Callback;

/// One entry in a word. Top 12 bits: a loop id (then the word is a task's `Name`), `TIMER` (the rest is a `TimerKey`), or
/// `CALL` (the callback is the next in `calls`).
#[derive(Clone, Copy)]
struct ReadyEntry(NonZeroU64);

impl ReadyEntry {
    fn is_task(self) -> bool {
        self.0.get() >> KIND_SHIFT < TIMER
    }
}

const KIND_SHIFT: u32 = Name::LOOP_SHIFT;
const TIMER: u64 = Name::NO_LOOP;
const CALL: u64 = Name::NO_LOOP + 1;
const TIMER_WORD: NonZeroU64 = NonZeroU64::new(TIMER << KIND_SHIFT).unwrap();
const CALL_WORD: NonZeroU64 = NonZeroU64::new(CALL << KIND_SHIFT).unwrap();
/// What fills places that are not in use; never popped.
const UNUSED: ReadyEntry = ReadyEntry(CALL_WORD);

/// A place in the line, counted from the loop's first entry.
pub(crate) type QueueIndex = usize;

/// A ring of places. Written here rather than taken from `VecDeque`, because a switch pays for every instruction of it: places
/// are counted on and never wrap, so that going round is a mask, and the end of a batch a number to compare with.
struct Ring {
    /// Always a power of two of them, and at least one.
    places: Box<[ReadyEntry]>,
    head: QueueIndex,
    /// Never more than `places.len()` past the head.
    tail: QueueIndex,
}

impl Ring {
    fn new() -> Ring {
        Ring { places: [UNUSED; 64].into(), head: 0, tail: 0 }
    }

    #[inline]
    fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    fn index(&self, place: QueueIndex) -> usize {
        place & (self.places.len() - 1)
    }

    fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).map(|nth| self.index(self.head.wrapping_add(nth)))
    }

    /// Returns `false` if there is no room; then `wanted` is not called.
    #[inline]
    fn push_if(&mut self, entry: ReadyEntry, wanted: impl FnOnce() -> bool) -> bool {
        if self.len() == self.places.len() {
            return false;
        }
        if !wanted() {
            return true;
        }
        let at = self.index(self.tail);
        // SAFETY: a number of fewer bits than the length, which is a power of two, is below it.
        unsafe { *self.places.get_unchecked_mut(at) = entry };
        self.tail = self.tail.wrapping_add(1);
        true
    }

    #[inline]
    fn push(&mut self, entry: ReadyEntry) {
        if !self.push_if(entry, || true) {
            self.grow();
            self.push_if(entry, || true);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut larger = Ring { places: vec![UNUSED; self.places.len() * 2].into(), ..*self };
        for place in (0..self.len()).map(|nth| self.head.wrapping_add(nth)) {
            let at = larger.index(place);
            larger.places[at] = self.places[self.index(place)];
        }
        *self = larger;
    }

    #[inline]
    fn pop(&mut self, end: QueueIndex) -> Option<ReadyEntry> {
        if self.head == end {
            return None;
        }
        // SAFETY: as in `push`.
        let entry = unsafe { *self.places.get_unchecked(self.index(self.head)) };
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// How many there were. The head stays: it counts what has run.
    fn clear(&mut self) -> usize {
        let count = self.len();
        self.tail = self.head;
        count
    }
}

/// Callbacks run in the order they were queued, so an entry need not say which one it stands for.
enum Call {
    Once(Rc<Callback>),
    Io(Rc<IoCallback>),
}

/// Something whose turn has come.
pub(crate) enum ReadyItem {
    Task(Name),
    Timer(TimerKey),
    Call(Rc<Callback>),
    Io(Rc<IoCallback>),
}

pub(crate) struct ReadyQueue {
    entries: Local<Ring>,
    /// One for every `CALL` among the entries.
    calls: RefCell<VecDeque<Call>>,
}

impl ReadyQueue {
    pub(crate) fn new() -> ReadyQueue {
        ReadyQueue { entries: Local::new(Ring::new()), calls: RefCell::default() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { self.entries.with(|entries| entries.len()) }
    }

    #[inline]
    pub(crate) fn push_task(&self, name: Name) {
        self.push(ReadyEntry(name.word()));
    }

    /// Pushes the task if `wanted` returns `true`; `wanted` must not use this queue. Returns `false` if there is no room
    /// without an allocation.
    #[inline(always)]
    pub(crate) fn push_task_if(&self, name: Name, wanted: impl FnOnce() -> bool) -> bool {
        // SAFETY: entries are plain numbers, and `wanted` is the kernel's and does not come back.
        unsafe { self.entries.with(|entries| entries.push_if(ReadyEntry(name.word()), wanted)) }
    }

    #[inline]
    pub(crate) fn push_timer(&self, key: TimerKey) {
        self.push(ReadyEntry(TIMER_WORD | key.bits()));
    }

    pub(crate) fn push_call(&self, callback: Rc<Callback>) {
        self.calls.borrow_mut().push_back(Call::Once(callback));
        self.push(ReadyEntry(CALL_WORD));
    }

    pub(crate) fn push_io(&self, callback: Rc<IoCallback>) {
        self.calls.borrow_mut().push_back(Call::Io(callback));
        self.push(ReadyEntry(CALL_WORD));
    }

    #[inline]
    fn push(&self, entry: ReadyEntry) {
        // SAFETY: entries are plain numbers.
        unsafe { self.entries.with(|entries| entries.push(entry)) }
    }

    /// Where the line begins now: how many entries have run.
    #[inline]
    pub(crate) fn begin(&self) -> QueueIndex {
        // SAFETY: reads a number.
        unsafe { self.entries.with(|entries| entries.head) }
    }

    /// Where it ends now.
    #[inline]
    pub(crate) fn end(&self) -> QueueIndex {
        // SAFETY: reads a number.
        unsafe { self.entries.with(|entries| entries.tail) }
    }

    /// The next in line, if it stands before `end`.
    #[inline]
    pub(crate) fn pop(&self, end: QueueIndex) -> Option<ReadyItem> {
        // SAFETY: entries are plain numbers.
        let ReadyEntry(word) = unsafe { self.entries.with(|entries| entries.pop(end))? };
        let bits = word.get();
        Some(match bits >> KIND_SHIFT {
            ..TIMER => ReadyItem::Task(Name::from_word(word)),
            TIMER => ReadyItem::Timer(TimerKey::from_bits(bits & !(TIMER << KIND_SHIFT))),
            _ => match self.calls.borrow_mut().pop_front().expect("a callback for every entry of its kind") {
                Call::Once(callback) => ReadyItem::Call(callback),
                Call::Io(callback) => ReadyItem::Io(callback),
            },
        })
    }

    /// Permutes the tasks among the places tasks have; callbacks and timers keep theirs, because their order is
    /// promised. `pick` draws a number below its argument.
    pub(crate) fn shuffle_tasks(&self, mut pick: impl FnMut(usize) -> usize) {
        let shuffle = |entries: &mut Ring| {
            let places: Vec<usize> = entries.indices().filter(|&at| entries.places[at].is_task()).collect();
            for last in (1..places.len()).rev() {
                entries.places.swap(places[last], places[pick(last + 1)]);
            }
        };
        // SAFETY: entries are plain numbers, and `pick` is a generator of the kernel's.
        unsafe { self.entries.with(shuffle) }
    }

    /// Forgets everything. What holds foreign code comes back for the caller to drop, and whether there was anything.
    pub(crate) fn clear(&self) -> (bool, impl Sized + use<>) {
        // SAFETY: entries are plain numbers.
        let count = unsafe { self.entries.with(Ring::clear) };
        (count > 0, self.calls.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u64) -> ReadyEntry {
        ReadyEntry(NonZeroU64::new(n + 1).unwrap())
    }

    fn drain(ring: &mut Ring, end: QueueIndex) -> Vec<u64> {
        std::iter::from_fn(|| ring.pop(end)).map(|entry| entry.0.get() - 1).collect()
    }

    #[test]
    fn a_ring_that_grows_in_the_middle_of_a_batch_keeps_the_order_and_the_end() {
        let mut ring = Ring::new();
        // Off the beginning, so that growing has to unwind a line that goes round.
        (0..40).for_each(|n| ring.push(entry(n)));
        let end = ring.tail;
        assert_eq!(drain(&mut ring, end), (0..40).collect::<Vec<_>>());

        (0..60).for_each(|n| ring.push(entry(n)));
        let end = ring.tail;
        (60..200).for_each(|n| ring.push(entry(n)));
        assert_eq!(ring.len(), 200);
        assert_eq!(drain(&mut ring, end), (0..60).collect::<Vec<_>>());
        let end = ring.tail;
        assert_eq!(drain(&mut ring, end), (60..200).collect::<Vec<_>>());
    }

    #[test]
    fn places_are_counted_on_past_the_largest_number() {
        let mut ring = Ring::new();
        (ring.head, ring.tail) = (QueueIndex::MAX - 10, QueueIndex::MAX - 10);
        (0..100).for_each(|n| ring.push(entry(n)));
        let end = ring.tail;
        assert_eq!(drain(&mut ring, end), (0..100).collect::<Vec<_>>());
    }
}
