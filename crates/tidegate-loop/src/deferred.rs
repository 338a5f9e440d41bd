//! The settable future: a result that is set once, later, with done-callbacks and any number of waiters.

use std::cell::{Cell, OnceCell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use crate::kernel::current;
use crate::mailbox::name::Name;
use crate::mailbox::waker;
use crate::observe::report::{Report, ReportKind};
use crate::runtime::event_loop::LoopHandle;
use crate::task::awaited::{Awaited, Counted};
use crate::task::cancel;
use crate::task::{CallbackId, DoneCallback, Waiters};

/// A result that is set once, through any clone, and awaited through any clone. asyncio's `Future`.
///
/// ```
/// use tidegate_loop::{run, spawn, LoopHandle};
/// run(async {
///     let future = LoopHandle::current().create_future();
///     let setter = future.clone();
///     spawn(async move { setter.set_result("... world").unwrap() });
///     assert_eq!(future.await.unwrap(), "... world");
/// })
/// .unwrap();
/// ```
pub struct Deferred<T: 'static> {
    shared: Counted<DeferredShared<T>>,
}

struct DeferredShared<T: 'static> {
    loop_serial: u32,
    /// The error was returned to an awaiter or by `result`, so it is not reported.
    retrieved: Cell<bool>,
    /// The first waiter, if that is a task of a loop; every other waiter is in `others`.
    first: Cell<Option<Name>>,
    /// Mostly there are none.
    others: OnceCell<Box<RefCell<Waiters<Deferred<T>>>>>,
    /// Set once: what is done stays done.
    settled: OnceCell<Settled<T>>,
}

enum Settled<T> {
    /// `None`: the last who could see it has it.
    Result(Option<T>),
    Failed(Arc<dyn Error + Send + Sync>),
    Cancelled,
}

impl<T: 'static> DeferredShared<T> {
    fn others(&self) -> &RefCell<Waiters<Deferred<T>>> {
        self.others.get_or_init(Box::default)
    }

    #[inline]
    fn has_others(&self) -> bool {
        self.others.get().is_some_and(|others| !others.borrow().is_empty())
    }
}

