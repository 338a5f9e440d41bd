//! The answer to one command: [`Answer`] waits for it, [`Asker`] delivers it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::CallError;
use crate::wire::Value;

pub(crate) type Outcome = Result<Value, CallError>;

enum AnswerState {
    Pending(Option<Waker>),
    Done(Outcome),
    /// The answer was taken, or the `Answer` was dropped.
    Over,
}

/// Delivers the answer. If it is dropped first, the answer is [`CallError::Closed`].
pub(crate) struct Asker(Rc<RefCell<AnswerState>>);

/// The future of the answer.
pub(crate) struct Answer(Rc<RefCell<AnswerState>>);

pub(crate) fn place() -> (Asker, Answer) {
    let state = Rc::new(RefCell::new(AnswerState::Pending(None)));
    (Asker(state.clone()), Answer(state))
}

impl Asker {
    pub(crate) fn bring(&self, outcome: Outcome) {
        let mut state = self.0.borrow_mut();
        if let AnswerState::Pending(waker) = &mut *state {
            let waker = waker.take();
            *state = AnswerState::Done(outcome);
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
        match std::mem::replace(&mut *state, AnswerState::Over) {
            AnswerState::Done(outcome) => Poll::Ready(outcome),
            AnswerState::Pending(known) => {
                let same = known.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                *state = AnswerState::Pending(if same { known } else { Some(cx.waker().clone()) });
                Poll::Pending
            }
            AnswerState::Over => panic!("polled after it was ready"),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.borrow_mut(), AnswerState::Over);
        drop(before);
    }
}
