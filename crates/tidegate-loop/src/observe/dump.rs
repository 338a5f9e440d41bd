//! A task dump: every task of a loop, what it does or waits for, since when, and where it came from.

use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Kernel;
use crate::observe::{WaitsFor, waits_for};
use crate::runtime::event_loop::LoopHandle;
use crate::signal::SignalKind;
use crate::task::TaskId;
use crate::task::raw::Header;

/// Every task of a loop at one moment. Prints as a table.
///
/// ```
/// use tidegate_loop::{run, sleep, yield_now, Duration, LoopHandle};
/// run(async {
///     let handle = LoopHandle::current();
///     let _sleeper = handle.task().name("sleeper").spawn(sleep(Duration::from_secs(60)));
///     yield_now().await;
///     let dump = handle.dump();
///     assert_eq!(dump.tasks().len(), 2);
///     assert!(dump.to_string().contains("sleeper"));
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct TaskDump {
    tasks: Vec<TaskEntry>,
}

/// One task of a [`TaskDump`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskEntry {
    /// Its number.
    pub id: TaskId,
    /// Its name.
    pub name: Arc<str>,
    /// What it does.
    pub state: TaskState,
    /// How long it has been waiting; zero for what does not wait.
    pub waited: Duration,
    /// Cancellation requests not taken back.
    pub cancelling: u32,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
}

/// What a task does at the moment of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// It is the one that runs.
    Running,
    /// It is in the ready queue.
    Ready,
    /// It waits.
    Waiting(WaitsFor),
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskState::Running => f.write_str("running"),
            TaskState::Ready => f.write_str("ready"),
            TaskState::Waiting(on) => write!(f, "waits for {on}"),
        }
    }
}

impl TaskDump {
    /// The tasks, oldest first.
    pub fn tasks(&self) -> &[TaskEntry] {
        &self.tasks
    }
}

/// Longer names are not cut, but what follows them is not aligned. A width that exceeds 65,535 panics.
const NAME_WIDTH_MAX: usize = 80;

impl fmt::Display for TaskDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} task{}", self.tasks.len(), if self.tasks.len() == 1 { "" } else { "s" })?;
        let name_width = self.tasks.iter().map(|task| task.name.chars().count()).max().unwrap_or(0).min(NAME_WIDTH_MAX);
        let states: Vec<String> = self.tasks.iter().map(|task| task.state.to_string()).collect();
        let state_width = states.iter().map(|state| state.chars().count()).max().unwrap_or(0);
        for (task, state) in self.tasks.iter().zip(&states) {
            let waited = match task.state {
                TaskState::Waiting(_) => format!("for {:.3} s", task.waited.as_secs_f64()),
                _ => String::new(),
            };
            write!(f, "  {:name_width$}  {state:state_width$}  {waited:>14}  {}", task.name, task.location)?;
            match task.cancelling {
                0 => writeln!(f)?,
                requests => writeln!(f, "  (cancelling: {requests})")?,
            }
        }
        Ok(())
    }
}

impl Kernel {
    pub(crate) fn dump(&self) -> TaskDump {
        let now = self.clock.now();
        let tasks = self.all_tasks();
        // A task does not know its descriptor, but a descriptor knows its tasks. The table is lent only while something is
        // registered, which runs no foreign code; but a dump must never be what fails.
        let descriptors = self.io.try_borrow().map(|io| io.waits()).unwrap_or_default();
        let tasks = tasks.iter().map(|task| {
            let header: &Header = task;
            let state = if self.is_running(header) {
                TaskState::Running
            } else if self.is_queued(header.name) {
                TaskState::Ready
            } else {
                TaskState::Waiting(match waits_for(self, task) {
                    WaitsFor::Elsewhere => descriptors.describe(header.name).map_or(WaitsFor::Elsewhere, WaitsFor::Io),
                    known => known,
                })
            };
            let waits = matches!(state, TaskState::Waiting(_));
            TaskEntry {
                id: crate::task::id_of(header),
                name: header.display_name(),
                state,
                waited: Duration::from_nanos(if waits { (now - header.since.get()).max(0) as u64 } else { 0 }),
                cancelling: u32::from(header.cancels.get()),
                location: header.location,
            }
        });
        TaskDump { tasks: tasks.collect() }
    }
}

impl LoopHandle {
    /// Every task, what it waits for and since when.
    ///
    /// ```
    /// println!("{}", tidegate_loop::EventLoop::new().unwrap().dump());
    /// ```
    pub fn dump(&self) -> TaskDump {
        self.kernel.dump()
    }

    /// Calls `sink` with a dump every time the process gets `signal` (10 is SIGUSR1), for as long as the loop is open.
    /// Several at once make one. When the loop is closed the signal is ignored: one that is sent late must not end the process.
    ///
    /// # Errors
    /// When the signal cannot be handled (SIGKILL, SIGSTOP, …) or is none; when the loop is closed.
    ///
    /// ```
    /// const SIGUSR1: i32 = 10;
    /// let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// event_loop.dump_on_signal(SIGUSR1, |dump| eprintln!("{dump}")).unwrap();
    /// ```
    #[track_caller]
    pub fn dump_on_signal(&self, signal: i32, sink: impl Fn(&TaskDump) + 'static) -> io::Result<()> {
        let weak = self.kernel.weak();
        let dump = move || {
            if let Some(kernel) = weak.upgrade() {
                sink(&kernel.dump());
            }
        };
        self.kernel.watch_signal(SignalKind::from_raw(signal), dump, Location::caller())
    }
}