impl<T: 'static> Deferred<T> {
    #[inline]
    pub(crate) fn new(handle: &LoopHandle) -> Deferred<T> {
        let loop_serial = handle.kernel.registration.serial;
        let make = || DeferredShared {
            loop_serial,
            retrieved: Cell::new(false),
            first: Cell::new(None),
            others: OnceCell::new(),
            settled: OnceCell::new(),
        };
        Deferred { shared: Counted::new(make) }
    }

    /// Sets the result: callbacks are queued and waiters woken, in the order they came.
    ///
    /// # Errors
    /// [`InvalidState`] hands the value back if the future is done.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future();
    /// future.set_result(1).unwrap();
    /// assert_eq!(future.set_result(2).unwrap_err().value, 2);
    /// ```
    pub fn set_result(&self, result: T) -> Result<(), InvalidState<T>> {
        if self.is_done() {
            return Err(InvalidState { value: result });
        }
        self.settle(Settled::Result(Some(result)));
        Ok(())
    }

    /// Sets an error instead of a result.
    ///
    /// # Errors
    /// [`InvalidState`] hands the error back if the future is done.
    ///
    /// ```
    /// use tidegate_loop::{run, FutureError, LoopHandle};
    /// run(async {
    ///     let future = LoopHandle::current().create_future::<()>();
    ///     future.set_exception("lost").unwrap();
    ///     let Err(FutureError::Failed(error)) = future.await else { unreachable!() };
    ///     assert_eq!(error.to_string(), "lost");
    /// })
    /// .unwrap();
    /// ```
    pub fn set_exception(
        &self,
        error: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Result<(), InvalidState<Box<dyn Error + Send + Sync>>> {
        let error = error.into();
        if self.is_done() {
            return Err(InvalidState { value: error });
        }
        self.settle(Settled::Failed(Arc::from(error)));
        Ok(())
    }

    /// Cancels it, if it is not done: every task that awaits it gets [`FutureError::Cancelled`]. Returns `false` if it was done.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future::<u32>();
    /// assert!(future.cancel());
    /// assert!(!future.cancel());
    /// ```
    pub fn cancel(&self) -> bool {
        if self.is_done() {
            return false;
        }
        self.settle(Settled::Cancelled);
        true
    }

    // Part of its caller, so that the value is written where it belongs instead of being handed over in memory, where the
    // processor would wait for it.
    #[inline(always)]
    fn settle(&self, how: Settled<T>) {
        let fresh = self.shared.settled.set(how).is_ok();
        debug_assert!(fresh, "a future is settled once");
        self.wake_all();
    }

    #[inline(never)]
    fn wake_all(&self) {
        // Not cleared: the first waiter of a future that is done is never read.
        let first = self.shared.first.get();
        if self.shared.others.get().is_some() || !current::wake_first(first) {
            self.wake_each(first);
        }
    }

    /// The cases that `wake_all` leaves out: more waiters, observers, tasks of other loops.
    #[cold]
    #[inline(never)]
    fn wake_each(&self, first: Option<Name>) {
        let others = self.shared.has_others();
        current::with(|kernel| match kernel {
            Some(kernel) => {
                if kernel.watch.is_on() {
                    kernel.watch.future_set(kernel, self.is_cancelled());
                }
                if let Some(first) = first {
                    kernel.wake_any(first);
                }
            }
            None => first.into_iter().for_each(waker::wake),
        });
        if others {
            let waiters = self.shared.others().take();
            waiters.fire(self.shared.loop_serial, self);
        }
    }

    /// Whether it has a result, an error, or was cancelled.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.create_future::<u32>().is_done());
    /// ```
    pub fn is_done(&self) -> bool {
        self.shared.settled.get().is_some()
    }

    /// Whether it was cancelled.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.create_future::<u32>().is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        matches!(self.shared.settled.get(), Some(Settled::Cancelled))
    }

    /// Queues `callback` for when it is done, in the context of now; at once if it is.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future::<u32>();
    /// let handle = event_loop.handle();
    /// future.add_done_callback(move |future| {
    ///     assert!(future.is_done());
    ///     handle.stop();
    /// });
    /// future.set_result(1).unwrap();
    /// event_loop.run_forever().unwrap();
    /// ```
    #[track_caller]
    pub fn add_done_callback(&self, callback: impl FnOnce(&Deferred<T>) + 'static) -> CallbackId {
        let callback = DoneCallback::new(callback);
        if self.is_done() {
            callback.queue(self.shared.loop_serial, self);
            return CallbackId(0);
        }
        self.shared.others().borrow_mut().add_callback(callback)
    }

    /// Takes a done-callback back: 1, or 0 if it was not there (any more).
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future::<u32>();
    /// let id = future.add_done_callback(|_| unreachable!());
    /// assert_eq!(future.remove_done_callback(id), 1);
    /// ```
    pub fn remove_done_callback(&self, id: CallbackId) -> usize {
        let removed = self.shared.others.get().and_then(|others| others.borrow_mut().remove(id.0));
        usize::from(removed.is_some())
    }

    /// What it holds, if it is done. An error in it counts as seen.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let future = event_loop.create_future();
    /// assert!(future.result().is_none());
    /// future.set_result(3).unwrap();
    /// assert_eq!(future.result().unwrap().unwrap(), 3);
    /// ```
    pub fn result(&self) -> Option<Result<T, FutureError>>
    where
        T: Clone,
    {
        match self.shared.settled.get()? {
            Settled::Result(Some(result)) => Some(Ok(result.clone())),
            _ => Some(Err(self.error())),
        }
    }

    /// Why it has no result; it is done and has none.
    #[cold]
    fn error(&self) -> FutureError {
        match self.shared.settled.get() {
            Some(Settled::Failed(error)) => {
                self.shared.retrieved.set(true);
                FutureError::Failed(error.clone())
            }
            Some(Settled::Cancelled) => FutureError::Cancelled,
            Some(Settled::Result(_)) => panic!("an await of a future was polled after it was ready"),
            None => unreachable!("asked only for what is done"),
        }
    }
}

impl<T: 'static> Awaited for DeferredShared<T> {
    fn cancel(this: &Counted<Self>) -> bool {
        Deferred { shared: this.clone() }.cancel()
    }

    fn describe(&self) -> String {
        "a future".to_owned()
    }

    #[inline]
    fn is_bare(&self) -> bool {
        self.others.get().is_none() && matches!(self.settled.get(), Some(Settled::Result(None)))
    }
}

impl<T> Drop for DeferredShared<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Settled::Failed(error)) = self.settled.get()
            && !self.retrieved.get()
        {
            report_unseen(&**error, self.loop_serial);
        }
    }
}

#[cold]
fn report_unseen(error: &dyn Error, loop_serial: u32) {
    let report =
        Report { kind: ReportKind::UnseenError, message: error.to_string(), name: None, location: None, took: None };
    if current::on(loop_serial, |kernel| kernel.watch.report(&report)).is_none() {
        report.log();
    }
}

impl<T> Clone for Deferred<T> {
    fn clone(&self) -> Self {
        Deferred { shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.shared.settled.get() {
            None => "pending",
            Some(Settled::Result(_)) => "result",
            Some(Settled::Failed(_)) => "failed",
            Some(Settled::Cancelled) => "cancelled",
        };
        f.debug_struct("Deferred").field("state", &state).finish_non_exhaustive()
    }
}

impl<T: Clone> IntoFuture for Deferred<T> {
    type Output = Result<T, FutureError>;
    type IntoFuture = Awaiting<T>;

    fn into_future(self) -> Awaiting<T> {
        Awaiting { future: self, place: InLine::Nowhere }
    }
}

impl<T: Clone> IntoFuture for &Deferred<T> {
    type Output = Result<T, FutureError>;
    type IntoFuture = Awaiting<T>;

    fn into_future(self) -> Awaiting<T> {
        self.clone().into_future()
    }
}

/// An await of a settable [`Deferred`].
///
/// # Cancel safety
/// Safe. A request to cancel the awaiting task cancels the future, as in asyncio: every other waiter sees it too.
/// Hand out a [`shield`](crate::shield)ed task where that is not wanted.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Awaiting<T: 'static> {
    future: Deferred<T>,
    place: InLine,
}

