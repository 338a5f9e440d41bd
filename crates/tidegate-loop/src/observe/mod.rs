//! Seeing into the loop: observers, the exception handler, debug mode. While all of them are off the loop asks one
//! flag a tick and one a wake.

pub(crate) mod dump;
pub(crate) mod metrics;
pub(crate) mod report;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Kernel;
use crate::kernel::clock::Nanos;
use crate::observe::report::{Report, ReportKind, panic_message};
use crate::runtime::callback::Callback;
use crate::task::raw::{TaskRef, Waiting};
use crate::task::{Outcome, Task};

/// Receives every event of a loop, as it happens.
///
/// It runs on the loop's thread between its steps, so it should be quick; what it does to the loop itself is not
/// observed.
///
/// ```
/// use tidegate_loop::{Duration, LoopEvent, EventLoop, Observer};
///
/// #[derive(Default)]
/// struct Ticks(usize);
/// impl Observer for Ticks {
///     fn observe(&mut self, _at: Duration, event: &LoopEvent<'_>) {
///         self.0 += usize::from(matches!(event, LoopEvent::Tick { .. }));
///     }
/// }
///
/// let event_loop = EventLoop::new().unwrap();
/// event_loop.set_observer(Ticks::default());
/// event_loop.run_until_complete(async {}).unwrap();
/// ```
pub trait Observer {
    /// `at` is the time since the loop was made.
    fn observe(&mut self, at: Duration, event: &LoopEvent<'_>);
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopEvent<'a> {
    /// The loop begins to run.
    RunStarted {
        /// Whether its clock is virtual.
        virtual_time: bool,
        /// Whether it polls once a tick.
        strict: bool,
        /// The seed its order is drawn from.
        seed: Option<u64>,
    },
    /// The loop was asked to stop; this tick is the run's last.
    StopRequested,
    /// The loop has stopped running, for whatever reason.
    RunEnded,
    /// The loop is being closed; tasks that are left end here.
    Closing,
    /// A tick begins to run what was ready.
    Tick {
        /// 1 for the first of its loop.
        number: u64,
        /// How much is ready.
        ready: usize,
    },
    /// The selector was asked.
    Polled {
        /// How long it was allowed to wait; `None`: for ever.
        timeout: Option<Duration>,
        /// How many descriptors were ready.
        events: usize,
    },
    /// A task was made.
    Created {
        /// The task.
        task: &'a Task,
    },
    /// A task was queued to take a step.
    Woken {
        /// The task.
        task: &'a Task,
    },
    /// A task takes a step.
    StepStarted {
        /// The task.
        task: &'a Task,
    },
    /// The step ended in a wait.
    Suspended {
        /// The task.
        task: &'a Task,
        /// What it waits for.
        on: WaitsFor,
    },
    /// The task has ended, usually in a step that thus was its last; who waited for it is woken next.
    Finished {
        /// The task.
        task: &'a Task,
        /// How it ended.
        outcome: Outcome,
    },
    /// A step is over; steps lie within each other where a task is started eagerly.
    StepEnded {
        /// The task.
        task: &'a Task,
    },
    /// A settable future was given its result or error, or was cancelled; who waited for it is woken next.
    FutureSet {
        /// It was cancelled.
        cancelled: bool,
    },
    /// A cancellation of a task was requested.
    CancelRequested {
        /// The task.
        task: &'a Task,
    },
    /// A timer was armed: by a sleep, a time-out or `call_later`.
    TimerArmed {
        /// When it is due, counted from when the loop was made.
        due: Duration,
        /// The callback it will run, if that is what it does.
        callback: Option<CallbackRef>,
    },
    /// A sleep's or a time-out's timer ran.
    TimerFired {
        /// Whom it wakes or cancels, if that is a task of the loop's.
        task: Option<&'a Task>,
    },
    /// A callback was queued for the next tick.
    CallbackQueued {
        /// Which.
        callback: CallbackRef,
    },
    /// A callback runs.
    CallbackStarted {
        /// Which.
        callback: CallbackRef,
    },
    /// It has returned.
    CallbackFinished {
        /// Which.
        callback: CallbackRef,
    },
    /// The program said something through [`LoopHandle::note`](crate::LoopHandle::note).
    Note {
        /// Its words.
        text: &'a str,
    },
    /// Debug mode: a step took too long.
    Slow {
        /// The task, if it was one.
        task: Option<&'a Task>,
        /// How long it took.
        took: Duration,
    },
}

/// Which callback an event is about.
///
/// ```
/// use tidegate_loop::{Duration, LoopEvent, EventLoop, Observer};
///
/// struct Print;
/// impl Observer for Print {
///     fn observe(&mut self, _at: Duration, event: &LoopEvent<'_>) {
///         if let LoopEvent::CallbackStarted { callback } = event {
///             println!("the callback of {} runs", callback.location);
///         }
///     }
/// }
/// EventLoop::new().unwrap().set_observer(Print);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackRef {
    /// Unique among the callbacks that are alive at the same time; reused afterwards.
    pub key: usize,
    /// Where it was handed to the loop.
    pub location: &'static Location<'static>,
}

