//! The loop itself: its state, the tick, and how tasks are queued; `step.rs` is how a task takes a step. Everything here
//! runs on the loop's thread; other threads only reach its inbox. Foreign code (futures, callbacks, wakers, destructors)
//! is never called while one of the cells below is borrowed.

pub(crate) mod clock;
pub(crate) mod current;
pub(crate) mod loop_cell;
mod poll;
mod punctual;
mod ready;
mod step;
pub(crate) mod timers;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;

use crate::context::Snapshot;
use crate::kernel::clock::{Clock, Nanos};
use crate::kernel::loop_cell::Local;
use crate::kernel::punctual::Punctual;
use crate::kernel::ready::{QueueIndex, ReadyItem, ReadyQueue};
use crate::kernel::timers::{TimerKey, Timers};
use crate::mailbox::name::Name;
use crate::mailbox::{Message, Registration, waker};
use crate::observe::metrics::Counters;
use crate::observe::{CallbackRef, Watch};
use crate::reactor::selector::SelectorKind;
use crate::reactor::{Due, IoCallback, IoTable};
use crate::runtime::callback::Callback;
use crate::runtime::error::{Interrupt, RunError};
use crate::signal::SignalTable;
use crate::task::TaskTable;
use crate::task::raw::{Header, Judge, TaskRef};
use crate::threads::{Held, ThreadPool, ThreadPoolBuilder, Threads};
use crate::time::timeout::DeadlineCell;

/// Steps after which a loop that always has something ready looks at its timers and descriptors all the same.
/// asyncio looks every tick; that costs a system call a switch when few tasks are ready.
pub const STEPS_BETWEEN_POLLS: u32 = 61;

/// Operations on descriptors a task may do in one step while they keep succeeding; then it is the others' turn, and the
/// loop looks at its timers and at the other descriptors.
pub(crate) const IO_BUDGET: u32 = 128;

/// What a timer does when its turn has come.
pub(crate) enum TimerJob {
    /// Wakes a task of a loop's.
    Task(Name),
    /// Boxed, because it is rare and would make every timer larger.
    Wake(Box<Waker>),
    Call(Rc<Callback>),
    Expire(Rc<DeadlineCell>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    Idle,
    Running,
    Closed,
}

/// How the loop's clock behaves, and with it what an idle loop does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Real,
    /// Jumps to the next deadline when nothing is ready.
    Jumping,
    /// Stands still until it is advanced.
    Standing,
}

pub(crate) struct Kernel {
    pub(crate) registration: Registration,
    pub(crate) clock: Clock,
    pub(crate) pace: Pace,
    pub(crate) strict: bool,
    pub(crate) seed: Option<u64>,
    /// Orders equally ready tasks, where a seed was given.
    pub(crate) shuffle: Option<Cell<u64>>,
    pub(crate) state: Cell<RunState>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) ready: ReadyQueue,
    tasks: Local<TaskTable>,
    pub(crate) timers: RefCell<Timers<TimerJob>>,
    pub(crate) io: RefCell<IoTable>,
    /// Empty but while the selector is asked; kept for its memory.
    pub(crate) due: Cell<Vec<Due>>,
    pub(crate) inbound: Cell<Vec<Message>>,
    /// The task that is taking a step; see `step.rs`.
    pub(crate) current: Cell<Option<NonNull<Header>>>,
    /// What a step or callback that wants to leave the loop left with.
    pub(crate) interrupt: Cell<Option<Interrupt>>,
    /// The time of this tick, for what need not be exact.
    pub(crate) tick_time: Cell<Nanos>,
    /// How often the clock was read, and what it said last: a time-out that starts its clock lazily uses a reading
    /// that was taken after it began, so that an outer one never counts from later than an inner one.
    readings: Cell<(u64, Nanos)>,
    /// Where the ready queue began when the selector was last asked.
    pub(crate) polled_at: Cell<QueueIndex>,
    /// None in strict mode.
    pub(crate) steps_between_polls: usize,
    /// `(step, left)`: I/O operations that step number `step` may still do. If `step` is not the current one, the pair is
    /// stale and the budget is full.
    pub(crate) io_left: Cell<(QueueIndex, u32)>,
    pub(crate) counters: Counters,
    pub(crate) punctual: Punctual,
    pub(crate) watch: Watch,
    pub(crate) owned: RefCell<crate::runtime::on_loop::Owned>,
    pub(crate) signals: RefCell<SignalTable>,
    pub(crate) threads: OnceCell<ThreadPool>,
    /// How `threads` is made on first use; `None`: it was given, and belongs to others too.
    pub(crate) threads_setup: Option<ThreadPoolBuilder>,
    /// Virtual time only: the results to come from threads, which this loop hands out itself, in the order in which the
    /// jobs were handed over.
    pub(crate) held: RefCell<VecDeque<Arc<dyn Held>>>,
    this: Weak<Kernel>,
}

