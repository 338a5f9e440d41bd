//! A task for each item, and the results as they come or in order.

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
use crate::submit::{Closed, Turn, start};

/// The results of [`Pool::map`] and its kin: a stream of `(index, result)`.
///
/// It works while it is polled: each time it starts as many tasks as there are slots and items, then yields a result if
/// there is one. It draws an item before it has a slot for it, one at a time, and no more items while twice as many
/// results as the pool has slots are running or lie unfetched (see [`window`](Self::window)): who is slow to fetch
/// results holds the tasks back. Tasks once started make progress whatever the caller does.
///
/// In line for a slot it stands only while a result is awaited, and with each result it comes to the back of the line:
/// so between two results the caller may submit to the same pool and not wait for itself. (Polled as a stream, and then
/// neither polled again nor dropped, it does keep its place, and a slot that comes free for it.)
///
/// Dropped, it cancels its tasks. If the pool is closed meanwhile, the item that was to be next yields
/// [`NeverStarted`](JoinError::NeverStarted), and nothing comes after the tasks that were running.
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
    turn: Turn,
    /// `None` when there are no more items, or none are wanted any more.
    items: Option<Pin<Box<St>>>,
    f: F,
    /// Drawn, and waiting for a slot.
    next: Option<Fut>,
    tasks: Tasks<S>,
    arrivals: S::Shared<Arrivals<Fut::Output>>,
    /// With results in order: those from the one to be yielded next, as far as they have come.
    in_order: Option<VecDeque<Option<Arrived<Fut::Output>>>>,
    /// Also the index of the next item.
    started: usize,
    yielded: usize,
    /// The first item known to have failed, where that stops everything: nothing after it is yielded.
    last: Option<usize>,
    window: Option<usize>,
    is_failure: Option<fn(&Fut::Output) -> bool>,
}

type Arrived<T> = Result<T, JoinError>;

// Neither the items, which are boxed, nor the futures, which are not polled here, are pinned in it.
impl<St, F, Fut: Future, S: Executor> Unpin for Map<St, F, Fut, S> {}

/// Handles of the tasks that run, to cancel them by. A task's place is used again.
struct Tasks<S: Executor> {
    running: Vec<Option<(usize, JoinHandle<(), S>)>>,
    vacant: Vec<usize>,
}

impl<S: Executor> Tasks<S> {
    fn cancel_after(&self, index: Option<usize>) {
        for (at, handle) in self.running.iter().flatten() {
            if index.is_none_or(|index| *at > index) {
                handle.cancel();
            }
        }
    }
}

/// Whether to wait in line for a slot, or to do with those that are free.
#[derive(Clone, Copy)]
enum Line {
    In,
    Out,
}

/// Results on their way from the tasks to the stream.
struct Arrivals<T> {
    results: VecDeque<(Place, Arrived<T>)>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
struct Place {
    index: usize,
    /// Among [`Tasks`]. `None` if it never was a task.
    task: Option<usize>,
}

/// Where a task of a [`Map`] sends its result.
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
    place: Place,
    arrivals: S::Shared<Arrivals<T>>,
}

