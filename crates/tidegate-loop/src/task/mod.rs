//! Tasks: futures that the loop drives. `raw.rs` is a task in memory, `alloc.rs` that memory, `table.rs` the loop's tasks by
//! name, `build.rs` how a task is made, `join.rs` how a result is fetched, `waiters.rs` the wakers and callbacks that wait
//! for an end, `cancel.rs` cancellation, `awaited.rs` what else a task can await and cancel.
//!
//! # Life of a task
//!
//! ```text
//!  spawn ──► queued ──step──► polled ──Pending──► suspended ──wake──► queued …
//!              ▲                 │                    │
//!              └── yield_now ────┤                    └── cancel (below)
//!                                └──Ready, panic──► ended: out of the table, waiters woken
//! ```
//!
//! ## References
//! | type | is | keeps the memory |
//! |---|---|---|
//! | [`TaskRef`] | a counted thin pointer; one is the table's until the task ends | yes |
//! | [`Task`] | the public face of a `TaskRef`: look, cancel, wait | yes |
//! | [`JoinHandle`] | the one claim on the output; flag HELD while it exists | yes |
//! | [`Name`](crate::mailbox::name::Name) | (loop, slot, generation) in a word: wakers, the ready queue, [`Waiting`] | no: stale names are ignored |
//! | `ManuallyDrop<TaskRef>` | an uncounted loan of the table's reference for one step | no: good until the task leaves the table |
//!
//! Counting is not atomic: none of these but the `Name` leaves the loop's thread.
//!
//! ## Parts of a task, and when each may be touched
//! | part | touched by |
//! |---|---|
//! | header (`Cell`s): flags, requests, context, what it waits for | any code of the loop's thread, at any time |
//! | `extras`: name, waiters, catches, panic | the same; made on first use, because few tasks need them |
//! | stage: the future | `poll`, while the table holds the task and it is not running; `discard` between steps |
//! | stage: the output | `failure` before DONE is set; `take_output` and `discard` after it, by the join handle or at its drop |
//!
//! A task is *running* while it is the kernel's current task or has OUTER (a child that was started eagerly is being polled
//! inside its poll). A running task's stage is not touched from outside of the poll: this is what every `unsafe` block
//! relies on. The flags are explained one by one in [`raw::flag`].
//!
//! ## Cancellation
//! A request is counted (`cancels`), then goes where it can be raised:
//!
//! ```text
//!  Task::cancel ─┬─ running, or queued ─────────────────────► MUST_CANCEL ──────┐
//!                ├─ suspended, awaits a task or future ─► FORWARDED:            │
//!                │     the request goes there and comes back as the             │
//!                │     outcome of that await ──cancelled──► raise               │
//!                └─ suspended elsewhere ─────► INTERRUPTED, woken ──────────────┤
//!                                                                               ▼
//!  next step: deliver ─┬─ innermost catch_cancel: marked, DELIVERED; its poll returns Err(Cancelled)
//!                      └─ none: the future is dropped unpolled; outcome Cancelled
//!
//!  raise (inside a poll) ─┬─ innermost catch_cancel: marked; its poll returns Err(Cancelled)
//!                         └─ none: UNWIND; the future is dropped when the poll returns
//!
//!  end of a step that is Pending: what is still pending goes on to what the step ended up waiting for
//!  end of a step that is Ready:   MUST_CANCEL beats a value, an error (spawn_fallible) beats MUST_CANCEL
//!  Task::uncancel at zero:        MUST_CANCEL is withdrawn; INTERRUPTED is not, its wait is over
//! ```
//!
//! ASKED marks the tasks that a request is passing through, so that it ends in a circle.

pub(crate) mod alloc;
pub(crate) mod awaited;
mod build;
pub(crate) mod cancel;
mod join;
pub(crate) mod raw;
mod table;
mod waiters;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use crate::kernel::Kernel;
use crate::kernel::current;
use crate::observe::report::{Report, ReportKind, panic_message};
pub use build::{TaskBuilder, spawn, spawn_fallible};
pub(crate) use build::{spawn_in, spawn_on};
pub use join::{JoinError, JoinHandle, Panic};
use raw::{Header, TaskRef, Waiting, flag};
pub(crate) use table::TaskTable;
pub use waiters::CallbackId;
pub(crate) use waiters::{DoneCallback, Waiters};

