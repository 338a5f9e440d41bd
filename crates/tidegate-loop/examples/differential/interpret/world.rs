//! What the numbers in a program stand for, and the transcript.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_loop::{
    CallbackId, ContextVars, Deferred, Handle, JoinHandle, LoopHandle, Outcome, Task, TimerHandle, Token,
};

use super::Turns;
use super::exc::{Exc, show};
use super::scopes::Group;
use crate::program::{Place, Program, Start, Ticks};

/// 1/512 s.
const TICK_NANOS: i64 = 1_953_125;
const TASKS_MAX: usize = 24;

/// How a body ends.
pub(crate) type Ended = Result<i64, Exc>;
/// The one claim on a task's result.
pub(crate) type Claim = JoinHandle<Ended>;

/// A task of the program, numbered in the order of spawning.
pub(crate) struct Record {
    pub(crate) number: usize,
    pub(crate) who: String,
    /// Not there yet while the task takes an eager first step.
    task: OnceCell<Task>,
    /// `None` while a statement uses it. A group's child has none: what it fails with is its group's.
    claim: RefCell<Option<Claim>>,
    /// What its body came to. A request in the last step may still make the task a cancelled one.
    pub(crate) ended: RefCell<Option<Ended>>,
}

impl Record {
    fn new(number: usize) -> Rc<Record> {
        Rc::new(Record {
            number,
            who: format!("T{number}"),
            task: OnceCell::new(),
            claim: RefCell::default(),
            ended: RefCell::default(),
        })
    }

    pub(crate) fn task(&self) -> &Task {
        self.task.get().expect("asked for only once the spawning call has returned")
    }

    pub(crate) fn is_known(&self) -> bool {
        self.task.get().is_some()
    }

    fn born(&self, claim: Claim) {
        self.born_in_group(claim.task());
        self.give_back(claim);
    }

    pub(crate) fn born_in_group(&self, task: Task) {
        let fresh = self.task.set(task).is_ok();
        assert!(fresh, "a record has one task");
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claim.borrow().is_none()
    }

    pub(crate) fn claim(&self) -> Option<Claim> {
        self.claim.take()
    }

    pub(crate) fn give_back(&self, claim: Claim) {
        *self.claim.borrow_mut() = Some(claim);
    }

    /// What awaiting the finished task brings.
    pub(crate) fn outcome(&self) -> Ended {
        match self.task().outcome() {
            Some(Outcome::Cancelled) => Err(Exc::Cancelled),
            Some(Outcome::Completed | Outcome::Failed) => {
                self.ended.borrow().clone().expect("a body says how it ended before its task does")
            }
            other => panic!("{} is {other:?}", self.who),
        }
    }

    pub(crate) fn state(&self) -> String {
        match self.task().outcome() {
            None => "pending".into(),
            Some(Outcome::Cancelled) => "cancelled".into(),
            Some(Outcome::Panicked) => format!("PANICKED {:?}", self.task().error()),
            Some(_) => show(&self.outcome()),
        }
    }
}

/// What `call_soon` or a timer returned.
pub(crate) enum AnyHandle {
    Soon(Handle),
    Timer(TimerHandle),
}

/// What setting a variable returned, and which variable it was.
pub(crate) type VarToken = (usize, Token<i64>);

/// A done-callback that can be taken back.
pub(crate) enum Mark {
    Task(Task, CallbackId),
    Future(Deferred<i64>, CallbackId),
}

