//! How a task takes a step, and how it ends.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::{Context as PollContext, Waker};

use crate::context::Snapshot;
use crate::kernel::Kernel;
use crate::mailbox::name::Name;
use crate::mailbox::waker::{self, waker_of};
use crate::observe::report::{Report, ReportKind};
use crate::runtime::error::Interrupt;
use crate::task::cancel;
use crate::task::raw::{Extras, Header, Polled, TaskRef, Waiting, flag};
use crate::task::{Outcome, Task, Waiters};

/// Makes a task the current one. Dropping the guard restores the task that was current before, if any: the one in whose
/// poll an eager child takes its first step.
struct AsCurrent<'a> {
    kernel: &'a Kernel,
    _header: &'a Header,
    outer: Option<NonNull<Header>>,
}

impl<'a> AsCurrent<'a> {
    #[inline]
    fn new(kernel: &'a Kernel, header: &'a Header) -> AsCurrent<'a> {
        AsCurrent { kernel, outer: kernel.current.replace(Some(NonNull::from(header))), _header: header }
    }
}

impl Drop for AsCurrent<'_> {
    #[inline]
    fn drop(&mut self) {
        self.kernel.current.set(self.outer);
    }
}

/// Marks the current task, if there is one, while another takes a step inside of its own.
struct Outer<'a>(Option<&'a Header>);

impl<'a> Outer<'a> {
    fn new(kernel: &'a Kernel) -> Outer<'a> {
        let outer = kernel.current_task();
        if let Some(outer) = outer {
            outer.set(flag::OUTER);
        }
        Outer(outer)
    }
}

impl Drop for Outer<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.0 {
            outer.clear(flag::OUTER);
        }
    }
}

/// Reports a step to the observer: its start now, its end when the guard is dropped.
struct WatchedStep<'a> {
    kernel: &'a Kernel,
    task: Option<TaskRef>,
}

impl<'a> WatchedStep<'a> {
    fn new(kernel: &'a Kernel, name: Name) -> WatchedStep<'a> {
        let task = kernel.find_task(name);
        if let Some(task) = &task {
            kernel.watch.step_starts(kernel, task);
        }
        WatchedStep { kernel, task }
    }
}

impl Drop for WatchedStep<'_> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            self.kernel.watch.step_ends(self.kernel, task, task.has(flag::DONE));
        }
    }
}

impl Kernel {
    /// The task that is taking a step.
    #[inline]
    pub(crate) fn current_task(&self) -> Option<&Header> {
        // SAFETY: set by `AsCurrent` only, which borrows the header for as long as it lives and then puts back what was
        // there before; it lives in stack frames only. The reference handed out here is used within the step by code
        // of this crate, none of which keeps it.
        self.current.get().map(|current| unsafe { current.as_ref() })
    }

    /// Whether the task is being polled or dropped. Most steps are not nested, and for those nothing has to be noted.
    pub(crate) fn is_running(&self, task: &Header) -> bool {
        self.current.get() == Some(NonNull::from(task)) || task.has(flag::OUTER)
    }

    /// Queues the current task again, behind what is ready. `#[inline(never)]` and a tail call: neither this function nor
    /// the future that yields has registers to save.
    #[inline(never)]
    pub(crate) fn give_turn_away(&self, waker: &Waker) {
        // Nearly always the waker is the task's own: then the look-up that waking does is not needed.
        if let Some(task) = self.current_task()
            && waker::name_of(waker) == Some(task.name)
            && task.try_wait_for(Waiting::TURN)
            && self.try_wake(task.name)
        {
            return;
        }
        self.give_turn_away_through(waker);
    }

    #[cold]
    #[inline(never)]
    fn give_turn_away_through(&self, waker: &Waker) {
        if let Some(task) = self.current_task() {
            task.wait_for(Waiting::TURN);
        }
        waker.wake_by_ref();
    }

    /// One step of a task; a name in the queue that is stale is passed over. Returns `false` if the task called `interrupt`.
    #[inline(always)]
    pub(crate) fn step<const WATCHED: bool>(&self, name: Name) -> bool {
        if WATCHED {
            let _watched = WatchedStep::new(self, name);
            return self.step_unwatched(name);
        }
        self.step_unwatched(name)
    }

