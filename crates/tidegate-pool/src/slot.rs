//! Slots are guards: a task owns one from its start, and dropping the task frees it, however the task ends.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::admission::{Admission, Outcome};
use crate::error::{JoinError, Panic};
use crate::executor::Executor;
use crate::promise::{Owed, Promise};
use crate::roster::RosterKey;
use crate::share::Share;

pub(crate) type SharedAdmission<S> = <S as Executor>::Shared<Admission<<S as Executor>::Canceller>>;

/// One of the pool's slots, held.
pub(crate) struct Slot<S: Executor> {
    state: SharedAdmission<S>,
    key: RosterKey,
    /// The outcome to count if the slot is dropped now.
    outcome: Outcome,
}

impl<S: Executor> Slot<S> {
    #[inline]
    pub(crate) fn new(state: SharedAdmission<S>, key: RosterKey) -> Slot<S> {
        Slot { state, key, outcome: Outcome::Cancelled }
    }

    #[inline]
    pub(crate) fn key(&self) -> RosterKey {
        self.key
    }
}

impl<S: Executor> Drop for Slot<S> {
    #[inline]
    fn drop(&mut self) {
        let (wakes, canceller) = self.state.with(|state| state.end(self.key, self.outcome));
        drop(canceller);
        wakes.wake();
    }
}

pin_project! {
    /// A future that runs in a slot: what a pool gives its executor to [spawn](crate::Spawn).
    ///
    /// ```
    /// use tidegate_pool::{InSlot, Spawn, TidegateLoop};
    /// fn can_run<F: Future + 'static>() where TidegateLoop: Spawn<InSlot<F, TidegateLoop>> {}
    /// can_run::<std::future::Ready<u8>>();
    /// ```
    pub struct InSlot<F: Future, S: Executor> {
        // Declared, and so dropped, before the slot: what the future owns is dropped before the slot is free.
        #[pin]
        future: Option<F>,
        slot: Option<Slot<S>>,
        is_failure: fn(&F::Output) -> bool,
    }
}

impl<F: Future, S: Executor> InSlot<F, S> {
    #[inline]
    pub(crate) fn new(future: F, slot: Slot<S>, is_failure: fn(&F::Output) -> bool) -> Self {
        InSlot { future: Some(future), slot: Some(slot), is_failure }
    }
}

impl<F: Future, S: Executor> Future for InSlot<F, S> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let (Some(future), Some(slot)) = (this.future.as_mut().as_pin_mut(), this.slot.as_mut()) else {
            panic!("a task was polled after its end");
        };
        // Set for the case that the poll panics.
        slot.outcome = Outcome::Failed;
        let Poll::Ready(output) = future.poll(cx) else {
            slot.outcome = Outcome::Cancelled;
            return Poll::Pending;
        };
        this.future.set(None);
        slot.outcome = if (this.is_failure)(&output) { Outcome::Failed } else { Outcome::Completed };
        *this.slot = None;
        Poll::Ready(output)
    }
}

pin_project! {
    /// A future that runs in a slot and sends its result to a promise.
    ///
    /// ```
    /// use tidegate_loop::Deferred;
    /// use tidegate_pool::{Promised, Spawn, TidegateLoop};
    /// fn can_run<F: Future + 'static>() where TidegateLoop: Spawn<Promised<F, Deferred<F::Output>, TidegateLoop>> {}
    /// can_run::<std::future::Ready<u8>>();
    /// ```
    pub struct Promised<F: Future, P: Promise<F::Output>, S: Executor> {
        // Dropped in this order: the future, then the slot, then the promise, which settles it.
        #[pin]
        future: Option<F>,
        slot: Option<Slot<S>>,
        promise: Owed<F::Output, P>,
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> Promised<F, P, S> {
    pub(crate) fn new(future: F, promise: Owed<F::Output, P>, slot: Slot<S>) -> Self {
        Promised { future: Some(future), slot: Some(slot), promise }
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> Future for Promised<F, P, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let slot = this.slot.as_mut().expect("a task was polled after its end");
        // A panic goes to the promise: the handle may have been dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let polled = this.future.as_mut().as_pin_mut().expect("it holds a slot, so it has not ended").poll(cx);
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        }));
        let (outcome, result) = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => (Outcome::Completed, Ok(output)),
            Err(payload) => (Outcome::Failed, Err(JoinError::Panicked(Panic::new(payload)))),
        };
        slot.outcome = outcome;
        this.future.set(None);
        *this.slot = None;
        this.promise.settle(result);
        Poll::Ready(())
    }
}