impl<T, S: Executor> Promise<T> for Arrival<T, S> {
    fn settle(self, result: Arrived<T>) {
        let waker = self.arrivals.with(|arrivals| {
            arrivals.results.push_back((self.place, result));
            arrivals.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An iterator as a stream: it always has the next item at once.
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
            turn: Turn::default(),
            items: Some(Box::pin(items)),
            f,
            next: None,
            tasks: Tasks { running: Vec::new(), vacant: Vec::new() },
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

    /// Draws no item while `window` results are running or lie unfetched. Without it: twice the pool's slots, so that
    /// all of them can be busy while as many results wait.
    ///
    /// # Panics
    /// If it is zero.
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
        assert!(window > 0, "with a window of nothing nothing would start");
        self.window = Some(window);
        self
    }

    /// Stops at the first failure: a task that returned `Err`, panicked or was cancelled. No further item is drawn, and
    /// what still runs is cancelled; the failure is the last thing yielded. In order, what comes before it still is.
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

    /// Running, or come and not fetched.
    fn in_hand(&self) -> usize {
        self.started - self.yielded
    }

    /// Draws no more; what is after `index` is not wanted either, or with `None` what is running at all.
    fn stop(&mut self, index: Option<usize>) {
        self.items = None;
        self.next = None;
        self.turn.give_up(&self.pool);
        self.tasks.cancel_after(index);
    }

    /// Notes a result that has come; out of order it is the one to yield.
    fn arrive(&mut self, place: Place, result: Arrived<Fut::Output>) -> Option<(usize, Arrived<Fut::Output>)> {
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
    fn take_in_order(&mut self) -> Option<(usize, Arrived<Fut::Output>)> {
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
        stopped || (self.items.is_none() && self.next.is_none() && self.in_hand() == 0)
    }
}

impl<St, F, Fut, S> Map<St, F, Fut, S>
where
    St: Stream,
    F: FnMut(St::Item) -> Fut,
    Fut: Future,
    S: Spawn<Promised<Fut, Arrival<Fut::Output, S>, S>>,
{
    /// The next result and its item's index; `None` after the last.
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
        let awaited = Awaited(self);
        poll_fn(|cx| awaited.0.poll_one(cx)).await
    }

    /// All the results, in the order this stream has them.
    ///
    /// # Errors
    /// The first task that panicked or was cancelled; the others are cancelled.
    ///
    /// # Cancel safety
    /// Dropped, it cancels the tasks, and the results are lost.
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

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Arrived<Fut::Output>)>> {
        let mut ours = None;
        loop {
            if self.is_over() {
                return Poll::Ready(None);
            }
            self.start_some(cx, Line::Out);
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
                // Nothing may be left to come: the stream of items may just have ended.
                None if self.is_over() => return Poll::Ready(None),
                None if registered => {
                    let started = self.started;
                    self.start_some(cx, Line::In);
                    if self.started == started && !self.is_over() {
                        return Poll::Pending;
                    }
                }
                None => ours = Some(cx.waker().clone()),
            }
        }
    }

    fn start_some(&mut self, cx: &mut Context<'_>, line: Line) {
        let window = self.window.unwrap_or_else(|| self.pool.cap().saturating_mul(2).max(1));
        if self.in_hand() >= window {
            // The window may have become smaller since it joined the line.
            self.turn.give_up(&self.pool);
        }
        while self.in_hand() < window {
            if self.next.is_none() {
                let Some(items) = &mut self.items else { return };
                match items.as_mut().poll_next(cx) {
                    Poll::Ready(Some(item)) => self.next = Some((self.f)(item)),
                    Poll::Ready(None) => self.items = None,
                    Poll::Pending => return,
                }
                continue;
            }
            let turn = match line {
                Line::Out => self.turn.poll_now(&self.pool, cx),
                Line::In => match self.turn.poll(&self.pool, cx) {
                    Poll::Ready(turn) => Some(turn),
                    Poll::Pending => None,
                },
            };
            let Some(turn) = turn else { return };
            let Some(future) = self.next.take() else { return };
            let index = self.started;
            self.started += 1;
            let Ok(slot) = turn.map_err(|Closed| ()) else {
                self.items = None;
                self.arrival(Place { index, task: None }).settle(Err(JoinError::NeverStarted));
                return;
            };
            let task = self.tasks.vacant.pop().unwrap_or_else(|| {
                self.tasks.running.push(None);
                self.tasks.running.len() - 1
            });
            let promise = Owed::new(self.arrival(Place { index, task: Some(task) }));
            let handle = start(&self.pool, slot.key(), Promised::new(future, promise, slot));
            self.tasks.running[task] = Some((index, handle));
        }
    }

    fn arrival(&self, place: Place) -> Arrival<Fut::Output, S> {
        Arrival { place, arrivals: self.arrivals.clone() }
    }
}

/// A map whose next result is awaited: no longer so, it leaves the line.
struct Awaited<'a, St, F, Fut: Future, S: Executor>(&'a mut Map<St, F, Fut, S>);

impl<St, F, Fut: Future, S: Executor> Drop for Awaited<'_, St, F, Fut, S> {
    fn drop(&mut self) {
        self.0.turn.give_up(&self.0.pool);
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
            this.turn.give_up(&this.pool);
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
        self.turn.give_up(&self.pool);
        self.tasks.cancel_after(None);
    }
}

impl<St, F, Fut: Future, S: Executor> fmt::Debug for Map<St, F, Fut, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Map { started, yielded, .. } = self;
        f.debug_struct("Map").field("started", started).field("yielded", yielded).finish_non_exhaustive()
    }
}
