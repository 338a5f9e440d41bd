//! The command line as text: which command, and its arguments.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::command::{completions, provider, trace};
use crate::command::{completions, explain, rebuild, trace};
use crate::command::{completions, enqueue, provider, queue, result, revoke, trace};

/// An event loop you can see into, and what is built on it.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, disable_help_subcommand = true)]
#[command(
    after_help = "Try it:\n  tidegate explain samples/\n  tidegate trace timeline\n  tidegate trace timeline --format html --out timeline.html\n\n\
                  Every option can also stand in tidegate.toml (at the top for all commands, below [COMMAND] for one) or in \
                  the environment: --rpm is TIDEGATE_RPM. The command line counts first, then the environment, then the \
                  file.\n\nExit codes: 0 done, 1 some items failed, 2 could not run."
)]
pub(crate) struct Args {
    /// Read options from this file instead of ./tidegate.toml or the one in your configuration directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Enqueue(enqueue::Args),
    Queue(queue::Args),
    Result(result::Args),
    Revoke(revoke::Args),
    Provider(provider::Args),
    Explain(explain::Args),
    Rebuild(rebuild::Args),
    Trace(trace::Args),
    Completions(completions::Args),
}
