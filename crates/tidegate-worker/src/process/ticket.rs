//! One run on its way: from the caller of `run` through the queue to a child, and its outcome back.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::mode::StopReason;
use crate::outcome::Outcome;
use crate::task::Task;

/// A run whose result is awaited.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) task: Task,
    pub(super) soft_limit: Option<Duration>,
    pub(super) hard_limit: Option<Duration>,
    /// The slot that has it; `None`: it waits for one.
    pub(super) slot: Cell<Option<usize>>,
    /// Its number with the slot's child; `None`: it was not sent.
    pub(super) run: Cell<Option<u64>>,
    /// It must end early.
    pub(super) stop: Cell<Option<StopReason>>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Awaited(Waker),
    Ended(Outcome),
    /// Handed over.
    Taken,
}

impl Ticket {
    pub(super) fn new(task: Task, soft_limit: Option<Duration>, hard_limit: Option<Duration>) -> Ticket {
        Ticket {
            task,
            soft_limit,
            hard_limit,
            slot: Cell::new(None),
            run: Cell::new(None),
            stop: Cell::new(None),
            state: RefCell::default(),
        }
    }

    /// The end of it. Only the first one counts: there is no second.
    pub(super) fn finish(&self, outcome: Outcome) {
        debug_assert!(self.is_open(), "a second end of {}: {outcome:?}", self.task.id);
        if self.is_open()
            && let State::Awaited(waker) = self.state.replace(State::Ended(outcome))
        {
            waker.wake();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open | State::Awaited(_))
    }

    /// Waits for the end.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let next = if self.is_open() { State::Awaited(cx.waker().clone()) } else { State::Taken };
        match self.state.replace(next) {
            State::Ended(outcome) => Poll::Ready(outcome),
            State::Taken => panic!("a run was polled after its end"),
            State::Open | State::Awaited(_) => Poll::Pending,
        }
    }
}

/// How a run ends that was asked to.
pub(super) fn stopped(reason: StopReason) -> Outcome {
    match reason {
        StopReason::Stopping => Outcome::Cancelled,
        StopReason::Revoked => Outcome::Revoked,
    }
}
