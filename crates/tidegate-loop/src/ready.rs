//! The ready queue: first in, first out. An entry is one machine word, because every switch between
//! tasks writes one and reads one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::handle::Callback;
use crate::io::IoCallback;
use crate::local::Local;
use crate::name::Name;
use crate::timers::TimerKey;

/// What kind of entry it is stands where a name has its loop's id, which is known here.
#[derive(Clone, Copy)]
struct Entry(u64);

const KIND_SHIFT: u32 = Name::LOOP_SHIFT;
const TASK: u64 = 0;
const TIMER: u64 = 1;
const CALL: u64 = 2;

/// Callbacks run in the order they were queued, so an entry need not say which one it stands for.
enum Call {
    Once(Rc<Callback>),
    Io(Rc<IoCallback>),
}

/// Something whose turn has come.
pub(crate) enum Turn {
    Task(Name),
    Timer(TimerKey),
    Call(Rc<Callback>),
    Io(Rc<IoCallback>),
}

pub(crate) struct ReadyQueue {
    loop_id: u16,
    entries: Local<VecDeque<Entry>>,
    /// One for every `CALL` among the entries.
    calls: RefCell<VecDeque<Call>>,
}

impl ReadyQueue {
    pub(crate) fn new(loop_id: u16) -> ReadyQueue {
        ReadyQueue { loop_id, entries: Local::new(VecDeque::new()), calls: RefCell::default() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { self.entries.with(|entries| entries.len()) }
    }

    #[inline]
    pub(crate) fn push_task(&self, name: Name) {
        self.push(Entry(name.without_loop() | TASK << KIND_SHIFT));
    }

    #[inline]
    pub(crate) fn push_timer(&self, key: TimerKey) {
        self.push(Entry(key.bits() | TIMER << KIND_SHIFT));
    }

    pub(crate) fn push_call(&self, callback: Rc<Callback>) {
        self.calls.borrow_mut().push_back(Call::Once(callback));
        self.push(Entry(CALL << KIND_SHIFT));
    }

    pub(crate) fn push_io(&self, callback: Rc<IoCallback>) {
        self.calls.borrow_mut().push_back(Call::Io(callback));
        self.push(Entry(CALL << KIND_SHIFT));
    }

    #[inline]
    fn push(&self, entry: Entry) {
        // SAFETY: entries are plain numbers.
        unsafe { self.entries.with(|entries| entries.push_back(entry)) }
    }

    /// The next in line.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Turn> {
        // SAFETY: entries are plain numbers.
        let Entry(bits) = unsafe { self.entries.with(VecDeque::pop_front)? };
        Some(match bits >> KIND_SHIFT {
            TASK => Turn::Task(Name::with_loop(bits, self.loop_id)),
            TIMER => Turn::Timer(TimerKey::from_bits(bits & !(TIMER << KIND_SHIFT))),
            _ => match self.calls.borrow_mut().pop_front().expect("a callback for every entry of its kind") {
                Call::Once(callback) => Turn::Call(callback),
                Call::Io(callback) => Turn::Io(callback),
            },
        })
    }

    /// Permutes the tasks among the places tasks have; callbacks and timers keep theirs, because their order is
    /// promised. `pick` draws a number below its argument.
    pub(crate) fn shuffle_tasks(&self, mut pick: impl FnMut(usize) -> usize) {
        let shuffle = |entries: &mut VecDeque<Entry>| {
            let is_task = |at: &usize| entries[*at].0 >> KIND_SHIFT == TASK;
            let places: Vec<usize> = (0..entries.len()).filter(is_task).collect();
            for last in (1..places.len()).rev() {
                entries.swap(places[last], places[pick(last + 1)]);
            }
        };
        // SAFETY: entries are plain numbers, and `pick` is a generator of the kernel's.
        unsafe { self.entries.with(shuffle) }
    }

    /// Forgets everything. What holds foreign code comes back for the caller to drop, and whether there was anything.
    pub(crate) fn clear(&self) -> (bool, impl Sized + use<>) {
        // SAFETY: entries are plain numbers.
        let entries = unsafe { self.entries.with(std::mem::take) };
        (!entries.is_empty(), self.calls.take())
    }
}
