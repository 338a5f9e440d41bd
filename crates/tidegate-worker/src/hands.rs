//! The tasks in flight: received and not yet settled. Each is a guard that settles itself when it is dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use tidegate_sync::{Event, Queue};

use crate::broker::{Settlement, Tag, TaskResult, Verdict};
use crate::middleware::TaskInfo;
use crate::mode::{StopReason, StopSignal};
use crate::outcome::{Decision, OutcomeKind};
use crate::task::{Task, TaskId};

/// The data of a task in flight. It is boxed and stays in place until the task is settled.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) info: TaskInfo,
    /// `None` once it runs, or if it could not be read.
    pub(crate) task: Option<Task>,
}

/// A settlement on its way to the broker.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) tag: Tag,
    pub(crate) verdict: Verdict,
    pub(crate) result: Option<Box<TaskResult>>,
    pub(crate) kind: OutcomeKind,
    pub(crate) known: Box<Known>,
}

impl Ending {
    pub(crate) fn settlement(&self) -> Settlement {
        Settlement { tag: self.tag, verdict: self.verdict.clone(), result: self.result.as_deref().cloned() }
    }
}

/// What a connection has to write. Bounded by the prefetch: only what was received can end.
#[derive(Debug)]
pub(crate) struct Acks {
    /// The connection's number, because tags of two connections may be equal.
    connection: usize,
    queue: Queue<Ending>,
    /// Pushed and not yet answered by the broker.
    unanswered: Cell<usize>,
    /// Set while `unanswered` is zero.
    none: Event,
}

impl Acks {
    pub(crate) fn new(connection: usize) -> Acks {
        let none = Event::new();
        none.set();
        Acks { connection, queue: Queue::unbounded(), unanswered: Cell::new(0), none }
    }

    fn push(&self, ending: Ending) {
        self.unanswered.set(self.unanswered.get() + 1);
        self.none.clear();
        // The queue is closed if a stop ran out of time; the broker then returns the unsettled task to its queue.
        let _ = self.queue.try_push(ending);
    }

    /// Waits for settlements, then swaps all of them with `into`, which is empty. Returns `false` if there will be no more.
    pub(crate) async fn take(&self, into: &mut VecDeque<Ending>) -> bool {
        self.queue.recv_all_into(into).await.is_ok()
    }

    pub(crate) fn answered(&self, count: usize) {
        self.unanswered.set(self.unanswered.get().saturating_sub(count));
        if self.unanswered.get() == 0 {
            self.none.set();
        }
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.get()
    }

    /// Waits until the broker has answered everything.
    pub(crate) async fn settled(&self) {
        while self.unanswered.get() > 0 {
            self.none.wait().await;
        }
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }
}

/// All tasks in flight, to be reached by revokes, lost leases and stops. A slab with a free list, so that nothing is hashed.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    places: RefCell<Vec<Option<Reach>>>,
    free: RefCell<Vec<usize>>,
    /// Stop signals of settled tasks. One that is unset and has no other owner is reused for the next task.
    spare: RefCell<Vec<Rc<StopSignal>>>,
    /// Boxes of settled tasks, reused for the next ones.
    #[expect(clippy::vec_box, reason = "it is the boxes that are kept")]
    memory: RefCell<Vec<Box<Known>>>,
}

/// Boxes that are kept at most.
const MEMORY_MAX: usize = 1_024;

/// How to reach a task in flight.
#[derive(Debug)]
struct Reach {
    tag: Tag,
    connection: usize,
    id: TaskId,
    stop: Rc<StopSignal>,
    /// Since when it runs; `None` while it waits for a slot or a limit.
    begun: Option<Instant>,
}

impl Hands {
    /// Adds a received task.
    pub(crate) fn take(self: &Rc<Self>, tag: Tag, known: Known, acks: &Rc<Acks>) -> Held {
        let spare = self.spare.borrow_mut().pop();
        let unused = |stop: &Rc<StopSignal>| Rc::strong_count(stop) == 1 && stop.reason().is_none();
        let stop = spare.filter(unused).unwrap_or_default();
        let (connection, id) = (acks.connection, known.info.id.clone());
        let memory = self.memory.borrow_mut().pop();
        let known = match memory {
            Some(mut place) => {
                *place = known;
                place
            }
            None => Box::new(known),
        };
        let reach = Reach { tag, connection, id, stop: Rc::clone(&stop), begun: None };
        let mut places = self.places.borrow_mut();
        let place = match self.free.borrow_mut().pop() {
            Some(place) => {
                places[place] = Some(reach);
                place
            }
            None => {
                places.push(Some(reach));
                places.len() - 1
            }
        };
        Held { tag, place, stop, known: Some(known), acks: Rc::clone(acks), hands: Rc::clone(self) }
    }

