//! Futures that receive from a queue: one item, up to `n`, or all.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::error::{Closed, TryRecvError};
use super::list::{List, Verdict};
use super::lock::Lock;
use super::queue::Queue;
use super::store::Store;
use super::turn::{Home, Left, Turn};

pin_project! {
    /// The future of [`Queue::recv`](crate::Queue::recv).
    ///
    /// ```
    /// # use tidegate_sync::{Queue, Recv};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// let recv: Recv<'_, u8> = queue.recv();
    /// queue.try_push(1).unwrap();
    /// assert_eq!(recv.await, Ok(1));
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Recv<'a, T> {
        #[pin]
        turn: Turn<RecvHome<'a, T>>,
    }
}

pin_project! {
    /// The future of [`Queue::recv_all`](crate::Queue::recv_all).
    ///
    /// ```
    /// # use tidegate_sync::{Queue, RecvAll};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// let batch: RecvAll<'_, u8> = queue.recv_all();
    /// queue.try_push(1).unwrap();
    /// assert_eq!(batch.await.unwrap().len(), 1);
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct RecvAll<'a, T> {
        #[pin]
        turn: Turn<RecvHome<'a, T>>,
    }
}

pin_project! {
    /// The future of [`Queue::recv_all_into`](crate::Queue::recv_all_into).
    ///
    /// ```
    /// # use std::collections::VecDeque;
    /// # use tidegate_sync::{Queue, RecvAllInto};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// let mut batch = VecDeque::new();
    /// let all: RecvAllInto<'_, u8> = queue.recv_all_into(&mut batch);
    /// queue.try_push(1).unwrap();
    /// assert_eq!(all.await, Ok(1));
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct RecvAllInto<'a, T> {
        #[pin]
        turn: Turn<RecvHome<'a, T>>,
        buffer: &'a mut VecDeque<T>,
    }
}

pin_project! {
    /// The future of [`Queue::recv_up_to`](crate::Queue::recv_up_to).
    ///
    /// ```
    /// # use tidegate_sync::{Queue, RecvUpTo};
    /// # futures_lite::future::block_on(async {
    /// let queue = Queue::unbounded();
    /// let batch: RecvUpTo<'_, u8> = queue.recv_up_to(10);
    /// queue.try_push(1).unwrap();
    /// assert_eq!(batch.await.unwrap(), [1]);
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct RecvUpTo<'a, T> {
        #[pin]
        turn: Turn<RecvHome<'a, T>>,
        n: usize,
    }
}

impl<'a, T> Recv<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>) -> Self {
        Self { turn: Turn::new(RecvHome(queue), ()) }
    }
}

impl<'a, T> RecvAll<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>) -> Self {
        Self { turn: Turn::new(RecvHome(queue), ()) }
    }
}

impl<'a, T> RecvAllInto<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>, buffer: &'a mut VecDeque<T>) -> Self {
        Self { turn: Turn::new(RecvHome(queue), ()), buffer }
    }
}

impl<'a, T> RecvUpTo<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>, n: usize) -> Self {
        Self { turn: Turn::new(RecvHome(queue), ()), n }
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, Closed>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut turn = self.project().turn;
        // As in `poll_recv`.
        let at_once = turn.as_mut().at_once(|home, ()| {
            let queue = home.0;
            if queue.is_empty() { None } else { queue.receive_now(Result::ok) }
        });
        match at_once {
            Some(item) => Poll::Ready(Ok(item)),
            None => wait_to_recv(turn, cx, Store::take_one),
        }
    }
}

impl<T> Future for RecvAll<'_, T> {
    type Output = Result<VecDeque<T>, Closed>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let turn = self.project().turn;
        // The queue's next buffer, allocated before the lock is taken, for a batch as large as this one.
        let mut next = VecDeque::with_capacity(turn.home().0.len());
        poll_recv(turn, cx, move |items, unpromised| {
            if unpromised == items.len() {
                std::mem::replace(items, std::mem::take(&mut next))
            } else {
                items.drain(..unpromised).collect()
            }
        })
    }
}

impl<T> Future for RecvAllInto<'_, T> {
    type Output = Result<usize, Closed>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let buffer: &mut VecDeque<T> = this.buffer;
        poll_recv(this.turn, cx, |items, unpromised| {
            if unpromised < items.len() {
                buffer.extend(items.drain(..unpromised));
            } else if buffer.is_empty() {
                std::mem::swap(buffer, items);
            } else {
                buffer.append(items);
            }
            unpromised
        })
    }
}

impl<T> Future for RecvUpTo<'_, T> {
    type Output = Result<Vec<T>, Closed>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let n = *this.n;
        if n == 0 {
            return Poll::Ready(Ok(Vec::new()));
        }
        poll_recv(this.turn, cx, |items, unpromised| items.drain(..n.min(unpromised)).collect())
    }
}

#[inline(always)]
fn poll_recv<T, R>(
    turn: Pin<&mut Turn<RecvHome<'_, T>>>,
    cx: &mut Context<'_>,
    mut take: impl FnMut(&mut VecDeque<T>, usize) -> R,
) -> Poll<Result<R, Closed>> {
    let queue = turn.home().0;
    // If the queue is empty, the one section that joins the line is enough.
    if turn.is_idle()
        && !queue.is_empty()
        && let Ok(received) = queue.change(|store| store.receive(&mut take))
    {
        turn.finish();
        return Poll::Ready(Ok(received));
    }
    wait_to_recv(turn, cx, take)
}

/// `#[inline(never)]`: keeps the fast path small enough to be inlined.
#[inline(never)]
fn wait_to_recv<T, R>(
    mut turn: Pin<&mut Turn<RecvHome<'_, T>>>,
    cx: &mut Context<'_>,
    mut take: impl FnMut(&mut VecDeque<T>, usize) -> R,
) -> Poll<Result<R, Closed>> {
    let queue = turn.home().0;
    while turn.is_idle() {
        let arrived = turn.as_mut().arrive(cx, |_, store, _| {
            let wait = store.receive_waits();
            if wait {
                store.note_blocked();
            }
            (!wait).then_some(())
        });
        if arrived.is_none() {
            return Poll::Pending;
        }
        match queue.change(|store| store.receive(&mut take)) {
            Err(TryRecvError::Empty) => {}
            done => {
                turn.finish();
                return Poll::Ready(done.map_err(|_| Closed));
            }
        }
    }
    let received = match ready!(turn.as_mut().poll_served(cx)) {
        Verdict::Refused => Err(Closed),
        // By reference, so that what `take` owns is not dropped under the lock.
        Verdict::Granted => Ok(queue.redeem(&mut take)),
    };
    turn.finish();
    Poll::Ready(received)
}

/// A queue's line of receivers, for [`Turn`].
struct RecvHome<'a, T>(&'a Queue<T>);

// SAFETY: a reference leads to the same queue as long as it lives, and the list stays in the queue's store.
unsafe impl<T> Home for RecvHome<'_, T> {
    type State = Store<T>;
    type Payload = ();

    #[inline]
    fn lock(&self) -> &Lock<Store<T>> {
        self.0.store()
    }

    #[inline]
    fn list(store: &mut Store<T>) -> &mut List<()> {
        &mut store.receivers
    }

    fn left(&self, _nothing: &mut (), left: Left) {
        if left == Left::Granted {
            self.0.change(Store::unpromise);
        }
    }
}

impl<T> fmt::Debug for Recv<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RecvAll<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvAll").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RecvAllInto<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvAllInto").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RecvUpTo<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvUpTo").field("n", &self.n).finish_non_exhaustive()
    }
}
