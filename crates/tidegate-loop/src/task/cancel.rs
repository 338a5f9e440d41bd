//! Cancellation as a counted request that can be caught. `catch_cancel` is the place that owns a future and can
//! therefore end it: it is to an await what `except CancelledError` is in Python.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll, Waker};

use pin_project_lite::pin_project;

use crate::kernel::Kernel;
use crate::kernel::current;
use crate::mailbox::name::Name;
use crate::mailbox::waker;
use crate::task::awaited::AnyAwaited;
use crate::task::raw::{Catch, Extras, Header, Target, TaskRef, Waiting, flag};

/// Requests that a task be cancelled. If it waits for something of the loop that can itself be cancelled, the request is
/// forwarded there, and comes back as the outcome of that wait. Returns `false` if the task has ended.
pub(crate) fn request(kernel: &Kernel, task: &TaskRef) -> bool {
    if task.has(flag::DONE) {
        return false;
    }
    if task.has(flag::ASKED) {
        // A circle of tasks that wait for each other: the request is passing through this one already, further up the
        // stack, and finds there that there is no task left to pass it on to.
        return true;
    }
    // Along a line of waiting tasks step by step, not frame by frame: lines can be long, and some are circles.
    let mut asked: Vec<TaskRef> = Vec::new();
    let mut task = task.clone();
    loop {
        task.cancels.set(task.cancels.get().saturating_add(1));
        if kernel.watch.is_on() {
            kernel.watch.cancel_requested(kernel, &task);
        }
        if kernel.is_running(&task) {
            task.set(flag::MUST_CANCEL);
            break;
        }
        let next = match pass_on(kernel, &task) {
            PassedOn::To(next) => next,
            PassedOn::Taken => break,
            PassedOn::Refused => {
                task.set(flag::MUST_CANCEL);
                break;
            }
            PassedOn::Nowhere if kernel.is_queued(task.name) => {
                task.set(flag::MUST_CANCEL);
                break;
            }
            PassedOn::Nowhere => {
                task.set(flag::INTERRUPTED);
                kernel.wake(task.name);
                break;
            }
        };
        task.set(flag::ASKED);
        asked.push(std::mem::replace(&mut task, next));
    }
    for task in asked {
        task.clear(flag::ASKED);
    }
    true
}

/// Where a request went.
enum PassedOn {
    /// To a task that is still to be asked.
    To(TaskRef),
    /// To something else, which took it.
    Taken,
    /// To something that is as good as done: the task will be woken by it.
    Refused,
    Nowhere,
}

/// Passes a request on to what the task awaits.
fn pass_on(kernel: &Kernel, task: &Header) -> PassedOn {
    if let Some(name) = task.waiting().as_task() {
        return match kernel.find_task(name) {
            Some(next) if !next.has(flag::ASKED) => {
                remember_forward(task, Target::Task(name));
                PassedOn::To(next)
            }
            _ => PassedOn::Nowhere,
        };
    }
    let Some(awaited) = task.awaited() else { return PassedOn::Nowhere };
    task.set(flag::ASKED);
    let taken = awaited.cancel();
    task.clear(flag::ASKED);
    if !taken {
        return PassedOn::Refused;
    }
    remember_forward(task, Target::Awaited(awaited));
    PassedOn::Taken
}

fn remember_forward(task: &Header, target: Target) {
    task.set(flag::FORWARDED);
    let before = task.extras_or_make().forwarded.replace(Some(target));
    drop(before);
}

fn forget_forward(task: &Header) {
    task.clear(flag::FORWARDED);
    let target = task.extras().and_then(|extras| extras.forwarded.take());
    drop(target);
}

/// Withdraws one request and returns how many remain. At zero a pending request (`MUST_CANCEL`) is dropped; called from
/// within the task's own poll, a request already forwarded to what it awaits is dropped too.
pub(crate) fn take_back(task: &Header) -> u32 {
    let left = task.cancels.get().saturating_sub(1);
    task.cancels.set(left);
    if left == 0 {
        task.clear(flag::MUST_CANCEL);
        forget(task);
    }
    u32::from(left)
}

/// The current task returns: a request that has not been delivered is dropped.
pub(crate) fn drop_pending() {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task) {
            task.clear(flag::MUST_CANCEL);
        }
    });
}

/// During the task's own step: what it sent on and what has not come back is no longer wanted.
pub(crate) fn forget(task: &Header) {
    let is_running = || current::with(|kernel| kernel.is_some_and(|kernel| kernel.is_running(task)));
    if task.has(flag::FORWARDED) && is_running() {
        forget_forward(task);
    }
}

