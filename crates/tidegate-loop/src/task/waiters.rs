//! The wakers and done-callbacks of a task or a settable future, in one list, in the order they came. No foreign code is
//! called from here but wakers: callbacks are queued.

use std::cell::Cell;
use std::panic::Location;
use std::rc::Rc;
use std::task::Waker;

use crate::context::Snapshot;
use crate::kernel::RunState;
use crate::kernel::current;
use crate::runtime::callback::Callback;

/// Identifies a done-callback, so that it can be removed.
///
/// ```
/// use tidegate_loop::{run, LoopHandle};
/// run(async {
///     let future = LoopHandle::current().create_future::<u32>();
///     let id = future.add_done_callback(|_| ());
///     assert_eq!(future.remove_done_callback(id), 1);
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallbackId(pub(crate) u64);

pub(crate) enum Waiter<A> {
    Waker { id: u64, waker: Waker },
    Callback { id: u64, callback: Box<DoneCallback<A>> },
}

pub(crate) struct DoneCallback<A> {
    call: Box<dyn FnOnce(&A)>,
    context: Snapshot,
    location: &'static Location<'static>,
}

impl<A: Clone + 'static> Waiter<A> {
    fn id(&self) -> u64 {
        match self {
            Waiter::Waker { id, .. } | Waiter::Callback { id, .. } => *id,
        }
    }

    #[inline]
    fn fire(self, loop_serial: u32, subject: &A) {
        match self {
            Waiter::Waker { waker, .. } => waker.wake(),
            Waiter::Callback { callback, .. } => callback.queue(loop_serial, subject),
        }
    }
}

impl<A: Clone + 'static> DoneCallback<A> {
    /// Of now: its context, and where it was added.
    #[track_caller]
    pub(crate) fn new(call: impl FnOnce(&A) + 'static) -> DoneCallback<A> {
        DoneCallback { call: Box::new(call), context: Snapshot::current(), location: Location::caller() }
    }

    /// Queues it for the next tick.
    pub(crate) fn queue(self, loop_serial: u32, subject: &A) {
        let DoneCallback { call, context, location } = self;
        let subject = subject.clone();
        let callback = Callback::new(Box::new(move || call(&subject)), context, location);
        // A loop that is gone or closed runs no callbacks any more.
        current::on(loop_serial, |kernel| {
            if kernel.state.get() != RunState::Closed {
                kernel.push_call(Rc::new(callback));
            }
        });
    }
}

/// Wakers and done-callbacks, in the order they came.
pub(crate) struct Waiters<A> {
    line: WaiterLine<A>,
}

thread_local! {
    /// Ids are unique over all tasks and futures of a thread: one that is asked of the wrong one is found nowhere.
    static LAST_ID: Cell<u64> = const { Cell::new(0) };
}

/// Mostly there is only one.
enum WaiterLine<A> {
    Empty,
    One(Waiter<A>),
    Many(Vec<Waiter<A>>),
}

impl<A> Default for Waiters<A> {
    #[inline]
    fn default() -> Self {
        Waiters { line: WaiterLine::Empty }
    }
}

impl<A: Clone + 'static> Waiters<A> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match &self.line {
            WaiterLine::Empty => true,
            WaiterLine::One(_) => false,
            WaiterLine::Many(waiters) => waiters.is_empty(),
        }
    }

    #[inline]
    fn push(&mut self, make: impl FnOnce(u64) -> Waiter<A>) -> u64 {
        let id = LAST_ID.get() + 1;
        LAST_ID.set(id);
        let waiter = make(id);
        match &mut self.line {
            WaiterLine::Empty => self.line = WaiterLine::One(waiter),
            WaiterLine::Many(waiters) => waiters.push(waiter),
            WaiterLine::One(_) => {
                if let WaiterLine::One(first) = std::mem::replace(&mut self.line, WaiterLine::Empty) {
                    self.line = WaiterLine::Many(vec![first, waiter]);
                }
            }
        }
        id
    }

    pub(crate) fn add_callback(&mut self, callback: DoneCallback<A>) -> CallbackId {
        CallbackId(self.push(|id| Waiter::Callback { id, callback: Box::new(callback) }))
    }

    /// Registers `waker`, or puts it in the place of the one registered under `known`. The old one comes back, to be
    /// dropped where foreign code may run.
    #[inline]
    pub(crate) fn register(&mut self, known: Option<u64>, waker: &Waker) -> (u64, Option<Waker>) {
        let mine = known.and_then(|known| self.as_mut_slice().iter_mut().find(|waiter| waiter.id() == known));
        match mine {
            Some(Waiter::Waker { id, waker: old }) if old.will_wake(waker) => (*id, None),
            Some(Waiter::Waker { id, waker: old }) => (*id, Some(std::mem::replace(old, waker.clone()))),
            _ => (self.push(|id| Waiter::Waker { id, waker: waker.clone() }), None),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Waiter<A>] {
        match &mut self.line {
            WaiterLine::Empty => &mut [],
            WaiterLine::One(waiter) => std::slice::from_mut(waiter),
            WaiterLine::Many(waiters) => waiters,
        }
    }

    /// Takes the one of that id out of the line; it is dropped by the caller.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Waiter<A>> {
        let at = self.as_mut_slice().iter().position(|waiter| waiter.id() == id)?;
        match &mut self.line {
            WaiterLine::Many(waiters) => Some(waiters.remove(at)),
            line => match std::mem::replace(line, WaiterLine::Empty) {
                WaiterLine::One(waiter) => Some(waiter),
                _ => unreachable!("found there just now"),
            },
        }
    }

    /// Wakes the wakers and queues the callbacks, in order. Call it with the waiters taken out of their cell: wakers may be
    /// foreign code.
    #[inline]
    pub(crate) fn fire(self, loop_serial: u32, subject: &A) {
        match self.line {
            WaiterLine::Empty => {}
            WaiterLine::One(waiter) => waiter.fire(loop_serial, subject),
            WaiterLine::Many(waiters) => {
                for waiter in waiters {
                    waiter.fire(loop_serial, subject);
                }
            }
        }
    }
}
