//! A place for one child after the other, and what others leave for it there.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use super::fleet::Fleet;
use super::ticket::Ticket;
use crate::mode::StopReason;
use crate::outcome::Outcome;

/// A place for a child.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) index: usize,
    fleet: Weak<Fleet>,
    /// Given to this slot, not yet to its child.
    inbox: RefCell<VecDeque<Rc<Ticket>>>,
    /// Runs of the child that must end early.
    stops: RefCell<VecDeque<(u64, StopReason)>>,
    /// How many more its child can take, beyond what lies in `inbox`.
    room: Cell<usize>,
    /// Runs its child has.
    open: Cell<usize>,
    /// Its child's process id, while that lives.
    pub(super) pid: Cell<Option<u32>>,
    /// The child is to be replaced once it is done.
    pub(super) retire: Cell<bool>,
    /// The end.
    pub(super) shut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Slot {
    pub(super) fn new(index: usize, fleet: Weak<Fleet>) -> Slot {
        Slot {
            index,
            fleet,
            inbox: RefCell::default(),
            stops: RefCell::default(),
            room: Cell::new(0),
            open: Cell::new(0),
            pid: Cell::new(None),
            retire: Cell::new(false),
            shut: Cell::new(false),
            waker: RefCell::default(),
        }
    }

    /// Runs it has in all, if it can take one more.
    pub(super) fn load(&self) -> Option<usize> {
        (self.room.get() > 0).then(|| self.open.get() + self.inbox.borrow().len())
    }

    /// Gives it a run. There must be room.
    pub(super) fn give(&self, ticket: Rc<Ticket>) {
        self.room.set(self.room.get() - 1);
        ticket.slot.set(Some(self.index));
        self.inbox.borrow_mut().push_back(ticket);
        self.wake();
    }

    pub(super) fn take(&self) -> Option<Rc<Ticket>> {
        self.inbox.borrow_mut().pop_front()
    }

    /// Takes one out that was not sent yet.
    pub(super) fn withdraw(&self, ticket: &Rc<Ticket>) {
        self.inbox.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, ticket));
        // Its room is offered anew at the child's next turn.
        self.wake();
    }

    pub(super) fn has_work(&self) -> bool {
        !self.inbox.borrow().is_empty()
    }

    pub(super) fn stop_run(&self, run: u64, reason: StopReason) {
        self.stops.borrow_mut().push_back((run, reason));
        self.wake();
    }

    pub(super) fn take_stop(&self) -> Option<(u64, StopReason)> {
        self.stops.borrow_mut().pop_front()
    }

    /// Says how much the child can take now, which may bring something at once.
    pub(super) fn offer(&self, room: usize, open: usize) {
        let given = self.inbox.borrow().len();
        self.room.set(room.saturating_sub(given));
        self.open.set(open);
        if self.room.get() > 0
            && let Some(fleet) = self.fleet.upgrade()
        {
            fleet.dispatch();
        }
    }

    /// The child is no more: what it was to get goes elsewhere.
    pub(super) fn vacate(&self) {
        self.pid.set(None);
        self.room.set(0);
        self.open.set(0);
        self.retire.set(false);
        self.stops.borrow_mut().clear();
        for ticket in self.inbox.take().into_iter().rev() {
            self.give_back(ticket);
        }
    }

    /// A run that this slot's child has not begun and will not.
    pub(super) fn give_back(&self, ticket: Rc<Ticket>) {
        match self.fleet.upgrade() {
            Some(fleet) => fleet.take_back(ticket),
            None => ticket.finish(Outcome::Cancelled),
        }
    }

    pub(super) fn finish(&self, ticket: &Rc<Ticket>, outcome: Outcome) {
        ticket.finish(outcome);
    }

    /// The child is ready, and has these handlers.
    pub(super) fn is_ready(&self, handlers: Option<Vec<String>>) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.child_is_ready(handlers);
        }
    }

    pub(super) fn wake(&self) {
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stores the waker that is woken when something is put into the slot.
    pub(super) fn sleep(&self, cx: &Context<'_>) {
        self.waker.replace(Some(cx.waker().clone()));
    }
}
