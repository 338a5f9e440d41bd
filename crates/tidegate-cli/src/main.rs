//! The binary `tidegate`. Text first (`args.rs` and the `Args` of each command), then meaning (a `Config`, checked before
//! anything happens), then effects. A command is a file under `command/`; what it writes goes through `terminal/`.
//!
//! Exit codes: 0 done, 1 some items failed, 2 could not run, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM). A reader that goes away early (`| head`) is no failure.

#![forbid(unsafe_code)]
// Whatever is printed goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod broker;
mod command;
mod config;
mod counts;
mod descriptors;
mod found_limits;
mod machine;
mod output;
mod progress;
mod secret_args;
mod span;
mod terminal;
mod trust;
mod user_data;

use std::process::ExitCode;

use command::{Done, Interrupted};

/// Some items failed.
const EXIT_SOME_FAILED: u8 = 1;

/// Could not run.
const EXIT_UNABLE: u8 = 2;

/// What shells make of a program that was ended by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    // PDFs are read in a child, which is this program started once more.
    #[cfg(feature = "pdf")]
    tidegate_pdf::child::main_if_asked();
    terminal::install_hooks();
    match config::parse().and_then(|args| command::run(args.command)) {
        Ok(Done::All) => ExitCode::SUCCESS,
        Ok(Done::SomeFailed) => ExitCode::from(EXIT_SOME_FAILED),
        Ok(Done::Stopped { exit_code }) => ExitCode::from(exit_code),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::fail(&error);
            ExitCode::from(if error.is::<Interrupted>() { EXIT_INTERRUPTED } else { EXIT_UNABLE })
        }
    }
}
