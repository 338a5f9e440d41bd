//! The pool: its public face.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::admission::{Admission, Admit, Watermarks};
use crate::error::TrySubmitError;
use crate::executor::{Executor, Spawn};
use crate::handle::JoinHandle;
use crate::map::{Iter, Map};
use crate::promise::Promise;
use crate::share::Share;
use crate::slot::{InSlot, SharedAdmission, Slot};
use crate::stats::Stats;
use crate::submit::{Submit, SubmitTo, start};

/// A bounded pool without a queue: it runs at most [`cap`](Self::cap) tasks at once, and the submitter of one more waits.
///
/// A clone is another handle to the same pool. When the last handle is dropped, the tasks go on, but nothing can wait for
/// their end any more.
///
/// ```
/// use tidegate_loop::{run, sleep, Duration};
/// use tidegate_pool::Pool;
///
/// run(async {
///     let pool = Pool::new(5);
///     for n in 0..20 {
///         // Waits while five are running.
///         pool.submit(async move { sleep(Duration::from_millis(n % 3)).await }).await.unwrap().detach();
///         assert!(pool.stats().running <= 5);
///     }
///     pool.close().await;
///     assert_eq!(pool.stats().completed, 20);
/// })
/// .unwrap();
/// ```
pub struct Pool<
    #[cfg(feature = "tidegate")] S: Executor = crate::TidegateLoop,
    #[cfg(not(feature = "tidegate"))] S: Executor,
> {
    pub(crate) state: SharedAdmission<S>,
    pub(crate) executor: S,
}

#[cfg(feature = "tidegate")]
impl Pool<crate::TidegateLoop> {
    /// Creates a pool of `cap` slots on tidegate's loop. It can be created anywhere; submitting needs a running loop.
    ///
    /// With a `cap` of zero nothing starts until the pool is [resized](Self::resize).
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// assert_eq!(Pool::new(3).cap(), 3);
    /// ```
    #[must_use]
    pub fn new(cap: usize) -> Self {
        Pool::on(crate::TidegateLoop, cap)
    }
}

impl<S: Executor> Pool<S> {
    /// Creates a pool of `cap` slots on `executor`.
    ///
    /// ```
    /// use tidegate_pool::{Pool, TidegateLoop};
    /// assert_eq!(Pool::on(TidegateLoop, 3).cap(), 3);
    /// ```
    #[must_use]
    pub fn on(executor: S, cap: usize) -> Self {
        Pool { state: Share::new(Admission::new(cap)), executor }
    }

    /// Waits for a slot, then starts `future` as a task of its own, which makes progress independently of the caller. The
    /// slot is free before the task's handle resolves.
    ///
    /// Submitters get slots in the order in which they first polled their submissions. A slot that becomes free is kept
    /// for the first in line until that submission is polled or dropped.
    ///
    /// # Errors
    /// If the pool is closed, before the call or during the wait; the error contains the future, unpolled.
    ///
    /// # Cancel safety
    /// Dropping the submission leaves the line and drops `future`, unpolled; nothing leaks.
    ///
    /// # Panics
    /// If polled outside of its executor.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(2);
    ///     let handle = pool.submit(async { 6 * 7 }).await.unwrap();
    ///     assert_eq!(handle.await.unwrap(), 42);
    ///     assert_eq!(pool.stats().running, 0);
    /// })
    /// .unwrap();
    /// ```
    #[inline]
    pub fn submit<F>(&self, future: F) -> Submit<'_, F, S>
    where
        F: Future,
        S: Spawn<InSlot<F, S>>,
    {
        Submit::new(self, future, |_| false)
    }

    /// As [`submit`](Self::submit), but a task that returns `Err` counts as [failed](Stats::failed).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let handle = pool.submit_fallible(async { "12x".parse::<u32>() }).await.unwrap();
    ///     assert!(handle.await.unwrap().is_err());
    ///     assert_eq!(pool.stats().failed, 1);
    /// })
    /// .unwrap();
    /// ```
    pub fn submit_fallible<F, T, E>(&self, future: F) -> Submit<'_, F, S>
    where
        F: Future<Output = Result<T, E>>,
        S: Spawn<InSlot<F, S>>,
    {
        Submit::new(self, future, Result::is_err)
    }

