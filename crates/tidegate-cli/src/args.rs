//! The command line as text: which command, and its arguments.

use clap::{Parser, Subcommand};

use crate::command::{completions, trace};

/// An event loop you can see into, and what is built on it.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, disable_help_subcommand = true)]
#[command(
    after_help = "Try it:\n  tidegate trace timeline\n  tidegate trace timeline --format html --out timeline.html"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Trace(trace::Args),
    Completions(completions::Args),
}
