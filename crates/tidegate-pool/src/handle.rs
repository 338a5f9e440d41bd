//! A pool's join handle.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::JoinError;
use crate::executor::Executor;

/// The handle of a pool's task: awaiting it returns the task's result. If it is dropped, the task goes on.
///
/// The task's slot is free before the handle resolves.
///
/// # Cancel safety
/// Awaiting `&mut handle` is safe: a result that has come stays until it is fetched. On tidegate's loop, cancelling a
/// task that awaits a handle cancels the task behind it, as with the loop's own.
///
/// ```
/// use tidegate_pool::Pool;
/// tidegate_loop::run(async {
///     let handle = Pool::new(1).submit(async { 6 * 7 }).await.unwrap();
///     assert_eq!(handle.await.unwrap(), 42);
/// })
/// .unwrap();
/// ```
#[must_use = "the task goes on when its handle is dropped; use `detach` to state that"]
pub struct JoinHandle<
    T: 'static,
    #[cfg(feature = "tidegate")] S: Executor = crate::TidegateLoop,
    #[cfg(not(feature = "tidegate"))] S: Executor,
> {
    pub(crate) inner: S::Handle<T>,
}

impl<T, S: Executor> JoinHandle<T, S> {
    #[inline]
    pub(crate) fn new(inner: S::Handle<T>) -> Self {
        JoinHandle { inner }
    }

    /// Requests that the task end early. Returns `false` if it has ended already. The task keeps its slot until it has
    /// ended, which on tidegate's loop includes its own clean-up.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     let handle = pool.submit(std::future::pending::<()>()).await.unwrap();
    ///     assert!(handle.cancel());
    ///     assert!(handle.await.is_err());
    ///     assert_eq!(pool.stats().cancelled, 1);
    /// })
    /// .unwrap();
    /// ```
    pub fn cancel(&self) -> bool {
        S::cancel(&S::canceller(&self.inner))
    }

    /// Whether the task has ended.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     assert!(!Pool::new(1).submit(async {}).await.unwrap().is_finished());
    /// })
    /// .unwrap();
    /// ```
    pub fn is_finished(&self) -> bool {
        S::is_finished(&self.inner)
    }

    /// Lets the task go on without the handle, as dropping it does.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let pool = Pool::new(1);
    ///     pool.submit(async {}).await.unwrap().detach();
    ///     pool.close().await;
    ///     assert_eq!(pool.stats().completed, 1);
    /// })
    /// .unwrap();
    /// ```
    #[inline]
    pub fn detach(self) {}

    /// The executor's own handle.
    ///
    /// ```
    /// use tidegate_pool::Pool;
    /// tidegate_loop::run(async {
    ///     let handle = Pool::new(1).submit(async {}).await.unwrap().into_inner();
    ///     handle.task().set_name("mine");
    /// })
    /// .unwrap();
    /// ```
    #[inline]
    pub fn into_inner(self) -> S::Handle<T> {
        self.inner
    }
}

impl<T, S: Executor> Future for JoinHandle<T, S> {
    type Output = Result<T, JoinError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        S::poll_join(&mut self.inner, cx)
    }
}

impl<T, S: Executor> fmt::Debug for JoinHandle<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}
