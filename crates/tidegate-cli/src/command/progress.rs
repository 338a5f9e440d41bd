//! How far a run has come, on standard error: lines for people and logs, JSON for programs, or nothing.

use std::io::Write as _;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use tidegate_batch::{Event, PageStatus, Progress, Watch};
use tidegate_loop::{JoinHandle, sleep, spawn};

/// How often a line is written, at most.
const LINE_EVERY: Duration = Duration::from_secs(2);
const JSON_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A display in a terminal, lines elsewhere
    Auto,
    /// A line every two seconds, and one for each file
    Plain,
    /// Everything that happens as a line of JSON, on standard error
    Json,
    /// Nothing
    None,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    Json,
    None,
}

impl ProgressArg {
    pub(crate) fn mode(self) -> Mode {
        match self {
            ProgressArg::Auto | ProgressArg::Plain => Mode::Plain,
            ProgressArg::Json => Mode::Json,
            ProgressArg::None => Mode::None,
        }
    }
}

/// Writes how far the run has come until it is dropped.
pub(crate) struct Ticker {
    task: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(mode: Mode, watch: Watch) -> Ticker {
        let every = match mode {
            Mode::Plain => LINE_EVERY,
            Mode::Json => JSON_EVERY,
            Mode::None => return Ticker { task: None },
        };
        let task = spawn(async move {
            loop {
                sleep(every).await;
                let progress = watch.progress();
                match mode {
                    Mode::Json => write_line(&json!({"event": "progress", "progress": progress}).to_string()),
                    _ => write_line(&line(&progress)),
                }
            }
        });
        Ticker { task: Some(task) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.cancel();
        }
    }
}

/// Something has happened.
pub(crate) fn on_event(mode: Mode, event: &Event<'_>) {
    match mode {
        Mode::Json => write_line(&as_json(event).to_string()),
        Mode::Plain => {
            if let Some(line) = as_line(event) {
                write_line(&line);
            }
        }
        Mode::None => {}
    }
}

/// A reader that has gone is no reason to stop working.
fn write_line(line: &str) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{line}");
}

fn as_line(event: &Event<'_>) -> Option<String> {
    match event {
        Event::FileFailed { name, reason, .. } => Some(format!("{name}: {reason}")),
        Event::Page { name, page, status: PageStatus::Failed { reason, .. }, .. } => {
            Some(format!("{name}, page {page}: {reason}"))
        }
        Event::FileDone { name, outputs, .. } => {
            let page = outputs.iter().find(|path| path.extension().is_some_and(|ending| ending == "html"));
            Some(format!("{name}: done, {}", page.or(outputs.first())?.display()))
        }
        Event::Stopping { reason } => Some(format!("stopping: {reason}")),
        _ => None,
    }
}

fn as_json(event: &Event<'_>) -> serde_json::Value {
    match event {
        Event::FileOpened { file, name, pages, page_concurrency } => {
            json!({"event": "file_opened", "file": file, "name": name, "pages": pages, "page_concurrency": page_concurrency})
        }
        Event::FileFailed { file, name, reason } => {
            json!({"event": "file_failed", "file": file, "name": name, "reason": reason})
        }
        Event::Page { file, name, page, status } => {
            let mut line = json!({"event": "page", "file": file, "name": name, "page": page});
            let more = match status {
                PageStatus::Asking => json!({"status": "asking"}),
                PageStatus::Done { kept, usage } => json!({"status": "done", "kept": kept, "usage": usage}),
                PageStatus::Failed { code, reason } => json!({"status": "failed", "code": code, "reason": reason}),
                PageStatus::Skipped { reason } => json!({"status": "skipped", "reason": reason}),
                _ => json!({}),
            };
            if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
                line.extend(more.clone());
            }
            line
        }
        Event::FileDone { file, name, outputs } => {
            json!({"event": "file_done", "file": file, "name": name, "outputs": outputs})
        }
        Event::Stopping { reason } => json!({"event": "stopping", "reason": reason}),
        _ => json!({"event": "other"}),
    }
}

/// `37 of 120 pages, 85 a minute, 58 s left; waiting for rpm (60 of 60 used)`
fn line(progress: &Progress) -> String {
    let more = if progress.more { "+" } else { "" };
    let mut line = format!("{} of {}{more} pages", progress.done, progress.pages);
    for (count, what) in [(progress.failed, "failed"), (progress.skipped, "skipped")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    if progress.pages_per_minute >= 1.0 {
        line.push_str(&format!(", {:.0} a minute", progress.pages_per_minute));
    }
    if let Some(left) = progress.remaining.filter(|left| !left.is_zero()) {
        line.push_str(&format!(", about {} left", brief(left)));
    }
    if progress.gate.current > 0 {
        line.push_str(&format!(", {} under way", progress.gate.current));
    }
    if let Some(name) = &progress.gate.blocked_by {
        let used = progress.gate.limit(name).map(|limit| format!(" ({} of {} used)", limit.used, limit.amount));
        let name = if name == "scopes" { "slots of their files" } else { name };
        line.push_str(&format!("; {} wait for {name}{}", progress.gate.waiting, used.unwrap_or_default()));
    }
    line
}

fn brief(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{} s", seconds.max(1)),
        seconds @ 60..3600 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
