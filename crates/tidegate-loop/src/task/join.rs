//! Join handles: how the result of a task is fetched.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context as PollContext, Poll};

use super::raw::{Header, TaskRef, Waiting, flag};
use super::{AsTask, Outcome, Task, drop_output};
use crate::kernel::current;
use crate::mailbox::waker;
use crate::observe::report::panic_message;
use crate::task::cancel;

/// A claim on a task's result. Await it, or drop it: the task then goes on by itself.
///
/// ```
/// use tidegate_loop::{run, spawn};
/// run(async {
///     let handle = spawn(async { 6 * 7 });
///     assert_eq!(handle.await.unwrap(), 42);
/// })
/// .unwrap();
/// ```
pub struct JoinHandle<T> {
    cell: TaskRef,
    /// Our place among the task's waiters, when we are not the first in line.
    waiter: Option<u64>,
    _output: PhantomData<fn() -> T>,
}

impl<T: 'static> JoinHandle<T> {
    /// The one handle of a task that was made for an output of type `T`.
    #[inline]
    pub(crate) fn new(cell: TaskRef) -> JoinHandle<T> {
        cell.set(flag::HELD);
        JoinHandle { cell, waiter: None, _output: PhantomData }
    }

    /// The task.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn};
    /// run(async { assert!(!spawn(async {}).task().is_finished()) }).unwrap();
    /// ```
    pub fn task(&self) -> Task {
        Task { cell: self.cell.clone() }
    }

    /// [`Task::cancel`].
    ///
    /// ```
    /// use tidegate_loop::{run, spawn};
    /// run(async { assert!(spawn(async {}).cancel()) }).unwrap();
    /// ```
    pub fn cancel(&self) -> bool {
        self.task().cancel()
    }

    /// Whether the task has ended.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn};
    /// run(async { assert!(!spawn(async {}).is_finished()) }).unwrap();
    /// ```
    pub fn is_finished(&self) -> bool {
        self.cell.has(flag::DONE)
    }

    /// The result, if the task has ended and it was not taken before.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn, yield_now};
    /// run(async {
    ///     let mut handle = spawn(async { 1 });
    ///     assert!(handle.try_result().is_none());
    ///     yield_now().await;
    ///     assert_eq!(handle.try_result().unwrap().unwrap(), 1);
    /// })
    /// .unwrap();
    /// ```
    pub fn try_result(&mut self) -> Option<Result<T, JoinError>> {
        let header: &Header = &self.cell;
        let outcome = header.outcome()?;
        header.set(flag::RETRIEVED);
        match outcome {
            Outcome::Completed | Outcome::Failed => {
                header.set(flag::TAKEN);
                // SAFETY: it has ended, and this is its handle, made for its type.
                unsafe { self.cell.take_output::<T>() }.map(Ok)
            }
            Outcome::Cancelled => Some(Err(JoinError::Cancelled)),
            Outcome::Panicked => {
                let panic = header.extras()?.panic.borrow_mut().take()?;
                Some(Err(JoinError::Panicked(Panic::new(panic))))
            }
        }
    }
}

impl<T: 'static> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When the result was taken already.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let header: &Header = &self.cell;
        if let Some(outcome) = header.outcome() {
            if cancel::task_came_back(header.name, outcome == Outcome::Cancelled) {
                return Poll::Pending;
            }
            return Poll::Ready(self.try_result().expect("this task's result was taken already"));
        }
        let name = header.name;
        let itself = current::with(|kernel| {
            kernel.and_then(|kernel| kernel.current_task()).is_some_and(|current| current.name == name)
        });
        if itself {
            return Poll::Ready(Err(JoinError::AwaitsItself));
        }
        // The first waiter unless there was one before; waiters are woken in the order in which they came.
        let ours = waker::name_of(cx.waker());
        let first = match header.joiner() {
            Some(known) => ours == Some(known),
            None => ours.is_some() && header.extras().is_none_or(|extras| extras.waiters.borrow().is_empty()),
        };
        if first {
            header.set_joiner(ours);
        } else {
            header.set_joiner(None);
            let (id, before) = header.extras_or_make().waiters.borrow_mut().register(self.waiter, cx.waker());
            drop(before);
            self.waiter = Some(id);
        }
        // Last: registering clones the waker, which notes a foreign wait; this one is a wait for a task.
        cancel::wait_for(Waiting::task(name));
        Poll::Pending
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let header: &Header = &self.cell;
        header.clear(flag::HELD);
        header.set_joiner(None);
        if let Some(id) = self.waiter {
            leave_line(header, id);
        }
        // The output cannot be fetched any more. Dropping it now also breaks a cycle, if it refers to its own task.
        if !header.has(flag::DONE) {
            cancel::stop_waiting_for_task(header.name);
        } else if !header.has(flag::TAKEN) {
            drop_output(&self.cell);
        }
    }
}

#[cold]
fn leave_line(header: &Header, id: u64) {
    let waiter = header.extras().and_then(|extras| extras.waiters.borrow_mut().remove(id));
    drop(waiter);
}

impl<T: 'static> AsTask for JoinHandle<T> {
    fn as_task(&self) -> Task {
        self.task()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("name", &self.cell.display_name()).finish_non_exhaustive()
    }
}

/// Why a task has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// It was cancelled.
    Cancelled,
    /// It panicked.
    Panicked(Panic),
    /// A task awaited its own join handle: it would wait for ever.
    AwaitsItself,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => f.write_str("the task was cancelled"),
            JoinError::Panicked(panic) => write!(f, "the task panicked: {panic}"),
            JoinError::AwaitsItself => f.write_str("a task cannot await itself; return instead"),
        }
    }
}

impl std::error::Error for JoinError {}

/// What a task panicked with.
///
/// ```
/// use tidegate_loop::{run, spawn, JoinError};
/// # std::panic::set_hook(Box::new(|_| ()));
/// run(async {
///     let Err(JoinError::Panicked(panic)) = spawn(async { panic!("out of paper") }).await else { unreachable!() };
///     assert_eq!(panic.to_string(), "out of paper");
/// })
/// .unwrap();
/// ```
pub struct Panic {
    /// Never locked: taken out by value. The mutex makes errors that hold a panic `Sync`.
    payload: Mutex<Box<dyn Any + Send>>,
    message: Box<str>,
}

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Panic {
        Panic { message: panic_message(&*payload).into(), payload: Mutex::new(payload) }
    }

    /// Goes on panicking, here.
    ///
    /// ```should_panic
    /// use tidegate_loop::{run, spawn, JoinError};
    /// run(async {
    ///     if let Err(JoinError::Panicked(panic)) = spawn(async { panic!("again") }).await {
    ///         panic.resume();
    ///     }
    /// })
    /// .unwrap();
    /// ```
    pub fn resume(self) -> ! {
        std::panic::resume_unwind(self.into_payload())
    }

    /// The payload.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn, JoinError};
    /// # std::panic::set_hook(Box::new(|_| ()));
    /// run(async {
    ///     let Err(JoinError::Panicked(panic)) = spawn(async { std::panic::panic_any(7) }).await else { unreachable!() };
    ///     assert_eq!(panic.into_payload().downcast_ref(), Some(&7));
    /// })
    /// .unwrap();
    /// ```
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message).finish()
    }
}