    #[inline(always)]
    fn step_unwatched(&self, name: Name) -> bool {
        // SAFETY: the table holds the task until `remove_task`, which is called by `end` alone: below, after the last use
        // of this reference, or by `close`, which refuses while the loop runs.
        let Some(task) = (unsafe { self.dequeue(name) }) else { return true };
        let header: &Header = &task;
        debug_assert!(!self.is_running(header), "a task that runs is not stepped again");
        // One look for all that is rare, before the step and after it.
        let polled = if header.has(flag::MUST_CANCEL | flag::INTERRUPTED | flag::IN_CONTEXT) {
            let Some(polled) = self.poll_rare(&task, name) else { return true };
            polled
        } else {
            self.poll_stage(&task, name)
        };
        if polled != Polled::Pending {
            return self.last_step(&task, polled);
        }
        header.since.set(self.tick_time.get());
        if header.has(flag::UNWIND | flag::MUST_CANCEL | flag::FORWARDED | flag::DELIVERED) {
            return self.suspend_cancelled(&task);
        }
        true
    }

    /// The step ended in a wait, and a cancellation is pending, forwarded or unwinding.
    #[cold]
    fn suspend_cancelled(&self, task: &TaskRef) -> bool {
        if task.has(flag::UNWIND) {
            return self.last_step(task, Polled::Pending);
        }
        cancel::after_suspension(self, task);
        true
    }

    /// Delivers a cancellation; returns `false` if the task ends with it.
    #[cold]
    fn deliver(&self, task: &TaskRef) -> bool {
        task.clear(flag::MUST_CANCEL | flag::INTERRUPTED);
        if cancel::deliver(task) {
            return true;
        }
        // No `catch_cancel` is active: the future is dropped without being polled again.
        self.drop_stage(task);
        self.end(task.name, Outcome::Cancelled);
        false
    }

    /// A step that delivers a cancellation, or is taken in a shared context. `None`: the task ended with the one.
    #[cold]
    #[inline(never)]
    fn poll_rare(&self, task: &TaskRef, name: Name) -> Option<Polled> {
        if task.has(flag::MUST_CANCEL | flag::INTERRUPTED) && !self.deliver(task) {
            return None;
        }
        let Some(context) = task.shared_context() else { return Some(self.poll_stage(task, name)) };
        // SAFETY: as in `poll_stage`.
        Some(self.poll_as_current(task, name, |cx| context.enter(|| unsafe { task.poll(cx) })))
    }

    #[inline(always)]
    fn poll_stage(&self, task: &TaskRef, name: Name) -> Polled {
        // SAFETY: the task is in the table, so it has neither ended nor been cleared, and it is not running: a step is
        // taken from the queue only, by `run`, which does not nest, or is a new task's first.
        self.poll_as_current(task, name, |cx| unsafe { task.poll(cx) })
    }

