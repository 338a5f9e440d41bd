//! The commands, one file each.

pub(crate) mod batch;
mod bound;
pub(crate) mod completions;
mod dashboard;
pub(crate) mod enqueue;
#[cfg(feature = "pdf")]
pub(crate) mod explain;
#[cfg(feature = "pdf")]
mod explain_away;
pub(crate) mod limits;
pub(crate) mod plan;
mod plan_chart;
#[cfg(feature = "pdf")]
mod plan_pdf;
pub(crate) mod provider;
pub(crate) mod queue;
#[cfg(feature = "pdf")]
pub(crate) mod rebuild;
pub(crate) mod result;
pub(crate) mod revoke;
#[cfg(feature = "pdf")]
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod status;
pub(crate) mod trace;
#[cfg(not(feature = "pdf"))]
pub(crate) mod without_pdf;
pub(crate) mod worker;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use anyhow::anyhow;
use tidegate_loop::RunError;
use tidegate_loop::signal::SignalKind;

use crate::args::Command;
#[cfg(not(feature = "pdf"))]
pub(crate) use {without_pdf as explain, without_pdf as plan_pdf, without_pdf as rebuild, without_pdf as serve};

/// The queue that `explain --broker` publishes to and `worker --handler explain` takes from, unless another is named.
pub(crate) const EXPLAIN_QUEUE: &str = "explain";

/// How a command that could run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    All,
    SomeFailed,
    /// A signal stopped it before its end.
    Stopped {
        exit_code: u8,
    },
}

/// Ctrl-C came before, or where, a command has no end of its own for it.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Runs `future` on a loop of its own.
pub(crate) fn run_on_loop<T: 'static>(future: impl Future<Output = T> + 'static) -> anyhow::Result<T> {
    tidegate_loop::run(future).map_err(|error| match error {
        RunError::CtrlC => Interrupted.into(),
        error => anyhow!("{error}"),
    })
}

/// The signal that stopped a run, if one did. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSignal(Rc<Cell<Option<SignalKind>>>);

impl StopSignal {
    /// Records that `kind` was received. The first signal counts.
    pub(crate) fn received(&self, kind: SignalKind) {
        self.0.set(self.0.get().or(Some(kind)));
    }

    /// Returns the exit code that shells expect: 128 and the signal's number; `None` without a signal.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        self.0.get().and_then(|kind| u8::try_from(128 + kind.as_raw()).ok())
    }

    /// Ends the process at once.
    pub(crate) fn exit(&self) -> ! {
        std::process::exit(self.exit_code().map_or(1, i32::from))
    }
}

pub(crate) fn run(command: Command) -> anyhow::Result<Done> {
    match command {
        Command::Explain(args) => explain::run(*args),
        Command::Rebuild(args) => rebuild::run(args),
        Command::Batch(args) => batch::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Plan(args) => plan::run(args),
        Command::Provider(args) => provider::run(args).map(|()| Done::All),
        Command::Worker(args) => worker::run(*args),
        Command::Enqueue(args) => enqueue::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Result(args) => result::run(&args),
        Command::Revoke(args) => revoke::run(&args),
        Command::Trace(args) => trace::run(args).map(|()| Done::All),
        Command::Completions(args) => completions::run(&args).map(|()| Done::All),
    }
}

/// Returns a number of pages in words.
#[cfg(feature = "pdf")]
fn pages(count: usize) -> String {
    if count == 1 { "1 page".into() } else { format!("{count} pages") }
}
