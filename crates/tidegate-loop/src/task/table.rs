//! The loop's tasks by name. The loop owns them: a task stays here until it ends, however many references there are.

use std::future::Future;
use std::panic::Location;

use super::raw::{Judge, TaskRef};
use crate::context::Snapshot;
use crate::mailbox::name::{Generation, Name, SLOTS_MAX};

struct TaskSlot {
    task: Option<TaskRef>,
    state: SlotState,
}

/// Slot occupancy in one word: the occupant's `Name`, with `QUEUED` set while it is in the ready queue; or `FREE`, the next
/// generation and the next free slot. Waking a task is one compare and one store on this word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SlotState(u64);

impl SlotState {
    const QUEUED: u64 = (Name::NO_LOOP + 1) << Name::LOOP_SHIFT;
    const FREE: u64 = Name::NO_LOOP << Name::LOOP_SHIFT;

    /// The task of that name, which is not in the ready queue.
    #[inline]
    fn idle(name: Name) -> SlotState {
        SlotState(name.bits())
    }

    /// The task of that name, which is in the ready queue, or about to take its first step without.
    #[inline]
    fn queued(name: Name) -> SlotState {
        SlotState(name.bits() | SlotState::QUEUED)
    }

    /// An empty slot: its next occupant gets that generation, and `next` is the next free slot.
    #[inline]
    fn free(generation: Generation, next: u32) -> SlotState {
        SlotState(SlotState::FREE | Name::new(0, next, generation).bits())
    }

    /// What a free slot was given.
    #[inline]
    fn parts(self) -> (Generation, u32) {
        let name = Name::from_bits(self.0).expect("the word of a free slot is not 0");
        (name.generation(), name.slot())
    }
}

const NONE: u32 = Name::NO_SLOT;

pub(crate) struct TaskTable {
    slots: Vec<TaskSlot>,
    /// Freed slots wait in line: reusing the latest first would wrap a hot slot's generation within seconds.
    free_head: u32,
    free_tail: u32,
    loop_id: u16,
    loop_serial: u32,
    first_generation: Generation,
    alive: usize,
    /// Tasks made so far.
    made: u32,
}

impl TaskTable {
    pub(crate) fn new(loop_id: u16, loop_serial: u32, first_generation: Generation) -> TaskTable {
        TaskTable {
            slots: Vec::new(),
            free_head: NONE,
            free_tail: NONE,
            loop_id,
            loop_serial,
            first_generation,
            alive: 0,
            made: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.alive
    }

    #[inline]
    fn slot(&mut self, name: Name) -> Option<&mut TaskSlot> {
        let slot = self.slots.get_mut(name.slot() as usize)?;
        (slot.state == SlotState::idle(name) || slot.state == SlotState::queued(name)).then_some(slot)
    }

    #[inline]
    pub(crate) fn get(&mut self, name: Name) -> Option<&TaskRef> {
        self.slot(name)?.task.as_ref()
    }

    /// Marks the task as queued. Returns `false` if it was already, or has ended.
    #[inline]
    pub(crate) fn queue(&mut self, name: Name) -> bool {
        match self.slots.get_mut(name.slot() as usize) {
            Some(slot) if slot.state == SlotState::idle(name) => {
                slot.state = SlotState::queued(name);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_queued(&mut self, name: Name) -> bool {
        self.slots.get(name.slot() as usize).is_some_and(|slot| slot.state == SlotState::queued(name))
    }

    /// The task's turn has come: it is no longer queued. `None`: it has ended meanwhile.
    #[inline]
    pub(crate) fn dequeue(&mut self, name: Name) -> Option<&TaskRef> {
        let slot = self.slots.get_mut(name.slot() as usize)?;
        if slot.state != SlotState::queued(name) {
            return None;
        }
        slot.state = SlotState::idle(name);
        slot.task.as_ref()
    }

    /// Makes sure that there is a free slot.
    ///
    /// # Panics
    /// When the table is full.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        if self.free_head == NONE {
            self.add_slot();
        }
    }

    /// Makes a task of that future and keeps it; call `make_room` before. The task is marked as queued: the caller pushes it
    /// to the ready queue, or takes its first step at once.
    #[inline]
    pub(crate) fn insert<F, J>(&mut self, future: F, location: &'static Location<'static>, context: Snapshot) -> TaskRef
    where
        F: Future + 'static,
        J: Judge<F::Output>,
    {
        let index = self.free_slot();
        self.made = self.made.wrapping_add(1);
        self.alive += 1;
        let slot = &mut self.slots[index as usize];
        let name = Name::new(self.loop_id, index, slot.state.parts().0);
        let (ours, theirs) = TaskRef::new_pair::<F, J>(future, name, self.loop_serial, self.made, location, context);
        slot.task = Some(ours);
        slot.state = SlotState::queued(name);
        theirs
    }

    #[inline]
    fn free_slot(&mut self) -> u32 {
        let index = self.free_head;
        self.free_head = self.slots[index as usize].state.parts().1;
        if self.free_head == NONE {
            self.free_tail = NONE;
        }
        index
    }

    #[cold]
    fn add_slot(&mut self) {
        assert!(self.slots.len() < SLOTS_MAX, "a loop holds at most {SLOTS_MAX} tasks; let some end first");
        let index = self.slots.len() as u32;
        self.slots.push(TaskSlot { task: None, state: SlotState::free(self.first_generation, NONE) });
        (self.free_head, self.free_tail) = (index, index);
    }

    /// The task leaves; its name is stale from here on. The caller drops it, outside of the table.
    #[inline]
    pub(crate) fn remove(&mut self, name: Name) -> Option<TaskRef> {
        let slot = self.slot(name)?;
        let task = slot.task.take();
        slot.state = SlotState::free(name.generation().next(), NONE);
        let index = name.slot();
        if self.free_tail == NONE {
            self.free_head = index;
        } else {
            let tail = &mut self.slots[self.free_tail as usize].state;
            *tail = SlotState::free(tail.parts().0, index);
        }
        self.free_tail = index;
        self.alive -= 1;
        task
    }

    /// Every task, in the order they were made.
    pub(crate) fn all(&self) -> Vec<TaskRef> {
        let mut tasks: Vec<TaskRef> = self.slots.iter().filter_map(|slot| slot.task.clone()).collect();
        tasks.sort_by_key(|task| task.number);
        tasks
    }
}
