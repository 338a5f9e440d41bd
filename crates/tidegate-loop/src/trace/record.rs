//! Records: an observer's events, kept.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Trace;
use crate::observe::{CallbackRef, LoopEvent, Observer, WaitsFor};
use crate::task::{Outcome, Task, TaskId};

/// An [`Observer`] that remembers. Clones share what they remember: give one to the loop and keep one.
///
/// ```
/// use tidegate_loop::{trace::Recorder, EventLoop};
/// let recorder = Recorder::new();
/// let event_loop = EventLoop::simulated(1);
/// event_loop.set_observer(recorder.clone());
/// event_loop.run_until_complete(async {}).unwrap();
/// assert!(!recorder.trace().records().is_empty());
/// ```
#[derive(Clone, Default)]
pub struct Recorder {
    log: Rc<RefCell<Log>>,
}

#[derive(Default)]
struct Log {
    records: VecDeque<Record>,
    limit: Option<usize>,
    dropped: u64,
    tick: u64,
    /// The tasks that have not ended.
    tasks: HashMap<TaskId, TracedTask>,
    /// The callbacks that wait for their turn. One that is cancelled stays until its key is used again, so there are
    /// never more than were alive at one time.
    callbacks: HashMap<usize, TracedCallback>,
    callbacks_seen: u32,
    /// The steps and callbacks that are running, innermost last.
    running: Vec<Actor>,
    /// A timer that is no callback has no end of its own: it lasts until something else begins.
    timer_runs: bool,
}

impl Recorder {
    /// Remembers everything.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// assert_eq!(Recorder::new().trace().records().len(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// Remembers the latest `records`, for loops that run for long.
    ///
    /// ```
    /// use tidegate_loop::{trace::Recorder, yield_now, EventLoop};
    /// let recorder = Recorder::with_limit(10);
    /// let event_loop = EventLoop::simulated(1);
    /// event_loop.set_observer(recorder.clone());
    /// event_loop.run_until_complete(async { for _ in 0..100 { yield_now().await } }).unwrap();
    /// assert_eq!(recorder.trace().records().len(), 10);
    /// assert!(recorder.trace().dropped() > 100);
    /// ```
    #[must_use]
    pub fn with_limit(records: usize) -> Recorder {
        Recorder { log: Rc::new(RefCell::new(Log { limit: Some(records), ..Log::default() })) }
    }

    /// What it has seen so far.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// println!("{}", Recorder::new().trace().to_text());
    /// ```
    #[must_use]
    pub fn trace(&self) -> Trace {
        let log = self.log.borrow();
        Trace {
            records: log.records.iter().cloned().collect(),
            dropped: log.dropped,
            title: "".into(),
            program: "".into(),
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log.borrow();
        f.debug_struct("Recorder").field("records", &log.records.len()).field("dropped", &log.dropped).finish()
    }
}

impl Observer for Recorder {
    fn observe(&mut self, at: Duration, event: &LoopEvent<'_>) {
        self.log.borrow_mut().observe(at, event);
    }
}

/// One thing that happened.
///
/// ```
/// let trace = tidegate_loop::trace::examples::find("sleep").unwrap().record(&Default::default()).unwrap();
/// for record in trace.records() {
///     println!("{:?} tick {}: {} {}", record.at, record.tick, record.by, record.what);
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Record {
    /// When, counted from when the loop was made.
    pub at: Duration,
    /// In which tick, 1 for the first; a poll belongs to the tick it leads to. 0: before the first.
    pub tick: u64,
    /// Whose doing it was.
    pub by: Actor,
    /// What it was.
    pub what: What,
}

/// The task or callback that was running when something happened.
///
/// ```
/// use tidegate_loop::trace::{examples, Actor, What};
/// let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
/// let woken = trace.records().iter().filter(|record| matches!(record.what, What::Woken(_)));
/// assert_eq!(woken.filter(|record| matches!(record.by, Actor::Timer)).count(), 1);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Actor {
    /// The loop itself, or code outside of it.
    Loop,
    /// The timer of a sleep or a time-out.
    Timer,
    /// A task, in one of its steps.
    Task(TracedTask),
    /// A callback.
    Callback(TracedCallback),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Loop => f.write_str("loop"),
            Actor::Timer => f.write_str("timer"),
            Actor::Task(task) => task.fmt(f),
            Actor::Callback(_) => f.write_str("callback"),
        }
    }
}

