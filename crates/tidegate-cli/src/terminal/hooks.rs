//! Text that other crates would write by themselves: clap's errors, panics, and the event loop's reports.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::process;
use std::thread;

use ::log::{LevelFilter, Log, Metadata, Record};

use super::say;

/// Prints what clap has to say and ends the process with its exit code. `note` follows an error.
pub(crate) fn leave(error: &clap::Error, note: &str) -> ! {
    if error.use_stderr() {
        // Without its styles: clap does not separate them from the words of the command line that it repeats.
        say(error.render().to_string().trim_end());
        if !note.is_empty() {
            say(format!("\n{note}"));
        }
    } else {
        // Help and version consist of our own text alone.
        let _ = error.print();
    }
    process::exit(error.exit_code());
}

/// Routes panics and the event loop's reports through the terminal writer.
pub(crate) fn install_hooks() {
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        say(format!("thread '{}' {info}", thread.name().unwrap_or("unnamed")));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            say(backtrace);
        }
    }));
    if ::log::set_logger(&Reports).is_ok() {
        ::log::set_max_level(LevelFilter::Warn);
    }
}

/// The event loop's reports of errors and panics that no task has fetched. Without a logger the loop would write them to
/// standard error itself.
struct Reports;

impl Log for Reports {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tidegate_loop::report"
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(format!("tidegate: {}", record.args()));
        }
    }

    fn flush(&self) {}
}
