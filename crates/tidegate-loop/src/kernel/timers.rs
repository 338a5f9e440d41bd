//! The timers: a 4-ary min-heap ordered by (deadline, sequence), with lazy cancellation. Pure: no clock, no loop;
//! what a timer does when it is due is the caller's `J`.

use crate::kernel::clock::Nanos;

/// Entries below which cancelled timers are left where they are, as in asyncio.
pub(crate) const COMPACT_MIN: usize = 100;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const SEQUENCE_MAX: u64 = u64::MAX >> INDEX_BITS;

/// 16 bytes, so that the four children of a node share a cache line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimerEntry {
    when: Nanos,
    /// The sequence number above the index of the timer's slot: equal deadlines fire in the order they were made.
    order: u64,
}

impl TimerEntry {
    fn index(self) -> u32 {
        (self.order & INDEX_MASK) as u32
    }
}

struct TimerSlot<J> {
    /// How often it has been used.
    generation: u32,
    /// `ARMED`: in the heap. `DUE`: taken out of the heap, not yet run. Otherwise it is free: the next free one, or `NONE`.
    link: u32,
    /// Armed: `None` if it was cancelled. Due: there. Free: `None`. Moved in and out word by word, so keep it small.
    job: Option<J>,
}

const NONE: u32 = u32::MAX;
const ARMED: u32 = u32::MAX - 1;
const DUE: u32 = u32::MAX - 2;
const _: () = assert!(INDEX_MASK < DUE as u64);

/// A timer's identity: its slot and how often the slot had been used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimerKey {
    index: u32,
    generation: u32,
}

impl TimerKey {
    const GENERATION_BITS: u32 = 24;

    /// Enough to find a timer that is due: its slot cannot be reused sixteen million times before its turn.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        let generation = self.generation & ((1 << TimerKey::GENERATION_BITS) - 1);
        (u64::from(generation) << INDEX_BITS) | u64::from(self.index)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> TimerKey {
        TimerKey { index: (bits & INDEX_MASK) as u32, generation: (bits >> INDEX_BITS) as u32 }
    }
}

/// Where a new timer stands among those of the same deadline.
#[derive(Clone, Copy)]
pub(crate) struct Sequence(u64);

pub(crate) struct Timers<J> {
    heap: Vec<TimerEntry>,
    slots: Vec<TimerSlot<J>>,
    free: u32,
    /// Cancelled entries that are still in the heap.
    cancelled: usize,
    next_sequence: u64,
}

impl<J> Timers<J> {
    pub(crate) fn new() -> Self {
        Timers { heap: Vec::new(), slots: Vec::new(), free: NONE, cancelled: 0, next_sequence: 0 }
    }

    /// Entries in the heap, cancelled ones included.
    pub(crate) fn scheduled(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled
    }

    /// Takes a place in the order of equal deadlines for a timer that may be armed later.
    #[inline]
    pub(crate) fn reserve(&mut self) -> Sequence {
        if self.next_sequence == SEQUENCE_MAX {
            self.renumber();
        }
        self.next_sequence += 1;
        Sequence(self.next_sequence)
    }

    #[inline(always)]
    pub(crate) fn arm(&mut self, when: Nanos, job: J) -> TimerKey {
        let sequence = self.reserve();
        self.arm_as(when, sequence, job)
    }

    // Part of its caller, so that the job is written where it belongs instead of being handed over in memory.
    #[inline(always)]
    pub(crate) fn arm_as(&mut self, when: Nanos, sequence: Sequence, job: J) -> TimerKey {
        let index = if self.free == NONE { self.add_slot() } else { self.free };
        let slot = &mut self.slots[index as usize];
        self.free = slot.link;
        slot.link = ARMED;
        slot.job = Some(job);
        let key = TimerKey { index, generation: slot.generation };
        self.enter(when, sequence, index);
        key
    }

    fn enter(&mut self, when: Nanos, Sequence(sequence): Sequence, index: u32) {
        self.heap.push(TimerEntry { when, order: (sequence << INDEX_BITS) | u64::from(index) });
        self.sift_up(self.heap.len() - 1);
    }

