//! Tasks and pools that end with what started them: a run whose future is dropped leaves nothing behind that goes on.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_loop::{JoinError, JoinHandle, spawn};
use tidegate_pool::Pool;

/// A task that is cancelled when this is dropped. Awaited, it returns the task's output.
pub(crate) struct OwnedTask<T: 'static>(JoinHandle<T>);

impl<T: 'static> OwnedTask<T> {
    pub(crate) fn spawn(future: impl Future<Output = T> + 'static) -> OwnedTask<T> {
        OwnedTask(spawn(future))
    }

    /// Cancels it, and returns when nothing of it is left.
    pub(crate) async fn end(mut self) {
        self.0.cancel();
        let _ = (&mut self.0).await;
    }
}

impl<T: 'static> Future for OwnedTask<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T: 'static> Drop for OwnedTask<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A pool that is closed, and whose tasks are cancelled, when this is dropped.
pub(crate) struct OwnedPool(pub(crate) Pool);

impl Drop for OwnedPool {
    fn drop(&mut self) {
        // The tasks are cancelled now; their end is not waited for.
        drop(self.0.abort());
    }
}
