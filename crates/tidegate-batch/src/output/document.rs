//! The explanations of a file: what is written to `<name>.json`, and what everything else is made of. The format is
//! described in `docs/explanations.md`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::question::{Finish, Usage};

/// The format's name and version. A change that a reader has to know of counts the number up.
pub const SCHEMA: &str = "tidegate.explanations/1";

/// The explanations of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanations {
    /// [`SCHEMA`].
    pub schema: String,
    /// The file's name.
    pub file: String,
    /// Where the file was, seen from the folder that this is in.
    pub source: String,
    /// The document's title, if it has one.
    pub title: Option<String>,
    /// How many pages the file has; 0 if nobody knows.
    pub pages: u32,
    /// Who explained.
    pub provider: String,
    /// Which model.
    pub model: String,
    /// The language asked for; empty: that of the page.
    pub language: String,
    /// What was asked, variables and all.
    pub prompt: String,
    /// What is not as it should be with the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// One for each page that was chosen, in order.
    pub explanations: Vec<Entry>,
}

/// A page and its explanation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// From 1.
    pub page: u32,
    /// What became of it.
    pub status: Status,
    /// The explanation, in Markdown; there if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    /// What the provider was shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_as: Option<SeenAs>,
    /// What is wrong with the page's text, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_quality: Option<String>,
    /// Whether the explanation was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// The tokens it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Why there is no explanation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureNote>,
    /// What is not as it should be with the page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Why a page has no explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureNote {
    /// For programs: `unavailable`, `refused`, `declined`, `too_large`, `garbled`, `shut`, `unreadable`, `no_text`, `blank`.
    pub code: String,
    /// For people.
    pub reason: String,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// It is explained.
    #[default]
    Done,
    /// It could not be.
    Failed,
    /// It is blank, or it has no text that could be read and the provider does not look at pictures.
    Skipped,
    /// The run ended before it was its turn.
    Missing,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Done => "done",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
            Status::Missing => "missing",
        })
    }
}

/// What a provider was shown of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SeenAs {
    /// Its text.
    Text,
    /// Its picture.
    Picture,
}

/// The code of a page that has nothing on it.
pub(crate) const BLANK: &str = "blank";

impl Entry {
    /// Returns `true` if there is nothing on the page, so that there is nothing to explain.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.status == Status::Skipped && self.error.as_ref().is_some_and(|error| error.code == BLANK)
    }
}

impl Explanations {
    /// How many pages are in that state.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        self.explanations.iter().filter(|entry| entry.status == status).count()
    }

    /// As it is written to a file: indented, with a line's end at its end. The same explanations are the same bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("texts and numbers");
        json.push('\n');
        json
    }
}
