//! Pools on tokio: `Send` futures on any of its runtimes, others on a `LocalSet`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

use crate::error::{JoinError, Panic};
use crate::executor::{Executor, Spawn};
use crate::promise::Promise;
use crate::share::{Threaded, Unthreaded};

/// The running tokio runtime, with one thread or several. The pool is `Send` and `Sync`.
///
/// ```
/// use tidegate_pool::{Pool, Tokio};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let pool = Pool::on(Tokio, 2);
/// let handle = pool.submit(async { 6 * 7 }).await?;
/// assert_eq!(handle.await?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio;

/// The running tokio `LocalSet` or `LocalRuntime`. Futures need not be `Send`, and the pool uses no atomics.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_pool::{Pool, TokioLocal};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(tokio::task::LocalSet::new().run_until(async {
/// let pool = Pool::on(TokioLocal, 2);
/// let not_send = Rc::new(42);
/// let handle = pool.submit(async move { *not_send }).await.unwrap();
/// assert_eq!(handle.await?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioLocal;

macro_rules! executor {
    ($executor:ty, $shared:ident) => {
        impl Executor for $executor {
            type Shared<T> = $shared<T>;
            type Handle<T: 'static> = JoinHandle<T>;
            type Canceller = AbortHandle;

            fn now(&self) -> Instant {
                tokio::time::Instant::now().into_std()
            }

            fn poll_join<T: 'static>(handle: &mut JoinHandle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
                Pin::new(handle).poll(cx).map_err(JoinError::from)
            }

            fn is_finished<T: 'static>(handle: &JoinHandle<T>) -> bool {
                handle.is_finished()
            }

            fn canceller<T: 'static>(handle: &JoinHandle<T>) -> AbortHandle {
                handle.abort_handle()
            }

            fn cancel(task: &AbortHandle) -> bool {
                let running = !task.is_finished();
                task.abort();
                running
            }
        }
    };
}

executor!(Tokio, Threaded);
executor!(TokioLocal, Unthreaded);

impl<F> Spawn<F> for Tokio
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn spawn(&self, future: F) -> JoinHandle<F::Output>
    where
        F::Output: 'static,
    {
        tokio::spawn(future)
    }
}

impl<F: Future + 'static> Spawn<F> for TokioLocal {
    fn spawn(&self, future: F) -> JoinHandle<F::Output>
    where
        F::Output: 'static,
    {
        tokio::task::spawn_local(future)
    }
}

impl From<tokio::task::JoinError> for JoinError {
    fn from(error: tokio::task::JoinError) -> Self {
        match error.try_into_panic() {
            Ok(payload) => JoinError::Panicked(Panic::new(payload)),
            Err(_) => JoinError::Cancelled,
        }
    }
}

/// The receiver gets the result; if the receiver was dropped, the result is dropped.
impl<T> Promise<T> for oneshot::Sender<Result<T, JoinError>> {
    fn settle(self, result: Result<T, JoinError>) {
        drop(self.send(result));
    }
}