pub(crate) struct World {
    pub(crate) bodies: Rc<[crate::program::Block]>,
    pub(crate) handle: LoopHandle,
    start: Instant,
    turns: RefCell<Option<Turns>>,
    log: RefCell<Vec<String>>,
    records: RefCell<Vec<Rc<Record>>>,
    pub(crate) tasks: RefCell<Vec<Option<Rc<Record>>>>,
    pub(crate) futures: RefCell<Vec<Deferred<i64>>>,
    pub(crate) handles: RefCell<Vec<Option<AnyHandle>>>,
    pub(crate) marks: RefCell<Vec<Option<Mark>>>,
    pub(crate) tokens: RefCell<Vec<Option<VarToken>>>,
    pub(crate) contexts: RefCell<Vec<Option<ContextVars>>>,
    pub(crate) groups: RefCell<Vec<Option<Group>>>,
    pub(crate) shows_vars: bool,
    /// The tasks each task waits for, by number.
    awaited: RefCell<HashMap<usize, Vec<usize>>>,
}

fn empty<T>(count: usize) -> RefCell<Vec<Option<T>>> {
    RefCell::new((0..count).map(|_| None).collect())
}

impl World {
    pub(crate) fn new(program: &Program, handle: LoopHandle, turns: Option<Turns>) -> Rc<World> {
        let places = program.places;
        Rc::new(World {
            bodies: program.bodies.as_slice().into(),
            start: handle.time(),
            turns: RefCell::new(turns),
            log: RefCell::default(),
            records: RefCell::default(),
            tasks: empty(places.tasks),
            futures: RefCell::new((0..places.futures).map(|_| handle.create_future()).collect()),
            handles: empty(places.handles),
            marks: empty(places.marks),
            tokens: empty(places.tokens),
            contexts: empty(places.contexts),
            groups: empty(places.groups),
            shows_vars: program.shows_vars,
            awaited: RefCell::default(),
            handle,
        })
    }

    pub(crate) fn write(&self, who: &str, what: impl Display) {
        let turn = self.turns.borrow().as_ref().map_or(String::new(), |turns| format!(".{}", turns.0.get()));
        let line = format!("{}{turn} {who} {what}", self.now());
        self.log.borrow_mut().push(line);
    }

    pub(crate) fn stop_counting_turns(&self) {
        self.turns.take();
    }

    /// The transcript; the world is of no use afterwards. What it holds refers back to it, so it lets go.
    pub(crate) fn end(&self) -> Vec<String> {
        self.tasks.take();
        self.records.take();
        self.futures.take();
        self.handles.take();
        self.marks.take();
        self.tokens.take();
        self.contexts.take();
        self.groups.take();
        self.log.take()
    }

    pub(crate) fn now(&self) -> Ticks {
        self.ticks_at(self.handle.time())
    }

    /// The time in ticks; exact, because every delay is a multiple of one.
    pub(crate) fn ticks_at(&self, when: Instant) -> Ticks {
        let nanos = match when.checked_duration_since(self.start) {
            Some(after) => after.as_nanos() as i64,
            None => -((self.start - when).as_nanos() as i64),
        };
        assert_eq!(nanos % TICK_NANOS, 0, "a time between two ticks");
        nanos / TICK_NANOS
    }

    pub(crate) fn instant(&self, ticks: Ticks) -> Instant {
        if ticks < 0 { self.start - span(-ticks) } else { self.start + span(ticks) }
    }

    pub(crate) fn record(&self, number: usize) -> Rc<Record> {
        self.records.borrow()[number].clone()
    }

    pub(crate) fn unfinished(&self) -> Vec<Rc<Record>> {
        self.records.borrow().iter().filter(|record| !record.task().is_finished()).cloned().collect()
    }

    pub(crate) fn write_final(&self) {
        // The main task of a run that was left before its first step is not known.
        for record in self.records.borrow().iter().filter(|record| record.is_known()) {
            let state = record.state();
            let cancelling = record.task().cancelling();
            let may_have_been_closed = self.handle.is_closed() && state == "cancelled";
            let count = if may_have_been_closed { String::new() } else { format!(" cancelling={cancelling}") };
            self.write("loop", format_args!("final {} {state}{count}", record.who));
        }
        for number in 0..self.futures.borrow().len() {
            self.write("loop", format_args!("final F{number} {}", self.future_state(number)));
        }
    }