/// Where an await stands in its future's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InLine {
    Nowhere,
    First(Name),
    Behind(u64),
}

impl<T: Clone> Future for Awaiting<T> {
    type Output = Result<T, FutureError>;

    // Part of its caller for the same reason as `settle`; what can be is in functions of their own.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.future.is_done() {
            this.wait(cx.waker());
            return Poll::Pending;
        }
        if cancel::is_forwarded() && this.came_back() {
            return Poll::Pending;
        }
        this.place = InLine::Nowhere;
        // This is the only reference, so the result is moved and not cloned.
        if let Some(shared) = this.future.shared.get_mut()
            && let Some(Settled::Result(result)) = shared.settled.get_mut()
            && let Some(result) = result.take()
        {
            return Poll::Ready(Ok(result));
        }
        Poll::Ready(this.future.result().expect("it is done"))
    }
}

impl<T> Awaiting<T> {
    /// `#[inline(never)]`: keeps the ready path of `poll` free of the registers that waiting needs.
    #[inline(never)]
    fn wait(&mut self, waker: &Waker) {
        match waker::name_of(waker) {
            Some(name) if self.may_be_first(name) => {
                self.future.shared.first.set(Some(name));
                self.place = InLine::First(name);
                cancel::wait_for_awaited(self.future.shared.any());
            }
            _ => self.stand_behind(waker),
        }
    }

    /// The future is done, and a cancellation had been forwarded to it. Returns `true` if that is raised here.
    #[cold]
    fn came_back(&self) -> bool {
        cancel::awaited_came_back(self.future.shared.any(), self.future.is_cancelled())
    }

    /// Whether this await is the first waiter, or can become it because there is none.
    #[inline]
    fn may_be_first(&self, name: Name) -> bool {
        match self.place {
            InLine::First(known) => known == name,
            InLine::Nowhere => self.future.shared.first.get().is_none() && !self.future.shared.has_others(),
            InLine::Behind(_) => false,
        }
    }

    #[cold]
    fn stand_behind(&mut self, waker: &Waker) {
        let known = self.leave_first();
        let (id, before) = self.future.shared.others().borrow_mut().register(known, waker);
        drop(before);
        self.place = InLine::Behind(id);
        cancel::wait_for_awaited(self.future.shared.any());
    }

    /// Gives up the first place, if it has it. The id of another place stays good.
    fn leave_first(&self) -> Option<u64> {
        match self.place {
            InLine::Nowhere => None,
            InLine::First(name) => {
                if self.future.shared.first.get() == Some(name) {
                    self.future.shared.first.set(None);
                }
                None
            }
            InLine::Behind(id) => Some(id),
        }
    }

    #[cold]
    fn leave(&self) {
        if let Some(id) = self.leave_first() {
            let waiter = self.future.shared.others().borrow_mut().remove(id);
            drop(waiter);
        }
        cancel::stop_waiting_for(self.future.shared.any());
    }
}

impl<T> Drop for Awaiting<T> {
    #[inline]
    fn drop(&mut self) {
        if self.place != InLine::Nowhere {
            self.leave();
        }
    }
}

/// Why a future has no result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FutureError {
    /// It was cancelled.
    Cancelled,
    /// It was given an error.
    Failed(Arc<dyn Error + Send + Sync>),
}

impl fmt::Display for FutureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FutureError::Cancelled => f.write_str("the future was cancelled"),
            FutureError::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for FutureError {}

/// The future was done already; here is what it was to be set to.
pub struct InvalidState<V> {
    /// What was to be set.
    pub value: V,
}

impl<V> fmt::Debug for InvalidState<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidState").finish_non_exhaustive()
    }
}

impl<V> fmt::Display for InvalidState<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the future is done already and can be set only once")
    }
}

impl<V> Error for InvalidState<V> {}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use crate::{LoopHandle, run, spawn, yield_now};

    /// Tells how often it was copied.
    #[derive(Default)]
    struct Counted(Rc<std::cell::Cell<u32>>);

    impl Clone for Counted {
        fn clone(&self) -> Self {
            self.0.set(self.0.get() + 1);
            Counted(self.0.clone())
        }
    }

    #[test]
    fn a_result_is_copied_only_while_somebody_else_could_ask_for_it() {
        let awaiting = async {
            let future = LoopHandle::current().create_future();
            let setter = future.clone();
            drop(spawn(async move { assert!(setter.set_result(Counted::default()).is_ok()) }));
            assert_eq!(future.await.unwrap().0.get(), 0, "the setter is gone");

            let future = LoopHandle::current().create_future();
            let setter = future.clone();
            drop(spawn(async move { assert!(setter.set_result(Counted::default()).is_ok()) }));
            yield_now().await;
            assert_eq!((&future).await.unwrap().0.get(), 1, "it can be asked for again");
            assert_eq!(future.result().unwrap().unwrap().0.get(), 2);
            assert_eq!(future.await.unwrap().0.get(), 2, "the last one has it");
        };
        run(awaiting).unwrap();
    }
}
