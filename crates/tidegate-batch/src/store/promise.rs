//! A value that another thread will have: what a store's caller awaits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// A value to come, on any executor.
///
/// # Cancel safety
/// Dropping it gives up the value, not what makes it.
#[must_use = "what it promises may fail"]
pub struct Promise<T> {
    shared: Arc<Mutex<State<T>>>,
}

struct State<T> {
    value: Option<T>,
    /// What it comes to when whoever should have given a value is gone.
    otherwise: Option<T>,
    waker: Option<Waker>,
}

/// The other end. One that is dropped gives what was agreed on.
pub(super) struct Resolver<T> {
    shared: Option<Arc<Mutex<State<T>>>>,
}

pub(super) fn new<T>(otherwise: T) -> (Promise<T>, Resolver<T>) {
    let shared = Arc::new(Mutex::new(State { value: None, otherwise: Some(otherwise), waker: None }));
    (Promise { shared: Arc::clone(&shared) }, Resolver { shared: Some(shared) })
}

impl<T> Resolver<T> {
    pub(super) fn resolve(mut self, value: T) {
        self.settle(Some(value));
    }

    fn settle(&mut self, value: Option<T>) {
        let Some(shared) = self.shared.take() else { return };
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.value = value.or_else(|| state.otherwise.take());
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Resolver<T> {
    fn drop(&mut self) {
        self.settle(None);
    }
}

impl<T> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let waker = cx.waker().clone();
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                let before = state.waker.replace(waker);
                drop(state);
                drop(before);
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise").finish_non_exhaustive()
    }
}