/// What happened; the counterpart of [`LoopEvent`], free of the loop. Prints as a phrase whose subject is the record's
/// actor.
///
/// ```
/// use tidegate_loop::trace::{examples, What};
/// let trace = examples::find("timeline").unwrap().record(&Default::default()).unwrap();
/// let said = trace.records().iter().filter(|record| matches!(record.what, What::Note(_)));
/// assert_eq!(said.map(|record| record.what.to_string()).next().unwrap(), "says: 1");
/// ```
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is documented where it comes from, in LoopEvent")]
#[non_exhaustive]
pub enum What {
    RunStarted { virtual_time: bool, strict: bool, seed: Option<u64> },
    StopRequested,
    RunEnded,
    Closing,
    Tick { ready: usize },
    Polled { timeout: Option<Duration>, events: usize },
    Created(TracedTask),
    Woken(TracedTask),
    StepStarted(TracedTask),
    Suspended { task: TracedTask, on: WaitsFor },
    Finished { task: TracedTask, outcome: Outcome },
    StepEnded(TracedTask),
    CancelRequested(TracedTask),
    FutureSet { cancelled: bool },
    TimerArmed { due: Duration, callback: Option<TracedCallback> },
    TimerFired { task: Option<TracedTask> },
    CallbackQueued(TracedCallback),
    CallbackStarted(TracedCallback),
    CallbackFinished(TracedCallback),
    Note(Arc<str>),
    Slow { task: Option<TracedTask>, took: Duration },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::RunStarted { .. } => f.write_str("starts to run"),
            What::StopRequested => f.write_str("asks the loop to stop"),
            What::RunEnded => f.write_str("has stopped"),
            What::Closing => f.write_str("is closed"),
            What::Tick { ready } => write!(f, "runs what is ready: {ready}"),
            What::Polled { timeout: None, events } => write!(f, "polled without a limit, {events} events"),
            What::Polled { timeout: Some(timeout), events } => {
                write!(f, "polled for up to {}, {events} events", Span(*timeout))
            }
            What::Created(task) => write!(f, "creates {task}"),
            What::Woken(task) => write!(f, "wakes {task}"),
            What::StepStarted(_) => f.write_str("runs"),
            What::Suspended { on, .. } => write!(f, "waits for {on}"),
            What::Finished { outcome, .. } => outcome.fmt(f),
            What::StepEnded(_) => f.write_str("hands back to the loop"),
            What::CancelRequested(task) => write!(f, "asks {task} to end (cancel)"),
            What::FutureSet { cancelled: false } => f.write_str("sets a future"),
            What::FutureSet { cancelled: true } => f.write_str("cancels a future"),
            What::TimerArmed { due, callback: None } => write!(f, "arms a timer, due at {}", Span(*due)),
            What::TimerArmed { due, callback: Some(callback) } => {
                write!(f, "arms a timer, due at {}: {callback}", Span(*due))
            }
            What::TimerFired { .. } => f.write_str("fires"),
            What::CallbackQueued(callback) => write!(f, "queues callback {callback}"),
            What::CallbackStarted(callback) => {
                write!(f, "runs, {callback}")?;
                match callback.queued_by() {
                    Some(task) => write!(f, ", queued by {task}"),
                    None => Ok(()),
                }
            }
            What::CallbackFinished(_) => f.write_str("has returned"),
            What::Note(text) => write!(f, "says: {text}"),
            What::Slow { took, .. } => write!(f, "was slow: {}", Span(*took)),
        }
    }
}

