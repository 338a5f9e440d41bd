//! A place for an answer: one who waits, one who will bring it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::CallError;
use crate::wire::Value;

pub(crate) type Outcome = Result<Value, CallError>;

enum State {
    Pending(Option<Waker>),
    Done(Outcome),
    /// Fetched, or nobody waits any more.
    Over,
}

/// Who will bring it. Dropped without having done so, it tells that the client is closed.
pub(crate) struct Asker(Rc<RefCell<State>>);

/// Who waits.
pub(crate) struct Answer(Rc<RefCell<State>>);

pub(crate) fn place() -> (Asker, Answer) {
    let state = Rc::new(RefCell::new(State::Pending(None)));
    (Asker(state.clone()), Answer(state))
}

impl Asker {
    pub(crate) fn bring(&self, outcome: Outcome) {
        let mut state = self.0.borrow_mut();
        if let State::Pending(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Done(outcome);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.bring(Err(CallError::Closed));
    }
}

impl Future for Answer {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.borrow_mut();
        match std::mem::replace(&mut *state, State::Over) {
            State::Done(outcome) => Poll::Ready(outcome),
            State::Pending(known) => {
                let same = known.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                *state = State::Pending(if same { known } else { Some(cx.waker().clone()) });
                Poll::Pending
            }
            State::Over => panic!("polled after it was ready"),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.borrow_mut(), State::Over);
        drop(before);
    }
}
