//! A task's memory: a header of one layout for all tasks, and behind it the future, later its output. One allocation,
//! counted without atomics. What a task needs of unsafe code is here and in `alloc.rs`. What may be
//! touched when is explained at the head of `mod.rs`.

use std::any::{Any, type_name};
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::fmt::Display;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use super::{Outcome, Task, Waiters, alloc};
use crate::context::{ContextCell, Snapshot};
use crate::kernel::clock::Nanos;
use crate::mailbox::name::Name;
use crate::task::awaited::{self, AnyAwaited};

/// A counted reference to a task of any type: a thin pointer, so that a slot of the table, a join handle and a waiting
/// task each pay one word for it.
pub(crate) struct TaskRef(NonNull<Header>);

/// A task as it lies in memory. The header comes first, so a pointer to the one is a pointer to the other.
#[repr(C)]
struct TaskCell<F: Future> {
    header: Header,
    state: UnsafeCell<TaskStage<F>>,
}

enum TaskStage<F: Future> {
    Future(F),
    Output(F::Output),
    Empty,
}

/// What the loop knows of every task. 80 bytes: parked tasks come in hundreds of thousands.
pub(crate) struct Header {
    vtable: &'static VTable,
    refs: Cell<u32>,
    /// `Task-<number>`, unless it was given a name.
    pub(crate) number: u32,
    pub(crate) name: Name,
    /// See [`flag`]; how the task ended is in the two topmost bits.
    flags: Cell<u16>,
    /// Cancellation requests not taken back.
    pub(crate) cancels: Cell<u16>,
    /// Its loop, for good: unlike the id in the name this is not used again.
    pub(crate) loop_serial: u32,
    pub(crate) location: &'static Location<'static>,
    pub(crate) context: Cell<Snapshot>,
    /// The first waiter for the end of the task, if that is a task of a loop that awaits the join handle; all others are in
    /// `extras`.
    joiner: Cell<Option<Name>>,
    /// What it waits for. Behind [`Header::wait_for`], because a word of it may be a counted reference.
    waiting: Cell<Waiting>,
    /// When it was last suspended: the time of the tick.
    pub(crate) since: Cell<Nanos>,
    extras: OnceCell<Rc<Extras>>,
}

const _: () = assert!(size_of::<Header>() == 80);

/// What depends on the future's type. All of them take a pointer to the whole cell, made by `TaskRef::new_pair` for that type.
struct VTable {
    poll: unsafe fn(NonNull<Header>, &mut PollContext<'_>) -> Polled,
    clear: unsafe fn(NonNull<Header>),
    failure: unsafe fn(NonNull<Header>) -> Option<String>,
    lost: unsafe fn(NonNull<Header>) -> Option<&'static str>,
    /// Moves the output, if it is there, to an `Option<F::Output>`.
    take: unsafe fn(NonNull<Header>, *mut ()),
    free: unsafe fn(NonNull<Header>),
}

/// What came of a poll. One byte: every step hands one over, and what a panic brought would make it two words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Ready,
    /// Ready with an error.
    Failed,
    Pending,
    /// The task has what it panicked with among its extras.
    Panicked,
}

/// What few tasks have, made on first use.
pub(crate) struct Extras {
    pub(crate) name: RefCell<Option<Arc<str>>>,
    /// The context it shares with others, when it was given one.
    pub(crate) context: OnceCell<Rc<ContextCell>>,
    pub(crate) waiters: RefCell<Waiters<Task>>,
    /// The active `catch_cancel`s, innermost last.
    pub(crate) catches: RefCell<Vec<Catch>>,
    /// Where a request went that has not come back.
    pub(crate) forwarded: RefCell<Option<Target>>,
    /// What it panicked with.
    pub(crate) panic: RefCell<Option<Box<dyn Any + Send>>>,
    /// What its error says.
    pub(crate) failure: RefCell<Option<String>>,
}

pub(crate) struct Catch {
    pub(crate) id: u32,
    /// A cancellation is waiting for it.
    pub(crate) marked: bool,
    /// It was marked and then not polled: it is kept, but not awaited, and gets no more cancellations until it is polled.
    pub(crate) deaf: bool,
    /// The waker it was last polled with, where that is not the task's own.
    pub(crate) waker: Option<Waker>,
}

/// What a cancellation request was passed on to.
pub(crate) enum Target {
    Task(Name),
    Awaited(AnyAwaited),
}

/// What a suspended task waits for, in one word: another task by name, something else that can be cancelled by its
/// address, or one of a few things that need neither.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting(*const ());

