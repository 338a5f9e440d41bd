//! The command line as text: which command, and its arguments.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::command;

/// `tidegate --version`; `-V` is its first line. Commit, target and features are `build.rs`'s.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit   ",
    env!("TIDEGATE_COMMIT"),
    "\ntarget   ",
    env!("TIDEGATE_TARGET"),
    "\nfeatures ",
    env!("TIDEGATE_FEATURES"),
);

const TRY_FIRST: &str =
    if cfg!(feature = "pdf") { "tidegate explain samples/" } else { "tidegate plan --requests 1000 --rpm 100" };

/// Run large LLM batches and background tasks at full speed, within rate limits, without losing work or paying twice
#[derive(Debug, Parser)]
#[command(name = "tidegate", bin_name = "tidegate", version, long_version = LONG_VERSION, disable_help_subcommand = true)]
#[command(
    after_help = format!("Try it:\n  {TRY_FIRST}\n  tidegate trace timeline\n  tidegate trace timeline --format html --out timeline.html\n\n\
                  Every option can also stand in the environment (--rpm is TIDEGATE_RPM) or in \
                  ~/.config/tidegate/tidegate.toml, at the top for all commands or below [COMMAND] for one. ./tidegate.toml \
                  may set harmless options such as limits. The command line counts first, then the environment, then \
                  ./tidegate.toml, then your own file.\n\nExit codes: 0 done, 1 some items failed, 2 could not run, 130 interrupted, 143 terminated.")
)]
pub(crate) struct Args {
    /// Read options from this file instead of ./tidegate.toml and the one in your configuration directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Explain(Box<command::explain::Args>),
    Rebuild(command::rebuild::Args),
    Batch(Box<command::batch::Args>),
    Serve(Box<command::serve::Args>),
    Plan(command::plan::Args),
    Provider(command::provider::Args),
    Worker(Box<command::worker::Args>),
    Enqueue(command::enqueue::Args),
    Queue(command::queue::Args),
    Result(command::result::Args),
    Revoke(command::revoke::Args),
    Trace(command::trace::Args),
    Completions(command::completions::Args),
}