impl CallbackRef {
    pub(crate) fn new<C>(callback: &C, location: &'static Location<'static>) -> CallbackRef {
        CallbackRef { key: std::ptr::from_ref(callback).addr(), location }
    }
}

/// What a suspended task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// Its turn: it yielded.
    Turn,
    /// A timer.
    Timer,
    /// Another task.
    Task(Arc<str>),
    /// A settable future, or several tasks.
    Future(String),
    /// A socket, a pipe, a child; found out for dumps only.
    Io(String),
    /// Something that is not the loop's own: a channel, a lock, a socket.
    Elsewhere,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::Turn => f.write_str("its turn"),
            WaitsFor::Timer => f.write_str("a timer"),
            WaitsFor::Task(name) => write!(f, "task {name}"),
            WaitsFor::Future(what) | WaitsFor::Io(what) => f.write_str(what),
            WaitsFor::Elsewhere => f.write_str("something outside of the loop"),
        }
    }
}

/// What the task says it waits for.
pub(crate) fn waits_for(kernel: &Kernel, task: &TaskRef) -> WaitsFor {
    let waiting = task.waiting();
    if let Some(name) = waiting.as_task() {
        let awaited = kernel.find_task(name).map(|task| task.display_name());
        return WaitsFor::Task(awaited.unwrap_or_else(|| "(ended)".into()));
    }
    match waiting {
        Waiting::TURN => WaitsFor::Turn,
        Waiting::TIMER => WaitsFor::Timer,
        _ => task.awaited().map_or(WaitsFor::Elsewhere, |awaited| WaitsFor::Future(awaited.describe())),
    }
}

/// asyncio's default.
pub(crate) const SLOW_DEFAULT: Duration = Duration::from_millis(100);

type Handler = Rc<dyn Fn(&Report)>;

pub(crate) struct Watch {
    /// Debug mode or an observer: the loop takes its watched path.
    on: Cell<bool>,
    debug: Cell<bool>,
    /// There is an observer.
    observed: Cell<bool>,
    slow: Cell<Nanos>,
    /// When the running steps began, innermost last: an eager start is a step within a step.
    began: RefCell<Vec<Nanos>>,
    /// Taken out while it handles an event.
    observer: Cell<Option<Box<dyn Observer>>>,
    /// How often it was set: tells whether it replaced itself while it was out.
    observers: Cell<u64>,
    handler: RefCell<Option<Handler>>,
}

