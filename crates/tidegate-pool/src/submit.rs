//! Submissions: futures that wait for a slot and then start a task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::admission::Admit;
use crate::error::SubmitError;
use crate::executor::{Executor, Spawn};
use crate::handle::JoinHandle;
use crate::line::LineTicket;
use crate::pool::Pool;
use crate::promise::{Owed, Promise};
use crate::share::Share;
use crate::slot::{InSlot, Promised, Slot};

/// Whether a submitter joins the line if no slot is free.
#[derive(Clone, Copy)]
pub(crate) enum LineUse {
    Join,
    Skip,
}

/// The waiting part of a submission: not in line, or in line with a ticket. Its owner calls [`leave`](Self::leave) when it
/// is dropped.
#[derive(Default)]
pub(crate) struct SubmitTurn {
    ticket: Option<LineTicket>,
}

/// The pool was closed.
pub(crate) struct PoolClosed;

impl SubmitTurn {
    #[inline]
    pub(crate) fn poll<S: Executor>(
        &mut self,
        pool: &Pool<S>,
        cx: &mut Context<'_>,
        line: LineUse,
    ) -> Poll<Result<Slot<S>, PoolClosed>> {
        if self.ticket.is_some() {
            return self.poll_in_line(pool, cx);
        }
        match (pool.state.with(|state| state.admit()), line) {
            (Admit::Slot(key), _) => Poll::Ready(Ok(Slot::new(pool.state.clone(), key))),
            (Admit::Closed, _) => Poll::Ready(Err(PoolClosed)),
            (Admit::Full, LineUse::Join) => self.join_line(pool, cx),
            (Admit::Full, LineUse::Skip) => Poll::Pending,
        }
    }

    #[cold]
    fn join_line<S: Executor>(&mut self, pool: &Pool<S>, cx: &mut Context<'_>) -> Poll<Result<Slot<S>, PoolClosed>> {
        let (waker, now) = (cx.waker().clone(), pool.executor.now());
        // Checked again: another thread may have freed a slot meanwhile.
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

    fn poll_in_line<S: Executor>(&mut self, pool: &Pool<S>, cx: &mut Context<'_>) -> Poll<Result<Slot<S>, PoolClosed>> {
        let now = pool.executor.now();
        let mut waker = None;
        loop {
            let ticket = self.ticket.take().expect("polled in line");
            let claimed = pool.state.with(|state| {
                state.claim(ticket, now).map_err(|ticket| {
                    if state.waits_with(&ticket, cx.waker()) {
                        return (ticket, true, None);
                    }
                    // A waker is cloned without the lock, so registering one takes a second round.
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

    /// Leaves the line, if in it. A slot that was kept for this submitter goes to the next.
    #[inline]
    pub(crate) fn leave<S: Executor>(&mut self, pool: &Pool<S>) {
        if let Some(ticket) = self.ticket.take() {
            let now = pool.executor.now();
            let (wakes, _waker) = pool.state.with(|state| state.leave_line(ticket, now));
            wakes.wake();
        }
    }
}

fn admitted<S: Executor>(pool: &Pool<S>, admit: Admit) -> Poll<Result<Slot<S>, PoolClosed>> {
    Poll::Ready(match admit {
        Admit::Slot(key) => Ok(Slot::new(pool.state.clone(), key)),
        Admit::Closed | Admit::Full => Err(PoolClosed),
    })
}

/// Starts a task that owns a slot.
#[inline]
pub(crate) fn start<S, F>(pool: &Pool<S>, key: crate::roster::RosterKey, task: F) -> JoinHandle<F::Output, S>
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
/// A submission that is dropped before it is ready leaves the line and drops its future unpolled. A slot that was kept for
/// it goes to the next in line.
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
    turn: SubmitTurn,
    /// Not pinned before it is spawned; `None` afterwards.
    future: Option<F>,
    is_failure: fn(&F::Output) -> bool,
}

impl<'a, F: Future, S: Executor> Submit<'a, F, S> {
    #[inline]
    pub(crate) fn new(pool: &'a Pool<S>, future: F, is_failure: fn(&F::Output) -> bool) -> Self {
        Submit { pool, turn: SubmitTurn::default(), future: Some(future), is_failure }
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
        let turn = ready!(this.turn.poll(this.pool, cx, LineUse::Join));
        let future = this.future.take().expect("a submission was polled after it was ready");
        Poll::Ready(match turn {
            Ok(slot) => Ok(start(this.pool, slot.key(), InSlot::new(future, slot, this.is_failure))),
            Err(PoolClosed) => Err(SubmitError(future)),
        })
    }
}

impl<F: Future, S: Executor> Drop for Submit<'_, F, S> {
    #[inline]
    fn drop(&mut self) {
        self.turn.leave(self.pool);
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
    turn: SubmitTurn,
    /// `None` once it is spawned or handed back.
    work: Option<(F, Owed<F::Output, P>)>,
}

impl<'a, F: Future, P: Promise<F::Output>, S: Executor> SubmitTo<'a, F, P, S> {
    pub(crate) fn new(pool: &'a Pool<S>, promise: P, future: F) -> Self {
        SubmitTo { pool, turn: SubmitTurn::default(), work: Some((future, Owed::new(promise))) }
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
        let turn = ready!(this.turn.poll(this.pool, cx, LineUse::Join));
        let (future, promise) = this.work.take().expect("a submission was polled after it was ready");
        Poll::Ready(match turn {
            Ok(slot) => Ok(start(this.pool, slot.key(), Promised::new(future, promise, slot))),
            Err(PoolClosed) => Err(SubmitError((promise.into_inner(), future))),
        })
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> Drop for SubmitTo<'_, F, P, S> {
    fn drop(&mut self) {
        self.turn.leave(self.pool);
    }
}

impl<F: Future, P: Promise<F::Output>, S: Executor> fmt::Debug for SubmitTo<'_, F, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitTo").field("in_line", &self.turn.ticket.is_some()).finish_non_exhaustive()
    }
}
