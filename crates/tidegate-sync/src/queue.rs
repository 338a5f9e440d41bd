//! The queue: many producers, many consumers, bounded or not.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::error::{TryPushError, TryRecvError};
use super::lock::{Lock, waking, while_more};
use super::push::Push;
use super::recv::{Recv, RecvAll, RecvAllInto, RecvUpTo};
use super::stats::Stats;
use super::store::{Pushed, Store};
use super::sync::{AtomicUsize, FLOW_MIN, Inside, here};

/// A first-in, first-out queue between any number of producers and consumers.
///
/// Items come out in the order they went in; producers waiting for room and consumers waiting for
/// an item are each served in the order in which they came. One push wakes one consumer, and nobody
/// can snatch the item it was woken for. Share it by reference or in an [`Arc`](std::sync::Arc).
///
/// Each call takes effect as a whole, at one instant between its start and its return: what one
/// thread pushes comes out in the order in which it pushed, and a push that begins after another
/// has returned comes out after it. None but `.await` waits.
///
/// ```
/// use tidegate_sync::Queue;
///
/// # futures_lite::future::block_on(async {
/// let queue = Queue::bounded(2);
/// queue.push("first").await?;
/// queue.push("second").await?;
/// assert!(queue.try_push("third").is_err());
///
/// assert_eq!(queue.recv().await, Ok("first"));
/// queue.try_push("third")?;
/// assert_eq!(queue.recv_all().await.unwrap(), ["second", "third"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[repr(C, align(64))]
pub struct Queue<T> {
    /// The length as of the last change, for those who only want to look.
    len: AtomicUsize,
    store: Lock<Store<T>>,
    /// `usize::MAX`: unbounded.
    capacity: usize,
    /// How many items a consumer found last, if they pour in from another thread; otherwise 0.
    flow: AtomicUsize,
}

impl<T> Queue<T> {
    /// A queue that holds up to `capacity` items; then pushing waits.
    ///
    /// # Panics
    /// If `capacity` is zero: nothing could ever be pushed.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert_eq!(Queue::<u8>::bounded(8).capacity(), Some(8));
    /// ```
    #[must_use]
    pub fn bounded(capacity: usize) -> Self {
        assert!(capacity > 0, "a queue of capacity 0 could never hold anything");
        Self { len: AtomicUsize::new(0), store: Lock::new(Store::new(capacity)), capacity, flow: AtomicUsize::new(0) }
    }