    /// Starts `future` if a slot is free and no submitter is in line.
    ///
    /// # Errors
    /// See [`TrySubmitError`], which contains the future, unpolled.
    ///
    /// # Panics
    /// If called outside of its executor.
    ///
    /// ```
    /// use tidegate_pool::{Pool, TrySubmitError};
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let first = pool.try_submit(async { 1 }).unwrap();
    ///     let Err(TrySubmitError::Full(second)) = pool.try_submit(async { 2 }) else { unreachable!() };
    ///     assert_eq!((first.await.unwrap(), second.await), (1, 2));
    /// })
    /// .unwrap();
    /// ```
    #[inline]
    pub fn try_submit<F>(&self, future: F) -> Result<JoinHandle<F::Output, S>, TrySubmitError<F>>
    where
        F: Future,
        F::Output: 'static,
        S: Spawn<InSlot<F, S>>,
    {
        match self.state.with(|state| state.admit()) {
            Admit::Slot(key) => {
                let slot = Slot::new(self.state.clone(), key);
                Ok(start(self, key, InSlot::new(future, slot, |_| false)))
            }
            Admit::Full => Err(TrySubmitError::Full(future)),
            Admit::Closed => Err(TrySubmitError::Closed(future)),
        }
    }

    /// As [`submit`](Self::submit), but the result goes to a promise that the caller has created. The returned handle can
    /// cancel the task; if it is dropped, the task goes on.
    ///
    /// The promise is always settled: with the result, with the panic, or as cancelled if the task is cancelled or this
    /// submission is dropped while it waits. The slot is free by then.
    ///
    /// # Errors
    /// If the pool is closed; the error contains the promise, unsettled, and the future, unpolled.
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit), and the promise is settled as cancelled.
    ///
    /// ```
    /// use tidegate_loop::{run, LoopHandle};
    /// use tidegate_pool::Pool;
    /// run(async {
    ///     let promise = LoopHandle::current().create_future();
    ///     Pool::new(1).submit_to(promise.clone(), async { 42 }).await.unwrap().detach();
    ///     assert_eq!(promise.await.unwrap(), 42);
    /// })
    /// .unwrap();
    /// ```
    pub fn submit_to<F, P>(&self, promise: P, future: F) -> SubmitTo<'_, F, P, S>
    where
        F: Future,
        P: Promise<F::Output>,
    {
        SubmitTo::new(self, promise, future)
    }

    /// Runs `f` of each item as a task and yields the results in the order in which they come, each with its item's index.
    ///
    /// Items are taken as slots become free, and only while results are awaited; see [`Map`].
    ///
    /// ```
    /// use tidegate_loop::{run, sleep, Duration};
    /// use tidegate_pool::Pool;
    /// run(async {
    ///     let pool = Pool::new(3);
    ///     let mut naps = pool.map([3, 1, 2], |ms| async move { sleep(Duration::from_millis(ms)).await; ms });
    ///     let mut order = Vec::new();
    ///     while let Some((index, ms)) = naps.next().await {
    ///         order.push((index, ms.unwrap()));
    ///     }
    ///     assert_eq!(order, [(1, 1), (2, 2), (0, 3)]);
    /// })
    /// .unwrap();
    /// ```
    pub fn map<I, F, Fut>(&self, items: I, f: F) -> Map<Iter<I::IntoIter>, F, Fut, S>
    where
        I: IntoIterator,
        F: FnMut(I::Item) -> Fut,
        Fut: Future,
    {
        self.map_stream(Iter(items.into_iter()), f)
    }

    /// As [`map`](Self::map), with the results in the order of the items.
    ///
    /// ```
    /// use tidegate_loop::{run, sleep, Duration};
    /// use tidegate_pool::Pool;
    /// run(async {
    ///     let naps = Pool::new(3).map_ordered([3, 1, 2], |ms| async move { sleep(Duration::from_millis(ms)).await; ms });
    ///     assert_eq!(naps.collect().await.unwrap(), [3, 1, 2]);
    /// })
    /// .unwrap();
    /// ```
    pub fn map_ordered<I, F, Fut>(&self, items: I, f: F) -> Map<Iter<I::IntoIter>, F, Fut, S>
    where
        I: IntoIterator,
        F: FnMut(I::Item) -> Fut,
        Fut: Future,
    {
        self.map(items, f).ordered()
    }

    /// As [`map`](Self::map), with the items of a stream. [`ordered`](Map::ordered) gives the results in their order.
    ///
    /// ```
    /// use tidegate_loop::{as_completed, run, spawn};
    /// use tidegate_pool::Pool;
    /// run(async {
    ///     let words = as_completed([spawn(async { "three" }), spawn(async { "five" })]); // any stream
    ///     let lengths = Pool::new(2).map_stream(words, |(_, word)| async { word.unwrap().len() });
    ///     assert_eq!(lengths.ordered().collect().await.unwrap(), [5, 4]);
    /// })
    /// .unwrap();
    /// ```
    pub fn map_stream<St, F, Fut>(&self, items: St, f: F) -> Map<St, F, Fut, S>
    where
        St: Stream,
        F: FnMut(St::Item) -> Fut,
        Fut: Future,
    {
        Map::new(self.clone(), items, f)
    }

    /// Changes the number of slots at once: from now on no task starts while `cap` or more are running. Tasks that run
    /// already go on, even if there are more of them. A slot that was kept for a submitter may be taken back; the submitter
    /// then keeps its place in line.
    ///
    /// ```
    /// use std::future::pending;
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(2);
    ///     let (one, two) = (pool.try_submit(pending::<()>()).unwrap(), pool.try_submit(pending::<()>()).unwrap());
    ///     pool.resize(1);
    ///     one.cancel();
    ///     assert!(one.await.is_err());
    ///     assert!(pool.try_submit(async {}).is_err()); // the other one still runs
    ///     # two.cancel();
    /// })
    /// .unwrap();
    /// ```
    pub fn resize(&self, cap: usize) {
        self.state.with(|state| state.resize(cap)).wake();
    }

    /// Sets or, with `None`, removes the watermarks. They are in effect at once: with `high` or more tasks running, none
    /// starts until only `low` are. A `high` above the cap is never reached.
    ///
    /// # Panics
    /// If `low` is not less than `high`.
    ///
    /// ```
    /// use tidegate_pool::{Pool, Watermarks};
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(10);
    ///     pool.set_watermarks(Some(Watermarks { high: 2, low: 0 }));
    ///     let (one, two) = (pool.try_submit(async {}).unwrap(), pool.try_submit(async {}).unwrap());
    ///     one.await.unwrap();
    ///     # tidegate_loop::yield_now().await;
    ///     two.await.unwrap();
    ///     assert!(pool.try_submit(async {}).is_ok()); // none left: starts go on
    /// })
    /// .unwrap();
    /// ```
    pub fn set_watermarks(&self, watermarks: Option<Watermarks>) {
        if let Some(Watermarks { high, low }) = watermarks {
            assert!(low < high, "the low watermark ({low}) must be less than the high one ({high})");
        }
        self.state.with(|state| state.set_watermarks(watermarks)).wake();
    }

    /// Stops starting tasks. Running tasks go on; submitters wait.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     pool.pause();
    ///     assert!(pool.try_submit(async {}).is_err());
    ///     pool.resume();
    ///     assert!(pool.try_submit(async {}).is_ok());
    /// })
    /// .unwrap();
    /// ```
    pub fn pause(&self) {
        self.state.with(|state| state.set_paused(true)).wake();
    }

    /// Starts tasks again after a [`pause`](Self::pause), those in line first.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// let pool = Pool::new(1);
    /// pool.pause();
    /// pool.resume();
    /// assert!(!pool.is_paused());
    /// ```
    pub fn resume(&self) {
        self.state.with(|state| state.set_paused(false)).wake();
    }

    /// Closes the pool at once. Awaiting the result waits until the running tasks have ended.
    ///
    /// Submitters in line and later ones get an error with their futures. A task of the pool that awaits this waits for
    /// itself.
    ///
    /// # Cancel safety
    /// Safe. The pool stays closed.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let handle = pool.submit(async { 1 }).await.unwrap();
    ///     pool.close().await;
    ///     assert_eq!((pool.stats().running, handle.await.unwrap()), (0, 1));
    ///     assert!(pool.submit(async {}).await.is_err());
    /// })
    /// .unwrap();
    /// ```
    pub fn close(&self) -> Drained<S> {
        self.state.with(|state| state.close()).wake();
        Drained { pool: self.clone(), place: None }
    }

    /// [Closes](Self::close) the pool and cancels every running task. Awaiting the result waits until they have ended.
    ///
    /// # Cancel safety
    /// Safe. The pool stays closed, and the tasks stay cancelled.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     pool.submit(std::future::pending::<()>()).await.unwrap().detach();
    ///     pool.abort().await;
    ///     assert_eq!(pool.stats().cancelled, 1);
    /// })
    /// .unwrap();
    /// ```
    pub fn abort(&self) -> Drained<S> {
        let (wakes, running) = self.state.with(|state| state.abort());
        for task in running {
            S::cancel(&task);
        }
        wakes.wake();
        Drained { pool: self.clone(), place: None }
    }

    /// The number of slots.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// assert_eq!(Pool::new(8).cap(), 8);
    /// ```
    pub fn cap(&self) -> usize {
        self.state.with(|state| state.cap())
    }

    /// The watermarks, if any are set.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// assert_eq!(Pool::new(8).watermarks(), None);
    /// ```
    pub fn watermarks(&self) -> Option<Watermarks> {
        self.state.with(|state| state.watermarks())
    }

    /// Whether the pool is [paused](Self::pause).
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// assert!(!Pool::new(8).is_paused());
    /// ```
    pub fn is_paused(&self) -> bool {
        self.state.with(|state| state.is_paused())
    }

    /// Whether the pool was [closed](Self::close).
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// let pool = Pool::new(8);
    /// drop(pool.close());
    /// assert!(pool.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.state.with(|state| state.is_closed())
    }

    /// The pool's figures.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// assert_eq!(Pool::new(8).stats().running, 0);
    /// ```
    pub fn stats(&self) -> Stats {
        self.state.with(|state| state.stats())
    }
}

