//! The loop's tasks by name. The loop owns them: a task lives here until it ends, whoever else holds it.

use std::future::Future;
use std::panic::Location;

use super::cell::{Judge, TaskRef};
use crate::context::Snapshot;
use crate::name::{Generation, Name, SLOTS_MAX};

struct Slot {
    task: Option<TaskRef>,
    /// Of the task that is here, or of the next one.
    generation: Generation,
    /// Occupied: `IDLE`, or `QUEUED` while the task is in the ready queue. It stands here and not in the task so that
    /// waking one touches nothing else. Free: the next free slot, or `NONE`; never one of the other two.
    link: u32,
}

const NONE: u32 = u32::MAX;
const QUEUED: u32 = u32::MAX - 1;
const IDLE: u32 = u32::MAX - 2;
const _: () = assert!(SLOTS_MAX < IDLE as usize);

pub(crate) struct TaskTable {
    slots: Vec<Slot>,
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
    fn slot(&mut self, name: Name) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(name.slot() as usize)?;
        (slot.generation == name.generation() && slot.task.is_some()).then_some(slot)
    }

    #[inline]
    pub(crate) fn get(&mut self, name: Name) -> Option<&TaskRef> {
        self.slot(name)?.task.as_ref()
    }

    /// Notes that the task is queued. False: it was already, or it has ended.
    #[inline]
    pub(crate) fn queue(&mut self, name: Name) -> bool {
        match self.slots.get_mut(name.slot() as usize) {
            // Idle means that somebody is there, so this need not look.
            Some(slot) if slot.generation == name.generation() && slot.link == IDLE => {
                slot.link = QUEUED;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_queued(&mut self, name: Name) -> bool {
        self.slot(name).is_some_and(|slot| slot.link == QUEUED)
    }

    /// The task's turn has come: it is no longer queued. `None`: it has ended meanwhile.
    #[inline]
    pub(crate) fn dequeue(&mut self, name: Name) -> Option<&TaskRef> {
        let slot = self.slot(name)?;
        slot.link = IDLE;
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

    /// Makes a task of that future and keeps it, after `make_room`.
    #[inline]
    pub(crate) fn insert<F, J>(
        &mut self,
        future: F,
        location: &'static Location<'static>,
        context: Snapshot,
        queued: bool,
    ) -> TaskRef
    where
        F: Future + 'static,
        J: Judge<F::Output>,
    {
        let index = self.free_slot();
        self.made = self.made.wrapping_add(1);
        self.alive += 1;
        let slot = &mut self.slots[index as usize];
        let name = Name::new(self.loop_id, index, slot.generation);
        let (ours, theirs) = TaskRef::new_pair::<F, J>(future, name, self.loop_serial, self.made, location, context);
        slot.task = Some(ours);
        slot.link = if queued { QUEUED } else { IDLE };
        theirs
    }

    #[inline]
    fn free_slot(&mut self) -> u32 {
        let index = self.free_head;
        self.free_head = self.slots[index as usize].link;
        if self.free_head == NONE {
            self.free_tail = NONE;
        }
        index
    }

    #[cold]
    fn add_slot(&mut self) {
        assert!(self.slots.len() < SLOTS_MAX, "a loop holds at most {SLOTS_MAX} tasks; let some end first");
        let index = self.slots.len() as u32;
        self.slots.push(Slot { task: None, generation: self.first_generation, link: NONE });
        (self.free_head, self.free_tail) = (index, index);
    }

    /// The task leaves; its name is stale from here on. The caller drops it, outside of the table.
    #[inline]
    pub(crate) fn remove(&mut self, name: Name) -> Option<TaskRef> {
        let slot = self.slot(name)?;
        let task = slot.task.take();
        slot.generation = slot.generation.next();
        slot.link = NONE;
        let index = name.slot();
        if self.free_tail == NONE {
            self.free_head = index;
        } else {
            self.slots[self.free_tail as usize].link = index;
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
