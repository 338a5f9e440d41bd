//! What `explain` shows: its events as lines and as JSON, and its progress as a scene.

use serde_json::{Value, json};
use tidegate_batch::{Event, FileProgress, FileState, PageStatus, Progress, Watch};

use super::scene::{Blocker, File, Queue, Scene, State, Unit};
use super::{Reporter, Run, found, gauges, queue};

impl Reporter {
    /// Something has happened in a run that explains files.
    pub(crate) fn event(&self, event: &Event<'_>) {
        self.tell(|| line(event), || value(event).to_string());
    }
}

impl Run for Watch {
    fn scene(&self) -> Scene {
        scene(&self.progress())
    }

    fn json(&self) -> Value {
        json!({"event": "progress", "progress": self.progress()})
    }
}

/// What people want to know when it happens; nothing for the rest.
fn line(event: &Event<'_>) -> Option<String> {
    match event {
        // Most reasons name the file already.
        Event::FileFailed { name, reason, .. } if reason.contains(name) => Some((*reason).to_owned()),
        Event::FileFailed { name, reason, .. } => Some(format!("{name}: {reason}")),
        Event::Page { name, page, status: PageStatus::Failed { reason, .. }, .. } => {
            Some(format!("{name}, page {page}: {reason}"))
        }
        Event::FileDone { name, pages, done, outputs, .. } => {
            let page = outputs.iter().find(|path| path.extension().is_some_and(|ending| ending == "html"));
            let path = page.or(outputs.first())?.display();
            Some(match done == pages {
                true => format!("{name}: done, {path}"),
                false => format!("{name}: {done} of {pages} pages explained, {path}"),
            })
        }
        Event::Stopping { reason } => Some(format!("stopping: {reason}")),
        _ => None,
    }
}

fn value(event: &Event<'_>) -> Value {
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
        Event::FileDone { file, name, pages, done, outputs } => {
            json!({"event": "file_done", "file": file, "name": name, "pages": pages, "done": done, "outputs": outputs})
        }
        Event::Stopping { reason } => json!({"event": "stopping", "reason": reason}),
        _ => json!({"event": "other"}),
    }
}

fn scene(progress: &Progress) -> Scene {
    Scene {
        unit: Unit::Pages,
        elapsed: progress.elapsed,
        pages: progress.pages,
        more: progress.more,
        done: progress.done,
        kept: progress.kept,
        failed: progress.failed,
        skipped: progress.skipped,
        pages_per_minute: progress.pages_per_minute,
        remaining: progress.remaining,
        tokens: progress.tokens.total(),
        stopping: progress.stopping,
        files: progress.files.iter().map(file).collect(),
        gauges: gauges(&progress.gate),
        queue: waiting(progress),
        found: found(&progress.gate),
        load: None,
    }
}

/// The gate's line, or the pictures that wait before it.
fn waiting(progress: &Progress) -> Queue {
    match queue(&progress.gate) {
        Queue { under_way, blocked_by: None, .. } if progress.pictures_waiting > 0 => {
            let blocked_by = Some(Blocker::Limit("pictures of a file".to_owned()));
            Queue { under_way, waiting: progress.pictures_waiting, blocked_by }
        }
        queue => queue,
    }
}

fn file(progress: &FileProgress) -> File {
    let FileProgress { name, pages, done, failed, skipped, asking, .. } = progress;
    let state = match progress.state {
        FileState::Running => State::Running,
        FileState::Writing => State::Writing,
        FileState::Done => State::Done,
        FileState::Failed => State::Failed,
        _ => State::Waiting,
    };
    let (pages, done, failed, skipped, asking) = (*pages, *done, *failed, *skipped, *asking);
    File { name: name.clone(), state, pages, done, failed, skipped, asking }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_file_is_done_when_all_of_its_pages_are() {
        let outputs = [PathBuf::from("out/a.json"), PathBuf::from("out/a.html")];
        let said =
            |done| line(&Event::FileDone { file: 0, name: "a.pdf", pages: 113, done, outputs: &outputs }).unwrap();
        assert_eq!(said(113), "a.pdf: done, out/a.html");
        assert_eq!(said(24), "a.pdf: 24 of 113 pages explained, out/a.html");
    }
}