impl<S: Executor> Clone for Pool<S> {
    fn clone(&self) -> Self {
        Pool { state: self.state.clone(), executor: self.executor.clone() }
    }
}

impl<S: Executor> fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pool = f.debug_struct("Pool");
        // Never waits: while another thread holds the lock, the fields are left out.
        if let Some((cap, stats)) = self.state.try_with(|state| (state.cap(), state.stats())) {
            pool.field("cap", &cap).field("stats", &stats);
        }
        pool.finish_non_exhaustive()
    }
}

/// Waits until no task runs; see [`Pool::close`] and [`Pool::abort`], which take effect even if this is not polled.
///
/// # Cancel safety
/// Safe.
///
/// ```
/// use tidegate_pool::{Drained, Pool};
/// tidegate_loop::run(async {
///     let drained: Drained = Pool::new(1).close();
///     drained.await;
/// })
/// .unwrap();
/// ```
#[must_use = "await it to wait for the running tasks, or drop it explicitly"]
pub struct Drained<
    #[cfg(feature = "tidegate")] S: Executor = crate::TidegateLoop,
    #[cfg(not(feature = "tidegate"))] S: Executor,
> {
    pool: Pool<S>,
    /// The index of its waker in the pool, once it waits.
    place: Option<usize>,
}

impl<S: Executor> Unpin for Drained<S> {}

impl<S: Executor> Future for Drained<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let waker = cx.waker().clone();
        let (drained, _unused) = this.pool.state.with(|state| state.is_drained(&mut this.place, waker));
        if drained {
            // The pool has woken and removed all wakers.
            this.place = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<S: Executor> Drop for Drained<S> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let _waker = self.pool.state.with(|state| state.leave_drained(place));
        }
    }
}

impl<S: Executor> fmt::Debug for Drained<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Drained").field(&self.pool).finish()
    }
}