/// How a task ended.
///
/// ```
/// use tidegate_loop::{run, spawn, Outcome};
/// run(async {
///     let task = spawn(async { 1 }).task();
///     assert_eq!(task.finished().await, Outcome::Completed);
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It returned a value.
    Completed = 0,
    /// It was made by [`spawn_fallible`] and returned an `Err`.
    Failed = 1,
    /// It was cancelled and did not catch that.
    Cancelled = 2,
    /// It panicked.
    Panicked = 3,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Completed => "completed",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Panicked => "panicked",
        })
    }
}

/// A task's number: 1 for the first of its loop.
///
/// ```
/// use tidegate_loop::{run, Task};
/// run(async { assert_eq!(Task::current().id().to_string(), "1") }).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u32);

pub(crate) fn id_of(header: &Header) -> TaskId {
    TaskId(header.number)
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A task, whatever its type: to look at, to cancel, to wait for. Its result goes to its [`JoinHandle`].
///
/// ```
/// use tidegate_loop::{run, spawn, sleep, Duration, Outcome};
/// run(async {
///     let handle = spawn(sleep(Duration::from_secs(3600)));
///     let task = handle.task();
///     assert!(task.cancel());
///     assert_eq!(task.finished().await, Outcome::Cancelled);
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Task {
    pub(crate) cell: TaskRef,
}

impl Task {
    /// The task that is running.
    ///
    /// # Panics
    /// Outside of a task; see [`try_current`](Self::try_current).
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async { assert_eq!(&*Task::current().name(), "Task-1") }).unwrap();
    /// ```
    #[must_use]
    pub fn current() -> Task {
        Task::try_current().expect("no task is running here: Task::current() is for code inside a task")
    }

    /// The task that is running, if one is.
    ///
    /// ```
    /// assert!(tidegate_loop::Task::try_current().is_none());
    /// ```
    #[must_use]
    pub fn try_current() -> Option<Task> {
        current::with(|kernel| Some(Task { cell: kernel?.current_ref()? }))
    }

    /// Its number.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn};
    /// run(async { assert_ne!(spawn(async {}).task().id(), spawn(async {}).task().id()) }).unwrap();
    /// ```
    pub fn id(&self) -> TaskId {
        id_of(&self.cell)
    }

    /// The name it was given, or `Task-<number>`.
    ///
    /// ```
    /// use tidegate_loop::{run, LoopHandle};
    /// run(async {
    ///     let task = LoopHandle::current().task().name("fetch").spawn(async {}).task();
    ///     assert_eq!(&*task.name(), "fetch");
    /// })
    /// .unwrap();
    /// ```
    pub fn name(&self) -> Arc<str> {
        self.cell.display_name()
    }

    /// Gives it another name.
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async {
    ///     Task::current().set_name("main");
    ///     assert_eq!(&*Task::current().name(), "main");
    /// })
    /// .unwrap();
    /// ```
    pub fn set_name(&self, name: impl Into<Arc<str>>) {
        *self.cell.extras_or_make().name.borrow_mut() = Some(name.into());
    }

    /// Where it was spawned.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn};
    /// run(async { assert!(spawn(async {}).task().location().line() > 0) }).unwrap();
    /// ```
    pub fn location(&self) -> &'static Location<'static> {
        self.cell.location
    }

    /// Requests that it be cancelled: the await it is suspended at unwinds at its next step, to the innermost
    /// [`catch_cancel`](crate::catch_cancel) or out of the task. False if it has ended already. Requests are counted.
    ///
    /// If it awaits another task, a settable future or a group of them, the request goes there first, and comes back
    /// as the outcome of that await: cancelled, or a value if the inner one caught it.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn, JoinError};
    /// run(async {
    ///     let handle = spawn(std::future::pending::<()>());
    ///     assert!(handle.task().cancel());
    ///     assert!(matches!(handle.await, Err(JoinError::Cancelled)));
    /// })
    /// .unwrap();
    /// ```
    pub fn cancel(&self) -> bool {
        self.on_kernel(|kernel| cancel::request(kernel, &self.cell)).unwrap_or(false)
    }

    /// How many cancellation requests have not been taken back.
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async { assert_eq!(Task::current().cancelling(), 0) }).unwrap();
    /// ```
    pub fn cancelling(&self) -> u32 {
        u32::from(self.cell.cancels.get())
    }

    /// Takes one request back and says how many are left. At zero, one that is not yet on its way is forgotten.
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async {
    ///     Task::current().cancel();
    ///     assert_eq!(Task::current().uncancel(), 0);
    /// })
    /// .unwrap();
    /// ```
    pub fn uncancel(&self) -> u32 {
        cancel::take_back(&self.cell)
    }

    /// Whether it has ended.
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async { assert!(!Task::current().is_finished()) }).unwrap();
    /// ```
    pub fn is_finished(&self) -> bool {
        self.cell.has(flag::DONE)
    }

    /// How it ended, if it has.
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async { assert_eq!(Task::current().outcome(), None) }).unwrap();
    /// ```
    pub fn outcome(&self) -> Option<Outcome> {
        self.cell.outcome()
    }

    /// What it panicked or failed with. Asking counts as having seen it: nothing will be reported.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn_fallible};
    /// run(async {
    ///     let handle = spawn_fallible(async { Err::<(), _>("no route") });
    ///     let task = handle.task();
    ///     drop(handle);
    ///     task.finished().await;
    ///     assert_eq!(task.error().as_deref(), Some("no route"));
    /// })
    /// .unwrap();
    /// ```
    pub fn error(&self) -> Option<String> {
        let header: &Header = &self.cell;
        match header.outcome()? {
            Outcome::Completed | Outcome::Cancelled => None,
            Outcome::Panicked | Outcome::Failed => {
                header.set(flag::RETRIEVED);
                describe_error(header)
            }
        }
    }

    /// Waits until it has ended; any number of tasks may. A request to cancel the waiting task goes to this one
    /// first, as with a join handle.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost.
    ///
    /// # Panics
    /// When a task waits for its own end.
    ///
    /// ```
    /// use tidegate_loop::{run, spawn, Outcome};
    /// run(async {
    ///     let task = spawn(async {}).task();
    ///     let (a, b) = (task.finished(), task.finished());
    ///     assert_eq!((a.await, b.await), (Outcome::Completed, Outcome::Completed));
    /// })
    /// .unwrap();
    /// ```
    pub fn finished(&self) -> Finished {
        Finished { task: self.clone(), waiter: None }
    }

    /// Queues `callback` for when it has ended, in the context of now. After the end it is queued at once; it never
    /// runs before this call returns.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// use tidegate_loop::{run, spawn, yield_now, Outcome};
    /// run(async {
    ///     let seen = Rc::new(Cell::new(None));
    ///     let slot = seen.clone();
    ///     spawn(async {}).task().add_done_callback(move |task| slot.set(task.outcome()));
    ///     yield_now().await; // the task ends
    ///     yield_now().await; // its callback runs
    ///     assert_eq!(seen.get(), Some(Outcome::Completed));
    /// })
    /// .unwrap();
    /// ```
    #[track_caller]
    pub fn add_done_callback(&self, callback: impl FnOnce(&Task) + 'static) -> CallbackId {
        let callback = DoneCallback::new(callback);
        if self.is_finished() {
            callback.queue(self.cell.loop_serial, self);
            return CallbackId(0);
        }
        self.cell.extras_or_make().waiters.borrow_mut().add_callback(callback)
    }

    /// Takes a done-callback back: 1, or 0 if it was not there (any more).
    ///
    /// ```
    /// use tidegate_loop::{run, Task};
    /// run(async {
    ///     let id = Task::current().add_done_callback(|_| unreachable!());
    ///     assert_eq!(Task::current().remove_done_callback(id), 1);
    ///     assert_eq!(Task::current().remove_done_callback(id), 0);
    /// })
    /// .unwrap();
    /// ```
    pub fn remove_done_callback(&self, id: CallbackId) -> usize {
        let removed = self.cell.extras().and_then(|extras| extras.waiters.borrow_mut().remove(id.0));
        usize::from(removed.is_some())
    }

    /// Calls `f` with the loop this task belongs to, if that is the one of this thread or can be reached.
    fn on_kernel<R>(&self, f: impl FnOnce(&Kernel) -> R) -> Option<R> {
        current::on(self.cell.loop_serial, f)
    }
}

