//! The commands, one file each.

pub(crate) mod completions;
pub(crate) mod trace;

use crate::args::Command;

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Trace(args) => trace::run(args),
        Command::Completions(args) => completions::run(&args),
    }
}
