//! The results of many handles in the order in which they come.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;

use crate::error::JoinError;
use crate::executor::Executor;
use crate::handle::JoinHandle;

/// Yields the results of `handles` as the tasks end, each with its handle's index. Each handle is polled twice, at the
/// start and when its task has ended, so the cost is linear in their number.
///
/// ```
/// use tidegate_loop::{run, sleep, Duration};
/// use tidegate_pool::{as_completed, Pool};
/// run(async {
///     let pool = Pool::new(3);
///     let mut handles = Vec::new();
///     for ms in [3, 1, 2] {
///         handles.push(pool.submit(async move { sleep(Duration::from_millis(ms)).await; ms }).await.unwrap());
///     }
///     let mut results = as_completed(handles);
///     let mut order = Vec::new();
///     while let Some((index, ms)) = results.next().await {
///         order.push((index, ms.unwrap()));
///     }
///     assert_eq!(order, [(1, 1), (2, 2), (0, 3)]);
/// })
/// .unwrap();
/// ```
pub fn as_completed<T, S: Executor>(handles: impl IntoIterator<Item = JoinHandle<T, S>>) -> AsCompleted<T, S> {
    let handles: Vec<_> = handles.into_iter().map(Some).collect();
    let ready = (0..handles.len()).collect();
    let inbox = Arc::new(CompletedInbox(Mutex::new(CompletedState { ready, waker: None })));
    AsCompleted { left: handles.len(), handles, inbox }
}

/// The stream of [`as_completed`]. The remaining tasks go on if it is dropped.
///
/// ```
/// use tidegate_pool::{as_completed, AsCompleted, Pool, TidegateLoop};
/// tidegate_loop::run(async {
///     let handle = Pool::new(1).submit(async { 1 }).await.unwrap();
///     let mut results: AsCompleted<i32, TidegateLoop> = as_completed([handle]);
///     assert!(results.next().await.is_some());
///     assert!(results.next().await.is_none());
/// })
/// .unwrap();
/// ```
#[must_use = "results come when they are asked for"]
pub struct AsCompleted<T: 'static, S: Executor> {
    /// `None` once it has yielded its result.
    handles: Vec<Option<JoinHandle<T, S>>>,
    left: usize,
    inbox: Arc<CompletedInbox>,
}

/// Receives the indices of the handles whose tasks have ended. A task may end on any thread, so this is locked on every
/// executor.
struct CompletedInbox(Mutex<CompletedState>);

struct CompletedState {
    /// Indices of the handles to poll.
    ready: VecDeque<usize>,
    waker: Option<Waker>,
}

struct CompletedWaker {
    index: usize,
    inbox: Arc<CompletedInbox>,
}

impl CompletedInbox {
    fn lock(&self) -> MutexGuard<'_, CompletedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for CompletedWaker {
    fn wake(self: Arc<Self>) {
        let waker = {
            let mut state = self.inbox.lock();
            state.ready.push_back(self.index);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, S: Executor> AsCompleted<T, S> {
    /// Returns the next result and its handle's index, or `None` after the last.
    ///
    /// # Cancel safety
    /// Safe: a result that has come stays until it is fetched. Cancelling the task that waits here does not cancel the
    /// tasks that it waits for, on tidegate's loop either.
    ///
    /// ```
    /// use tidegate_pool::{as_completed, Pool};
    /// tidegate_loop::run(async {
    ///     let handle = Pool::new(1).submit(async { "only" }).await.unwrap();
    ///     let (index, result) = as_completed([handle]).next().await.unwrap();
    ///     assert_eq!((index, result.unwrap()), (0, "only"));
    /// })
    /// .unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<(usize, Result<T, JoinError>)> {
        poll_fn(|cx| self.poll_one(cx)).await
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, JoinError>)>> {
        let mut ours = None;
        loop {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let index = {
                let mut state = self.inbox.lock();
                match (state.ready.pop_front(), &state.waker, ours.take()) {
                    (Some(index), ..) => index,
                    (None, Some(known), _) if known.will_wake(cx.waker()) => return Poll::Pending,
                    (None, _, Some(waker)) => {
                        let _before = state.waker.replace(waker);
                        drop(state);
                        return Poll::Pending;
                    }
                    (None, _, None) => {
                        drop(state);
                        // Cloned without the lock, then a second round.
                        ours = Some(cx.waker().clone());
                        continue;
                    }
                }
            };
            let Some(handle) = &mut self.handles[index] else { continue };
            let waker = Waker::from(Arc::new(CompletedWaker { index, inbox: Arc::clone(&self.inbox) }));
            if let Poll::Ready(result) = S::poll_watch(&mut handle.inner, &mut Context::from_waker(&waker)) {
                self.handles[index] = None;
                self.left -= 1;
                return Poll::Ready(Some((index, result)));
            }
        }
    }
}

impl<T, S: Executor> Stream for AsCompleted<T, S> {
    type Item = (usize, Result<T, JoinError>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T, S: Executor> fmt::Debug for AsCompleted<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsCompleted").field("left", &self.left).finish_non_exhaustive()
    }
}