impl Waiting {
    /// Something that is not the loop's own, or nothing yet.
    pub(crate) const FOREIGN: Waiting = Waiting(ptr::without_provenance(0));
    pub(crate) const TIMER: Waiting = Waiting(ptr::without_provenance(1));
    pub(crate) const TURN: Waiting = Waiting(ptr::without_provenance(2));

    pub(crate) fn task(name: Name) -> Waiting {
        debug_assert!(name.bits() >= Name::MIN);
        Waiting(ptr::without_provenance(name.bits() as usize))
    }

    pub(crate) fn as_task(self) -> Option<Name> {
        let bits = self.0.addr() as u64;
        if bits >= Name::MIN && !self.is_awaited() { Name::from_bits(bits) } else { None }
    }

    const AWAITED: usize = (Name::NO_LOOP as usize) << Name::LOOP_SHIFT;

    #[inline]
    fn is_awaited(self) -> bool {
        self.0.addr() >= Waiting::AWAITED
    }

    /// Keeps the reference; `as_awaited` finds it again.
    #[inline]
    fn awaited(awaited: AnyAwaited) -> Waiting {
        let raw = awaited.into_raw().as_ptr().cast_const().cast::<()>();
        assert!(raw.addr() >> Name::LOOP_SHIFT == 0, "an address beyond what Linux gives to programs");
        Waiting(raw.map_addr(|address| address + Waiting::AWAITED))
    }

    #[inline]
    fn as_awaited(self) -> Option<NonNull<awaited::AwaitedHead>> {
        let raw = self.0.map_addr(|address| address.wrapping_sub(Waiting::AWAITED)).cast_mut().cast();
        // SAFETY: a word of this kind is made by `awaited` alone, from an address that is not null.
        self.is_awaited().then(|| unsafe { NonNull::new_unchecked(raw) })
    }
}

/// One bit each; six of them are about cancellation, see "Life of a task" at the head of `task/mod.rs`.
pub(crate) mod flag {
    /// The task is on the stack below another task's poll. Set by `step_now` on the task whose step an eager child's first
    /// step interrupts; cleared when that step ends. Implies: the task is running, although `Kernel::current` is the child.
    pub(crate) const OUTER: u16 = 1 << 1;
    /// The task has ended. Set by `set_outcome`; never cleared. Implies: the outcome bits are valid, and the task has left
    /// the table and is not polled again.
    pub(crate) const DONE: u16 = 1 << 2;
    /// A cancellation is to be delivered at the next step. Set by `cancel::request` on a task that is running, queued, or
    /// awaits something as good as done; by `after_suspension` and `CatchFrame::abandon`, which hand a request on. Cleared by
    /// delivery, by `uncancel` at zero requests, and when a main task returns.
    pub(crate) const MUST_CANCEL: u16 = 1 << 3;
    /// As `MUST_CANCEL`, but `uncancel` does not withdraw it: the task was woken for it, and its wait is over. Set by
    /// `cancel::request` and `after_suspension`; cleared by delivery. Implies: queued.
    pub(crate) const INTERRUPTED: u16 = 1 << 4;
    /// A request went to what the task awaits, and comes back as the outcome of that await. Set by `remember_forward`;
    /// cleared by `forget_forward`. Implies: `extras.forwarded` is the target.
    pub(crate) const FORWARDED: u16 = 1 << 5;
    /// A cancellation was raised inside of the poll, and no `catch_cancel` was active. Set by `raise`; never cleared. Implies:
    /// the future is dropped when the poll returns, and the task has been cancelled.
    pub(crate) const UNWIND: u16 = 1 << 6;
    /// A join handle exists. Set and cleared by it. Implies: the output is kept at the end.
    pub(crate) const HELD: u16 = 1 << 7;
    /// The end has been seen: no report is due when the last reference goes. Set by whatever fetches the result or the error,
    /// and at the end of a task that completed or was cancelled; never cleared.
    pub(crate) const RETRIEVED: u16 = 1 << 8;
    /// A catch was marked for this step. Set by `mark_innermost`; cleared by `after_suspension`, which checks whether the catch
    /// was polled.
    pub(crate) const DELIVERED: u16 = 1 << 9;
    /// A request is passing through the task, further up the stack. Set and cleared by `cancel::request` and `pass_on`. Stops
    /// a request in a circle of tasks that await each other.
    pub(crate) const ASKED: u16 = 1 << 10;
    /// The join handle has taken the output. Set by `try_result`; never cleared. Implies: there is no output left to drop.
    pub(crate) const TAKEN: u16 = 1 << 11;
    /// The task runs in a context that it shares. Set by `TaskBuilder`; never cleared. Implies: `extras.context` is there.
    pub(crate) const IN_CONTEXT: u16 = 1 << 12;
    /// How the task ended, in the two topmost bits: an [`Outcome`](super::Outcome).
    pub(crate) const OUTCOME_SHIFT: u32 = 14;
}

