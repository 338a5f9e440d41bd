//! Waiting for room in a queue.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::error::PushError;
use super::list::List;
use super::lock::Lock;
use super::queue::Queue;
use super::store::{Pushed, Store};
use super::turn::{Home, Left, Turn};

pin_project! {
    /// The future of [`Queue::push`](crate::Queue::push).
    ///
    /// ```
    /// # use tidegate_sync::{Push, Queue};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::bounded(1);
    /// let push: Push<'_, u8> = queue.push(1);
    /// assert_eq!(push.await, Ok(()));
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Push<'a, T> {
        #[pin]
        turn: Turn<PushHome<'a, T>>,
    }
}

impl<'a, T> Push<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>, value: T) -> Self {
        Self { turn: Turn::new(PushHome(queue), Some(value)) }
    }
}

impl<T> Future for Push<'_, T> {
    type Output = Result<(), PushError<T>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut turn = self.project().turn;
        match turn.as_mut().at_once(|home, value| matches!(home.0.push_now(value), Pushed::In).then_some(())) {
            Some(()) => Poll::Ready(Ok(())),
            None => wait_to_push(turn, cx),
        }
    }
}

/// `#[inline(never)]`: keeps the fast path small enough to be inlined.
#[inline(never)]
fn wait_to_push<T>(mut turn: Pin<&mut Turn<PushHome<'_, T>>>, cx: &mut Context<'_>) -> Poll<Result<(), PushError<T>>> {
    let queue = turn.home().0;
    while turn.is_idle() {
        let arrived = turn.as_mut().arrive(cx, |_, store, _| {
            let wait = store.push_waits();
            if wait {
                store.note_blocked();
            }
            (!wait).then_some(())
        });
        if arrived.is_none() {
            return Poll::Pending;
        }
        match turn.as_mut().payload(|value| queue.push_now(value)) {
            Pushed::Full => {}
            Pushed::In | Pushed::Closed => return Poll::Ready(outcome(turn)),
        }
    }
    ready!(turn.as_mut().poll_served(cx));
    Poll::Ready(outcome(turn))
}

/// Finishes a push: the value is still in the payload if it was refused.
fn outcome<T>(mut turn: Pin<&mut Turn<PushHome<'_, T>>>) -> Result<(), PushError<T>> {
    let refused = turn.as_mut().payload(Option::take);
    turn.finish();
    refused.map_or(Ok(()), |value| Err(PushError(value)))
}

/// A queue's line of pushers, for [`Turn`].
struct PushHome<'a, T>(&'a Queue<T>);

// SAFETY: a reference leads to the same queue as long as it lives, and the list stays in the queue's store.
unsafe impl<T> Home for PushHome<'_, T> {
    type State = Store<T>;
    type Payload = Option<T>;

    #[inline]
    fn lock(&self) -> &Lock<Store<T>> {
        self.0.store()
    }

    #[inline]
    fn list(store: &mut Store<T>) -> &mut List<Option<T>> {
        &mut store.pushers
    }

    /// Does nothing: the value is dropped with the future, or is in the queue already.
    fn left(&self, _value: &mut Option<T>, _left: Left) {}
}

impl<T> fmt::Debug for Push<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").finish_non_exhaustive()
    }
}
