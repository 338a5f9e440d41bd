//! Names of models that become part of an address. Pure.

use std::fmt;

/// The longest name that may become part of a path, in bytes.
const LEN_MAX: usize = 256;

/// A model's name cannot become part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadModel {
    name: String,
    reason: &'static str,
}

impl fmt::Display for BadModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the model name {:?} cannot be part of the request's address: {}", self.name, self.reason)
    }
}

impl std::error::Error for BadModel {}

/// Returns `name` if a path can contain it and stay the path that was meant: no way up, no query, no escapes.
///
/// The characters are those of the names that providers give: `gemini-2.0-flash`, `tunedModels/tides-7x`,
/// `publishers/google/models/gemini-pro@001`, `anthropic.claude-3-haiku-20240307-v1:0`.
pub(super) fn in_path(name: &str) -> Result<&str, BadModel> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > LEN_MAX {
        "it is longer than 256 bytes"
    } else if !name.bytes().all(allowed) {
        "only letters, digits and . _ : / @ - are allowed"
    } else if name.split('/').any(str::is_empty) {
        "it begins or ends with / or contains //"
    } else if name.split('/').any(|segment| matches!(segment, "." | "..")) {
        "it contains the path segment . or .."
    } else {
        return Ok(name);
    };
    // Enough of it to be recognised in a message.
    Err(BadModel { name: name.chars().take(80).collect(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_providers_give_pass() {
        for name in [
            "gemini-2.0-flash",
            "models/gemini-1.5-pro-002",
            "tunedModels/tides-7x1",
            "publishers/google/models/gemini-pro@001",
            "anthropic.claude-3-haiku-20240307-v1:0",
            "claude-3-5-sonnet-v2@20241022",
            "ft:gpt-4o-mini:org::8ab",
            "meta-llama/Llama-3.1-8B_Instruct",
            "a...b",
        ] {
            assert_eq!(in_path(name), Ok(name));
        }
        assert!(in_path(&"m".repeat(LEN_MAX)).is_ok());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            "",
            "../../v1beta/cachedContents?x=",
            "..",
            ".",
            "a/..",
            "../a",
            "a/../b",
            "a/./b",
            "/a",
            "a/",
            "a//b",
            "/",
            "a?b",
            "a#b",
            "a%2e%2e",
            "a b",
            "a\\b",
            "a\r\nb",
            "a\0",
            "mod\u{e8}le",
        ] {
            let error = in_path(name).unwrap_err().to_string();
            assert!(error.contains("model name") && !error.contains(['\r', '\n', '\0']), "{name:?}: {error}");
        }
        assert!(in_path(&"m".repeat(LEN_MAX + 1)).unwrap_err().to_string().len() < 250);
    }
}
