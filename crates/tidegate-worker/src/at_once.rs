//! Where the pool's tasks run.

use std::future::Future;
use std::task::{Context, Poll};
use std::time::Instant;

use tidegate_loop::{JoinHandle, LoopHandle, Task};
use tidegate_pool::{Executor, JoinError, Spawn, TidegateLoop, Unthreaded};

/// The loop, on which a task takes its first step at once: what needs no second one is over before the next is looked at, and
/// while everything about it is at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtOnce;

impl Executor for AtOnce {
    type Shared<T> = Unthreaded<T>;
    type Handle<T: 'static> = JoinHandle<T>;
    type Canceller = Task;

    fn now(&self) -> Instant {
        TidegateLoop.now()
    }

    fn poll_join<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        TidegateLoop::poll_join(handle, cx)
    }

    fn is_finished<T: 'static>(handle: &Self::Handle<T>) -> bool {
        handle.is_finished()
    }

    fn canceller<T: 'static>(handle: &Self::Handle<T>) -> Task {
        handle.task()
    }

    fn cancel(task: &Task) -> bool {
        task.cancel()
    }
}

impl<F: Future + 'static> Spawn<F> for AtOnce {
    fn spawn(&self, future: F) -> JoinHandle<F::Output> {
        LoopHandle::current().task().eager().spawn(future)
    }
}
