//! What a run shows, whether it explains pages or sends requests: its events as lines and as JSON, and its progress as a scene
//! and as JSON.

use std::cell::RefCell;

use serde_json::{Map, Value, json};
use tidegate_batch::{Change, Control, Event, FileProgress, FileState, FoundReport, ItemId, ItemState, Progress, Unit};

use super::scene::{File, Scene, State};
use super::{Reporter, Run, found, gauges, queue};

/// Failures of requests that are printed as they happen; the rest is in the results.
const FAILURES_PRINTED: u64 = 10;

impl Reporter {
    /// Shows everything that happens in a run.
    pub(crate) fn hear(&self, control: &Control) {
        let reporter = self.clone();
        let failures = RefCell::new(Failures::default());
        control.on_event(move |event| {
            let line = || failures.borrow_mut().line(&event.change);
            if let Some(json) = is_told(event).then(|| value(event)).flatten() {
                reporter.tell(line, || json.to_string());
            }
        });
    }
}

/// Whether people or programs want to know of it.
fn is_told(event: &Event) -> bool {
    // A batch reports what is on the disk; an item that waits again is seen in the counts.
    !matches!(
        event.change,
        Change::Item { state: ItemState::Waiting, .. }
            | Change::Item {
                item: ItemId::Request { .. },
                state: ItemState::Blocked { .. } | ItemState::InFlight | ItemState::Cached,
                ..
            }
    )
}

impl Run for Control {
    fn scene(&self) -> Scene {
        scene(&self.progress())
    }

    fn json(&self) -> Value {
        let progress = self.progress();
        match progress.unit {
            Unit::Requests => requests(&progress),
            _ => json!({"event": "progress", "progress": pages(&progress)}),
        }
    }
}

/// Everything, with the names that pages have.
fn pages(progress: &Progress) -> Value {
    let mut value = serde_json::to_value(progress).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("pages".into(), progress.total.into());
        fields.insert("pages_per_minute".into(), progress.per_minute.into());
    }
    value
}

/// What a batch tells.
fn requests(progress: &Progress) -> Value {
    let Progress { done, cached, failed, waiting, blocked, in_flight, remaining, stopping, paused, .. } = progress;
    let gate = progress.gate.as_ref();
    json!({
        "event": "progress", "total": (!progress.more).then_some(progress.total), "answered": done - cached,
        "failed": failed, "cached": cached, "waiting": waiting, "blocked": blocked, "in_flight": in_flight,
        "waiting_for": gate.and_then(|gate| gate.blocked_by.clone()),
        "found": gate.and_then(|gate| gate.found).map(FoundReport::from),
        "remaining": remaining, "stopping": stopping, "paused": paused,
    })
}

/// Counts the failures that were printed.
#[derive(Default)]
struct Failures {
    requests: u64,
    lines: u64,
}

impl Failures {
    /// What people want to know when it happens; nothing for the rest.
    fn line(&mut self, change: &Change) -> Option<String> {
        match change {
            // Most reasons name the file already.
            Change::FileFailed { name, reason, .. } if reason.contains(&**name) => Some(reason.to_string()),
            Change::FileFailed { name, reason, .. } => Some(format!("{name}: {reason}")),
            Change::Item { item, name, state: ItemState::Failed { reason, .. }, .. }
            | Change::RetryFailed { item, name, reason, .. } => match item {
                ItemId::Page { page, .. } => Some(format!("{name}, page {page}: {reason}")),
                ItemId::Request { .. } => {
                    self.requests += 1;
                    (self.requests <= FAILURES_PRINTED).then(|| format!("{name}: {reason}"))
                }
            },
            Change::LineSkipped { line, reason } => {
                self.lines += 1;
                (self.lines <= FAILURES_PRINTED).then(|| format!("line {line}: {reason}; passed over"))
            }
            Change::FileDone { name, pages, done, outputs, .. } => {
                let page = outputs.iter().find(|path| path.extension().is_some_and(|ending| ending == "html"));
                let path = page.or(outputs.first())?.display();
                Some(match done == pages {
                    true => format!("{name}: done, {path}"),
                    false => format!("{name}: {done} of {pages} pages explained, {path}"),
                })
            }
            Change::Stopping { reason, gave_up: true } => Some(format!("stopping: {reason}")),
            Change::Paused => Some("paused".to_owned()),
            Change::Resumed => Some("resumed".to_owned()),
            _ => None,
        }
    }
}

