//! The traits through which a pool uses an executor.

use std::future::Future;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::JoinError;
use crate::share::Share;

/// An executor that pools can run on: its handles, and how a pool shares its state there. [`Spawn`] states which futures
/// it can run.
///
/// Implemented by [`TidegateLoop`](crate::TidegateLoop), [`Tokio`](crate::Tokio) and
/// [`TokioLocal`](crate::TokioLocal). To bring your own, wrap its spawn and its join handle:
///
/// ```
/// use std::task::{Context, Poll};
/// use std::time::Instant;
/// use tidegate_pool::{Executor, JoinError, Pool, Spawn, TidegateLoop, Threaded};
///
/// /// The loop again, with state that could be shared between threads.
/// #[derive(Clone)]
/// struct Locked;
///
/// impl Executor for Locked {
///     type Shared<T> = Threaded<T>;
///     type Handle<T: 'static> = tidegate_loop::JoinHandle<T>;
///     type Canceller = tidegate_loop::Task;
///
///     fn now(&self) -> Instant { Instant::now() }
///     fn poll_join<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
///         TidegateLoop::poll_join(handle, cx)
///     }
///     fn is_finished<T: 'static>(handle: &Self::Handle<T>) -> bool { handle.is_finished() }
///     fn canceller<T: 'static>(handle: &Self::Handle<T>) -> Self::Canceller { handle.task() }
///     fn cancel(task: &Self::Canceller) -> bool { task.cancel() }
/// }
///
/// impl<F: Future + 'static> Spawn<F> for Locked {
///     fn spawn(&self, future: F) -> Self::Handle<F::Output> { tidegate_loop::spawn(future) }
/// }
///
/// tidegate_loop::run(async {
///     let pool = Pool::on(Locked, 1);
///     assert_eq!(pool.submit(async { 1 }).await.unwrap().await.unwrap(), 1);
/// })
/// .unwrap();
/// ```
pub trait Executor: Clone + 'static {
    /// How state is shared: [`Unthreaded`](crate::Unthreaded) if tasks never leave their thread,
    /// [`Threaded`](crate::Threaded) if they may.
    type Shared<T>: Share<T>;

    /// The executor's join handle. A task goes on when its handle is dropped.
    type Handle<T: 'static>: Unpin;

    /// A handle that cancels a task, whatever the type of its output.
    type Canceller: Clone + 'static;

    /// Returns the time, which is virtual if the executor's is.
    fn now(&self) -> Instant;

    /// Polls for the task's result. Not called again after it was ready.
    fn poll_join<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>>;

    /// As [`poll_join`](Self::poll_join), for a task that waits for many tasks. On an executor where cancelling a task
    /// that polls a handle also cancels the handle's task, this must not have that effect. Called once, and again when
    /// woken.
    fn poll_watch<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        Self::poll_join(handle, cx)
    }

    /// Whether the task has ended.
    fn is_finished<T: 'static>(handle: &Self::Handle<T>) -> bool;

    /// Returns the task's canceller.
    fn canceller<T: 'static>(handle: &Self::Handle<T>) -> Self::Canceller;

    /// Requests that the task end early. Returns `false` if it has ended already.
    fn cancel(task: &Self::Canceller) -> bool;
}

/// An executor that can run an `F`: tidegate's loop runs any future, tokio's runtimes those that are `Send`.
///
/// The executor must drop the future before its handle resolves, whether the future returned, panicked or was cancelled:
/// that drop frees the slot.
///
/// ```
/// use tidegate_pool::{Spawn, TidegateLoop};
/// tidegate_loop::run(async {
///     assert_eq!(TidegateLoop.spawn(async { 1 }).await.unwrap(), 1);
/// })
/// .unwrap();
/// ```
pub trait Spawn<F: Future>: Executor {
    /// Starts a task.
    fn spawn(&self, future: F) -> Self::Handle<F::Output>
    where
        F::Output: 'static;
}
