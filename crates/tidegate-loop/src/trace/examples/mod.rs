//! Small programs worth watching: what a sleep does, what awaiting a task, a coroutine and a future does, and two
//! tasks side by side. Each is a file of its own, shown beside its trace.

mod await_coro;
mod await_future;
mod await_task;
mod sleep;
mod timeline;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{Recorder, Trace};
use crate::runtime::error::RunError;
use crate::runtime::event_loop::{EventLoop, LoopHandle};
use crate::runtime::runner::Runner;
use crate::task::Task;

/// One of the programs.
///
/// ```
/// use tidegate_loop::trace::examples;
/// let example = examples::find("await-task").unwrap();
/// let trace = example.record(&Default::default()).unwrap();
/// println!("{}", trace.to_text());
/// ```
pub struct Example {
    /// How it is called.
    pub name: &'static str,
    /// What it shows, in a line.
    pub summary: &'static str,
    file: &'static str,
    main: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

/// How an example is run. By default as asyncio would: one poll a tick, first come, first served.
///
/// ```
/// use tidegate_loop::trace::examples::{self, Setting};
/// let setting = Setting { seed: Some(7), ..Setting::default() };
/// let timeline = examples::find("timeline").unwrap();
/// assert_eq!(
///     timeline.record(&setting).unwrap().to_text(),
///     timeline.record(&setting).unwrap().to_text(),
/// );
/// ```
#[derive(Debug, Clone)]
pub struct Setting {
    /// Draws the order of equally ready tasks.
    pub seed: Option<u64>,
    /// One poll a tick.
    pub strict: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Setting { seed: None, strict: true }
    }
}

/// Every example, the simplest first.
///
/// ```
/// assert_eq!(tidegate_loop::trace::examples::ALL.len(), 5);
/// ```
pub static ALL: &[Example] = &[
    Example {
        name: "sleep",
        summary: "a task sleeps; its timer fires in one tick, it goes on in the next",
        file: include_str!("sleep.rs"),
        main: || Box::pin(sleep::main()),
    },
    Example {
        name: "await-task",
        summary: "main awaits a task and goes on one tick after it has ended",
        file: include_str!("await_task.rs"),
        main: || Box::pin(await_task::main()),
    },
    Example {
        name: "await-coro",
        summary: "awaiting a coroutine is a call; only the task inside takes turns",
        file: include_str!("await_coro.rs"),
        main: || Box::pin(await_coro::main()),
    },
    Example {
        name: "await-future",
        summary: "main awaits a future that another task sets",
        file: include_str!("await_future.rs"),
        main: || Box::pin(await_future::main()),
    },
    Example {
        name: "timeline",
        summary: "two tasks sleep for 1 s and 2 s side by side; main waits for both",
        file: include_str!("timeline.rs"),
        main: || Box::pin(timeline::main()),
    },
];

/// The example of that name.
///
/// ```
/// assert!(tidegate_loop::trace::examples::find("sleep").is_some());
/// ```
#[must_use]
pub fn find(name: &str) -> Option<&'static Example> {
    ALL.iter().find(|example| example.name == name)
}

impl Example {
    /// Its source, as a program outside of this crate would write it.
    ///
    /// ```
    /// # use tidegate_loop::trace::examples;
    /// assert!(examples::find("sleep").unwrap().source().contains("use tidegate_loop::"));
    /// ```
    #[must_use]
    pub fn source(&self) -> String {
        self.file
            .replace("use super::say;\n", "")
            .replace("use crate::", "use tidegate_loop::")
            .replace("pub(super) async fn", "async fn")
    }

    /// Runs it in virtual time, from the first tick to the closed loop, and returns what happened.
    ///
    /// # Errors
    /// When no loop can be made.
    ///
    /// ```
    /// # use tidegate_loop::trace::examples;
    /// let trace = examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// assert_eq!(trace.records().last().unwrap().at.as_secs(), 1);
    /// ```
    pub fn record(&self, setting: &Setting) -> Result<Trace, RunError> {
        let mut builder = EventLoop::builder().virtual_time().strict(setting.strict);
        if let Some(seed) = setting.seed {
            builder = builder.simulated(seed);
        }
        let recorder = Recorder::new();
        let runner = Runner::new(builder.build().map_err(RunError::Setup)?);
        runner.event_loop().set_observer(recorder.clone());
        let main = (self.main)();
        runner.run(async move {
            Task::current().set_name("main");
            main.await;
        })?;
        drop(runner);
        Ok(recorder.trace().titled(&format!("{}: {}", self.name, self.summary)).with_program(&self.source()))
    }
}

impl fmt::Debug for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Example").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Prints into the trace.
fn say(text: impl fmt::Display) {
    LoopHandle::current().note(&text.to_string());
}