    /// Keeps the box of a settled task for reuse.
    pub(crate) fn keep(&self, known: Box<Known>) {
        let mut memory = self.memory.borrow_mut();
        if memory.len() < MEMORY_MAX {
            memory.push(known);
        }
    }

    /// Lists the running tasks with their start, and the waiting ones.
    #[cfg(feature = "amqp")]
    pub(crate) fn list(&self) -> Vec<(TaskId, Option<Instant>)> {
        self.places.borrow().iter().flatten().map(|reach| (reach.id.clone(), reach.begun)).collect()
    }

    /// The number of tasks in flight.
    pub(crate) fn len(&self) -> usize {
        self.places.borrow().len() - self.free.borrow().len()
    }

    /// Asks the runs of this task to end. A linear search, because revokes are rare.
    pub(crate) fn revoke(&self, id: &TaskId) -> usize {
        self.tell(StopReason::Revoked, |reach| reach.id == *id)
    }

    /// As [`revoke`](Self::revoke), but a task that runs goes on.
    #[cfg(feature = "amqp")]
    pub(crate) fn revoke_waiting(&self, id: &TaskId) -> usize {
        self.tell(StopReason::Revoked, |reach| reach.id == *id && reach.begun.is_none())
    }

    /// Ends the run of a delivery that another worker has now.
    pub(crate) fn lost(&self, acks: &Acks, tag: Tag) -> usize {
        self.tell(StopReason::Stopping, |reach| reach.tag == tag && reach.connection == acks.connection)
    }

    /// Asks tasks that have not begun to end, and running ones too if `running` is set.
    pub(crate) fn stop(&self, running: bool) -> usize {
        self.tell(StopReason::Stopping, |reach| running || reach.begun.is_none())
    }

    fn tell(&self, reason: StopReason, whom: impl Fn(&Reach) -> bool) -> usize {
        let places = self.places.borrow();
        let told: Vec<Rc<StopSignal>> =
            places.iter().flatten().filter(|reach| whom(reach)).map(|reach| Rc::clone(&reach.stop)).collect();
        // Setting a signal wakes a task, so no cell may be borrowed here.
        drop(places);
        told.iter().for_each(|stop| stop.set(reason));
        told.len()
    }

    fn forget(&self, place: usize) {
        let reach = self.places.borrow_mut()[place].take();
        self.free.borrow_mut().push(place);
        self.spare.borrow_mut().extend(reach.map(|reach| reach.stop));
    }
}

/// A task in flight. If it is dropped, the task returns to its queue.
#[must_use = "dropping it returns the task to its queue"]
pub(crate) struct Held {
    tag: Tag,
    place: usize,
    stop: Rc<StopSignal>,
    /// `None` once it is settled.
    known: Option<Box<Known>>,
    acks: Rc<Acks>,
    hands: Rc<Hands>,
}

impl Held {
    pub(crate) fn info(&self) -> &TaskInfo {
        &self.known.as_ref().expect("there until it is settled").info
    }

    /// The task, for its run.
    pub(crate) fn take_task(&mut self) -> Option<Task> {
        self.known.as_mut().and_then(|known| known.task.take())
    }

    pub(crate) fn stop(&self) -> &Rc<StopSignal> {
        &self.stop
    }

    /// Marks it as running: from here on only a cancelling stop ends it.
    pub(crate) fn begin(&self, now: Instant) {
        if let Some(reach) = &mut self.hands.places.borrow_mut()[self.place] {
            reach.begun = Some(now);
        }
    }

    pub(crate) fn settle(mut self, decision: Decision, kind: OutcomeKind) {
        self.end(decision.verdict, decision.result.map(Box::new), kind);
    }

    fn end(&mut self, verdict: Verdict, result: Option<Box<TaskResult>>, kind: OutcomeKind) {
        if let Some(known) = self.known.take() {
            self.hands.forget(self.place);
            self.acks.push(Ending { tag: self.tag, verdict, result, kind, known });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end(Verdict::Return, None, OutcomeKind::Cancelled);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("tag", &self.tag).field("known", &self.known).finish_non_exhaustive()
    }
}