impl Watch {
    pub(crate) fn new(debug: bool) -> Watch {
        Watch {
            on: Cell::new(debug),
            debug: Cell::new(debug),
            slow: Cell::new(SLOW_DEFAULT.as_nanos() as Nanos),
            began: RefCell::default(),
            observer: Cell::default(),
            observers: Cell::new(0),
            observed: Cell::new(false),
            handler: RefCell::default(),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    pub(crate) fn is_debug(&self) -> bool {
        self.debug.get()
    }

    pub(crate) fn set_debug(&self, debug: bool) {
        self.debug.set(debug);
        self.on.set(debug || self.observed.get());
    }

    pub(crate) fn set_slow(&self, slow: Nanos) {
        self.slow.set(slow);
    }

    pub(crate) fn set_observer(&self, observer: Option<Box<dyn Observer>>) {
        self.observed.set(observer.is_some());
        self.on.set(self.debug.get() || observer.is_some());
        self.observers.set(self.observers.get() + 1);
        let before = self.observer.replace(observer);
        drop(before);
    }

    pub(crate) fn set_handler(&self, handler: Option<Handler>) {
        let before = self.handler.replace(handler);
        drop(before);
    }

    /// Lets go of what was given to us: it may refer to the loop. What is reported after the loop has closed is logged.
    pub(crate) fn clear(&self) {
        self.set_observer(None);
        self.set_handler(None);
    }

    fn tell(&self, kernel: &Kernel, event: &LoopEvent<'_>) {
        // Out means busy: the observer itself has caused this, by dropping a task for instance.
        let Some(mut observer) = self.observer.take() else { return };
        let before = self.observers.get();
        observer.observe(Duration::from_nanos(kernel.clock.now().max(0) as u64), event);
        if self.observers.get() == before {
            self.observer.set(Some(observer));
        }
    }

    pub(crate) fn note(&self, kernel: &Kernel, text: &str) {
        self.tell(kernel, &LoopEvent::Note { text });
    }

    pub(crate) fn run_starts(&self, kernel: &Kernel) {
        let virtual_time = kernel.clock.is_virtual();
        self.tell(kernel, &LoopEvent::RunStarted { virtual_time, strict: kernel.strict, seed: kernel.seed });
    }

    pub(crate) fn run_ends(&self, kernel: &Kernel) {
        self.tell(kernel, &LoopEvent::RunEnded);
    }

    pub(crate) fn closing(&self, kernel: &Kernel) {
        self.tell(kernel, &LoopEvent::Closing);
    }

    pub(crate) fn stop_requested(&self, kernel: &Kernel) {
        self.tell(kernel, &LoopEvent::StopRequested);
    }

    #[cold]
    pub(crate) fn future_set(&self, kernel: &Kernel, cancelled: bool) {
        self.tell(kernel, &LoopEvent::FutureSet { cancelled });
    }

    /// Costs one check of a flag while the loop is not observed.
    #[inline]
    pub(crate) fn timer_armed(&self, kernel: &Kernel, due: Nanos, callback: Option<&Callback>) {
        if self.is_on() {
            let due = Duration::from_nanos(due.max(0) as u64);
            let callback = callback.map(|callback| CallbackRef::new(callback, callback.location));
            self.tell(kernel, &LoopEvent::TimerArmed { due, callback });
        }
    }

    #[cold]
    pub(crate) fn callback_queued(&self, kernel: &Kernel, callback: CallbackRef) {
        self.tell(kernel, &LoopEvent::CallbackQueued { callback });
    }

    pub(crate) fn tick(&self, kernel: &Kernel, ready: usize) {
        self.tell(kernel, &LoopEvent::Tick { number: kernel.counters.ticks.get(), ready });
    }

    pub(crate) fn polled(&self, kernel: &Kernel, timeout: Option<Duration>, events: usize) {
        self.tell(kernel, &LoopEvent::Polled { timeout, events });
    }

    pub(crate) fn created(&self, kernel: &Kernel, task: &TaskRef) {
        self.tell(kernel, &LoopEvent::Created { task: &Task { cell: task.clone() } });
    }

    #[cold]
    pub(crate) fn woken(&self, kernel: &Kernel, task: &TaskRef) {
        self.tell(kernel, &LoopEvent::Woken { task: &Task { cell: task.clone() } });
    }

    pub(crate) fn cancel_requested(&self, kernel: &Kernel, task: &TaskRef) {
        self.tell(kernel, &LoopEvent::CancelRequested { task: &Task { cell: task.clone() } });
    }

    pub(crate) fn timer_fired(&self, kernel: &Kernel, task: Option<TaskRef>) {
        let task = task.map(|cell| Task { cell });
        self.tell(kernel, &LoopEvent::TimerFired { task: task.as_ref() });
    }

    pub(crate) fn step_starts(&self, kernel: &Kernel, task: &TaskRef) {
        self.tell(kernel, &LoopEvent::StepStarted { task: &Task { cell: task.clone() } });
        self.began.borrow_mut().push(kernel.clock.now());
    }

    pub(crate) fn step_ends(&self, kernel: &Kernel, task: &TaskRef, finished: bool) {
        let task = Task { cell: task.clone() };
        self.check_slow(kernel, Some(&task), task.location());
        if !finished {
            self.tell(kernel, &LoopEvent::Suspended { task: &task, on: waits_for(kernel, &task.cell) });
        }
        self.tell(kernel, &LoopEvent::StepEnded { task: &task });
    }

    #[cold]
    pub(crate) fn finished(&self, kernel: &Kernel, task: &TaskRef, outcome: Outcome) {
        self.tell(kernel, &LoopEvent::Finished { task: &Task { cell: task.clone() }, outcome });
    }

    pub(crate) fn callback_starts(&self, kernel: &Kernel, callback: CallbackRef) {
        self.tell(kernel, &LoopEvent::CallbackStarted { callback });
        self.began.borrow_mut().push(kernel.clock.now());
    }

    pub(crate) fn callback_ends(&self, kernel: &Kernel, callback: CallbackRef) {
        self.check_slow(kernel, None, callback.location);
        self.tell(kernel, &LoopEvent::CallbackFinished { callback });
    }

    fn check_slow(&self, kernel: &Kernel, task: Option<&Task>, location: &'static Location<'static>) {
        let Some(began) = self.began.borrow_mut().pop() else { return };
        let took = kernel.clock.now() - began;
        if !self.debug.get() || took < self.slow.get() {
            return;
        }
        let took = Duration::from_nanos(took.max(0) as u64);
        kernel.counters.slow.set(kernel.counters.slow.get() + 1);
        self.tell(kernel, &LoopEvent::Slow { task, took });
        self.report(&Report {
            kind: ReportKind::Slow,
            message: format!("one step took {took:?}"),
            name: task.map(Task::name),
            location: Some(location),
            took: Some(took),
        });
    }

    pub(crate) fn callback_panicked(&self, panic: &(dyn Any + Send), location: &'static Location<'static>) {
        self.report(&Report {
            kind: ReportKind::CallbackPanic,
            message: panic_message(panic),
            name: None,
            location: Some(location),
            took: None,
        });
    }

    pub(crate) fn report(&self, report: &Report) {
        let handler = self.handler.borrow().clone();
        // A handler that fails must not take the loop with it, nor the report.
        let told = handler.is_some_and(|handler| catch_unwind(AssertUnwindSafe(|| handler(report))).is_ok());
        if !told {
            report.log();
        }
    }
}
