use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_batch::jsonl::{Batch, Input, Output};
use tidegate_batch::{Caller, Dialect, Retries};
use tidegate_limit::{Backoff, Gate, Limit};
use tidegate_rehearsal::Handle;

/// A request file and a result file in a directory of their own.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn with(lines: impl IntoIterator<Item = String>) -> Place {
        let place = Place::new();
        place.write(lines);
        place
    }

    pub(crate) fn write(&self, lines: impl IntoIterator<Item = String>) {
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        std::fs::write(self.requests(), text).unwrap();
    }

    pub(crate) fn requests(&self) -> PathBuf {
        self.directory.path().join("requests.jsonl")
    }

    pub(crate) fn results(&self) -> PathBuf {
        self.directory.path().join("results.jsonl")
    }

    pub(crate) fn batch(&self) -> Batch {
        Batch::new(Input::File(self.requests()), Output::File(self.results()))
    }

    /// Each result by its id; no id twice.
    pub(crate) fn read(&self) -> BTreeMap<String, Value> {
        let text = std::fs::read_to_string(self.results()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        let mut results = BTreeMap::new();
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            let id = value.get("custom_id").or_else(|| value.get("key")).unwrap().as_str().unwrap().to_owned();
            assert!(results.insert(id.clone(), value).is_none(), "{id} has two lines");
        }
        results
    }
}

pub(crate) fn line(id: &str, text: &str) -> String {
    let body = json!({"model": "m", "max_tokens": 60, "messages": [{"role": "user", "content": text}]});
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

pub(crate) fn questions(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| line(&format!("r{n}"), &format!("Question {n}: why do tides turn?")))
}

/// A caller that does not wait long between attempts.
pub(crate) fn caller(server: &Handle, limits: impl IntoIterator<Item = Limit>) -> Caller {
    let gate = Gate::builder().limit(Limit::concurrency("global", 50)).limits(limits).build().unwrap();
    caller_at(&gate, Dialect::OpenAi, &format!("{}/v1", server.base_url()))
}

pub(crate) fn caller_at(gate: &Gate, dialect: Dialect, base: &str) -> Caller {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).with_retries(3);
    Caller::new(gate, dialect, base).unwrap().with_retries(Retries { backoff, ..Retries::default() })
}