/// A task as a trace knows it: it outlives the task. Prints as its name.
///
/// ```
/// use tidegate_loop::trace::{examples, What};
/// let trace = examples::find("timeline").unwrap().record(&Default::default()).unwrap();
/// let made = trace.records().iter().filter_map(|record| match &record.what {
///     What::Created(task) => Some(task.to_string()),
///     _ => None,
/// });
/// assert_eq!(made.collect::<Vec<_>>(), ["main", "n1", "n2"]);
/// ```
#[derive(Clone)]
pub struct TracedTask {
    info: Rc<TaskInfo>,
}

struct TaskInfo {
    id: TaskId,
    name: RefCell<Arc<str>>,
    location: &'static Location<'static>,
}

impl TracedTask {
    /// Its number.
    ///
    /// ```
    /// # use tidegate_loop::trace::{examples, What};
    /// # let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// let What::Created(task) = &trace.records()[0].what else { unreachable!() };
    /// assert_eq!(task.id().to_string(), "1");
    /// ```
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.info.id
    }

    /// Its name, the last it had.
    ///
    /// ```
    /// # use tidegate_loop::trace::{examples, What};
    /// # let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// let What::Created(task) = &trace.records()[0].what else { unreachable!() };
    /// assert_eq!(&*task.name(), "main");
    /// ```
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        self.info.name.borrow().clone()
    }

    /// Where it was spawned.
    ///
    /// ```
    /// # use tidegate_loop::trace::{examples, What};
    /// # let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// let What::Created(task) = &trace.records()[0].what else { unreachable!() };
    /// assert!(task.location().file().ends_with(".rs"));
    /// ```
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.info.location
    }
}

impl fmt::Display for TracedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.name.borrow().fmt(f)
    }
}

impl fmt::Debug for TracedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TracedTask({self})")
    }
}

/// A callback as a trace knows it. Prints as the place it comes from.
#[derive(Clone)]
pub struct TracedCallback {
    pub(super) info: Rc<CallbackInfo>,
}

pub(super) struct CallbackInfo {
    /// 1 for the first that was seen.
    pub(super) number: u32,
    location: &'static Location<'static>,
    queued_by: Option<TracedTask>,
}

impl TracedCallback {
    /// Where it was handed to the loop.
    ///
    /// ```
    /// # use tidegate_loop::trace::{examples, What};
    /// # let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// let queued = trace.records().iter().find_map(|record| match &record.what {
    ///     What::CallbackQueued(callback) => Some(callback.location()),
    ///     _ => None,
    /// });
    /// assert!(queued.unwrap().file().ends_with(".rs"));
    /// ```
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.info.location
    }

    /// The task that queued it, if it was one.
    ///
    /// ```
    /// # use tidegate_loop::trace::{examples, What};
    /// # let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// let queued = trace.records().iter().find_map(|record| match &record.what {
    ///     What::CallbackStarted(callback) => callback.queued_by(),
    ///     _ => None,
    /// });
    /// assert_eq!(&*queued.unwrap().name(), "main");
    /// ```
    #[must_use]
    pub fn queued_by(&self) -> Option<&TracedTask> {
        self.info.queued_by.as_ref()
    }
}

impl fmt::Display for TracedCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&place(self.info.location))
    }
}

impl fmt::Debug for TracedCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TracedCallback({self})")
    }
}

/// A location without anything that differs between machines: from the crate's directory on, file and line.
///
/// ```
/// let here = std::panic::Location::caller();
/// assert!(!tidegate_loop::trace::place(here).starts_with('/'));
/// ```
#[must_use]
pub fn place(location: &Location<'_>) -> String {
    format!("{}:{}", short_path(location.file()), location.line())
}