/// The same for programs.
fn value(event: &Event) -> Option<Value> {
    Some(match &event.change {
        Change::Item { item: ItemId::Page { file, page }, name, state, usage } => {
            let mut line = json!({"event": "page", "seq": event.seq, "file": file, "name": name, "page": page});
            let more = match state {
                ItemState::Blocked { limit, until } => json!({"status": "blocked", "limit": limit, "until": until}),
                ItemState::InFlight => json!({"status": "in_flight"}),
                ItemState::Done | ItemState::Cached => {
                    let cached = *state == ItemState::Cached;
                    json!({"status": "done", "cached": cached, "usage": usage.unwrap_or_default()})
                }
                ItemState::Failed { code, reason } => json!({"status": "failed", "code": code, "reason": reason}),
                ItemState::Skipped { reason } => json!({"status": "skipped", "reason": reason}),
                _ => return None,
            };
            extend(&mut line, more);
            line
        }
        Change::Item { name, state, usage, .. } => match state {
            ItemState::Done => json!({"event": "answered", "id": name, "usage": usage}),
            ItemState::Failed { code, reason } => {
                json!({"event": "failed", "id": name, "code": code, "message": reason})
            }
            _ => return None,
        },
        Change::LineSkipped { line, reason } => json!({"event": "skipped", "line": line, "reason": reason}),
        _ => serde_json::to_value(event).ok()?,
    })
}

fn extend(line: &mut Value, more: Value) {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend::<Map<String, Value>>(more);
    }
}

fn scene(progress: &Progress) -> Scene {
    let gate = progress.gate.as_ref();
    Scene {
        unit: progress.unit,
        elapsed: progress.elapsed,
        pages: progress.total,
        more: progress.more,
        done: progress.done,
        cached: progress.cached,
        failed: progress.failed,
        skipped: progress.skipped,
        pages_per_minute: progress.per_minute,
        remaining: progress.remaining,
        tokens: progress.tokens.total(),
        paused: progress.paused,
        stopping: progress.stopping,
        files: progress.files.iter().map(file).collect(),
        gauges: gate.map(gauges).unwrap_or_default(),
        queue: gate.map(|gate| queue(progress, gate)).unwrap_or_default(),
        found: gate.and_then(found),
        load: None,
    }
}

fn file(progress: &FileProgress) -> File {
    let FileProgress { name, pages, done, failed, skipped, blocked, in_flight, written, .. } = progress;
    let state = match progress.state {
        FileState::Running => State::Running,
        FileState::Writing => State::Writing,
        FileState::Done => State::Done,
        FileState::Failed => State::Failed,
        _ => State::Waiting,
    };
    File {
        name: name.clone(),
        state,
        pages: *pages,
        done: *done,
        failed: *failed,
        skipped: *skipped,
        blocked: *blocked,
        in_flight: *in_flight,
        written: *written,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_file_is_done_when_all_of_its_pages_are() {
        let outputs = [PathBuf::from("out/a.json"), PathBuf::from("out/a.html")];
        let said = |done| {
            let change =
                Change::FileDone { file: 0, name: "a.pdf".into(), pages: 113, done, outputs: outputs.clone().into() };
            Failures::default().line(&change).unwrap()
        };
        assert_eq!(said(113), "a.pdf: done, out/a.html");
        assert_eq!(said(24), "a.pdf: 24 of 113 pages explained, out/a.html");
    }
}