impl Header {
    #[inline]
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags.get() & flags != 0
    }

    #[inline]
    pub(crate) fn set(&self, flags: u16) {
        self.flags.set(self.flags.get() | flags);
    }

    #[inline]
    pub(crate) fn clear(&self, flags: u16) {
        self.flags.set(self.flags.get() & !flags);
    }

    /// The flags as they were, now cleared.
    #[inline]
    pub(crate) fn take(&self, flags: u16) -> bool {
        let had = self.has(flags);
        self.clear(flags);
        had
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting.get()
    }

    /// Notes what it waits for. What it waited for before may go with it, and with that any code of its.
    #[inline]
    pub(crate) fn wait_for(&self, waiting: Waiting) {
        debug_assert!(!waiting.is_awaited(), "made by `wait_for_awaited` only, so that each is counted once");
        self.replace_waiting(waiting);
    }

    /// The same, unless that takes more than a note: false, and nothing is done.
    #[inline]
    pub(crate) fn try_wait_for(&self, waiting: Waiting) -> bool {
        let plain = !self.waiting.get().is_awaited();
        if plain {
            self.waiting.set(waiting);
        }
        plain
    }

    #[inline]
    pub(crate) fn wait_for_awaited(&self, awaited: AnyAwaited) {
        self.replace_waiting(Waiting::awaited(awaited));
    }

    #[inline]
    fn replace_waiting(&self, waiting: Waiting) {
        if let Some(raw) = self.waiting.replace(waiting).as_awaited() {
            // SAFETY: a word of this kind is made by `Waiting::awaited` alone, which keeps the count, is put into this cell by
            // `wait_for_awaited` alone, once, and has just left it.
            drop(unsafe { AnyAwaited::from_raw(raw) });
        }
    }

    /// What it awaits, when that is no task.
    pub(crate) fn awaited(&self) -> Option<AnyAwaited> {
        let raw = self.waiting.get().as_awaited()?;
        // SAFETY: as above, but it stays in the cell: so this reference is not counted, and only its copy is handed out.
        let kept = ManuallyDrop::new(unsafe { AnyAwaited::from_raw(raw) });
        Some(AnyAwaited::clone(&kept))
    }

    #[inline]
    pub(crate) fn joiner(&self) -> Option<Name> {
        self.joiner.get()
    }

    #[inline]
    pub(crate) fn set_joiner(&self, joiner: Option<Name>) {
        self.joiner.set(joiner);
    }

    #[inline]
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        const ALL: [Outcome; 4] = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::Panicked];
        self.has(flag::DONE).then(|| ALL[usize::from(self.flags.get() >> flag::OUTCOME_SHIFT)])
    }

    pub(crate) fn set_outcome(&self, outcome: Outcome) {
        self.set(flag::DONE | ((outcome as u16) << flag::OUTCOME_SHIFT));
    }

    #[inline]
    pub(crate) fn extras(&self) -> Option<&Rc<Extras>> {
        self.extras.get()
    }

    pub(crate) fn extras_or_make(&self) -> &Rc<Extras> {
        self.extras.get_or_init(|| {
            Rc::new(Extras {
                name: RefCell::default(),
                context: OnceCell::new(),
                waiters: RefCell::default(),
                catches: RefCell::default(),
                forwarded: RefCell::default(),
                panic: RefCell::default(),
                failure: RefCell::default(),
            })
        })
    }

    /// A copy of the task's own context.
    pub(crate) fn context_values(&self) -> Snapshot {
        let values = self.context.take();
        let copy = values.clone();
        self.context.set(values);
        copy
    }

    #[inline]
    pub(crate) fn shared_context(&self) -> Option<Rc<ContextCell>> {
        self.extras().and_then(|extras| extras.context.get().cloned())
    }

    pub(crate) fn display_name(&self) -> Arc<str> {
        let given = self.extras().and_then(|extras| extras.name.borrow().clone());
        given.unwrap_or_else(|| format!("Task-{}", self.number).into())
    }
}

