//! What the tests share: a transcript, loops, ticks, and an observer that writes down its events.

#![allow(dead_code, reason = "several test targets include this file, and none uses all of it")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::{Future as StdFuture, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use tidegate_loop::{Duration, EventLoop, LoopEvent, LoopHandle, Observer, Report, ReportKind};

/// What happened, in order. Shared by cloning.
#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn new() -> Log {
        Log::default()
    }

    pub(crate) fn say(&self, line: impl Display) {
        self.0.borrow_mut().push(line.to_string());
    }

    /// The line behind the number of the tick it was said in.
    pub(crate) fn tick(&self, line: impl Display) {
        self.say(format_args!("{} {line}", tick()));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    #[track_caller]
    pub(crate) fn expect<const N: usize>(&self, lines: [&str; N]) {
        assert_eq!(*self.0.borrow(), lines);
    }

    /// A callback that says its line and the tick.
    pub(crate) fn teller(&self, line: &'static str) -> impl FnOnce() + 'static {
        let log = self.clone();
        move || log.tick(line)
    }

    /// Says its line when it is dropped.
    pub(crate) fn guard(&self, line: impl Display) -> Guard {
        Guard { log: self.clone(), line: line.to_string() }
    }
}

pub(crate) struct Guard {
    log: Log,
    line: String,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.log.say(&self.line);
    }
}

/// Counts how many of its clones are alive.
#[derive(Default)]
pub(crate) struct Alive(Rc<Cell<usize>>);

impl Alive {
    pub(crate) fn new() -> Alive {
        let alive = Alive::default();
        alive.0.set(1);
        alive
    }

    /// Those beside the one asked.
    pub(crate) fn others(&self) -> usize {
        self.0.get() - 1
    }
}

impl Clone for Alive {
    fn clone(&self) -> Alive {
        self.0.set(self.0.get() + 1);
        Alive(self.0.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Strict mode, virtual time.
pub(crate) fn strict() -> EventLoop {
    EventLoop::builder().strict(true).virtual_time().build().unwrap()
}

/// Strict mode, real time.
pub(crate) fn strict_real() -> EventLoop {
    EventLoop::builder().strict(true).build().unwrap()
}

pub(crate) fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The number of the tick that is running, counted from 1.
pub(crate) fn tick() -> u64 {
    LoopHandle::current().metrics().ticks
}

/// Exactly one tick.
pub(crate) fn one_tick(event_loop: &EventLoop) {
    event_loop.stop();
    event_loop.run_forever().unwrap();
}

/// Runs `future` to its end on a strict loop in virtual time.
#[track_caller]
pub(crate) fn run_strict<F: StdFuture + 'static>(future: F) -> F::Output {
    strict().run_until_complete(future).unwrap()
}

/// The reports of a loop, kept.
#[derive(Clone, Default)]
pub(crate) struct Reports(Rc<RefCell<Vec<Report>>>);

impl Reports {
    pub(crate) fn of(event_loop: &LoopHandle) -> Reports {
        let reports = Reports::default();
        let sink = reports.clone();
        event_loop.set_exception_handler(move |report| sink.0.borrow_mut().push(report.clone()));
        reports
    }

    pub(crate) fn all(&self) -> Vec<Report> {
        self.0.borrow().clone()
    }

    #[track_caller]
    pub(crate) fn expect<const N: usize>(&self, expected: [(ReportKind, &str); N]) {
        let reports = self.0.borrow();
        let found: Vec<_> = reports.iter().map(|report| (report.kind(), report.message())).collect();
        assert_eq!(found, expected);
    }
}

/// Calls its function with every event.
pub(crate) struct Tap<F>(pub(crate) F);

impl<F: FnMut(Duration, &LoopEvent<'_>)> Observer for Tap<F> {
    fn observe(&mut self, at: Duration, event: &LoopEvent<'_>) {
        (self.0)(at, event);
    }
}

/// The message of the panic that `f` ends in.
#[track_caller]
pub(crate) fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(_) => panic!("expected a panic"),
        Err(panic) => message_of(&*panic),
    }
}

pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "(no message)".to_owned(),
    }
}

/// A flag that can be awaited and that the loop knows nothing of: a stand-in for channels, locks and sockets.
#[derive(Clone, Default)]
pub(crate) struct Foreign(Rc<(Cell<bool>, Cell<Option<Waker>>)>);

impl Foreign {
    pub(crate) fn new() -> Foreign {
        Foreign::default()
    }

    pub(crate) fn set(&self) {
        self.0.0.set(true);
        if let Some(waker) = self.0.1.take() {
            waker.wake();
        }
    }

    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            if self.0.0.get() {
                return Poll::Ready(());
            }
            self.0.1.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Whichever is ready first, polled in this order; the other is dropped. What `select!` makes.
pub(crate) async fn select<A: StdFuture, B: StdFuture>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        if let Poll::Ready(output) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
