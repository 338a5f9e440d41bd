//! A set of tasks of one type that come and go.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::{Context as PollContext, Poll};

use futures_core::Stream;

use super::arrivals::Arrivals;
use crate::task::{JoinError, JoinHandle, Task, TaskId, spawn};

/// Tasks whose results are fetched in the order in which they end, and which end with the set: dropped, it cancels them.
/// Unlike in a [`TaskGroup`](crate::TaskGroup), a task that fails leaves the others alone.
///
/// A result stays in the set until it is fetched: a server that only adds tasks calls
/// [`try_join_next`](Self::try_join_next) now and then.
///
/// ```
/// use tidegate_loop::{Duration, JoinSet, run, sleep};
/// run(async {
///     let mut set = JoinSet::new();
///     for n in [3, 1, 2] {
///         set.spawn(async move { sleep(Duration::from_millis(n)).await; n });
///     }
///     let mut order = Vec::new();
///     while let Some(result) = set.join_next().await {
///         order.push(result.unwrap());
///     }
///     assert_eq!(order, [1, 2, 3]);
/// })
/// .unwrap();
/// ```
pub struct JoinSet<T: 'static> {
    /// Those whose results were not fetched, in the order they were spawned.
    handles: BTreeMap<TaskId, JoinHandle<T>>,
    arrivals: Arrivals<TaskId>,
}

impl<T: 'static> JoinSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> JoinSet<T> {
        JoinSet { handles: BTreeMap::new(), arrivals: Arrivals::new() }
    }

    /// Starts a task in the set.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut set = tidegate_loop::JoinSet::new();
    /// let task = set.spawn(async { 1 });
    /// assert!(!task.is_finished());
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) -> Task {
        let handle = spawn(future);
        let task = handle.task();
        self.arrivals.watch(&task, task.id());
        self.handles.insert(task.id(), handle);
        task
    }

    /// Returns the number of tasks whose results were not fetched.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Returns `true` if no task is left and every result was fetched.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Waits for the next task to end and returns its result; `None` if the set is empty.
    ///
    /// # Cancel safety
    /// Safe: a result stays in the set until it is returned.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut set = tidegate_loop::JoinSet::new();
    /// set.spawn(async { 1 });
    /// assert_eq!(set.join_next().await.unwrap().unwrap(), 1);
    /// assert!(set.join_next().await.is_none());
    /// # }).unwrap();
    /// ```
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    fn poll_join_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.handles.is_empty() {
            return Poll::Ready(None);
        }
        self.arrivals.poll_next(cx).map(|id| Some(self.take(id)))
    }

    /// Returns the result of a task that has ended, if there is one.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut set = tidegate_loop::JoinSet::new();
    /// set.spawn(async { 1 });
    /// assert!(set.try_join_next().is_none());
    /// # }).unwrap();
    /// ```
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.arrivals.pop().map(|id| self.take(id))
    }

    fn take(&mut self, id: TaskId) -> Result<T, JoinError> {
        let mut handle = self.handles.remove(&id).expect("a task ends once");
        handle.try_result().expect("it has ended, and this is its only handle")
    }

    /// Cancels every task. They stay in the set until they have ended and were fetched.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut set = tidegate_loop::JoinSet::new();
    /// set.spawn(std::future::pending::<()>());
    /// set.cancel_all();
    /// assert!(set.join_next().await.unwrap().is_err());
    /// # }).unwrap();
    /// ```
    pub fn cancel_all(&self) {
        for handle in self.handles.values() {
            handle.cancel();
        }
    }

    /// Waits until every task has ended, and drops their results.
    ///
    /// # Cancel safety
    /// Safe: it can be called again.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut set = tidegate_loop::JoinSet::new();
    /// set.spawn(async {});
    /// set.wait_empty().await;
    /// assert!(set.is_empty());
    /// # }).unwrap();
    /// ```
    pub async fn wait_empty(&mut self) {
        while self.join_next().await.is_some() {}
    }
}

impl<T: 'static> Default for JoinSet<T> {
    fn default() -> Self {
        JoinSet::new()
    }
}

impl<T: 'static> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

impl<T: 'static> Stream for JoinSet<T> {
    type Item = Result<T, JoinError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_join_next(cx)
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.handles.len()).finish_non_exhaustive()
    }
}