fn short_path(path: &str) -> &str {
    let rooted_at = ["/src/", "/tests/", "/examples/", "/benches/"].iter().find_map(|folder| path.rfind(folder));
    match rooted_at {
        Some(at) => path[..at].rfind('/').map_or(path, |before| &path[before + 1..]),
        None if path.starts_with('/') => path.rsplit('/').next().unwrap_or(path),
        None => path,
    }
}

/// A time or a duration in the unit that suits it, without trailing zeros.
pub(super) struct Span(pub(super) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (unit, name, digits) = match nanos {
            0 => return f.write_str("0 s"),
            1..1_000 => (1, "ns", 0),
            1_000..1_000_000 => (1_000, "µs", 3),
            1_000_000..1_000_000_000 => (1_000_000, "ms", 6),
            _ => (1_000_000_000, "s", 9),
        };
        let (whole, rest) = (nanos / unit, nanos % unit);
        match rest {
            0 => write!(f, "{whole} {name}"),
            _ => write!(f, "{whole}.{} {name}", format!("{rest:0digits$}").trim_end_matches('0')),
        }
    }
}

impl Log {
    fn observe(&mut self, at: Duration, event: &LoopEvent<'_>) {
        self.enter(event);
        let what = self.what(event);
        let (by, tick) = (self.actor(), self.tick + u64::from(matches!(event, LoopEvent::Polled { .. })));
        self.leave(event);
        if self.limit.is_some_and(|limit| self.records.len() >= limit) {
            self.records.pop_front();
            self.dropped += 1;
        }
        if self.limit != Some(0) {
            self.records.push_back(Record { at, tick, by, what });
        }
    }

    /// Who begins to run with this event.
    fn enter(&mut self, event: &LoopEvent<'_>) {
        match event {
            LoopEvent::Tick { number, .. } => {
                self.tick = *number;
                self.running.clear();
                self.timer_runs = false;
            }
            LoopEvent::StepStarted { task } => {
                let task = self.task(task);
                self.begin(Actor::Task(task));
            }
            LoopEvent::CallbackStarted { callback } => {
                let callback = self.callback(*callback);
                self.begin(Actor::Callback(callback));
            }
            LoopEvent::TimerFired { .. } => self.timer_runs = true,
            LoopEvent::Polled { .. } | LoopEvent::RunEnded => self.timer_runs = false,
            _ => {}
        }
    }

    fn begin(&mut self, actor: Actor) {
        self.timer_runs = false;
        self.running.push(actor);
    }

    /// The task or callback that this event ends, if any.
    fn leave(&mut self, event: &LoopEvent<'_>) {
        match event {
            LoopEvent::StepEnded { .. } => drop(self.running.pop()),
            LoopEvent::CallbackFinished { callback } => {
                self.running.pop();
                self.callbacks.remove(&callback.key);
            }
            LoopEvent::Finished { task, .. } => drop(self.tasks.remove(&task.id())),
            _ => {}
        }
    }

    fn actor(&self) -> Actor {
        match self.running.last() {
            Some(actor) => actor.clone(),
            None if self.timer_runs => Actor::Timer,
            None => Actor::Loop,
        }
    }

