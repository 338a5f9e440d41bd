//! The terminal writer: the only code of the program that writes to standard output and standard error.
//!
//! File names, task names, ids, server answers and tracebacks come from elsewhere and may contain anything. Text for people
//! is escaped (`escape.rs`), so that control, bidirectional and invisible characters are shown instead of sent. JSON keeps
//! its meaning: the same characters become JSON escapes. Only `draw` and `Drawing` send escape sequences, which are our own.
//!
//! clippy refuses other ways out: `print_stdout`, `print_stderr`, and the list of methods in `clippy.toml`.

pub(crate) mod escape;
mod hooks;
mod log;

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use serde_json::json;

pub(crate) use hooks::{install_hooks, leave};
pub(crate) use log::LogLines;

/// Standard error carries JSON lines and nothing else. Set by [`use_json_lines`]; never cleared.
static JSON_LINES: AtomicBool = AtomicBool::new(false);

/// From now on every line on standard error is a JSON object: text becomes an event `message`, an error an event `error`.
pub(crate) fn use_json_lines() {
    JSON_LINES.store(true, Ordering::Relaxed);
}

/// Returns standard output.
#[expect(clippy::disallowed_methods, reason = "the one place that writes to it")]
fn stdout() -> io::Stdout {
    io::stdout()
}

/// Returns standard error.
#[expect(clippy::disallowed_methods, reason = "the one place that writes to it")]
fn stderr() -> io::Stderr {
    io::stderr()
}

/// Returns `true` if standard output is a terminal.
pub(crate) fn out_is_terminal() -> bool {
    stdout().is_terminal()
}

/// Returns `true` if standard error is a terminal.
pub(crate) fn err_is_terminal() -> bool {
    stderr().is_terminal()
}

/// Returns the columns and rows of the terminal that standard error is.
pub(crate) fn err_size() -> Option<(u16, u16)> {
    terminal_size::terminal_size_of(stderr()).map(|(columns, rows)| (columns.0, rows.0))
}

/// Writes text for people to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    send(escape::text(text).as_bytes()).context("cannot write to standard output")
}

/// Writes JSON, one document or several, to standard output.
pub(crate) fn print_json(json: &str) -> anyhow::Result<()> {
    send(escape::json(json).as_bytes()).context("cannot write to standard output")
}

/// Writes lines of JSON to standard output, as [`tidegate_batch::jsonl::Batch::stdout`] wants it.
pub(crate) fn send_json(lines: &[u8]) -> io::Result<()> {
    send(escape::json(&String::from_utf8_lossy(lines)).as_bytes())
}

fn send(bytes: &[u8]) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Writes text for people and a line break to standard error. A reader that has gone is not a reason to stop working.
pub(crate) fn say(text: impl Display) {
    let text = text.to_string();
    if JSON_LINES.load(Ordering::Relaxed) {
        return say_json(&json!({"event": "message", "text": text}).to_string());
    }
    notify(format!("{}\n", escape::text(&text)).as_bytes());
}

/// Writes the error that ends the program to standard error.
pub(crate) fn fail(error: &anyhow::Error) {
    if JSON_LINES.load(Ordering::Relaxed) {
        return say_json(&json!({"event": "error", "text": format!("{error:#}")}).to_string());
    }
    say(format!("tidegate: {error:#}"));
}

/// The same without a line break.
pub(crate) fn ask(text: impl Display) {
    notify(escape::text(&text.to_string()).as_bytes());
}

/// Writes JSON and a line break to standard error.
pub(crate) fn say_json(json: &str) {
    notify(format!("{}\n", escape::json(json)).as_bytes());
}

/// Replaces the line that the cursor is in on standard error, which must be a terminal.
pub(crate) fn redraw(line: impl Display) {
    notify(format!("\r\x1b[2K{}", escape::line(&line.to_string())).as_bytes());
}

fn notify(bytes: &[u8]) {
    let mut err = stderr().lock();
    let _ = err.write_all(bytes).and_then(|()| err.flush());
}

/// Standard error for a display that is drawn in place. What is written has escape sequences, so the text between them must
/// have been escaped with [`escape::line`].
pub(crate) struct Drawing;

impl Write for Drawing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stderr().lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().lock().flush()
    }
}