/// Before a step: marks the innermost `catch_cancel`, and wakes the waker it was last polled with, so that
/// combinators with wakers of their own reach it. Returns `false` if there is none: the task ends here.
pub(crate) fn deliver(task: &Header) -> bool {
    forget_forward(task);
    let Some(waker) = mark_innermost(task) else { return false };
    if let Some(waker) = waker {
        waker.wake();
    }
    true
}

/// Marks the innermost `catch_cancel` that is awaited and returns the waker it was polled with, if that is not the
/// task's own. `None`: there is no such catch.
fn mark_innermost(task: &Header) -> Option<Option<Waker>> {
    let extras = task.extras()?;
    let mut catches = extras.catches.borrow_mut();
    let innermost = catches.iter_mut().rev().find(|catch| !catch.deaf)?;
    innermost.marked = true;
    task.set(flag::DELIVERED);
    Some(innermost.waker.take())
}

/// After a step that ended in a wait, with a request still open.
pub(crate) fn after_suspension(kernel: &Kernel, task: &Header) {
    if task.take(flag::DELIVERED) && task.extras().is_some_and(|extras| is_any_marked(extras)) {
        // The catch was not polled. If the task is queued it may be in the next step; otherwise it is only kept, and
        // what the task really waits for lies outside of it.
        if kernel.is_queued(task.name) {
            task.set(flag::DELIVERED);
        } else {
            deafen_marked(task);
            task.set(flag::MUST_CANCEL);
        }
    }
    // The request had gone to something the task no longer waits for: it must not get lost.
    if task.has(flag::FORWARDED) && !still_waits_for_target(task) {
        forget_forward(task);
        task.set(flag::MUST_CANCEL);
    }
    // A request made during the step goes at once to what the step ended up waiting for.
    if task.take(flag::MUST_CANCEL) {
        match pass_on(kernel, task) {
            PassedOn::To(next) => {
                request(kernel, &next);
            }
            PassedOn::Taken => {}
            PassedOn::Refused => task.set(flag::MUST_CANCEL),
            PassedOn::Nowhere if kernel.is_queued(task.name) => task.set(flag::MUST_CANCEL),
            PassedOn::Nowhere => {
                task.set(flag::INTERRUPTED);
                kernel.wake(task.name);
            }
        }
    }
}

fn is_any_marked(extras: &Extras) -> bool {
    extras.catches.borrow().iter().any(|catch| catch.marked)
}

fn deafen_marked(task: &Header) {
    let Some(extras) = task.extras() else { return };
    for catch in extras.catches.borrow_mut().iter_mut().filter(|catch| catch.marked) {
        catch.marked = false;
        catch.deaf = true;
    }
}

fn still_waits_for_target(task: &Header) -> bool {
    let Some(extras) = task.extras() else { return false };
    match &*extras.forwarded.borrow() {
        Some(Target::Task(name)) => task.waiting() == Waiting::task(*name),
        Some(Target::Awaited(target)) => task.awaited().is_some_and(|awaited| awaited.is(target)),
        None => false,
    }
}

/// Raises a cancellation at the current point of the current task: the innermost `catch_cancel` gets it when the poll
/// returns to it; without one the task ends when the poll returns to the loop. The caller returns `Pending`.
fn raise(task: &Header) {
    // Its waker is not needed: we are inside of it.
    if mark_innermost(task).is_none() {
        task.set(flag::UNWIND);
    }
}

/// Notes what the current task is about to wait for. The last note of a step counts; a foreign future makes one by cloning
/// the task's waker.
#[inline]
pub(crate) fn wait_for(waiting: Waiting) {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task) {
            task.wait_for(waiting);
        }
    });
}

#[inline]
pub(crate) fn wait_for_awaited(awaited: &AnyAwaited) {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task) {
            task.wait_for_awaited(awaited.clone());
        }
    });
}

/// The waker of that task was cloned: if it is the current task, it waits for something outside of the loop.
#[inline]
pub(crate) fn waker_kept(name: Name) {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task)
            && task.name == name
        {
            task.wait_for(Waiting::FOREIGN);
        }
    });
}

/// An await of a task was dropped: the current task does not wait for it any more.
pub(crate) fn stop_waiting_for_task(name: Name) {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task)
            && task.waiting() == Waiting::task(name)
        {
            task.wait_for(Waiting::FOREIGN);
        }
    });
}

