//! A task that was started from another thread: its result travels back.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as PollContext, Poll, Waker};

use crate::runtime::on_loop::OnLoop;
use crate::runtime::remote::RemoteHandle;
use crate::task::{JoinError, Task, spawn};

impl RemoteHandle {
    /// Starts a task on the loop from any thread. `make` runs on the loop's thread and makes the future there, so the
    /// future need not be `Send`; its output must be. asyncio's `run_coroutine_threadsafe`.
    ///
    /// Await the [`RemoteTask`] on any executor, or block a thread on it with [`wait`](RemoteTask::wait). Dropped, the task
    /// goes on by itself.
    ///
    /// ```
    /// use tidegate_loop::{Duration, EventLoop, LoopHandle, sleep};
    ///
    /// let event_loop = EventLoop::new().unwrap();
    /// let remote = event_loop.remote();
    /// let thread = std::thread::spawn(move || {
    ///     let task = remote.spawn(|| async {
    ///         sleep(Duration::from_millis(1)).await;
    ///         6 * 7
    ///     });
    ///     let answer = task.wait().unwrap();
    ///     remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
    ///     answer
    /// });
    /// event_loop.run_forever().unwrap();
    /// assert_eq!(thread.join().unwrap(), 42);
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, make: impl FnOnce() -> F + Send + 'static) -> RemoteTask<T>
    where
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let shared = Arc::new(RemoteShared {
            slot: Mutex::new(RemoteSlot { result: None, waker: None, task: None, cancelled: false }),
            arrived: Condvar::new(),
        });
        let settles = Settles { shared: shared.clone() };
        // Refused means that the loop is closed; what settles is dropped with the callback, and says so.
        let _ = self.call_soon_threadsafe(move || start(make, settles));
        RemoteTask { shared, remote: self.clone() }
    }
}

/// On the loop's thread: starts the task, and settles when it has ended.
fn start<F, T>(make: impl FnOnce() -> F, settles: Settles<T>)
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let mut handle = spawn(make());
    let task = handle.task();
    let cancelled = {
        let mut slot = settles.shared.lock();
        slot.task = Some(OnLoop::new(task.clone()));
        slot.cancelled
    };
    if cancelled {
        task.cancel();
    }
    task.add_done_callback(move |_| {
        if let Some(result) = handle.try_result() {
            settles.shared.settle(result);
        }
    });
}

/// A task on a loop, for another thread: see [`RemoteHandle::spawn`].
///
/// # Cancel safety
/// Dropped, the task goes on by itself; [`cancel`](Self::cancel) ends it.
#[must_use = "dropped, it cannot be asked for the result any more; the task goes on by itself"]
pub struct RemoteTask<T> {
    shared: Arc<RemoteShared<T>>,
    remote: RemoteHandle,
}

struct RemoteShared<T> {
    slot: Mutex<RemoteSlot<T>>,
    arrived: Condvar,
}

struct RemoteSlot<T> {
    result: Option<Result<T, JoinError>>,
    waker: Option<Waker>,
    /// There once the task has been started.
    task: Option<OnLoop<Task>>,
    /// Cancelled before it was started.
    cancelled: bool,
}

impl<T> RemoteShared<T> {
    fn lock(&self) -> MutexGuard<'_, RemoteSlot<T>> {
        // No foreign code runs under this lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, result: Result<T, JoinError>) {
        let (waker, task) = {
            let mut slot = self.lock();
            slot.result = Some(result);
            (slot.waker.take(), slot.task.take())
        };
        self.arrived.notify_all();
        drop(task);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Settles as cancelled when it is dropped unsettled: the loop was closed before the task had started or ended.
struct Settles<T> {
    shared: Arc<RemoteShared<T>>,
}

impl<T> Drop for Settles<T> {
    fn drop(&mut self) {
        let settled = self.shared.lock().result.is_some();
        if !settled {
            self.shared.settle(Err(JoinError::Cancelled));
        }
    }
}

impl<T: Send + 'static> RemoteTask<T> {
    /// Blocks this thread until the task has ended, and returns its result.
    ///
    /// # Errors
    /// [`JoinError::Cancelled`] also if the loop is closed.
    ///
    /// # Panics
    /// Inside of a running loop, which it would block: await it there.
    pub fn wait(self) -> Result<T, JoinError> {
        assert!(
            crate::LoopHandle::try_current().is_none(),
            "RemoteTask::wait would block the loop that runs here; await it instead"
        );
        let mut slot = self.shared.lock();
        loop {
            if let Some(result) = slot.result.take() {
                return result;
            }
            slot = self.shared.arrived.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Requests that the task be cancelled, as [`Task::cancel`] does on its own thread.
    ///
    /// ```
    /// # use tidegate_loop::{EventLoop, LoopHandle};
    /// let event_loop = EventLoop::new().unwrap();
    /// let remote = event_loop.remote();
    /// let thread = std::thread::spawn(move || {
    ///     let task = remote.spawn(std::future::pending::<()>);
    ///     task.cancel();
    ///     let ended = task.wait();
    ///     remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
    ///     ended.is_err()
    /// });
    /// event_loop.run_forever().unwrap();
    /// assert!(thread.join().unwrap());
    /// ```
    pub fn cancel(&self) {
        let shared = self.shared.clone();
        // Refused means that the loop is closed, and the task with it.
        let _ = self.remote.call_soon_threadsafe(move || {
            let task = {
                let mut slot = shared.lock();
                slot.cancelled = true;
                slot.task.as_ref().and_then(|task| task.with(Task::clone).ok())
            };
            if let Some(task) = task {
                task.cancel();
            }
        });
    }
}

impl<T: Send + 'static> Future for RemoteTask<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        // Cloned outside of the lock: a waker may be foreign code.
        let waker = cx.waker().clone();
        let mut slot = self.shared.lock();
        if let Some(result) = slot.result.take() {
            return Poll::Ready(result);
        }
        let before = slot.waker.replace(waker);
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> fmt::Debug for RemoteTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteTask").finish_non_exhaustive()
    }
}