impl PartialEq for Task {
    fn eq(&self, other: &Task) -> bool {
        self.cell.is(&other.cell)
    }
}

impl Eq for Task {}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name()).field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

/// Something that stands for a task: the task itself, or its join handle.
///
/// ```
/// use tidegate_loop::{run, spawn, AsTask};
/// run(async {
///     let handle = spawn(async {});
///     assert_eq!(handle.as_task(), handle.task().as_task());
/// })
/// .unwrap();
/// ```
pub trait AsTask {
    /// The task.
    fn as_task(&self) -> Task;
}

impl AsTask for Task {
    fn as_task(&self) -> Task {
        self.clone()
    }
}

impl<T: AsTask> AsTask for &T {
    fn as_task(&self) -> Task {
        (**self).as_task()
    }
}

/// The future of [`Task::finished`].
#[must_use = "futures do nothing unless polled"]
pub struct Finished {
    task: Task,
    waiter: Option<u64>,
}

impl Future for Finished {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Outcome> {
        let header = &*self.task.cell;
        if let Some(outcome) = header.outcome() {
            if cancel::task_came_back(header.name, outcome == Outcome::Cancelled) {
                return Poll::Pending;
            }
            return Poll::Ready(outcome);
        }
        let itself = current::with(|kernel| {
            kernel.and_then(Kernel::current_task).is_some_and(|current| current.name == header.name)
        });
        assert!(!itself, "a task cannot await itself; return instead");
        let (id, before) = header.extras_or_make().waiters.borrow_mut().register(self.waiter, cx.waker());
        drop(before);
        cancel::wait_for(Waiting::task(header.name));
        self.waiter = Some(id);
        Poll::Pending
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        if let (Some(id), Some(extras)) = (self.waiter, self.task.cell.extras()) {
            let waiter = extras.waiters.borrow_mut().remove(id);
            drop(waiter);
            cancel::stop_waiting_for_task(self.task.cell.name);
        }
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished").field("task", &self.task).finish_non_exhaustive()
    }
}