    /// A free slot that is not yet in the list of free ones.
    #[cold]
    fn add_slot(&mut self) -> u32 {
        assert!(self.slots.len() < INDEX_MASK as usize, "268 million timers are armed; that is all there is room for");
        self.slots.push(TimerSlot { generation: 0, link: NONE, job: None });
        (self.slots.len() - 1) as u32
    }

    /// Cancels; the job comes back for the caller to drop where it is safe to run foreign code. The heap entry stays
    /// until it surfaces or the heap is compacted. `None`: it has run or was cancelled before.
    #[inline(always)]
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<J> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let job = slot.job.take()?;
        match slot.link {
            ARMED => self.cancelled += 1,
            _ => self.release(key.index),
        }
        Some(job)
    }

    /// The job of a timer that has not run and was not cancelled.
    #[inline]
    pub(crate) fn job_mut(&mut self, key: TimerKey) -> Option<&mut J> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        slot.job.as_mut()
    }

    /// The job of a timer that `pop_due` announced, unless it was cancelled since.
    #[inline]
    pub(crate) fn take_due(&mut self, key: TimerKey) -> Option<J> {
        let slot = self.slots.get_mut(key.index as usize)?;
        // Compared as far as the ready queue keeps it.
        let is_it = TimerKey { generation: slot.generation, ..key }.bits() == key.bits();
        if !is_it || slot.link != DUE {
            return None;
        }
        let job = slot.job.take();
        self.release(key.index);
        job
    }

    /// Tidies up as asyncio does before each poll: rebuilds the heap when there are more than a hundred entries and
    /// more than half are cancelled, otherwise drops cancelled ones from the top.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if self.cancelled == 0 {
            return;
        }
        if self.heap.len() > COMPACT_MIN && self.cancelled * 2 > self.heap.len() {
            self.compact();
        } else {
            while let Some(top) = self.heap.first().copied() {
                if self.slots[top.index() as usize].job.is_some() {
                    break;
                }
                self.pop();
                self.cancelled -= 1;
                self.release(top.index());
            }
        }
    }

    /// The earliest deadline. Exact after `tidy`; before, a cancelled timer may still be counted.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.heap.first().map(|entry| entry.when)
    }

    /// Takes the next timer whose deadline has come out of the heap; its job waits for `take_due`.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(TimerKey, Nanos)> {
        loop {
            let top = *self.heap.first()?;
            if top.when > now {
                return None;
            }
            self.pop();
            let slot = &mut self.slots[top.index() as usize];
            debug_assert_eq!(slot.link, ARMED, "what is in the heap is armed");
            if slot.job.is_some() {
                slot.link = DUE;
                return Some((TimerKey { index: top.index(), generation: slot.generation }, top.when));
            }
            self.cancelled -= 1;
            self.release(top.index());
        }
    }

    /// Everything that is still to run, for the caller to drop.
    pub(crate) fn clear(&mut self) -> Vec<J> {
        self.heap.clear();
        self.cancelled = 0;
        self.free = NONE;
        let slots = std::mem::take(&mut self.slots);
        slots.into_iter().filter_map(|slot| slot.job).collect()
    }

    /// The slot's job is gone.
    #[inline]
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.job.is_none());
        slot.generation = slot.generation.wrapping_add(1);
        slot.link = self.free;
        self.free = index;
    }

    /// Drops every cancelled entry and builds the heap again from the bottom up, in O(n).
    fn compact(&mut self) {
        let mut kept = std::mem::take(&mut self.heap);
        kept.retain(|entry| {
            let alive = self.slots[entry.index() as usize].job.is_some();
            if !alive {
                self.release(entry.index());
            }
            alive
        });
        self.heap = kept;
        self.cancelled = 0;
        self.heapify();
    }

    fn heapify(&mut self) {
        if self.heap.len() > 1 {
            for parent in (0..=(self.heap.len() - 2) / 4).rev() {
                self.sift_down(parent);
            }
        }
    }

    /// Sequence numbers last for 68 thousand million timers; then the live ones are numbered afresh, in order.
    #[cold]
    fn renumber(&mut self) {
        self.heap.sort_unstable();
        for (sequence, entry) in self.heap.iter_mut().enumerate() {
            entry.order = ((sequence as u64) << INDEX_BITS) | u64::from(entry.index());
        }
        self.next_sequence = self.heap.len() as u64;
    }

    #[inline]
    fn pop(&mut self) {
        let last = self.heap.pop().expect("the caller has seen the top");
        if let Some(top) = self.heap.first_mut() {
            *top = last;
            self.sift_down(0);
        }
    }

    #[inline]
    fn sift_up(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.heap[parent] <= entry {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    #[inline]
    fn sift_down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let first = at * 4 + 1;
            if first >= self.heap.len() {
                break;
            }
            let last = (first + 4).min(self.heap.len());
            let mut least = first;
            for child in first + 1..last {
                if self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if entry <= self.heap[least] {
                break;
            }
            self.heap[at] = self.heap[least];
            at = least;
        }
        self.heap[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(timers: &mut Timers<u32>, now: Nanos) -> Vec<u32> {
        let mut jobs = Vec::new();
        while let Some((key, _)) = timers.pop_due(now) {
            jobs.push(timers.take_due(key).expect("just popped"));
        }
        jobs
    }

    #[test]
    fn equal_deadlines_fire_in_the_order_they_were_armed() {
        let mut timers = Timers::new();
        for job in 0..1000 {
            timers.arm(Nanos::from(job % 7), job);
        }
        let mut expected: Vec<u32> = (0..1000).collect();
        expected.sort_by_key(|job| job % 7);
        assert_eq!(drain(&mut timers, 7), expected);
    }

    #[test]
    fn order_survives_renumbering() {
        let mut timers = Timers::new();
        timers.next_sequence = SEQUENCE_MAX - 3;
        for job in 0..8 {
            timers.arm(5, job);
        }
        assert_eq!(drain(&mut timers, 5), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_reserved_place_comes_before_what_was_armed_later() {
        let mut timers = Timers::new();
        let place = timers.reserve();
        timers.arm(5, 1);
        timers.arm_as(5, place, 0);
        assert_eq!(drain(&mut timers, 5), [0, 1]);
    }

    #[test]
    fn random_arming_and_cancelling_agrees_with_a_sorted_list() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut timers = Timers::new();
        let mut model: Vec<(Nanos, u32, TimerKey)> = Vec::new();
        let mut now = 0;
        for job in 0..20_000 {
            match random(4) {
                0 | 1 => {
                    let when = now + random(500) as Nanos;
                    model.push((when, job, timers.arm(when, job)));
                }
                2 if !model.is_empty() => {
                    let (_, job, key) = model.swap_remove(random(model.len() as u64) as usize);
                    assert_eq!(timers.cancel(key), Some(job));
                    assert_eq!(timers.cancel(key), None);
                }
                _ => {
                    now += random(20) as Nanos;
                    timers.tidy();
                    model.sort_by_key(|&(when, job, _)| (when, job));
                    let due = model.partition_point(|&(when, _, _)| when <= now);
                    let expected: Vec<u32> = model.drain(..due).map(|(_, job, _)| job).collect();
                    assert_eq!(drain(&mut timers, now), expected);
                }
            }
            assert!(timers.scheduled() >= model.len());
            assert_eq!(timers.scheduled() - timers.cancelled(), model.len());
        }
    }

    #[test]
    fn a_key_that_has_been_reused_cancels_nothing() {
        let mut timers = Timers::new();
        let old = timers.arm(1, 1);
        assert_eq!(drain(&mut timers, 1), [1]);
        timers.arm(2, 2);
        assert_eq!(timers.cancel(old), None);
        assert_eq!(drain(&mut timers, 2), [2]);
    }
}