/// The options of a loop, from its builder.
pub(crate) struct Setup {
    pub(crate) pace: Pace,
    pub(crate) strict: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) debug: bool,
    pub(crate) selector: SelectorKind,
    pub(crate) threads: Threads,
}

impl Kernel {
    pub(crate) fn new(setup: Setup) -> std::io::Result<Rc<Kernel>> {
        let registration = Registration::new()?;
        // A ring is worth its while for many sockets in real time; a clock that jumps only ever looks.
        let selector = match setup.selector {
            SelectorKind::IoUring if setup.pace != Pace::Real => SelectorKind::Epoll,
            other => other,
        };
        let io = IoTable::new(selector, &registration.mailbox.bell)?;
        let tasks = TaskTable::new(registration.id, registration.serial, registration.first_generation);
        let (threads, threads_setup) = match setup.threads {
            Threads::Own(builder) => (OnceCell::new(), Some(builder)),
            Threads::Shared(pool) => (OnceCell::from(pool), None),
        };
        let kernel = Rc::new_cyclic(|this| Kernel {
            clock: if setup.pace == Pace::Real { Clock::real() } else { Clock::simulated() },
            pace: setup.pace,
            strict: setup.strict,
            seed: setup.seed,
            // Two rounds of mixing so that neighbouring seeds do not begin alike.
            shuffle: setup.seed.map(|seed| Cell::new(mix(mix(seed)))),
            state: Cell::new(RunState::Idle),
            stopping: Cell::new(false),
            ready: ReadyQueue::new(),
            tasks: Local::new(tasks),
            timers: RefCell::new(Timers::new()),
            io: RefCell::new(io),
            due: Cell::default(),
            inbound: Cell::default(),
            current: Cell::new(None),
            interrupt: Cell::new(None),
            tick_time: Cell::new(0),
            readings: Cell::new((0, 0)),
            polled_at: Cell::new(0),
            steps_between_polls: if setup.strict { 0 } else { STEPS_BETWEEN_POLLS as usize },
            io_left: Cell::new((0, IO_BUDGET)),
            counters: Counters::default(),
            punctual: Punctual::default(),
            watch: Watch::new(setup.debug),
            owned: RefCell::default(),
            signals: RefCell::default(),
            threads,
            threads_setup,
            held: RefCell::default(),
            registration,
            this: this.clone(),
        });
        current::register(&kernel);
        Ok(kernel)
    }

    #[inline]
    pub(crate) fn handle(&self) -> Rc<Kernel> {
        self.this.upgrade().expect("a kernel is reached through a reference that keeps it alive")
    }

    pub(crate) fn weak(&self) -> Weak<Kernel> {
        self.this.clone()
    }