/// Decides whether an output is an error, and how it is described.
pub(crate) trait Judge<T> {
    fn is_failure(output: &T) -> bool;
    /// The message of an output that is a failure.
    fn failure(output: &T) -> Option<String>;
    /// The type of an output that may be an error although it is no failure.
    fn lost(_: &T) -> Option<&'static str> {
        None
    }
}

/// Any value is fine.
pub(crate) struct AnyValue;

impl<T> Judge<T> for AnyValue {
    fn is_failure(_: &T) -> bool {
        false
    }

    fn failure(_: &T) -> Option<String> {
        None
    }

    fn lost(_: &T) -> Option<&'static str> {
        Some(type_name::<T>())
    }
}

/// An `Err` is a failure.
pub(crate) struct NoError;

impl<T, E: Display> Judge<Result<T, E>> for NoError {
    fn is_failure(output: &Result<T, E>) -> bool {
        output.is_err()
    }

    fn failure(output: &Result<T, E>) -> Option<String> {
        output.as_ref().err().map(ToString::to_string)
    }
}

impl TaskRef {
    /// Makes a task and two references to it: one for the loop's table, one for the caller.
    #[inline]
    pub(crate) fn new_pair<F, J>(
        future: F,
        name: Name,
        loop_serial: u32,
        number: u32,
        location: &'static Location<'static>,
        context: Snapshot,
    ) -> (TaskRef, TaskRef)
    where
        F: Future + 'static,
        J: Judge<F::Output>,
    {
        let header = || Header {
            vtable: &const {
                VTable {
                    poll: poll::<F, J>,
                    clear: clear::<F>,
                    failure: failure::<F, J>,
                    lost: lost::<F, J>,
                    take: take::<F>,
                    free: free::<F>,
                }
            },
            refs: Cell::new(2),
            number,
            name,
            flags: Cell::new(0),
            cancels: Cell::new(0),
            loop_serial,
            location,
            context: Cell::new(context),
            joiner: Cell::new(None),
            waiting: Cell::new(Waiting::FOREIGN),
            since: Cell::new(0),
            extras: OnceCell::new(),
        };
        let make = || TaskCell { header: header(), state: UnsafeCell::new(TaskStage::Future(future)) };
        let cell = alloc::allocate(make).cast();
        (TaskRef(cell), TaskRef(cell))
    }

    /// One step. Unless the result is `Pending`, the future is dropped; `Ready` and `Failed` leave the output in its place.
    ///
    /// # Safety
    /// By the loop only, not while it runs, not after it was ready or cleared.
    #[inline]
    pub(crate) unsafe fn poll(&self, cx: &mut PollContext<'_>) -> Polled {
        // SAFETY: the pointer is of the type its vtable was made for; the rest is the caller's promise.
        unsafe { (self.vtable.poll)(self.0, cx) }
    }

    /// Drops whatever is there, future or output.
    ///
    /// # Safety
    /// Not while it runs, and not while a join handle takes the output.
    pub(crate) unsafe fn discard(&self) {
        // SAFETY: as in `poll`.
        unsafe { (self.vtable.clear)(self.0) }
    }

    /// What the error in the output says, if it is one.
    ///
    /// # Safety
    /// After the last step and before DONE is set: the code that formats the error must not be able to take it.
    pub(crate) unsafe fn failure(&self) -> Option<String> {
        // SAFETY: as in `poll`.
        unsafe { (self.vtable.failure)(self.0) }
    }

    /// The type of the output, if that may be an error although it is no failure.
    ///
    /// # Safety
    /// As for `failure`.
    pub(crate) unsafe fn lost(&self) -> Option<&'static str> {
        // SAFETY: as in `poll`.
        unsafe { (self.vtable.lost)(self.0) }
    }

    /// The output, once.
    ///
    /// # Safety
    /// After the end, by the join handle, whose type `T` is the one the task was made with.
    pub(crate) unsafe fn take_output<T>(&self) -> Option<T> {
        let mut output: Option<T> = None;
        // SAFETY: as in `poll`; `output` is of the type the function writes.
        unsafe { (self.vtable.take)(self.0, ptr::from_mut(&mut output).cast()) };
        output
    }

    /// Another reference that is not counted.
    ///
    /// # Safety
    /// A counted reference to the task must exist for as long as this one is used.
    #[inline]
    pub(crate) unsafe fn borrowed(&self) -> ManuallyDrop<TaskRef> {
        ManuallyDrop::new(TaskRef(self.0))
    }

    pub(crate) fn is(&self, other: &TaskRef) -> bool {
        self.0 == other.0
    }
}

