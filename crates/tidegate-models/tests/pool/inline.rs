//! The smallest executor that a pool can run on: a task is its handle. It makes progress when the handle is polled, and
//! ends when the handle is dropped. So a model decides when a task ends, and a task needs no thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use loom::sync::Mutex;

pub(crate) use loom::future::block_on;

use crate::error::JoinError;
use crate::executor::{Executor, Spawn};
use crate::share::Threaded;

#[derive(Clone)]
pub(crate) struct Inline;

pub(crate) struct Handle<T> {
    task: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    cancelled: Canceller,
}

/// Whether a task has been cancelled, and the waker of the task that joins it.
#[derive(Clone, Default)]
pub(crate) struct Canceller(Arc<Mutex<(bool, Option<Waker>)>>);

impl Executor for Inline {
    type Shared<T> = Threaded<T>;
    type Handle<T: 'static> = Handle<T>;
    type Canceller = Canceller;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn poll_join<T: 'static>(handle: &mut Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        let waker = cx.waker().clone();
        let cancelled = {
            let mut cancelled = handle.cancelled.0.lock().unwrap();
            cancelled.1 = Some(waker);
            cancelled.0
        };
        if cancelled {
            handle.task = None;
            return Poll::Ready(Err(JoinError::Cancelled));
        }
        let task = handle.task.as_mut().expect("polled after its end");
        let polled = task.as_mut().poll(cx);
        if polled.is_ready() {
            handle.task = None;
        }
        polled.map(Ok)
    }

    fn is_finished<T: 'static>(handle: &Handle<T>) -> bool {
        handle.task.is_none()
    }

    fn canceller<T: 'static>(handle: &Handle<T>) -> Canceller {
        handle.cancelled.clone()
    }

    fn cancel(task: &Canceller) -> bool {
        let waker = {
            let mut cancelled = task.0.lock().unwrap();
            cancelled.0 = true;
            cancelled.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl<F> Spawn<F> for Inline
where
    F: Future + Send + 'static,
{
    fn spawn(&self, future: F) -> Handle<F::Output>
    where
        F::Output: 'static,
    {
        Handle { task: Some(Box::pin(future)), cancelled: Canceller::default() }
    }
}
