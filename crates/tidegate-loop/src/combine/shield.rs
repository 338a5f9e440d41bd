//! Shielding a task from the cancellation of the tasks that wait for it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use crate::deferred::{Awaiting, Deferred};
use crate::runtime::event_loop::LoopHandle;
use crate::task::{CallbackId, JoinError, JoinHandle};

/// Waits for a task without passing a cancellation on to it: the waiting task unwinds, the inner one goes on.
///
/// # Cancel safety
/// Safe: the result stays in the handle.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{run, shield, sleep, spawn, yield_now, Duration};
/// run(async {
///     let mut precious = spawn(async { sleep(Duration::from_millis(1)).await; 7 });
///     let impatient = spawn(async move {
///         let caught = tidegate_loop::catch_cancel(shield(&mut precious)).await;
///         assert!(caught.is_err());
///         precious.await.unwrap()
///     });
///     yield_now().await;
///     impatient.cancel();
///     assert_eq!(impatient.await.unwrap(), 7);
/// })
/// .unwrap();
/// ```
pub fn shield<T: 'static>(handle: &mut JoinHandle<T>) -> Shield<'_, T> {
    if handle.is_finished() {
        return Shield { handle, outer: None };
    }
    let outer = LoopHandle::current().create_future::<()>();
    let signal = outer.clone();
    let id = handle.task().add_done_callback(move |_| drop(signal.set_result(())));
    Shield { handle, outer: Some((outer.clone(), outer.into_future(), id)) }
}

/// The future of [`shield`].
#[must_use = "futures do nothing unless polled"]
pub struct Shield<'a, T: 'static> {
    handle: &'a mut JoinHandle<T>,
    /// What is cancelled in the task's stead; `None`: it had ended already.
    outer: Option<(Deferred<()>, Awaiting<()>, CallbackId)>,
}

impl<T: 'static> Future for Shield<'_, T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some((_, awaiting, _)) = &mut this.outer {
            // Cancelled by the waiting task it does not come back here at all.
            let _ = std::task::ready!(Pin::new(awaiting).poll(cx));
        }
        Poll::Ready(this.handle.try_result().expect("this task's result was taken already"))
    }
}

impl<T> Drop for Shield<'_, T> {
    fn drop(&mut self) {
        if let Some((outer, _, id)) = &self.outer
            && !outer.is_done()
        {
            self.handle.task().remove_done_callback(*id);
        }
    }
}

impl<T> fmt::Debug for Shield<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shield").field("inner", &self.handle).finish()
    }
}
