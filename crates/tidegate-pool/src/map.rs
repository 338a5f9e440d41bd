//! A task per item, with the results in the order in which they come or in the order of the items.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::error::JoinError;
use crate::executor::{Executor, Spawn};
use crate::handle::JoinHandle;
use crate::pool::Pool;
use crate::promise::{Owed, Promise};
use crate::share::Share;
use crate::slot::Promised;
use crate::submit::{LineUse, PoolClosed, SubmitTurn, start};

/// The results of [`Pool::map`] and its kin: a stream of `(index, result)`.
///
/// It starts tasks only while it is polled: each poll starts as many as there are free slots and items, then yields a
/// result if there is one. Tasks that were started make progress on their own.
///
/// One item at a time is taken before there is a slot for it. No item is taken while the number of running tasks and
/// unread results is twice the number of the pool's slots (see [`window`](Self::window)): a slow reader of results holds
/// the tasks back.
///
/// It waits in line for a slot only while a result is awaited, and joins at the back after each result. So the caller may
/// submit to the same pool between two results without waiting for itself. A map that is polled as a stream, and then
/// neither polled again nor dropped, stays in line and keeps a slot that becomes free for it.
///
/// Dropping a map cancels its tasks. If the pool is closed, the next item yields
/// [`NeverStarted`](JoinError::NeverStarted), and the stream ends with the tasks that were running.
///
/// ```
/// use tidegate_pool::Pool;
/// tidegate_loop::run(async {
///     let pool = Pool::new(4);
///     let mut squares = pool.map(1..=100u64, |n| async move { n * n });
///     let mut sum = 0;
///     while let Some((_index, square)) = squares.next().await {
///         sum += square.unwrap();
///     }
///     assert_eq!((sum, pool.stats().peak), (338_350, 4));
/// })
/// .unwrap();
/// ```
#[must_use = "nothing starts until results are asked for"]
pub struct Map<St, F, Fut, S>
where
    Fut: Future,
    S: Executor,
{
    pool: Pool<S>,
    turn: SubmitTurn,
    /// `None` after the last item, or when the map has stopped.
    items: Option<Pin<Box<St>>>,
    f: F,
    /// The future of the item that was taken and waits for a slot.
    next: Option<Fut>,
    tasks: MapTasks<S>,
    arrivals: S::Shared<Arrivals<Fut::Output>>,
    /// For results in order: those that have come, from the next one to be yielded.
    in_order: Option<VecDeque<Option<ItemResult<Fut::Output>>>>,
    /// Also the index of the next item.
    started: usize,
    yielded: usize,
    /// With `stop_on_error`: the first item known to have failed, after which nothing is yielded.
    last: Option<usize>,
    window: Option<usize>,
    is_failure: Option<fn(&Fut::Output) -> bool>,
}

type ItemResult<T> = Result<T, JoinError>;

// The items are boxed and the futures are not polled here, so neither is pinned in it.
impl<St, F, Fut: Future, S: Executor> Unpin for Map<St, F, Fut, S> {}

/// The handles of the running tasks, by which they are cancelled.
struct MapTasks<S: Executor> {
    running: Vec<Option<(usize, JoinHandle<(), S>)>>,
    vacant: Vec<usize>,
}

impl<S: Executor> MapTasks<S> {
    fn cancel_after(&self, index: Option<usize>) {
        for (at, handle) in self.running.iter().flatten() {
            if index.is_none_or(|index| *at > index) {
                handle.cancel();
            }
        }
    }
}

