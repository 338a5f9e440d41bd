//! Waiting for a slot.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::admission::Admit;
use crate::error::SubmitError;
use crate::executor::{Executor, Spawn};
use crate::handle::JoinHandle;
use crate::line::Ticket;
use crate::pool::Pool;
use crate::promise::{Owed, Promise};
use crate::share::Share;
use crate::slot::{InSlot, Promised, Slot};

/// A submitter's turn: not in line, or in line with a ticket. Its owner calls [`give_up`](Self::give_up) when dropped.
#[derive(Default)]
pub(crate) struct Turn {
    ticket: Option<Ticket>,
}

/// The pool was closed.
pub(crate) struct Closed;

impl Turn {
    #[inline]
    pub(crate) fn poll<S: Executor>(&mut self, pool: &Pool<S>, cx: &mut Context<'_>) -> Poll<Result<Slot<S>, Closed>> {
        if self.ticket.is_some() {
            return self.poll_in_line(pool, cx);
        }
        match pool.state.with(|state| state.admit()) {
            Admit::Slot(key) => Poll::Ready(Ok(Slot::new(pool.state.clone(), key))),
            Admit::Closed => Poll::Ready(Err(Closed)),
            Admit::Full => self.join_line(pool, cx),
        }
    }

    /// As [`poll`](Self::poll), for somebody who may not come back: who is not in line does not join it. `None` if there
    /// is no slot.
    pub(crate) fn poll_now<S: Executor>(
        &mut self,
        pool: &Pool<S>,
        cx: &mut Context<'_>,
    ) -> Option<Result<Slot<S>, Closed>> {
        let polled = if self.ticket.is_some() {
            self.poll_in_line(pool, cx)
        } else {
            match pool.state.with(|state| state.admit()) {
                Admit::Full => Poll::Pending,
                admit => admitted(pool, admit),
            }
        };
        match polled {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[cold]
    fn join_line<S: Executor>(&mut self, pool: &Pool<S>, cx: &mut Context<'_>) -> Poll<Result<Slot<S>, Closed>> {
        let (waker, now) = (cx.waker().clone(), pool.executor.now());
        // Another thread may have made room since we looked.
        let admit = pool.state.with(|state| match state.admit() {
            Admit::Full => {
                self.ticket = Some(state.join_line(waker, now));
                None
            }
            admit => Some((admit, waker)),
        });
        match admit {
            None => Poll::Pending,
            Some((admit, _waker)) => admitted(pool, admit),
        }
    }

    fn poll_in_line<S: Executor>(&mut self, pool: &Pool<S>, cx: &mut Context<'_>) -> Poll<Result<Slot<S>, Closed>> {
        let now = pool.executor.now();
        let mut waker = None;
        loop {
            let ticket = self.ticket.take().expect("polled in line");
            let claimed = pool.state.with(|state| {
                state.claim(ticket, now).map_err(|ticket| {
                    if state.waits_with(&ticket, cx.waker()) {
                        return (ticket, true, None);
                    }
                    // A waker is cloned outside of the lock, so this takes a second round.
                    match waker.take() {
                        Some(waker) => {
                            let before = state.wait_with(&ticket, waker);
                            (ticket, true, before)
                        }
                        None => (ticket, false, None),
                    }
                })
            });
            match claimed {
                Ok((admit, _before)) => return admitted(pool, admit),
                Err((ticket, registered, _before)) => {
                    self.ticket = Some(ticket);
                    if registered {
                        return Poll::Pending;
                    }
                    waker = Some(cx.waker().clone());
                }
            }
        }
    }

    /// Leaves the line, if in it; a slot that was kept for us is the next one's.
    #[inline]
    pub(crate) fn give_up<S: Executor>(&mut self, pool: &Pool<S>) {
        if let Some(ticket) = self.ticket.take() {
            let now = pool.executor.now();
            let (wakes, _waker) = pool.state.with(|state| state.give_up(ticket, now));
            wakes.wake();
        }
    }
}

fn admitted<S: Executor>(pool: &Pool<S>, admit: Admit) -> Poll<Result<Slot<S>, Closed>> {
    Poll::Ready(match admit {
        Admit::Slot(key) => Ok(Slot::new(pool.state.clone(), key)),
        Admit::Closed | Admit::Full => Err(Closed),
    })
}

/// Starts a task that owns a slot.
#[inline]
pub(crate) fn start<S, F>(pool: &Pool<S>, key: crate::roster::Key, task: F) -> JoinHandle<F::Output, S>
where
    S: Spawn<F>,
    F: Future,
    F::Output: 'static,
{
    let handle = pool.executor.spawn(task);
    let canceller = S::canceller(&handle);
    let (unfiled, aborted) = pool.state.with(|state| state.file(key, canceller));
    if let Some(canceller) = unfiled
        && aborted
    {
        S::cancel(&canceller);
    }
    JoinHandle::new(handle)
}

/// A submission that waits for its slot; see [`Pool::submit`].
///
/// # Cancel safety
/// Dropped before it is ready, it leaves the line, the future it was given is dropped unpolled, and a slot that was kept
/// for it goes to the next in line.
///
/// ```
/// use tidegate_pool::{InSlot, Pool, Submit, TidegateLoop};
/// tidegate_loop::run(async {
///     let pool = Pool::new(1);
///     let submission: Submit<'_, _, TidegateLoop> = pool.submit(async { 1 });
///     assert_eq!(submission.await.unwrap().await.unwrap(), 1);
/// })
/// .unwrap();
/// ```
#[must_use = "nothing is submitted until it is awaited"]
pub struct Submit<'a, F: Future, S: Executor> {
    pool: &'a Pool<S>,
    turn: Turn,
    /// Not pinned before it is spawned. `None` once it is.
    future: Option<F>,
    is_failure: fn(&F::Output) -> bool,
}

impl<'a, F: Future, S: Executor> Submit<'a, F, S> {
    #[inline]
    pub(crate) fn new(pool: &'a Pool<S>, future: F, is_failure: fn(&F::Output) -> bool) -> Self {
        Submit { pool, turn: Turn::default(), future: Some(future), is_failure }
    }
}

// The future is moved, never polled, here.
impl<F: Future, S: Executor> Unpin for Submit<'_, F, S> {}

impl<F, S> Future for Submit<'_, F, S>
where
    F: Future,
    F::Output: 'static,
    S: Spawn<InSlot<F, S>>,
{
    type Output = Result<JoinHandle<F::Output, S>, SubmitError<F>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let turn = ready!(this.turn.poll(this.pool, cx));
        let future = this.future.take().expect("a submission was polled after it was ready");
        Poll::Ready(match turn {
            Ok(slot) => Ok(start(this.pool, slot.key(), InSlot::new(future, slot, this.is_failure))),
            Err(Closed) => Err(SubmitError(future)),
        })
    }
}

