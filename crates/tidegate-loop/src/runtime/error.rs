//! The ways in which running a loop can end other than with a result, named by the caller's next move.

use std::fmt;

use crate::observe::dump::TaskDump;
use crate::threads::StillRunning;

/// Why `run_until_complete`, `run_forever` or `run` did not bring a result.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// `stop()` was called before the future was done. It is still there and goes on when the loop runs again.
    Stopped,
    /// The main task was cancelled.
    Cancelled,
    /// The loop is closed; make a new one.
    Closed,
    /// A loop is running on this thread already: await or spawn instead of running another.
    Nested,
    /// Virtual time only: nothing is ready and nothing ever will be. The dump lists what each task waits for.
    Stalled(TaskDump),
    /// Code inside called [`interrupt`]. What was ready runs the next time.
    Interrupted(Interrupt),
    /// Ctrl-C (SIGINT): the main task was cancelled and has cleaned up. A program usually exits with 130 now.
    CtrlC,
    /// The loop could not be made.
    Setup(std::io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Stopped => f.write_str("the loop was stopped before the future was done; run it again to go on"),
            RunError::Cancelled => f.write_str("the main task was cancelled"),
            RunError::Closed => f.write_str("the loop is closed; make a new one"),
            RunError::Nested => {
                f.write_str("a loop is running on this thread already; await or spawn instead of running another")
            }
            RunError::Stalled(dump) => {
                write!(f, "nothing is ready, no timer is armed and time is virtual: this would wait for ever\n{dump}")
            }
            RunError::Interrupted(interrupt) => write!(f, "interrupted: {}", interrupt.reason),
            RunError::CtrlC => f.write_str("interrupted by Ctrl-C"),
            RunError::Setup(error) => write!(f, "the loop could not be made: {error}"),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::Setup(error) => Some(error),
            _ => None,
        }
    }
}

/// Why [`Runner::close`](crate::Runner::close) did not end in order.
///
/// ```
/// use tidegate_loop::{CleanupError, EventLoop, Runner, catch_cancel, interrupt, spawn, yield_now};
/// let runner = Runner::new(EventLoop::simulated(1));
/// runner
///     .run(async {
///         drop(spawn(async {
///             let _ = catch_cancel(std::future::pending::<()>()).await;
///             interrupt("enough");
///         }));
///         yield_now().await;
///     })
///     .unwrap();
/// assert!(matches!(runner.close(), Err(CleanupError::EndedEarly(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum CleanupError {
    /// The tasks that were left had not all ended: one called [`interrupt`] or `stop`, or nothing could go on in virtual
    /// time. They were dropped with the loop.
    EndedEarly(RunError),
    /// Jobs still ran in the loop's threads when the limit was over.
    StillRunning(StillRunning),
}

impl fmt::Display for CleanupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CleanupError::EndedEarly(error) => write!(f, "the clean-up ended early: {error}"),
            CleanupError::StillRunning(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CleanupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CleanupError::EndedEarly(error) => Some(error),
            CleanupError::StillRunning(error) => Some(error),
        }
    }
}

/// What [`interrupt`] carries out of the loop.
#[derive(Debug)]
pub struct Interrupt {
    reason: String,
}

impl Interrupt {
    /// What was given as the reason.
    ///
    /// ```
    /// use tidegate_loop::{interrupt, run, RunError};
    /// match run(async { interrupt("ctrl-c") }) {
    ///     Err(RunError::Interrupted(interrupt)) => assert_eq!(interrupt.reason(), "ctrl-c"),
    ///     _ => unreachable!(),
    /// }
    /// ```
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Leaves the loop from wherever it is called, inside a task or a callback: that step unwinds, `run` returns
/// [`RunError::Interrupted`], and what else was ready runs the next time. The task it is called in ends as cancelled.
///
/// ```
/// use tidegate_loop::{EventLoop, RunError, interrupt};
///
/// let event_loop = EventLoop::new().unwrap();
/// event_loop.call_soon(|| interrupt("enough"));
/// assert!(matches!(event_loop.run_forever(), Err(RunError::Interrupted(_))));
/// ```
pub fn interrupt(reason: impl Into<String>) -> ! {
    // Resumed rather than raised: this is no panic, and the panic hook has nothing to say about it.
    std::panic::resume_unwind(Box::new(Interrupt { reason: reason.into() }))
}

/// Why a loop could not be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// It is running: stop it first, close it when `run` has returned.
    Running,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the loop is running; stop it, and close it when run has returned")
    }
}

impl std::error::Error for CloseError {}

/// The loop a remote call was meant for is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopClosed;

impl fmt::Display for LoopClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the loop is closed")
    }
}

impl std::error::Error for LoopClosed {}
