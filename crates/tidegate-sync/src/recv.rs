//! Waiting for items of a queue: for one, for some, for all there are.

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
use super::sync::moment;
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
        turn: Turn<Receiving<'a, T>>,
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
        turn: Turn<Receiving<'a, T>>,
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
        turn: Turn<Receiving<'a, T>>,
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
        turn: Turn<Receiving<'a, T>>,
        n: usize,
    }
}

impl<'a, T> Recv<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>) -> Self {
        Self { turn: Turn::new(Receiving(queue), ()) }
    }
}

impl<'a, T> RecvAll<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>) -> Self {
        Self { turn: Turn::new(Receiving(queue), ()) }
    }
}

impl<'a, T> RecvAllInto<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>, buffer: &'a mut VecDeque<T>) -> Self {
        Self { turn: Turn::new(Receiving(queue), ()), buffer }
    }
}

impl<'a, T> RecvUpTo<'a, T> {
    #[inline]
    pub(super) fn new(queue: &'a Queue<T>, n: usize) -> Self {
        Self { turn: Turn::new(Receiving(queue), ()), n }
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
        let gathered = Gathered::at(&turn);
        let mut next = (gathered.about > 0).then(|| VecDeque::with_capacity(gathered.room::<T>()));
        let take = move |items: &mut VecDeque<T>, unpromised: usize| {
            if unpromised == items.len() {
                std::mem::replace(items, next.take().unwrap_or_default())
            } else {
                items.drain(..unpromised).collect()
            }
        };
        gathered.poll_recv(turn, cx, take, VecDeque::len)
    }
}

impl<T> Future for RecvAllInto<'_, T> {
    type Output = Result<usize, Closed>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let buffer: &mut VecDeque<T> = this.buffer;
        let gathered = Gathered::at(&this.turn);
        if gathered.about > 0 && buffer.is_empty() {
            buffer.reserve(gathered.room::<T>());
        }
        let take = |items: &mut VecDeque<T>, unpromised: usize| {
            if unpromised < items.len() {
                buffer.extend(items.drain(..unpromised));
            } else if buffer.is_empty() {
                std::mem::swap(buffer, items);
            } else {
                buffer.append(items);
            }
            unpromised
        };
        gathered.poll_recv(this.turn, cx, take, |taken| *taken)
    }
}

/// What is known of the items before a consumer takes all of them.
struct Gathered {
    /// How many were found last, while they pour in; otherwise 0.
    flow: usize,
    about: usize,
    capacity: usize,
}

impl Gathered {
    /// While items pour in, lets them gather.
    #[inline(always)]
    fn at<T>(turn: &Turn<Receiving<'_, T>>) -> Self {
        let queue = turn.home().0;
        let flow = if turn.is_idle() { queue.flow() } else { 0 };
        if flow > 0 {
            moment();
        }
        // While items pour in, their number is not asked for: that alone would hold up the producer.
        let about = if flow > 0 { flow } else { queue.len() };
        Self { flow, about, capacity: queue.capacity().unwrap_or(usize::MAX) }
    }

    /// Of the next batch's buffer, which is made before the lock is taken: for as many as there are now and some more,
    /// and for a kilobyte at least, so that the producers, who hold the lock, seldom have to enlarge it.
    #[inline(always)]
    fn room<T>(&self) -> usize {
        let in_bytes = |bytes: usize| bytes / size_of::<T>().max(1);
        self.about.saturating_add(self.about.min(in_bytes(64 * 1024))).max(in_bytes(1024)).min(self.capacity)
    }

    #[inline(always)]
    fn poll_recv<T, R>(
        self,
        turn: Pin<&mut Turn<Receiving<'_, T>>>,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut VecDeque<T>, usize) -> R,
        count: impl FnOnce(&R) -> usize,
    ) -> Poll<Result<R, Closed>> {
        if self.flow == 0 {
            return poll_recv(turn, cx, take);
        }
        let queue = turn.home().0;
        let received = queue.change(|store| store.receive(&mut take));
        queue.note_flow(received.as_ref().map_or(0, count));
        match received {
            Ok(received) => {
                turn.finish();
                Poll::Ready(Ok(received))
            }
            Err(_) => wait_to_recv(turn, cx, take),
        }
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
    turn: Pin<&mut Turn<Receiving<'_, T>>>,
    cx: &mut Context<'_>,
    mut take: impl FnMut(&mut VecDeque<T>, usize) -> R,
) -> Poll<Result<R, Closed>> {
    let queue = turn.home().0;
    // An empty queue is not worth a look before the one that joins the line.
    if turn.is_idle()
        && !queue.is_empty()
        && let Ok(received) = queue.change(|store| store.receive(&mut take))
    {
        turn.finish();
        return Poll::Ready(Ok(received));
    }
    wait_to_recv(turn, cx, take)
}

/// Apart, so that the fast path is small enough to be inlined.
#[inline(never)]
fn wait_to_recv<T, R>(
    mut turn: Pin<&mut Turn<Receiving<'_, T>>>,
    cx: &mut Context<'_>,
    mut take: impl FnMut(&mut VecDeque<T>, usize) -> R,
) -> Poll<Result<R, Closed>> {
    let queue = turn.home().0;
    while turn.is_idle() {
        let arrived = turn.as_mut().arrive(cx, |_, store, _| {
            let wait = store.keeps_consumers();
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
        // Borrowed, so that what `take` holds is not dropped under the lock.
        Verdict::Granted => Ok(queue.redeem(&mut take)),
    };
    turn.finish();
    Poll::Ready(received)
}

/// The queue as a place where consumers wait.
struct Receiving<'a, T>(&'a Queue<T>);

// SAFETY: a reference leads to the same queue as long as it lives, and the list stays in its store.
unsafe impl<T> Home for Receiving<'_, T> {
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
