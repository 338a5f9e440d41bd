//! Reports of errors that no code fetches.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// What a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportKind {
    /// A callback panicked.
    CallbackPanic,
    /// A task panicked, and its last handle was dropped before the panic was fetched.
    UnseenPanic,
    /// A task or future failed, and its last handle was dropped before the error was fetched.
    UnseenError,
    /// A task returned a `Result`, and it was dropped: a cancellation of the task was pending, or its run was
    /// interrupted. The message is its type. With [`spawn_fallible`](crate::spawn_fallible) an `Err` is kept.
    LostResult,
    /// Debug mode: a step took longer than the threshold.
    Slow,
    /// A runner was dropped, and its clean-up ended early; [`Runner::close`](crate::Runner::close) returns this as an
    /// error.
    CleanupCut,
    /// A runner has closed its loop while a job still ran in a thread.
    ThreadLeft,
}

/// An error that no code fetched, for the loop's exception handler.
///
/// ```
/// use std::{cell::RefCell, rc::Rc};
/// use tidegate_loop::{EventLoop, ReportKind};
/// # std::panic::set_hook(Box::new(|_| ()));
///
/// let event_loop = EventLoop::new().unwrap();
/// let seen = Rc::new(RefCell::new(Vec::new()));
/// let sink = seen.clone();
/// event_loop.set_exception_handler(move |report| sink.borrow_mut().push((report.kind(), report.message().to_owned())));
/// event_loop.call_soon(|| panic!("boom"));
/// event_loop.stop();
/// event_loop.run_forever().unwrap();
/// assert_eq!(*seen.borrow(), [(ReportKind::CallbackPanic, "boom".to_owned())]);
/// ```
#[derive(Debug, Clone)]
pub struct Report {
    pub(crate) kind: ReportKind,
    pub(crate) message: String,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) location: Option<&'static Location<'static>>,
    pub(crate) took: Option<Duration>,
}

impl Report {
    /// What it is about.
    pub fn kind(&self) -> ReportKind {
        self.kind
    }

    /// The error's or panic's own words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The name of the task, where it is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Where the task was spawned or the callback was queued.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.location
    }

    /// How long the step took, where one was too slow.
    pub fn took(&self) -> Option<Duration> {
        self.took
    }

    /// Logs it, as happens without a handler: a handler does so with what it does not care for. To the `log` crate's logger, or to standard error where there is none, because
    /// an error that is not shown is worse than a line too many.
    pub fn log(&self) {
        if log::max_level() == log::LevelFilter::Off {
            eprintln!("tidegate: {self}");
        } else if self.kind == ReportKind::Slow {
            log::warn!("{self}");
        } else {
            log::error!("{self}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.name.as_deref();
        match (self.kind, who) {
            (ReportKind::CallbackPanic, _) => write!(f, "a callback panicked: {}", self.message)?,
            (ReportKind::UnseenPanic, Some(name)) => {
                write!(f, "{name} panicked and its result was never fetched: {}", self.message)?;
            }
            (ReportKind::UnseenPanic, None) => write!(f, "a panic that was never fetched: {}", self.message)?,
            (ReportKind::UnseenError, Some(name)) => {
                write!(f, "{name} failed and its error was never fetched: {}", self.message)?;
            }
            (ReportKind::UnseenError, None) => {
                write!(f, "a future's error was never fetched: {}", self.message)?;
            }
            (ReportKind::LostResult, name) => {
                let name = name.unwrap_or("a task");
                write!(
                    f,
                    "{name} was cancelled or interrupted as it returned, and its `{}` was dropped",
                    self.message
                )?;
            }
            (ReportKind::CleanupCut, _) => {
                write!(f, "tasks were left when the loop closed, because the clean-up ended early: {}", self.message)?;
            }
            (ReportKind::Slow, Some(name)) => write!(f, "{name} blocked the loop: {}", self.message)?,
            (ReportKind::ThreadLeft, name) => {
                write!(f, "the loop was closed while the job `{}` ran: {}", name.unwrap_or_default(), self.message)?;
            }
            (ReportKind::Slow, None) => write!(f, "a callback blocked the loop: {}", self.message)?,
        }
        match self.location {
            Some(location) => write!(f, " (from {location})"),
            None => Ok(()),
        }
    }
}

/// The words of a panic's payload.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(a panic without a message)".to_owned()
    }
}