    #[inline(always)]
    fn poll_as_current(&self, task: &TaskRef, name: Name, poll: impl FnOnce(&mut PollContext<'_>) -> Polled) -> Polled {
        let header: &Header = task;
        header.wait_for(Waiting::FOREIGN);
        // Dropping it would do nothing, and not dropping it is less code.
        let waker = ManuallyDrop::new(waker_of(name));
        let mut cx = PollContext::from_waker(&waker);
        let _current = AsCurrent::new(self, header);
        catch_unwind(AssertUnwindSafe(|| poll(&mut cx))).unwrap_or_else(|panic| note_panic(task, panic))
    }

    /// The step was the last one.
    #[inline(never)]
    fn last_step(&self, task: &TaskRef, polled: Polled) -> bool {
        let header: &Header = task;
        let outcome = match polled {
            // An error wins over a request that has not arrived; a value does not: it is lost, as in asyncio.
            Polled::Panicked => return self.end_panicked(task),
            Polled::Failed if !header.has(flag::UNWIND) => Outcome::Failed,
            _ if header.has(flag::UNWIND | flag::MUST_CANCEL) => {
                // SAFETY: it does not run, and `JoinHandle` takes nothing before DONE is set.
                if let Some(lost) = unsafe { task.lost() } {
                    self.report_lost_result(lost, task);
                }
                self.drop_stage(task);
                Outcome::Cancelled
            }
            Polled::Ready | Polled::Failed => Outcome::Completed,
            Polled::Pending => unreachable!("pending without unwinding is not the last step"),
        };
        self.end(header.name, outcome);
        true
    }

    /// Reports that a task returned a value that is dropped, if that is a `Result`: its `Err` would be lost unseen. For the
    /// wording of a report the name of a type is good enough.
    #[cold]
    pub(crate) fn report_lost_result(&self, type_name: &'static str, task: &TaskRef) {
        if type_name.starts_with("core::result::Result<") {
            self.watch.report(&Report {
                kind: ReportKind::LostResult,
                message: type_name.to_owned(),
                name: Some(task.display_name()),
                location: Some(task.location),
                took: None,
            });
        }
    }

    /// The first step of a task that starts eagerly, inside the step of another.
    pub(crate) fn step_now(&self, name: Name) {
        let _left = Snapshot::leave();
        let _outer = Outer::new(self);
        let goes_on = if self.watch.is_on() { self.step::<true>(name) } else { self.step::<false>(name) };
        if !goes_on && let Some(interrupt) = self.interrupt.take() {
            std::panic::resume_unwind(Box::new(interrupt));
        }
    }

    /// Ends a task from outside of its steps, when the loop closes.
    pub(crate) fn end_cancelled(&self, task: &TaskRef) {
        if !task.has(flag::DONE) {
            self.drop_stage(task);
            self.end(task.name, Outcome::Cancelled);
        }
    }

    #[cold]
    fn end_panicked(&self, task: &TaskRef) -> bool {
        self.drop_stage(task);
        let panic = task.extras_or_make().panic.take().expect("left there by its poll");
        match panic.downcast::<Interrupt>() {
            Ok(interrupt) => {
                self.interrupt.set(Some(*interrupt));
                self.end(task.name, Outcome::Cancelled);
                false
            }
            Err(panic) => {
                task.extras_or_make().panic.replace(Some(panic));
                self.end(task.name, Outcome::Panicked);
                true
            }
        }
    }

    /// Drops a task's future, or its output, in the task's own context and as the current task, so that what its destructors do is
    /// seen as its doing.
    #[inline(never)]
    fn drop_stage(&self, task: &TaskRef) {
        let header: &Header = task;
        // SAFETY: not running: called between steps. The output is not being taken: a join handle takes none before the end, and
        // afterwards this is called only if there is none.
        let discard = || unsafe { task.discard() };
        let dropped = {
            let _current = AsCurrent::new(self, header);
            let _left = Snapshot::leave();
            match header.shared_context() {
                Some(context) => catch_unwind(AssertUnwindSafe(|| context.enter(discard))),
                None => catch_unwind(AssertUnwindSafe(discard)),
            }
        };
        if let Err(panic) = dropped {
            self.watch.callback_panicked(&*panic, header.location);
        }
    }

    /// The task has ended: it leaves the table, and its waiters are woken and its done-callbacks queued, in order.
    fn end(&self, name: Name, outcome: Outcome) {
        let Some(task) = self.remove_task(name) else { return };
        let header: &Header = &task;
        if outcome == Outcome::Failed {
            note_failure(&task);
        }
        header.set_outcome(outcome);
        header.wait_for(Waiting::FOREIGN);
        if self.watch.is_on() {
            self.watch.finished(self, &task, outcome);
        }
        if matches!(outcome, Outcome::Completed | Outcome::Cancelled) {
            header.set(flag::RETRIEVED);
        }
        if !header.has(flag::HELD) {
            self.drop_stage(&task);
        }
        if let Some(joiner) = header.joiner() {
            header.set_joiner(None);
            self.wake_any(joiner);
        }
        if let Some(extras) = header.extras() {
            tell_waiters(&task, extras);
        }
    }
}

#[cold]
fn note_panic(task: &TaskRef, panic: Box<dyn Any + Send>) -> Polled {
    task.extras_or_make().panic.replace(Some(panic));
    Polled::Panicked
}

/// Keeps the error's message. This must happen before DONE is set: until then no join handle takes the output.
#[cold]
fn note_failure(task: &TaskRef) {
    // SAFETY: it does not run, and `JoinHandle` takes nothing before DONE is set.
    let failure = catch_unwind(AssertUnwindSafe(|| unsafe { task.failure() }));
    let failure = failure.unwrap_or_else(|_| Some("(an error that cannot be formatted)".to_owned()));
    *task.extras_or_make().failure.borrow_mut() = failure;
}

#[inline(never)]
fn tell_waiters(task: &TaskRef, extras: &Extras) {
    let forwarded = extras.forwarded.take();
    drop(forwarded);
    let waiters: Waiters<Task> = extras.waiters.take();
    if !waiters.is_empty() {
        waiters.fire(task.loop_serial, &Task { cell: task.clone() });
    }
}