/// Results that the tasks have sent and the stream has not read.
struct Arrivals<T> {
    results: VecDeque<(ItemPlace, ItemResult<T>)>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
struct ItemPlace {
    index: usize,
    /// Its index in [`MapTasks`]. `None` if it was never started.
    task: Option<usize>,
}

/// The [`Promise`] through which a task of a [`Map`] sends its result.
///
/// ```
/// use tidegate_pool::{Arrival, Promised, Spawn, TidegateLoop};
/// fn can_map<F: Future + 'static>()
/// where
///     TidegateLoop: Spawn<Promised<F, Arrival<F::Output, TidegateLoop>, TidegateLoop>>,
/// {
/// }
/// can_map::<std::future::Ready<u8>>();
/// ```
pub struct Arrival<T, S: Executor> {
    place: ItemPlace,
    arrivals: S::Shared<Arrivals<T>>,
}

impl<T, S: Executor> Promise<T> for Arrival<T, S> {
    fn settle(self, result: ItemResult<T>) {
        let waker = self.arrivals.with(|arrivals| {
            arrivals.results.push_back((self.place, result));
            arrivals.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An iterator as a stream that is always ready.
///
/// ```
/// # use tidegate_pool::Pool;
/// tidegate_loop::run(async {
///     let doubled = Pool::new(1).map([1, 2], |n| async move { n * 2 }); // a Map<Iter<..>, ..>
///     assert_eq!(doubled.collect().await.unwrap(), [2, 4]);
/// })
/// .unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Iter<I>(pub(crate) I);

impl<I> Unpin for Iter<I> {}

impl<I: Iterator> Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<St, F, Fut, S> Map<St, F, Fut, S>
where
    Fut: Future,
    S: Executor,
{
    pub(crate) fn new(pool: Pool<S>, items: St, f: F) -> Self {
        Map {
            pool,
            turn: SubmitTurn::default(),
            items: Some(Box::pin(items)),
            f,
            next: None,
            tasks: MapTasks { running: Vec::new(), vacant: Vec::new() },
            arrivals: Share::new(Arrivals { results: VecDeque::new(), waker: None }),
            in_order: None,
            started: 0,
            yielded: 0,
            last: None,
            window: None,
            is_failure: None,
        }
    }

    /// Yields the results in the order of the items.
    ///
    /// ```
    /// use tidegate_loop::{run, sleep, Duration};
    /// use tidegate_pool::Pool;
    /// run(async {
    ///     let naps = Pool::new(2).map([2, 1], |ms| async move { sleep(Duration::from_millis(ms)).await; ms });
    ///     assert_eq!(naps.ordered().collect().await.unwrap(), [2, 1]);
    /// })
    /// .unwrap();
    /// ```
    pub fn ordered(mut self) -> Self {
        self.in_order.get_or_insert_default();
        self
    }

    /// Takes no item while the number of running tasks and unread results is `window`. Default: twice the number of the
    /// pool's slots, so that all of them can be busy while as many results wait.
    ///
    /// # Panics
    /// If `window` is zero.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(10);
    ///     pool.map(0..100, |_| async {}).window(3).collect().await.unwrap();
    ///     assert_eq!(pool.stats().peak, 3);
    /// })
    /// .unwrap();
    /// ```
    pub fn window(mut self, window: usize) -> Self {
        assert!(window > 0, "the window of a map must be at least 1");
        self.window = Some(window);
        self
    }

    /// Stops at the first failure: a task that returned `Err`, panicked or was cancelled. No further item is taken, the
    /// running tasks are cancelled, and the failure is the last result. With results [in order](Self::ordered), the tasks
    /// of earlier items go on and their results are yielded first.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let mut numbers = pool.map(["1", "x", "3"], |text| async { text.parse::<u32>() }).stop_on_error();
    ///     assert!(matches!(numbers.next().await, Some((0, Ok(Ok(1))))));
    ///     assert!(matches!(numbers.next().await, Some((1, Ok(Err(_))))));
    ///     assert!(numbers.next().await.is_none());
    /// })
    /// .unwrap();
    /// ```
    pub fn stop_on_error<T, E>(mut self) -> Self
    where
        Fut: Future<Output = Result<T, E>>,
    {
        self.is_failure = Some(Result::is_err);
        self
    }

    /// Number of items that were started and whose results were not yielded.
    fn in_flight(&self) -> usize {
        self.started - self.yielded
    }

    /// Takes no further item and cancels the tasks after `index`, or all with `None`.
    fn stop(&mut self, index: Option<usize>) {
        self.items = None;
        self.next = None;
        self.turn.leave(&self.pool);
        self.tasks.cancel_after(index);
    }

    /// Processes a result that has come. Returns it if it is to be yielded at once, which it is unless results are in
    /// order.
    fn arrive(
        &mut self,
        place: ItemPlace,
        result: ItemResult<Fut::Output>,
    ) -> Option<(usize, ItemResult<Fut::Output>)> {
        if let Some(task) = place.task {
            self.tasks.running[task] = None;
            self.tasks.vacant.push(task);
        }
        if self.last.is_some_and(|last| place.index > last) {
            return None;
        }
        if let Some(is_failure) = self.is_failure
            && result.as_ref().map_or(true, is_failure)
        {
            self.last = Some(place.index);
            self.stop(self.in_order.as_ref().map(|_| place.index));
        }
        let Some(in_order) = &mut self.in_order else { return Some((place.index, result)) };
        let at = place.index - self.yielded;
        while in_order.len() <= at {
            in_order.push_back(None);
        }
        in_order[at] = Some(result);
        None
    }

    /// The next result in order, if it has come.
    fn take_in_order(&mut self) -> Option<(usize, ItemResult<Fut::Output>)> {
        let in_order = self.in_order.as_mut()?;
        let result = in_order.front_mut()?.take()?;
        in_order.pop_front();
        Some((self.yielded, result))
    }

    fn is_over(&self) -> bool {
        let stopped = match self.last {
            Some(last) if self.in_order.is_some() => self.yielded > last,
            Some(_) => true,
            None => false,
        };
        stopped || (self.items.is_none() && self.next.is_none() && self.in_flight() == 0)
    }
}

impl<St, F, Fut, S> Map<St, F, Fut, S>
where
    St: Stream,
    F: FnMut(St::Item) -> Fut,
    Fut: Future,
    S: Spawn<Promised<Fut, Arrival<Fut::Output, S>, S>>,
{
    /// Returns the next result and its item's index, or `None` after the last.
    ///
    /// # Cancel safety
    /// Safe: no item and no result is lost.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let mut results = pool.map(["a"], |text| async move { text });
    ///     assert!(matches!(results.next().await, Some((0, Ok("a")))));
    ///     assert!(results.next().await.is_none());
    /// })
    /// .unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<(usize, Result<Fut::Output, JoinError>)> {
        let awaited = AwaitedMap(self);
        poll_fn(|cx| awaited.0.poll_one(cx)).await
    }

    /// Returns all results, in the order of this stream.
    ///
    /// # Errors
    /// If a task panicked or was cancelled; the other tasks are cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the tasks, and their results are lost.
    ///
    /// ```
    /// # use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let doubled = Pool::new(2).map_ordered(1..4, |n| async move { n * 2 });
    ///     assert_eq!(doubled.collect().await.unwrap(), [2, 4, 6]);
    /// })
    /// .unwrap();
    /// ```
    pub async fn collect(mut self) -> Result<Vec<Fut::Output>, JoinError> {
        let mut results = Vec::new();
        while let Some((_, result)) = self.next().await {
            results.push(result?);
        }
        Ok(results)
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, ItemResult<Fut::Output>)>> {
        let mut ours = None;
        loop {
            if self.is_over() {
                return Poll::Ready(None);
            }
            self.start_some(cx, LineUse::Skip);
            if let Some(next) = self.take_in_order() {
                self.yielded += 1;
                return Poll::Ready(Some(next));
            }
            let waker = &mut ours;
            let (arrived, registered, _before) = self.arrivals.with(|arrivals| {
                if let Some(arrived) = arrivals.results.pop_front() {
                    return (Some(arrived), false, None);
                }
                if arrivals.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    return (None, true, None);
                }
                match waker.take() {
                    Some(waker) => (None, true, arrivals.waker.replace(waker)),
                    None => (None, false, None),
                }
            });
            match arrived {
                Some((place, result)) => {
                    if let Some(next) = self.arrive(place, result) {
                        self.yielded += 1;
                        return Poll::Ready(Some(next));
                    }
                }
                // Checked again: the stream of items may just have ended.
                None if self.is_over() => return Poll::Ready(None),
                None if registered => {
                    let started = self.started;
                    self.start_some(cx, LineUse::Join);
                    if self.started == started && !self.is_over() {
                        return Poll::Pending;
                    }
                }
                None => ours = Some(cx.waker().clone()),
            }
        }
    }

    fn start_some(&mut self, cx: &mut Context<'_>, line: LineUse) {
        let window = self.window.unwrap_or_else(|| self.pool.cap().saturating_mul(2).max(1));
        if self.in_flight() >= window {
            // A resize of the pool may have made the window smaller since the map joined the line.
            self.turn.leave(&self.pool);
        }
        while self.in_flight() < window {
            if self.next.is_none() {
                let Some(items) = &mut self.items else { return };
                match items.as_mut().poll_next(cx) {
                    Poll::Ready(Some(item)) => self.next = Some((self.f)(item)),
                    Poll::Ready(None) => self.items = None,
                    Poll::Pending => return,
                }
                continue;
            }
            let Poll::Ready(turn) = self.turn.poll(&self.pool, cx, line) else { return };
            let Some(future) = self.next.take() else { return };
            let index = self.started;
            self.started += 1;
            let Ok(slot) = turn.map_err(|PoolClosed| ()) else {
                self.items = None;
                self.arrival(ItemPlace { index, task: None }).settle(Err(JoinError::NeverStarted));
                return;
            };
            let task = self.tasks.vacant.pop().unwrap_or_else(|| {
                self.tasks.running.push(None);
                self.tasks.running.len() - 1
            });
            let promise = Owed::new(self.arrival(ItemPlace { index, task: Some(task) }));
            let handle = start(&self.pool, slot.key(), Promised::new(future, promise, slot));
            self.tasks.running[task] = Some((index, handle));
        }
    }

    fn arrival(&self, place: ItemPlace) -> Arrival<Fut::Output, S> {
        Arrival { place, arrivals: self.arrivals.clone() }
    }
}

/// A map whose next result is awaited. Dropping this makes it leave the line.
struct AwaitedMap<'a, St, F, Fut: Future, S: Executor>(&'a mut Map<St, F, Fut, S>);

impl<St, F, Fut: Future, S: Executor> Drop for AwaitedMap<'_, St, F, Fut, S> {
    fn drop(&mut self) {
        self.0.turn.leave(&self.0.pool);
    }
}

impl<St, F, Fut, S> Stream for Map<St, F, Fut, S>
where
    St: Stream,
    F: FnMut(St::Item) -> Fut,
    Fut: Future,
    S: Spawn<Promised<Fut, Arrival<Fut::Output, S>, S>>,
{
    type Item = (usize, Result<Fut::Output, JoinError>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.poll_one(cx);
        if polled.is_ready() {
            let this = &mut *self;
            this.turn.leave(&this.pool);
        }
        polled
    }
}

impl<St, F, Fut, S> Drop for Map<St, F, Fut, S>
where
    Fut: Future,
    S: Executor,
{
    fn drop(&mut self) {
        self.turn.leave(&self.pool);
        self.tasks.cancel_after(None);
    }
}

impl<St, F, Fut: Future, S: Executor> fmt::Debug for Map<St, F, Fut, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Map { started, yielded, .. } = self;
        f.debug_struct("Map").field("started", started).field("yielded", yielded).finish_non_exhaustive()
    }
}
