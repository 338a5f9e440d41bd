//! Progress as lines of JSON, for programs.

use serde_json::{Value, json};
use tidegate_batch::{Event, PageStatus};

pub(crate) fn message(text: &str) -> String {
    json!({"event": "message", "text": text}).to_string()
}

pub(crate) fn event(event: &Event<'_>) -> String {
    value(event).to_string()
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
        Event::FileDone { file, name, outputs } => {
            json!({"event": "file_done", "file": file, "name": name, "outputs": outputs})
        }
        Event::Stopping { reason } => json!({"event": "stopping", "reason": reason}),
        _ => json!({"event": "other"}),
    }
}
