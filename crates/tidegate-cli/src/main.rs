//! The binary `tidegate`. Text first (`args.rs` and the `Args` of each command), then meaning (a `Config`, checked before
//! anything happens), then effects. A command is a file under `command/`; what it writes goes through `output.rs`.
//!
//! Exit codes: 0 done, 1 some items failed, 2 could not run. A reader that goes away early (`| head`) is no failure.

#![forbid(unsafe_code)]

mod args;
mod command;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

/// Could not run.
const EXIT_UNABLE: u8 = 2;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match command::run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::from(EXIT_UNABLE)
        }
    }
}