/// The same for what is no task.
#[inline]
pub(crate) fn stop_waiting_for(awaited: &AnyAwaited) {
    current::with(|kernel| {
        if let Some(task) = kernel.and_then(Kernel::current_task)
            && task.awaited().is_some_and(|known| known.is(awaited))
        {
            task.wait_for(Waiting::FOREIGN);
        }
    });
}

/// Whether a request went to what the current task awaits and has not come back; it is rare, and looked for before more
/// is asked.
#[inline]
pub(crate) fn is_forwarded() -> bool {
    current::with(|kernel| kernel.and_then(Kernel::current_task).is_some_and(|task| task.has(flag::FORWARDED)))
}

/// A task the current one awaited has ended. Returns `true` if it was cancelled for a request to the current task, which
/// thereby comes back and has been raised; return `Pending`.
#[inline]
pub(crate) fn task_came_back(name: Name, cancelled: bool) -> bool {
    came_back(cancelled, |target| matches!(target, Target::Task(known) if *known == name))
}

/// The same for what is no task.
#[inline]
pub(crate) fn awaited_came_back(awaited: &AnyAwaited, cancelled: bool) -> bool {
    came_back(cancelled, |target| matches!(target, Target::Awaited(known) if known.is(awaited)))
}

#[inline]
fn came_back(cancelled: bool, is_target: impl FnOnce(&Target) -> bool) -> bool {
    current::with(|kernel| {
        let Some(task) = kernel.and_then(Kernel::current_task) else { return false };
        if !task.has(flag::FORWARDED) {
            return false;
        }
        let extras = task.extras_or_make();
        if !extras.forwarded.borrow().as_ref().is_some_and(is_target) {
            return false;
        }
        forget_forward(task);
        if cancelled {
            raise(task);
        }
        cancelled
    })
}

/// A cancellation that was caught.
///
/// ```
/// use tidegate_loop::{catch_cancel, run, sleep, spawn, yield_now, Cancelled, Duration};
///
/// run(async {
///     let task = spawn(async {
///         match catch_cancel(sleep(Duration::from_secs(60))).await {
///             Ok(()) => "slept",
///             Err(Cancelled) => "woken early",
///         }
///     });
///     yield_now().await;
///     task.cancel();
///     assert_eq!(task.await.unwrap(), "woken early");
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

impl Cancelled {
    /// Raises the cancellation again, as Python's `raise` does: the next outer [`catch_cancel`] gets it, and without
    /// one the task ends as cancelled. Never returns.
    ///
    /// # Panics
    /// Outside of a task.
    ///
    /// ```
    /// use tidegate_loop::{catch_cancel, run, sleep, spawn, yield_now, Duration, JoinError};
    ///
    /// run(async {
    ///     let task = spawn(async {
    ///         if let Err(cancelled) = catch_cancel(sleep(Duration::from_secs(60))).await {
    ///             // clean up here; awaiting is fine
    ///             cancelled.propagate().await;
    ///         }
    ///     });
    ///     yield_now().await;
    ///     task.cancel();
    ///     assert!(matches!(task.await, Err(JoinError::Cancelled)));
    /// })
    /// .unwrap();
    /// ```
    pub async fn propagate(self) -> std::convert::Infallible {
        std::future::poll_fn(|_| {
            raise_here();
            Poll::Pending
        })
        .await
    }
}