    /// A queue that always has room.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert_eq!(Queue::<u8>::unbounded().capacity(), None);
    /// ```
    #[must_use]
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// Waits for room and pushes `value`.
    ///
    /// # Errors
    /// If the queue is closed, before or meanwhile; the value comes back.
    ///
    /// # Cancel safety
    /// Dropped before it has finished, the future drops the value, unless the value had been taken
    /// in already. To keep the value, [`try_push`](Self::try_push) it.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::bounded(1);
    /// queue.push(1).await?;
    /// assert_eq!(queue.len(), 1);
    /// # Ok::<(), tidegate_sync::PushError<i32>>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn push(&self, value: T) -> Push<'_, T> {
        Push::new(self, value)
    }

    /// Pushes `value` if there is room.
    ///
    /// # Errors
    /// If there is none, or the queue is closed; the value comes back.
    ///
    /// ```
    /// # use tidegate_sync::{Queue, TryPushError};
    /// let queue = Queue::bounded(1);
    /// assert_eq!(queue.try_push(1), Ok(()));
    /// assert_eq!(queue.try_push(2), Err(TryPushError::Full(2)));
    /// ```
    #[inline]
    pub fn try_push(&self, value: T) -> Result<(), TryPushError<T>> {
        let mut value = Some(value);
        match (self.push_now(&mut value), value) {
            (Pushed::Full, Some(value)) => Err(TryPushError::Full(value)),
            (Pushed::Closed, Some(value)) => Err(TryPushError::Closed(value)),
            _ => Ok(()),
        }
    }

    /// Waits for an item and takes it.
    ///
    /// # Errors
    /// If the queue is closed and empty.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, so it can be raced in a `select!`: an item leaves the
    /// queue only when this returns it. If the future had been woken for an item, the next consumer
    /// in line is woken for it instead.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// queue.try_push('a').unwrap();
    /// assert_eq!(queue.recv().await, Ok('a'));
    /// # });
    /// ```
    #[inline]
    pub fn recv(&self) -> Recv<'_, T> {
        Recv::new(self)
    }

    /// Takes an item if there is one that is not promised to a consumer in line.
    ///
    /// # Errors
    /// If there is none; closed only once it is empty.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// let queue = Queue::unbounded();
    /// queue.try_push(1).unwrap();
    /// assert_eq!(queue.try_recv(), Ok(1));
    /// assert!(queue.try_recv().is_err());
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.receive_now(std::convert::identity)
    }

    /// Waits for one item, then takes everything there is: one lock and one wake-up for a whole
    /// batch. Items promised to other consumers stay.
    ///
    /// While items pour in from another thread, it lets them gather for about five microseconds first: each visit holds
    /// up their producer, and many small batches would cost both sides more than a few large ones.
    ///
    /// # Errors
    /// If the queue is closed and empty.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// for n in 0..3 {
    ///     queue.try_push(n).unwrap();
    /// }
    /// assert_eq!(queue.recv_all().await.unwrap(), [0, 1, 2]);
    /// # });
    /// ```
    #[inline]
    pub fn recv_all(&self) -> RecvAll<'_, T> {
        RecvAll::new(self)
    }

    /// As [`recv_all`](Self::recv_all), but puts the items behind those in `buffer` and returns how many came.
    ///
    /// An empty buffer is exchanged for the queue's own, so that nothing is moved. Whoever comes with the same one each
    /// time, emptied, has the two take turns: once they have grown, nothing is allocated any more.
    ///
    /// # Errors
    /// If the queue is closed and empty.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv): until this returns, no item is in the buffer that was not there before.
    ///
    /// ```
    /// # use std::collections::VecDeque;
    /// # use tidegate_sync::Queue;
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// let mut batch = VecDeque::new();
    /// for round in 0..3 {
    ///     queue.try_push(round).unwrap();
    ///     queue.try_push(round + 1).unwrap();
    ///     assert_eq!(queue.recv_all_into(&mut batch).await, Ok(2));
    ///     assert!(batch.drain(..).eq([round, round + 1]));
    /// }
    /// # });
    /// ```
    #[inline]
    pub fn recv_all_into<'a>(&'a self, buffer: &'a mut VecDeque<T>) -> RecvAllInto<'a, T> {
        RecvAllInto::new(self, buffer)
    }

    /// Waits for one item, then takes up to `n`. With an `n` of zero it takes nothing, at once.
    ///
    /// # Errors
    /// If the queue is closed and empty.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// for n in 0..3 {
    ///     queue.try_push(n).unwrap();
    /// }
    /// assert_eq!(queue.recv_up_to(2).await.unwrap(), [0, 1]);
    /// assert_eq!(queue.recv_up_to(2).await.unwrap(), [2]);
    /// # });
    /// ```
    #[inline]
    pub fn recv_up_to(&self, n: usize) -> RecvUpTo<'_, T> {
        RecvUpTo::new(self, n)
    }

    /// Takes no more items in. What is inside can still be received; after that, and for producers
    /// at once, everything is refused, and whoever waits in vain is woken.
    ///
    /// ```
    /// # use tidegate_sync::{Closed, Queue};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// queue.try_push(1).unwrap();
    /// queue.close();
    /// assert!(queue.try_push(2).is_err());
    /// assert_eq!(queue.recv().await, Ok(1));
    /// assert_eq!(queue.recv().await, Err(Closed));
    /// # });
    /// ```
    pub fn close(&self) {
        self.change(Store::close);
    }

    /// Whether [`close`](Self::close) was called.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert!(!Queue::<u8>::unbounded().is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.store.quietly(|store| store.is_closed())
    }

    /// Items inside, those promised to woken consumers included.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// let queue = Queue::unbounded();
    /// queue.try_push(1).unwrap();
    /// assert_eq!(queue.len(), 1);
    /// ```
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Whether nothing is inside.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert!(Queue::<u8>::unbounded().is_empty());
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bound, if there is one.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert_eq!(Queue::<u8>::bounded(3).capacity(), Some(3));
    /// ```
    pub fn capacity(&self) -> Option<usize> {
        (self.capacity != usize::MAX).then_some(self.capacity)
    }

    /// The queue's figures.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// let queue = Queue::unbounded();
    /// queue.try_push(1).unwrap();
    /// queue.try_push(2).unwrap();
    /// queue.try_recv().unwrap();
    /// let stats = queue.stats();
    /// assert_eq!((stats.current, stats.peak, stats.total), (1, 2, 2));
    /// ```
    pub fn stats(&self) -> Stats {
        self.store.quietly(|store| Stats {
            current: store.len(),
            peak: store.peak(),
            total: store.total(),
            blocked: store.blocked,
            waiting: store.receivers.len() + store.pushers.len(),
        })
    }

    /// Changes the store under the lock, and moves the lines on.
    #[inline]
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Store<T>) -> R) -> R {
        self.change_inside(self.store.enter(), change)
    }

    /// Apart, so that the easy way needs none of the room that wakers take.
    #[inline(never)]
    fn change_inside<R>(&self, inside: Inside<'_, Store<T>>, change: impl FnOnce(&mut Store<T>) -> R) -> R {
        // Dropped last, and even when a waker panics.
        let mut rest = Rest { queue: self, more: false };
        waking(inside, |store, wakes| {
            let result = change(store);
            rest.more = store.settle(wakes);
            self.len.store(store.len(), Relaxed);
            result
        })
    }

    /// Pushes if there is room.
    #[inline]
    pub(super) fn push_now(&self, value: &mut Option<T>) -> Pushed {
        let mut inside = self.store.enter();
        if inside.reach(|store| store.push_easily(value).then(|| self.len.store(store.len(), Relaxed))).is_some() {
            return Pushed::In;
        }
        self.change_inside(inside, |store| store.push(value))
    }

    /// Takes an item, for somebody who is not in line, and says of the outcome what he wants to know.
    #[inline]
    pub(super) fn receive_now<R>(&self, outcome: impl FnOnce(Result<T, TryRecvError>) -> R) -> R {
        let mut inside = self.store.enter();
        let easily = inside.reach(|store| store.take_easily().inspect(|_| self.len.store(store.len(), Relaxed)));
        if let Some(item) = easily {
            drop(inside);
            return outcome(Ok(item));
        }
        self.change_inside(inside, |store| outcome(store.receive(Store::take_one)))
    }

    /// For a consumer who was woken for an item.
    pub(super) fn redeem<R>(&self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> R {
        self.change(|store| {
            // What came while it woke up says how fast they come.
            self.note_flow(if store.woken_by == here() { 0 } else { store.len() });
            store.redeem(take)
        })
    }

    #[inline]
    pub(super) fn flow(&self) -> usize {
        self.flow.load(Relaxed)
    }

    /// A consumer found so many items that had come from another thread.
    pub(super) fn note_flow(&self, found: usize) {
        // When they fill the queue, letting them gather would only make the producers wait.
        let pours = (FLOW_MIN..=self.capacity / 2).contains(&found);
        self.flow.store(if pours { found } else { 0 }, Relaxed);
    }

    #[inline]
    pub(super) fn store(&self) -> &Lock<Store<T>> {
        &self.store
    }

    #[cold]
    fn settle_rest(&self) {
        while_more(|| {
            self.store.with(|store, wakes| {
                let more = store.settle(wakes);
                self.len.store(store.len(), Relaxed);
                more
            })
        });
    }
}

/// Those who are left in line when more can be served than are woken in one go.
struct Rest<'a, T> {
    queue: &'a Queue<T>,
    more: bool,
}

impl<T> Drop for Rest<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.more {
            self.queue.settle_rest();
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("closed", &self.store.try_peek(Store::is_closed))
            .finish()
    }
}
