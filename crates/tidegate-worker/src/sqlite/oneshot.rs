//! One answer from the thread that owns the file to a task on a loop.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::broker::BrokerError;

struct Slot<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    answer: Option<Result<T, BrokerError>>,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Result<T, BrokerError>) {
        let waker = {
            let mut state = self.lock();
            state.answer.get_or_insert(answer);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Answers once; dropped without an answer it says that the broker was closed.
pub(super) struct Answer<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Answer<T> {
    /// Returns `true` if the receiver was dropped.
    pub(super) fn is_unwanted(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    pub(super) fn send(self, answer: Result<T, BrokerError>) {
        self.slot.answer(answer);
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.slot.answer(Err(BrokerError::Closed));
    }
}

/// The answer to come.
pub(super) struct Question<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Future for Question<T> {
    type Output = Result<T, BrokerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

pub(super) fn oneshot<T>() -> (Answer<T>, Question<T>) {
    let slot = Arc::new(Slot { state: Mutex::new(State { answer: None, waker: None }) });
    (Answer { slot: Arc::clone(&slot) }, Question { slot })
}
