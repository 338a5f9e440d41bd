//! Progress as lines of JSON, for programs.

use serde_json::json;

pub(crate) fn message(text: &str) -> String {
    json!({"event": "message", "text": text}).to_string()
}