/// Raises a cancellation in the current task.
pub(crate) fn raise_here() {
    current::with(|kernel| {
        let task = kernel.and_then(Kernel::current_task).expect("a cancellation is raised inside a task of the loop");
        raise(task);
    });
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// Awaits `future`, and if the task is cancelled meanwhile, drops it and yields `Err(Cancelled)`: the task goes on.
///
/// The innermost active one gets the request; under `join!` or `select!` inside one task that is the one that was
/// polled first most recently. The request stays counted until [`Task::uncancel`](crate::Task::uncancel).
///
/// # Cancel safety
/// As cancel-safe as `future`. Dropped, it stops catching.
///
/// ```
/// use tidegate_loop::{catch_cancel, run, Task};
/// run(async {
///     Task::current().cancel();
///     // The request arrives at the first point where the task waits.
///     assert!(catch_cancel(std::future::pending::<()>()).await.is_err());
///     assert_eq!(Task::current().uncancel(), 0);
/// })
/// .unwrap();
/// ```
pub fn catch_cancel<F: Future>(future: F) -> CatchCancel<F> {
    CatchCancel { future: Some(future), place: CatchFrame { entered: None } }
}

pin_project! {
    /// The future of [`catch_cancel`].
    #[must_use = "futures do nothing unless polled"]
    pub struct CatchCancel<F> {
        // Gone when the cancellation has been caught.
        #[pin]
        future: Option<F>,
        place: CatchFrame,
    }
}

/// A place in the task's stack of catches.
pub(crate) struct CatchFrame {
    entered: Option<(Rc<Extras>, u32)>,
}

impl CatchFrame {
    pub(crate) const OUTSIDE: CatchFrame = CatchFrame { entered: None };

    /// Takes a place on top of the stack, or at `depth`, below what was entered since.
    pub(crate) fn enter(&mut self, depth: Option<usize>) {
        current::with(|kernel| {
            let Some(task) = kernel.and_then(Kernel::current_task) else { return };
            let extras = task.extras_or_make();
            let mut catches = extras.catches.borrow_mut();
            // Unique within the stack, which is all that is asked of it.
            let id = catches.iter().map(|catch| catch.id).max().map_or(0, |id| id + 1);
            let at = depth.unwrap_or(catches.len()).min(catches.len());
            catches.insert(at, Catch { id, marked: false, deaf: false, waker: None });
            self.entered = Some((extras.clone(), id));
        });
    }

    pub(crate) fn is_entered(&self) -> bool {
        self.entered.is_some()
    }

    fn with<R>(&self, f: impl FnOnce(&mut Catch) -> R) -> Option<R> {
        let (extras, id) = self.entered.as_ref()?;
        extras.catches.borrow_mut().iter_mut().rev().find(|catch| catch.id == *id).map(f)
    }

    /// Whether a cancellation is waiting here. Called only when the catch is polled, which shows that it is awaited.
    pub(crate) fn is_marked(&self) -> bool {
        self.with(|catch| {
            catch.deaf = false;
            catch.marked
        })
        .unwrap_or(false)
    }

    /// Remembers the waker, where it is not the task's own.
    pub(crate) fn remember(&self, waker: &Waker) {
        if waker::name_of(waker).is_none() {
            let waker = waker.clone();
            let before = self.with(move |catch| catch.waker.replace(waker));
            drop(before);
        }
    }

    /// Leaves the stack; whether it had been marked.
    pub(crate) fn leave(&mut self) -> bool {
        let Some((extras, id)) = self.entered.take() else { return false };
        let left = {
            let mut catches = extras.catches.borrow_mut();
            catches.iter().rposition(|catch| catch.id == id).map(|at| catches.remove(at))
        };
        left.is_some_and(|catch| catch.marked)
    }
}

impl CatchFrame {
    /// Leaves without having been polled again. A request that was delivered to it is delivered to the next catch.
    pub(crate) fn abandon(&mut self) {
        let Some((extras, _)) = self.entered.clone() else { return };
        if !self.leave() {
            return;
        }
        current::with(|kernel| {
            if let Some(task) = kernel.and_then(Kernel::current_task)
                && task.cancels.get() > 0
                && task.extras().is_some_and(|ours| Rc::ptr_eq(ours, &extras))
            {
                task.set(flag::MUST_CANCEL);
            }
        });
    }
}

impl Drop for CatchFrame {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// The depth of the current task's stack of catches.
#[inline]
pub(crate) fn depth_of(kernel: &Kernel) -> usize {
    kernel.current_task().and_then(|task| task.extras()).map_or(0, |extras| extras.catches.borrow().len())
}

impl<F: Future> Future for CatchCancel<F> {
    type Output = Result<F::Output, Cancelled>;

    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if !this.place.is_entered() {
            this.place.enter(None);
        } else if this.place.is_marked() {
            // Not polled again: a result that arrived in the same tick does not win over the cancellation.
            this.place.leave();
            this.future.set(None);
            return Poll::Ready(Err(Cancelled));
        }
        let future = this.future.as_mut().as_pin_mut().expect("CatchCancel polled after it was ready");
        match future.poll(cx) {
            Poll::Ready(output) => {
                let caught = this.place.leave();
                this.future.set(None);
                Poll::Ready(if caught { Err(Cancelled) } else { Ok(output) })
            }
            Poll::Pending if this.place.is_marked() => {
                this.place.leave();
                this.future.set(None);
                Poll::Ready(Err(Cancelled))
            }
            Poll::Pending => {
                this.place.remember(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl<F> fmt::Debug for CatchCancel<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatchCancel").finish_non_exhaustive()
    }
}