impl Deref for TaskRef {
    type Target = Header;

    #[inline]
    fn deref(&self) -> &Header {
        // SAFETY: this reference is counted, so the cell is there. Headers are only ever shared: all that changes in
        // them is in cells.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for TaskRef {
    #[inline]
    fn clone(&self) -> TaskRef {
        let refs = self.refs.get();
        assert!(refs < u32::MAX, "four thousand million references to one task");
        self.refs.set(refs + 1);
        TaskRef(self.0)
    }
}

impl Drop for TaskRef {
    #[inline]
    fn drop(&mut self) {
        let refs = self.refs.get() - 1;
        self.refs.set(refs);
        if refs == 0 {
            // SAFETY: that was the last reference; the pointer is of the type its vtable was made for.
            unsafe { (self.vtable.free)(self.0) }
        }
    }
}

/// The state of the cell behind `task`.
///
/// # Safety
/// `task` points to a live `TaskCell<F>`, and no other reference into its state is alive.
#[inline]
unsafe fn state<'a, F: Future>(task: NonNull<Header>) -> &'a mut TaskStage<F> {
    // SAFETY: the caller's promise. Tasks do not leave their thread (`NonNull` is neither `Send` nor `Sync`), so no other
    // thread can be here.
    unsafe { &mut *task.cast::<TaskCell<F>>().as_ref().state.get() }
}

unsafe fn poll<F: Future, J: Judge<F::Output>>(task: NonNull<Header>, cx: &mut PollContext<'_>) -> Polled {
    // SAFETY: the loop polls a task only while it does not run (`Kernel::is_running`), and makes it run around this call; `clear`
    // and `take` are called only while it does not (`take` only once DONE is set, which comes after). So although the future may
    // run any code, none of it reaches this state again.
    let state = unsafe { state::<F>(task) };
    let TaskStage::Future(future) = state else { unreachable!("polled after its end") };
    // SAFETY: the future is in a block of its own and is never moved: it is dropped where it is, by the assignment below
    // or in `clear`.
    let output = match unsafe { Pin::new_unchecked(future) }.poll(cx) {
        Poll::Pending => return Polled::Pending,
        Poll::Ready(output) => output,
    };
    // The future goes first: what its destructors do must not find an output.
    *state = TaskStage::Empty;
    let failed = J::is_failure(&output);
    *state = TaskStage::Output(output);
    if failed { Polled::Failed } else { Polled::Ready }
}

unsafe fn clear<F: Future>(task: NonNull<Header>) {
    // SAFETY: not running and not being taken (the contract of `TaskRef::discard`). The assignment drops a future in place.
    *unsafe { state::<F>(task) } = TaskStage::Empty;
}

unsafe fn failure<F: Future, J: Judge<F::Output>>(task: NonNull<Header>) -> Option<String> {
    // SAFETY: the contract of `TaskRef::failure`.
    match unsafe { state::<F>(task) } {
        TaskStage::Output(output) => J::failure(output),
        _ => None,
    }
}

unsafe fn lost<F: Future, J: Judge<F::Output>>(task: NonNull<Header>) -> Option<&'static str> {
    // SAFETY: the contract of `TaskRef::lost`.
    match unsafe { state::<F>(task) } {
        TaskStage::Output(output) => J::lost(output),
        _ => None,
    }
}

unsafe fn take<F: Future>(task: NonNull<Header>, output: *mut ()) {
    // SAFETY: the contract of `TaskRef::take_output`: the task has ended, the loop no longer touches the state, and `output` is
    // a valid `Option<F::Output>`.
    let (state, output) = unsafe { (state::<F>(task), &mut *output.cast::<Option<F::Output>>()) };
    if matches!(state, TaskStage::Output(_))
        && let TaskStage::Output(taken) = std::mem::replace(state, TaskStage::Empty)
    {
        *output = Some(taken);
    }
}

unsafe fn free<F: Future>(task: NonNull<Header>) {
    // SAFETY: the last reference is going. The report only reads the header.
    let header = unsafe { task.as_ref() };
    // An error that was not fetched is reported when the last reference to its task goes, as in asyncio.
    if header.has(flag::DONE) && !header.has(flag::RETRIEVED) {
        super::report_unseen(header);
    }
    // SAFETY: made by `alloc::allocate` for this very type in `TaskRef::new_pair`; this was the last reference.
    unsafe { alloc::free(task.cast::<TaskCell<F>>()) }
}
