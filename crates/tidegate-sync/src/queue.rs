//! The queue: many producers, many consumers, bounded or not.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::error::{TryPushError, TryRecvError};
use super::lock::{Lock, waking, while_more};
use super::push::Push;
use super::recv::{Recv, RecvAll, RecvAllInto, RecvUpTo};
use super::shim::{AtomicUsize, BriefGuard};
use super::stats::Stats;
use super::store::{Pushed, Store};

/// A first-in, first-out queue between any number of producers and consumers.
///
/// Items are received in the order in which they were pushed. Producers that wait for room and consumers that wait for an
/// item are each served in the order in which they began to wait. One push wakes one consumer, and no other consumer can
/// take the item that it was woken for. Share a queue by reference or in an [`Arc`](std::sync::Arc).
///
/// Each call takes effect atomically, at one instant between its start and its return: a push that begins after another
/// has returned, on any thread, comes after it in the queue. Only `.await` waits.
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
    /// The length after the last change, to be read without the lock.
    len: AtomicUsize,
    store: Lock<Store<T>>,
    /// `usize::MAX`: unbounded.
    capacity: usize,
}

impl<T> Queue<T> {
    /// Creates a queue that holds up to `capacity` items. Pushing to a full queue waits.
    ///
    /// # Panics
    /// If `capacity` is zero.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert_eq!(Queue::<u8>::bounded(8).capacity(), Some(8));
    /// ```
    #[must_use]
    pub fn bounded(capacity: usize) -> Self {
        assert!(capacity > 0, "a queue of capacity 0 could never hold anything");
        Self { len: AtomicUsize::new(0), store: Lock::new(Store::new(capacity)), capacity }
    }

    /// Creates a queue that is never full.
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
    /// If the queue is closed, before the call or during the wait; the error contains the value.
    ///
    /// # Cancel safety
    /// A future that is dropped before it has finished drops the value, unless the queue had accepted the value already.
    /// To keep a value that is not accepted, use [`try_push`](Self::try_push).
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
    /// If the queue is full or closed; the error contains the value.
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
    /// Dropping the future loses nothing, so it can be raced in a `select!`: an item leaves the queue only when this
    /// returns it. If the future had been woken for an item, the next consumer in line is woken for it.
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

    /// Takes an item if there is one that is not reserved for a consumer in line.
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty) if there is none, [`Closed`](TryRecvError::Closed) if the queue is closed as well.
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

    /// Waits for one item, then takes all items: one lock and one wake-up for a whole batch. Items reserved for other
    /// consumers stay.
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

    /// As [`recv_all`](Self::recv_all), but appends the items to `buffer` and returns their number.
    ///
    /// An empty buffer is exchanged for the queue's own, so no item is moved. A caller that brings the same buffer each
    /// time, emptied, makes the two alternate: once both have grown, nothing is allocated.
    ///
    /// # Errors
    /// If the queue is closed and empty.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv): the buffer is unchanged until this returns.
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

    /// Waits for one item, then takes up to `n`. With an `n` of zero it returns an empty batch at once.
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

    /// Closes the queue: every push fails from now on, those in line included. Items in the queue can still be received;
    /// once it is empty, receiving fails too.
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

    /// Number of items in the queue, including those reserved for woken consumers.
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

    /// Whether the queue is empty.
    ///
    /// ```
    /// # use tidegate_sync::Queue;
    /// assert!(Queue::<u8>::unbounded().is_empty());
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bound; `None` if the queue is unbounded.
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

    /// Changes the store under the lock, then serves both lines.
    #[inline]
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Store<T>) -> R) -> R {
        self.change_inside(self.store.enter(), change)
    }

    /// `#[inline(never)]`: keeps the stack space for [`Wakes`](super::lock::Wakes) out of the fast path.
    #[inline(never)]
    fn change_inside<R>(&self, inside: BriefGuard<'_, Store<T>>, change: impl FnOnce(&mut Store<T>) -> R) -> R {
        // Dropped after `waking` has woken what it collected, also when a waker panics.
        let mut rest = Unsettled { queue: self, more: false };
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
        if inside.reach(|store| store.push_fast(value).then(|| self.len.store(store.len(), Relaxed))).is_some() {
            return Pushed::In;
        }
        self.change_inside(inside, |store| store.push(value))
    }

    /// Receives one item for a caller that is not in line. `outcome` maps the result, perhaps under the lock, so it must
    /// not call foreign code.
    #[inline]
    pub(super) fn receive_now<R>(&self, outcome: impl FnOnce(Result<T, TryRecvError>) -> R) -> R {
        let mut inside = self.store.enter();
        let fast = inside.reach(|store| store.take_fast().inspect(|_| self.len.store(store.len(), Relaxed)));
        if let Some(item) = fast {
            drop(inside);
            return outcome(Ok(item));
        }
        self.change_inside(inside, |store| outcome(store.receive(Store::take_one)))
    }

    /// Receives for a consumer that was woken for an item.
    pub(super) fn redeem<R>(&self, take: impl FnOnce(&mut VecDeque<T>, usize) -> R) -> R {
        self.change(|store| store.redeem(take))
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

/// Serves the waiters that one section left in line, even if a waker that it woke panics.
struct Unsettled<'a, T> {
    queue: &'a Queue<T>,
    more: bool,
}

impl<T> Drop for Unsettled<'_, T> {
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