    /// A fresh look at the clock.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        let now = self.clock.now();
        self.readings.set((self.readings.get().0 + 1, now));
        now
    }

    #[inline]
    pub(crate) fn readings(&self) -> u64 {
        self.readings.get().0
    }

    /// Returns the clock reading taken since `before`, if there was exactly one; otherwise reads the clock. `before` is
    /// `readings()` from before an inner future was polled: an outer time-out then never starts later than an inner one.
    pub(crate) fn now_since(&self, before: u64) -> Nanos {
        let (count, value) = self.readings.get();
        if count == before + 1 { value } else { self.now() }
    }

    pub(crate) fn current_ref(&self) -> Option<TaskRef> {
        self.find_task(self.current_task()?.name)
    }

    pub(crate) fn find_task(&self, name: Name) -> Option<TaskRef> {
        if name.loop_id() != self.registration.id {
            return None;
        }
        // SAFETY: a look-up and a count.
        unsafe { self.tasks.with(|tasks| tasks.get(name).cloned()) }
    }

    /// Every task, in the order they were made.
    pub(crate) fn all_tasks(&self) -> Vec<TaskRef> {
        // SAFETY: look-ups and counts.
        unsafe { self.tasks.with(|tasks| tasks.all()) }
    }

    pub(crate) fn task_count(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { self.tasks.with(|tasks| tasks.len()) }
    }

    /// Makes a task, and queues it for its first step if asked to.
    #[inline]
    pub(crate) fn insert_task<F, J>(
        &self,
        future: F,
        location: &'static Location<'static>,
        context: Snapshot,
        queued: bool,
    ) -> TaskRef
    where
        F: Future + 'static,
        J: Judge<F::Output>,
    {
        // Apart from what follows: if the table is full this panics, and the future's destructors must not find it lent.
        // SAFETY: numbers and empty slots.
        unsafe { self.tasks.with(|tasks| tasks.make_room()) };
        // SAFETY: moves the future into its place; moving one runs none of its code, and with room made nothing panics.
        let task = unsafe { self.tasks.with(|tasks| tasks.insert::<F, J>(future, location, context)) };
        if queued {
            self.ready.push_task(task.name);
        }
        task
    }

    /// The task leaves the table; it is the caller's now.
    #[inline]
    pub(crate) fn remove_task(&self, name: Name) -> Option<TaskRef> {
        // SAFETY: moves the reference out; it is dropped by the caller.
        unsafe { self.tasks.with(|tasks| tasks.remove(name)) }
    }

    pub(crate) fn is_queued(&self, name: Name) -> bool {
        // SAFETY: a look-up.
        unsafe { self.tasks.with(|tasks| tasks.is_queued(name)) }
    }

    /// The task whose turn has come.
    ///
    /// # Safety
    /// What comes back is not counted: it is good until the task leaves the table.
    #[inline]
    pub(crate) unsafe fn dequeue(&self, name: Name) -> Option<ManuallyDrop<TaskRef>> {
        // SAFETY: a look-up; and the caller's promise.
        unsafe { self.tasks.with(|tasks| tasks.dequeue(name).map(|task| task.borrowed())) }
    }

    pub(crate) fn push_call(&self, callback: Rc<Callback>) {
        if self.watch.is_on() {
            self.watch.callback_queued(self, CallbackRef::new(&*callback, callback.location));
        }
        self.ready.push_call(callback);
    }

    /// Puts a task into the ready queue, unless it is there already or has ended.
    #[inline]
    pub(crate) fn wake(&self, name: Name) {
        // One exit for the rare cases, so that the fast path is a leaf function.
        if !self.try_wake(name) {
            self.wake_watched(name);
        }
    }

    /// The fast path of `wake`. Returns `false`, and does nothing, if the loop is observed or the queue has to grow.
    #[inline(always)]
    pub(crate) fn try_wake(&self, name: Name) -> bool {
        // SAFETY: a look-up and a flag.
        let queue = || unsafe { self.tasks.with(|tasks| tasks.queue(name)) };
        !self.watch.is_on() && self.ready.push_task_if(name, queue)
    }

    /// The same for the task of any loop.
    #[inline]
    pub(crate) fn wake_any(&self, name: Name) {
        if name.loop_id() == self.registration.id {
            self.wake(name);
        } else {
            waker::wake(name);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_watched(&self, name: Name) {
        // SAFETY: a look-up and a flag.
        if !unsafe { self.tasks.with(|tasks| tasks.queue(name)) } {
            return;
        }
        self.ready.push_task(name);
        if self.watch.is_on()
            && let Some(task) = self.find_task(name)
        {
            self.watch.woken(self, &task);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        if self.watch.is_on() {
            self.watch.stop_requested(self);
        }
    }

    /// Whether the loop can be run here and now.
    pub(crate) fn check_runnable(&self) -> Result<(), RunError> {
        match self.state.get() {
            RunState::Closed => Err(RunError::Closed),
            RunState::Running => Err(RunError::Nested),
            RunState::Idle if current::with(|kernel| kernel.is_some()) => Err(RunError::Nested),
            RunState::Idle => Ok(()),
        }
    }

    /// Ticks until told to stop.
    pub(crate) fn run(&self) -> Result<(), RunError> {
        self.check_runnable()?;
        struct Leave<'a>(&'a Kernel);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.state.set(RunState::Idle);
                self.0.stopping.set(false);
                self.0.punctual.leave();
                let ring = self.0.io.borrow().ring();
                if let Some(ring) = ring {
                    ring.leave();
                }
                if self.0.watch.is_on() {
                    self.0.watch.run_ends(self.0);
                }
            }
        }
        self.state.set(RunState::Running);
        let _leave = Leave(self);
        let _current = self.enter();
        let _left = Snapshot::leave();
        if self.watch.is_on() {
            self.watch.run_starts(self);
        }
        loop {
            self.tick()?;
            if self.stopping.get() {
                return Ok(());
            }
        }
    }

    /// Ticks until nothing is ready, without waiting and without moving the clock.
    pub(crate) fn run_ready(&self) -> Result<(), RunError> {
        self.check_runnable()?;
        loop {
            self.run_tick()?;
            if !self.has_work() {
                return Ok(());
            }
        }
    }

    /// One tick, without waiting.
    pub(crate) fn run_tick(&self) -> Result<(), RunError> {
        self.stopping.set(true);
        self.run()
    }

    /// Whether a tick would find something to run now.
    pub(crate) fn has_work(&self) -> bool {
        let timer_due = || self.timers.borrow().next_deadline().is_some_and(|when| when <= self.clock.now());
        let posted = || self.registration.mailbox.inbox.is_posted() || self.is_held_settled();
        self.ready.len() > 0 || timer_due() || posted()
    }

    fn tick(&self) -> Result<(), RunError> {
        if self.registration.mailbox.inbox.is_posted() {
            self.read_inbox();
        }
        let (begin, mut end) = (self.ready.begin(), self.ready.end());
        if begin == end || begin.wrapping_sub(self.polled_at.get()) >= self.steps_between_polls {
            self.polled_at.set(begin);
            let now = self.poll(begin != end)?;
            self.expire_timers(now);
            end = self.ready.end();
        }
        self.counters.ticks.set(self.counters.ticks.get() + 1);
        let count = end.wrapping_sub(begin);
        self.counters.batch(count);
        if self.watch.is_on() { self.run_batch::<true>(count, end) } else { self.run_batch::<false>(count, end) }
    }

    /// Runs what is ready now, `count` entries before `end`; what that makes ready waits for the next tick.
    #[inline(always)]
    fn run_batch<const WATCHED: bool>(&self, count: usize, end: QueueIndex) -> Result<(), RunError> {
        if let Some(state) = &self.shuffle {
            self.ready.shuffle_tasks(|below| {
                state.set(state.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
                (mix(state.get()) % below as u64) as usize
            });
        }
        if WATCHED {
            self.watch.tick(self, count);
        }
        while let Some(turn) = self.ready.pop(end) {
            let goes_on = match turn {
                ReadyItem::Task(name) => self.step::<WATCHED>(name),
                ReadyItem::Timer(key) => self.run_timer::<WATCHED>(key),
                ReadyItem::Call(callback) => self.call::<WATCHED>(&callback),
                ReadyItem::Io(callback) => self.call_io::<WATCHED>(&callback),
            };
            if !goes_on && let Some(interrupt) = self.interrupt.take() {
                return Err(RunError::Interrupted(interrupt));
            }
        }
        Ok(())
    }

    /// This and the next two return `false` if the callback called `interrupt`.
    #[inline(never)]
    fn run_timer<const WATCHED: bool>(&self, key: TimerKey) -> bool {
        let job = self.timers.borrow_mut().take_due(key);
        let Some(job) = job else { return true };
        match job {
            TimerJob::Task(name) => {
                if WATCHED {
                    self.watch.timer_fired(self, self.find_task(name));
                }
                self.wake_any(name);
                true
            }
            TimerJob::Wake(waker) => {
                if WATCHED {
                    self.watch.timer_fired(self, None);
                }
                waker.wake();
                true
            }
            TimerJob::Call(callback) => self.call::<WATCHED>(&callback),
            TimerJob::Expire(deadline) => {
                if WATCHED {
                    self.watch.timer_fired(self, deadline.task());
                }
                deadline.expire(self);
                true
            }
        }
    }

    #[inline(never)]
    fn call<const WATCHED: bool>(&self, callback: &Callback) -> bool {
        let which = CallbackRef::new(callback, callback.location);
        callback.is_cancelled() || self.guard::<WATCHED>(which, || callback.run())
    }

    #[inline(never)]
    fn call_io<const WATCHED: bool>(&self, callback: &IoCallback) -> bool {
        let which = CallbackRef::new(callback, callback.location);
        callback.is_cancelled() || self.guard::<WATCHED>(which, || callback.run())
    }

    /// Runs a callback; its panic is reported and goes no further.
    fn guard<const WATCHED: bool>(&self, callback: CallbackRef, run: impl FnOnce()) -> bool {
        if WATCHED {
            self.watch.callback_starts(self, callback);
        }
        let outcome = catch_unwind(AssertUnwindSafe(run));
        if WATCHED {
            self.watch.callback_ends(self, callback);
        }
        match outcome {
            Ok(()) => true,
            Err(panic) => match panic.downcast::<Interrupt>() {
                Ok(interrupt) => {
                    self.interrupt.set(Some(*interrupt));
                    false
                }
                Err(panic) => {
                    self.watch.callback_panicked(&*panic, callback.location);
                    true
                }
            },
        }
    }

    /// Drops everything that is left. Runs user code (destructors), so it repeats until nothing is added any more.
    pub(crate) fn close(&self) {
        if self.state.replace(RunState::Closed) == RunState::Closed {
            return;
        }
        if self.watch.is_on() {
            self.watch.closing(self);
        }
        let _current = self.enter();
        for message in self.registration.mailbox.inbox.close() {
            drop(message);
        }
        loop {
            let (any_ready, ready) = self.ready.clear();
            let timers = self.timers.borrow_mut().clear();
            let tasks = self.all_tasks();
            if !any_ready && timers.is_empty() && tasks.is_empty() {
                break;
            }
            drop((ready, timers));
            for task in tasks {
                self.end_cancelled(&task);
            }
        }
        let left = self.io.borrow_mut().clear();
        drop(left);
        let ring = self.io.borrow().ring();
        if let Some(ring) = ring {
            ring.close();
        }
        let owned = self.owned.take();
        drop(owned);
        self.clear_signals();
        let held = self.held.take();
        for held in held {
            held.release();
        }
        if self.threads_setup.is_some()
            && let Some(threads) = self.threads.get()
        {
            threads.close();
        }
        self.watch.clear();
    }
}

/// SplitMix64.
pub(crate) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
