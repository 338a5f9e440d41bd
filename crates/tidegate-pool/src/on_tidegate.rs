//! Pools on tidegate's loop: any future, no atomics.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tidegate_loop::{AsTask, Task};

use crate::error::{JoinError, Panic};
use crate::executor::{Executor, Spawn};
use crate::handle::JoinHandle;
use crate::promise::Promise;
use crate::share::Unthreaded;

/// The running tidegate loop. Futures need not be `Send`. Time is the loop's, which may be virtual.
///
/// Cancelling a task is a request, as for all tasks of that loop: the task may [catch](tidegate_loop::catch_cancel) it,
/// and keeps its slot until it ends.
///
/// ```
/// use tidegate_pool::{Pool, TidegateLoop};
/// tidegate_loop::run(async {
///     let pool: Pool<TidegateLoop> = Pool::new(1);
///     assert_eq!(pool.submit(async { 1 }).await.unwrap().await.unwrap(), 1);
/// })
/// .unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TidegateLoop;

impl Executor for TidegateLoop {
    type Shared<T> = Unthreaded<T>;
    type Handle<T: 'static> = tidegate_loop::JoinHandle<T>;
    type Canceller = Task;

    fn now(&self) -> Instant {
        // On no loop, the machine's time: a submission may be dropped after its loop has ended.
        tidegate_loop::now()
    }

    #[inline]
    fn poll_join<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        Pin::new(handle).poll(cx).map_err(JoinError::from)
    }

    fn poll_watch<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        if let Some(result) = handle.try_result() {
            return Poll::Ready(result.map_err(JoinError::from));
        }
        let waker = cx.waker().clone();
        handle.task().add_done_callback(move |_| waker.wake());
        Poll::Pending
    }

    fn is_finished<T: 'static>(handle: &Self::Handle<T>) -> bool {
        handle.is_finished()
    }

    #[inline]
    fn canceller<T: 'static>(handle: &Self::Handle<T>) -> Task {
        handle.task()
    }

    fn cancel(task: &Task) -> bool {
        task.cancel()
    }
}

impl<F: Future + 'static> Spawn<F> for TidegateLoop {
    #[inline]
    fn spawn(&self, future: F) -> Self::Handle<F::Output> {
        tidegate_loop::spawn(future)
    }
}

impl From<tidegate_loop::JoinError> for JoinError {
    fn from(error: tidegate_loop::JoinError) -> Self {
        match error {
            tidegate_loop::JoinError::Panicked(panic) => JoinError::Panicked(Panic::new(panic.into_payload())),
            tidegate_loop::JoinError::AwaitsItself => JoinError::AwaitsItself,
            _ => JoinError::Cancelled,
        }
    }
}

/// Makes the loop's `wait` and similar functions accept a pool's handles.
impl<T: 'static> AsTask for JoinHandle<T, TidegateLoop> {
    fn as_task(&self) -> Task {
        self.inner.task()
    }
}

/// A result sets it, a panic becomes its exception, and a cancelled task cancels it. One that is done already is not
/// changed.
impl<T: 'static> Promise<T> for tidegate_loop::Deferred<T> {
    fn settle(self, result: Result<T, JoinError>) {
        match result {
            Ok(value) => drop(self.set_result(value)),
            Err(JoinError::Cancelled) => drop(self.cancel()),
            Err(error) => drop(self.set_exception(error)),
        }
    }
}