impl<F: Future, S: Executor> Drop for Submit<'_, F, S> {
    #[inline]
    fn drop(&mut self) {
        self.turn.give_up(self.pool);
    }
}

impl<F: Future, S: Executor> fmt::Debug for Submit<'_, F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submit").field("in_line", &self.turn.ticket.is_some()).finish_non_exhaustive()
    }
}

/// A submission with a promise that waits for its slot; see [`Pool::submit_to`].
///
/// # Cancel safety
/// As [`Submit`]; and the promise is settled as [cancelled](crate::JoinError::Cancelled).
///
/// ```
/// use tidegate_loop::LoopHandle;
/// use tidegate_pool::{Pool, SubmitTo, TidegateLoop};
/// tidegate_loop::run(async {
///     let pool = Pool::new(1);
///     let promise = LoopHandle::current().create_future();
///     let submission: SubmitTo<'_, _, _, TidegateLoop> = pool.submit_to(promise.clone(), async { 1 });
///     submission.await.unwrap();
///     assert_eq!(promise.await.unwrap(), 1);
/// })
/// .unwrap();
/// ```
#[must_use = "nothing is submitted until it is awaited"]
pub struct SubmitTo<'a, F: Future, P: Promise<F::Output>, S: Executor> {
    pool: &'a Pool<S>,
    turn: Turn,
    /// `None` once it is spawned or handed back.
    work: Option<(F, Owed<F::Output, P>)>,
}

impl<'a, F: Future, P: Promise<F::Output>, S: Executor> SubmitTo<'a, F, P, S> {
    pub(crate) fn new(pool: &'a Pool<S>, promise: P, future: F) -> Self {
        SubmitTo { pool, turn: Turn::default(), work: Some((future, Owed::new(promise))) }
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> Unpin for SubmitTo<'_, F, P, S> {}

impl<F, P, S> Future for SubmitTo<'_, F, P, S>
where
    F: Future,
    P: Promise<F::Output>,
    S: Spawn<Promised<F, P, S>>,
{
    type Output = Result<JoinHandle<(), S>, SubmitError<(P, F)>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let turn = ready!(this.turn.poll(this.pool, cx));
        let (future, promise) = this.work.take().expect("a submission was polled after it was ready");
        Poll::Ready(match turn {
            Ok(slot) => Ok(start(this.pool, slot.key(), Promised::new(future, promise, slot))),
            Err(Closed) => Err(SubmitError((promise.into_inner(), future))),
        })
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> Drop for SubmitTo<'_, F, P, S> {
    fn drop(&mut self) {
        self.turn.give_up(self.pool);
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> fmt::Debug for SubmitTo<'_, F, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitTo").field("in_line", &self.turn.ticket.is_some()).finish_non_exhaustive()
    }
}