    fn what(&mut self, event: &LoopEvent<'_>) -> What {
        match event {
            LoopEvent::RunStarted { virtual_time, strict, seed } => {
                What::RunStarted { virtual_time: *virtual_time, strict: *strict, seed: *seed }
            }
            LoopEvent::StopRequested => What::StopRequested,
            LoopEvent::RunEnded => What::RunEnded,
            LoopEvent::Closing => What::Closing,
            LoopEvent::Tick { ready, .. } => What::Tick { ready: *ready },
            LoopEvent::Polled { timeout, events } => What::Polled { timeout: *timeout, events: *events },
            LoopEvent::Created { task } => What::Created(self.task(task)),
            LoopEvent::Woken { task } => What::Woken(self.task(task)),
            LoopEvent::StepStarted { task } => What::StepStarted(self.task(task)),
            LoopEvent::Suspended { task, on } => What::Suspended { task: self.renamed(task), on: on.clone() },
            LoopEvent::Finished { task, outcome } => What::Finished { task: self.renamed(task), outcome: *outcome },
            LoopEvent::StepEnded { task } => What::StepEnded(self.ended(task)),
            LoopEvent::CancelRequested { task } => What::CancelRequested(self.task(task)),
            LoopEvent::FutureSet { cancelled } => What::FutureSet { cancelled: *cancelled },
            LoopEvent::TimerArmed { due, callback } => {
                What::TimerArmed { due: *due, callback: callback.map(|callback| self.queued(callback)) }
            }
            LoopEvent::TimerFired { task } => What::TimerFired { task: task.map(|task| self.task(task)) },
            LoopEvent::CallbackQueued { callback } => What::CallbackQueued(self.queued(*callback)),
            LoopEvent::CallbackStarted { callback } => What::CallbackStarted(self.callback(*callback)),
            LoopEvent::CallbackFinished { callback } => What::CallbackFinished(self.callback(*callback)),
            LoopEvent::Note { text } => What::Note((*text).into()),
            LoopEvent::Slow { task, took } => What::Slow { task: task.map(|task| self.task(task)), took: *took },
        }
    }

    fn task(&mut self, task: &Task) -> TracedTask {
        let fresh = || TracedTask {
            info: Rc::new(TaskInfo { id: task.id(), name: RefCell::new(task.name()), location: task.location() }),
        };
        self.tasks.entry(task.id()).or_insert_with(fresh).clone()
    }

    /// The task after code of its own has run, which may have given it another name.
    fn renamed(&mut self, task: &Task) -> TracedTask {
        let traced = self.task(task);
        *traced.info.name.borrow_mut() = task.name();
        traced
    }

    /// The task of a step that is over. It may have left the table, but it is still the one that runs.
    fn ended(&mut self, task: &Task) -> TracedTask {
        match self.running.last() {
            Some(Actor::Task(running)) if running.id() == task.id() => running.clone(),
            _ => self.task(task),
        }
    }

    fn queued(&mut self, callback: CallbackRef) -> TracedCallback {
        self.callbacks_seen += 1;
        let queued_by = match self.running.last() {
            Some(Actor::Task(task)) => Some(task.clone()),
            _ => None,
        };
        let info = CallbackInfo { number: self.callbacks_seen, location: callback.location, queued_by };
        let traced = TracedCallback { info: Rc::new(info) };
        self.callbacks.insert(callback.key, traced.clone());
        traced
    }

    fn callback(&mut self, callback: CallbackRef) -> TracedCallback {
        match self.callbacks.get(&callback.key) {
            Some(known) => known.clone(),
            // A descriptor's callback is queued by the selector, not by a task.
            None => self.queued(callback),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_say_the_same_on_every_machine() {
        assert_eq!(short_path("crates/tidegate-loop/src/combine/wait.rs"), "tidegate-loop/src/combine/wait.rs");
        assert_eq!(short_path("src/main.rs"), "src/main.rs");
        assert_eq!(short_path("/home/me/.cargo/registry/src/index-1/pool-0.1.0/src/lib.rs"), "pool-0.1.0/src/lib.rs");
        assert_eq!(short_path("/home/me/app/tests/it.rs"), "app/tests/it.rs");
        assert_eq!(short_path("/home/me/build.rs"), "build.rs");
    }

    #[test]
    fn times_have_a_unit_and_no_trailing_zeros() {
        let span = |nanos| Span(Duration::from_nanos(nanos)).to_string();
        assert_eq!(span(0), "0 s");
        assert_eq!(span(999), "999 ns");
        assert_eq!(span(1_500), "1.5 µs");
        assert_eq!(span(250_000_000), "250 ms");
        assert_eq!(span(2_000_000_000), "2 s");
        assert_eq!(span(1_000_000_001), "1.000000001 s");
    }
}
