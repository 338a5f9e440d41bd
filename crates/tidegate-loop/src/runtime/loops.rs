//! Several loops, one a thread: for servers that share a port, and whatever else has no state in common.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::runtime::error::RunError;
use crate::runtime::event_loop::{EventLoop, LoopHandle};
use crate::runtime::on_loop::OnLoop;
use crate::runtime::remote::RemoteHandle;
use crate::runtime::runner::{Runner, is_main_thread};
use crate::signal;
use crate::task::{Panic, Task};

/// Runs `count` loops, each in a thread of its own with the future that `main` makes there for its index, and returns
/// when all have ended, with what came of each.
///
/// A loop that returns leaves the others running. One that panics or cannot be made stops them in order: their main
/// tasks are cancelled, clean up, and end as [`LoopError::Stopped`]. So does Ctrl-C, for all of them, when this is called
/// on the main thread; a second one ends the process at once, see [`Runner`].
///
/// Servers bind the same address in each loop, with
/// [`reuse_port`](crate::net::TcpOptions::reuse_port); the system spreads the connections.
///
/// # Panics
/// Inside of a running loop, which it would block.
///
/// ```
/// use tidegate_loop::{Duration, run_loops, sleep};
/// let squares = run_loops(3, |index| async move {
///     sleep(Duration::from_millis(1)).await;
///     index * index
/// });
/// let squares: Vec<usize> = squares.into_iter().map(Result::unwrap).collect();
/// assert_eq!(squares, [0, 1, 4]);
/// ```
pub fn run_loops<F, M, T>(count: usize, main: M) -> Vec<Result<T, LoopError>>
where
    M: Fn(usize) -> F + Sync,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    assert!(
        LoopHandle::try_current().is_none(),
        "run_loops would block the loop that runs here; call it outside, or in to_thread"
    );
    let ctrl_c = is_main_thread();
    // Held from before the first loop begins until the last has ended: a press in between is for all of them.
    let _interrupts = ctrl_c.then(signal::hold_interrupts);
    let stops = Arc::new(Stops::default());
    thread::scope(|scope| {
        let start = |index: usize| {
            let (main, stops) = (&main, &stops);
            thread::Builder::new()
                .name(format!("tidegate-loop-{index}"))
                .spawn_scoped(scope, move || run_one(index, ctrl_c, main, stops))
                .map_err(|error| {
                    stops.stop();
                    LoopError::Setup(error)
                })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        let end = |thread: Result<thread::ScopedJoinHandle<'_, _>, LoopError>| {
            thread?.join().unwrap_or_else(|panic| Err(LoopError::Panicked(Panic::new(panic))))
        };
        threads.into_iter().map(end).collect()
    })
}

fn run_one<F, M, T>(index: usize, ctrl_c: bool, main: &M, stops: &Arc<Stops>) -> Result<T, LoopError>
where
    M: Fn(usize) -> F,
    F: Future<Output = T> + 'static,
    T: 'static,
{
    let ran = EventLoop::new().map_err(LoopError::Setup).and_then(|event_loop| {
        // Dropped, and thereby cleaned up, when the others know already.
        let runner = Runner::new(event_loop).ctrl_c(ctrl_c);
        let registry = stops.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let future = main(index);
            runner.run(async move {
                registry.add(LoopHandle::current().remote(), OnLoop::new(Task::current()));
                future.await
            })
        }));
        let result = match outcome {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(RunError::CtrlC)) => Err(LoopError::CtrlC),
            Ok(Err(RunError::Cancelled)) if stops.lock().stopped => Err(LoopError::Stopped),
            Ok(Err(error)) => Err(LoopError::Ended(error)),
            Err(panic) => Err(LoopError::Panicked(Panic::new(panic))),
        };
        if matches!(result, Err(LoopError::Panicked(_))) {
            stops.stop();
        }
        result
    });
    if matches!(ran, Err(LoopError::Setup(_))) {
        stops.stop();
    }
    ran
}

/// How the loops are stopped when one of them fails.
#[derive(Default)]
struct Stops {
    inner: Mutex<StopsInner>,
}

#[derive(Default)]
struct StopsInner {
    stopped: bool,
    mains: Vec<(RemoteHandle, OnLoop<Task>)>,
}

impl Stops {
    fn lock(&self) -> MutexGuard<'_, StopsInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop has begun; if it is too late for that it is stopped at once.
    fn add(&self, remote: RemoteHandle, main: OnLoop<Task>) {
        let late = {
            let mut inner = self.lock();
            if !inner.stopped {
                inner.mains.push((remote, main));
                return;
            }
            main
        };
        let _ = late.with(Task::cancel);
    }

    fn stop(&self) {
        let mains = {
            let mut inner = self.lock();
            inner.stopped = true;
            std::mem::take(&mut inner.mains)
        };
        for (remote, main) in mains {
            // Refused: it has ended already.
            let _ = remote.call_soon_threadsafe(move || {
                let _ = main.with(Task::cancel);
            });
        }
    }
}

/// Why one of several loops brought no result.
///
/// ```
/// use tidegate_loop::{LoopError, run_loops};
/// # std::panic::set_hook(Box::new(|_| ()));
/// let ends = run_loops(2, |index| async move {
///     match index {
///         0 => panic!("out of paper"),
///         _ => std::future::pending::<()>().await,
///     }
/// });
/// assert_eq!(ends[0].as_ref().unwrap_err().to_string(), "the loop's main task panicked: out of paper");
/// assert!(matches!(ends[1], Err(LoopError::Stopped)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopError {
    /// Ctrl-C ended it, in order.
    CtrlC,
    /// Another loop failed; this one was ended for it, in order.
    Stopped,
    /// Its main task panicked.
    Panicked(Panic),
    /// The thread or the loop could not be made.
    Setup(io::Error),
    /// It ended in another way.
    Ended(RunError),
}

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoopError::CtrlC => f.write_str("interrupted by Ctrl-C"),
            LoopError::Stopped => f.write_str("stopped, because another loop failed"),
            LoopError::Panicked(panic) => write!(f, "the loop's main task panicked: {panic}"),
            LoopError::Setup(error) => write!(f, "the loop could not be made: {error}"),
            LoopError::Ended(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoopError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoopError::Setup(error) => Some(error),
            LoopError::Ended(error) => Some(error),
            _ => None,
        }
    }
}
