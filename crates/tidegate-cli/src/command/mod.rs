//! The commands, one file each.

pub(crate) mod batch;
pub(crate) mod completions;
pub(crate) mod enqueue;
pub(crate) mod explain;
mod explain_away;
pub(crate) mod limits;
pub(crate) mod plan;
mod plan_chart;
pub(crate) mod provider;
pub(crate) mod queue;
pub(crate) mod rebuild;
pub(crate) mod result;
pub(crate) mod revoke;
pub(crate) mod server;
pub(crate) mod trace;
pub(crate) mod worker;

use crate::args::Command;

/// How a command that could run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    All,
    SomeFailed,
}

pub(crate) fn run(command: Command) -> anyhow::Result<Done> {
    match command {
        Command::Explain(args) => explain::run(*args),
        Command::Rebuild(args) => rebuild::run(args),
        Command::Batch(args) => batch::run(args),
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

/// So many pages, in words.
fn pages(count: usize) -> String {
    if count == 1 { "1 page".into() } else { format!("{count} pages") }
}
