//! Waiting for all of several tasks, with one cancellation for all of them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use crate::deferred::{Awaiting, Deferred};
use crate::runtime::event_loop::LoopHandle;
use crate::task::awaited::{Awaited, Counted};
use crate::task::cancel;
use crate::task::{JoinError, JoinHandle, Outcome, Task};

/// Waits for all of them and yields their outputs in the order they were given. The first that is cancelled, panics or
/// (made by [`spawn_fallible`](crate::spawn_fallible)) fails ends the wait with its error; the others go on.
///
/// A request to cancel the waiting task goes to all of them.
///
/// # Cancel safety
/// Dropped, the tasks go on by themselves and their outputs are lost.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{gather, run, spawn};
/// run(async {
///     let squares = gather((1..4).map(|n| spawn(async move { n * n }))).await;
///     assert_eq!(squares.unwrap(), [1, 4, 9]);
/// })
/// .unwrap();
/// ```
pub fn gather<T: 'static>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Gather<T> {
    Gather { wait: Wait::new(handles, false) }
}

/// Waits for all of them and yields every result, errors included, in the order they were given.
///
/// # Cancel safety
/// Dropped, the tasks go on by themselves and their outputs are lost.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{gather_all, run, spawn, JoinError};
/// run(async {
///     let (a, b) = (spawn(async { 1 }), spawn(std::future::pending()));
///     b.cancel();
///     let results = gather_all([a, b]).await;
///     assert!(matches!(results[..], [Ok(1), Err(JoinError::Cancelled)]));
/// })
/// .unwrap();
/// ```
pub fn gather_all<T: 'static>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> GatherAll<T> {
    GatherAll { wait: Wait::new(handles, true) }
}

/// The first error of a [`gather`].
#[derive(Debug)]
pub struct GatherError<T> {
    /// Which one.
    pub index: usize,
    /// What it ended with: an output that counts as a failure, or no output.
    pub result: Result<T, JoinError>,
}

impl<T> fmt::Display for GatherError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(_) => write!(f, "task {} failed", self.index),
            Err(error) => write!(f, "task {}: {error}", self.index),
        }
    }
}

impl<T: fmt::Debug> std::error::Error for GatherError<T> {}

/// How the wait ended.
#[derive(Clone, Copy)]
enum Verdict {
    All,
    First(usize),
    /// All have ended, and they were asked to.
    Cancelled,
}

struct Children {
    tasks: Vec<Task>,
    left: Cell<usize>,
    collect_errors: bool,
    cancel_requested: Cell<bool>,
    verdict: Deferred<Verdict>,
}

impl Children {
    fn one_ended(&self, index: usize) {
        self.left.set(self.left.get() - 1);
        let outcome = self.tasks[index].outcome().expect("it has ended");
        if self.verdict.is_done() {
            // The waiter has had its error; this one's is not worth a report any more.
            self.tasks[index].error();
            return;
        }
        let verdict = if !self.collect_errors && outcome != Outcome::Completed {
            Verdict::First(index)
        } else if self.left.get() > 0 {
            return;
        } else if self.cancel_requested.get() {
            Verdict::Cancelled
        } else {
            Verdict::All
        };
        drop(self.verdict.set_result(verdict));
    }
}

impl Awaited for Children {
    fn cancel(this: &Counted<Self>) -> bool {
        if this.verdict.is_done() {
            return false;
        }
        let mut any = false;
        for task in &this.tasks {
            any |= task.cancel();
        }
        if any {
            this.cancel_requested.set(true);
        }
        any
    }

    fn describe(&self) -> String {
        format!("{} of {} tasks", self.left.get(), self.tasks.len())
    }
}

struct Wait<T: 'static> {
    handles: RefCell<Vec<JoinHandle<T>>>,
    children: Counted<Children>,
    awaiting: Awaiting<Verdict>,
}

impl<T: 'static> Wait<T> {
    fn new(handles: impl IntoIterator<Item = JoinHandle<T>>, collect_errors: bool) -> Wait<T> {
        let handles: Vec<JoinHandle<T>> = handles.into_iter().collect();
        let verdict = LoopHandle::current().create_future();
        let children = Counted::new(|| Children {
            tasks: handles.iter().map(JoinHandle::task).collect(),
            left: Cell::new(handles.len()),
            collect_errors,
            cancel_requested: Cell::new(false),
            verdict: verdict.clone(),
        });
        if handles.is_empty() {
            drop(verdict.set_result(Verdict::All));
        }
        let (ended, running): (Vec<usize>, _) = (0..handles.len()).partition(|&at| handles[at].is_finished());
        for at in running {
            let children = children.clone();
            handles[at].task().add_done_callback(move |_| children.one_ended(at));
        }
        // Those that have ended need no callback: with only such ones the result is there at once.
        for at in ended {
            children.one_ended(at);
        }
        Wait { handles: RefCell::new(handles), children, awaiting: verdict.into_future() }
    }

    fn poll(&mut self, cx: &mut PollContext<'_>) -> Poll<Verdict> {
        let Poll::Ready(verdict) = Pin::new(&mut self.awaiting).poll(cx) else {
            // A request goes to the children, not to the future we wait on.
            cancel::wait_for_awaited(self.children.any());
            return Poll::Pending;
        };
        let verdict = verdict.unwrap_or(Verdict::Cancelled);
        let cancelled = match verdict {
            Verdict::Cancelled => true,
            Verdict::First(at) => self.children.tasks[at].outcome() == Some(Outcome::Cancelled),
            Verdict::All => false,
        };
        if cancel::awaited_came_back(self.children.any(), cancelled) {
            return Poll::Pending;
        }
        Poll::Ready(verdict)
    }

    fn take(&self, at: usize) -> Result<T, JoinError> {
        self.handles.borrow_mut()[at].try_result().expect("it has ended, and this is its only handle")
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        cancel::stop_waiting_for(self.children.any());
    }
}

/// The future of [`gather`].
#[must_use = "futures do nothing unless polled"]
pub struct Gather<T: 'static> {
    wait: Wait<T>,
}

impl<T: 'static> Future for Gather<T> {
    type Output = Result<Vec<T>, GatherError<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let count = self.wait.children.tasks.len();
        match std::task::ready!(self.wait.poll(cx)) {
            Verdict::First(index) => Poll::Ready(Err(GatherError { index, result: self.wait.take(index) })),
            Verdict::All | Verdict::Cancelled => {
                let outputs = (0..count)
                    .map(|index| self.wait.take(index).map_err(|error| GatherError { index, result: Err(error) }));
                Poll::Ready(outputs.collect())
            }
        }
    }
}

impl<T> fmt::Debug for Gather<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").finish_non_exhaustive()
    }
}

/// The future of [`gather_all`].
#[must_use = "futures do nothing unless polled"]
pub struct GatherAll<T: 'static> {
    wait: Wait<T>,
}

impl<T: 'static> Future for GatherAll<T> {
    type Output = Vec<Result<T, JoinError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        std::task::ready!(self.wait.poll(cx));
        let count = self.wait.children.tasks.len();
        Poll::Ready((0..count).map(|at| self.wait.take(at)).collect())
    }
}

impl<T> fmt::Debug for GatherAll<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherAll").finish_non_exhaustive()
    }
}
