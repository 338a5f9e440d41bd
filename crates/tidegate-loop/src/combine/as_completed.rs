//! Results in the order they come.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use futures_core::Stream;

use super::arrivals::Arrivals;
use crate::task::{JoinError, JoinHandle};

/// Yields results in the order in which the tasks end.
///
/// ```
/// use tidegate_loop::{as_completed, run, sleep, spawn, Duration};
/// run(async {
///     let tasks = [3, 1, 2].map(|n| spawn(async move { sleep(Duration::from_millis(n)).await; n }));
///     let mut results = as_completed(tasks);
///     let mut order = Vec::new();
///     while let Some((_index, result)) = results.next().await {
///         order.push(result.unwrap());
///     }
///     assert_eq!(order, [1, 2, 3]);
/// })
/// .unwrap();
/// ```
pub fn as_completed<T: 'static>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> AsCompleted<T> {
    let handles: Vec<Option<JoinHandle<T>>> = handles.into_iter().map(Some).collect();
    let arrivals = Arrivals::new();
    for (at, handle) in handles.iter().flatten().enumerate() {
        arrivals.watch(&handle.task(), at);
    }
    AsCompleted { left: handles.len(), handles, arrivals }
}

/// The stream of [`as_completed`]: (index, result) pairs. Dropped, the tasks that are left go on by themselves.
pub struct AsCompleted<T: 'static> {
    handles: Vec<Option<JoinHandle<T>>>,
    left: usize,
    arrivals: Arrivals<usize>,
}

impl<T: 'static> AsCompleted<T> {
    /// The next result and whose it is; `None` after the last.
    ///
    /// # Cancel safety
    /// Safe: a result that has come stays until it is fetched.
    ///
    /// ```
    /// use tidegate_loop::{as_completed, run, spawn};
    /// run(async {
    ///     let mut results = as_completed([spawn(async { "only" })]);
    ///     assert!(results.next().await.is_some());
    ///     assert!(results.next().await.is_none());
    /// })
    /// .unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<(usize, Result<T, JoinError>)> {
        poll_fn(|cx| self.poll_one(cx)).await
    }

    fn poll_one(&mut self, cx: &mut PollContext<'_>) -> Poll<Option<(usize, Result<T, JoinError>)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let at = std::task::ready!(self.arrivals.poll_next(cx));
        self.left -= 1;
        let mut handle = self.handles[at].take().expect("each ends once");
        Poll::Ready(Some((at, handle.try_result().expect("it has ended"))))
    }
}

impl<T: 'static> Stream for AsCompleted<T> {
    type Item = (usize, Result<T, JoinError>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> fmt::Debug for AsCompleted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsCompleted").field("left", &self.left).finish_non_exhaustive()
    }
}