/// Drops the output of a task that has ended, when its join handle is dropped.
pub(crate) fn drop_output(task: &TaskRef) {
    // SAFETY: it has ended, so it does not run; and there is no join handle but the one that is being dropped.
    unsafe { task.discard() };
}

fn describe_error(header: &Header) -> Option<String> {
    let extras = header.extras()?;
    let panic = extras.panic.borrow().as_ref().map(|panic| panic_message(&**panic));
    panic.or_else(|| extras.failure.borrow().clone())
}

/// Called as the last reference to a task goes.
#[cold]
fn report_unseen(header: &Header) {
    let report = Report {
        kind: if header.outcome() == Some(Outcome::Panicked) {
            ReportKind::UnseenPanic
        } else {
            ReportKind::UnseenError
        },
        message: describe_error(header).unwrap_or_else(|| "(its error is gone)".into()),
        name: Some(header.display_name()),
        location: Some(header.location),
        took: None,
    };
    match current::on(header.loop_serial, |kernel| kernel.watch.report(&report)) {
        Some(()) => {}
        None => report.log(),
    }
}

/// Lets every task that is ready have its turn: the task is queued again and goes on in the next tick.
///
/// # Cancel safety
/// Safe: dropping it changes nothing.
///
/// ```
/// use tidegate_loop::{run, spawn, yield_now};
/// run(async {
///     let task = spawn(async { 1 });
///     yield_now().await;
///     assert!(task.is_finished());
/// })
/// .unwrap();
/// ```
#[inline]
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: Cell::new(false) }
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct YieldNow {
    yielded: Cell<bool>,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<()> {
        if self.yielded.replace(true) {
            return Poll::Ready(());
        }
        match current::with(|kernel| kernel.map(|kernel| kernel.give_turn_away(cx.waker()))) {
            Some(()) => {}
            // On another runtime it does what it says, too.
            None => cx.waker().wake_by_ref(),
        }
        Poll::Pending
    }
}