    /// Starts a body as a task.
    pub(crate) fn spawn(self: &Rc<Self>, who: &str, place: Option<Place>, body: usize, start: Start) {
        let Some(record) = self.next_record(who) else { return };
        self.records.borrow_mut().push(record.clone());
        if let Some(place) = place {
            self.tasks.borrow_mut()[place] = Some(record.clone());
        }
        let context = match start {
            Start::Inside(place) => self.contexts.borrow()[place].clone(),
            Start::Queued | Start::Eager => None,
        };
        let inside = if context.is_some() { " inside" } else { "" };
        self.write(who, format_args!("spawn {}{inside}", record.who));
        let mut builder = self.handle.task().name(record.who.as_str());
        if let Some(context) = &context {
            builder = builder.context(context);
        }
        if start == Start::Eager {
            builder = builder.eager();
        }
        record.born(builder.spawn_fallible(self.clone().task_body(record.clone(), body)));
    }

    /// A record for the main task of a run.
    pub(crate) fn main_record(&self) -> Rc<Record> {
        let mut records = self.records.borrow_mut();
        let record = Record::new(records.len());
        records.push(record.clone());
        record
    }

    /// A body as the main task of a run.
    pub(crate) async fn main_body(self: Rc<Self>, record: Rc<Record>, body: usize) -> Ended {
        record.born_in_group(Task::current());
        self.task_body(record, body).await
    }

    /// A record for one more task, not yet entered; none when there are enough.
    pub(crate) fn next_record(&self, who: &str) -> Option<Rc<Record>> {
        let number = self.records.borrow().len();
        if number == TASKS_MAX {
            self.write(who, "spawn full");
            return None;
        }
        Some(Record::new(number))
    }

    pub(crate) fn enter(&self, record: &Rc<Record>, place: Place) {
        self.records.borrow_mut().push(record.clone());
        self.tasks.borrow_mut()[place] = Some(record.clone());
    }

    /// The task in that place, if its spawning call has returned.
    pub(crate) fn known(&self, place: Place) -> Option<Rc<Record>> {
        self.tasks.borrow()[place].clone().filter(|record| record.is_known())
    }

    /// The first task, from that place on, that may be waited for: one that waits for the asker itself, over any
    /// number of others, may not, because a circle could never be cancelled. With `unclaimed`, its claim must be free.
    pub(crate) fn reachable(&self, place: Place, asker: usize, unclaimed: bool) -> Option<Rc<Record>> {
        let count = self.tasks.borrow().len();
        (0..count)
            .filter_map(|offset| self.known((place + offset) % count))
            .filter(|record| !(unclaimed && record.is_claimed()))
            .find(|record| !self.waits_for(record.number, asker))
    }

    fn waits_for(&self, number: usize, wanted: usize) -> bool {
        let awaited = self.awaited.borrow();
        let (mut seen, mut front) = (vec![], vec![number]);
        while let Some(number) = front.pop() {
            if number == wanted {
                return true;
            }
            if !seen.contains(&number) {
                seen.push(number);
                front.extend(awaited.get(&number).into_iter().flatten());
            }
        }
        false
    }

    /// Notes that a task waits for others, until `end_wait` with the same numbers.
    pub(crate) fn begin_wait(&self, asker: usize, awaited: &[usize]) {
        self.awaited.borrow_mut().entry(asker).or_default().extend(awaited);
    }

    pub(crate) fn end_wait(&self, asker: usize, awaited: &[usize]) {
        let mut all = self.awaited.borrow_mut();
        let mine = all.entry(asker).or_default();
        for number in awaited {
            let at = mine.iter().position(|known| known == number).expect("a wait that began");
            mine.swap_remove(at);
        }
    }
}

/// A delay of that many ticks; none if it lies in the past.
pub(crate) fn span(ticks: Ticks) -> Duration {
    Duration::from_nanos((ticks.max(0) * TICK_NANOS) as u64)
}
