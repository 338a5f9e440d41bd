//! Jobs as plain values: what is to be done (`options.rs`), what state it is in and how far each page has come (`state.rs`). No I/O.

mod options;
mod state;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use options::JobOptions;
pub(crate) use options::PROMPT_BYTES_MAX;
pub use state::{Action, Counts, IllegalAction, JobState, PageState};

/// A job's number; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<JobId, Self::Err> {
        text.parse().map(JobId)
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Explains PDFs page by page.
    Explain,
    /// Makes outputs again from pairs of a PDF and its JSON; sends nothing.
    Rebuild,
    /// Sends the requests of a JSONL file.
    Batch,
}

impl JobKind {
    /// What its items are called.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            JobKind::Explain | JobKind::Rebuild => "page",
            JobKind::Batch => "request",
        }
    }
}

/// The longest name of a job or a file, in characters.
const NAME_CHARS_MAX: usize = 120;

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Its name, for people.
    pub name: String,
    /// What it does.
    pub kind: JobKind,
    /// The name of the upstream.
    pub upstream: String,
    /// The model; empty where the upstream has none to choose.
    pub model: String,
    /// The options.
    pub options: JobOptions,
    /// Its state.
    pub state: JobState,
    /// Why it failed or was paused; empty if nothing is to be said.
    pub reason: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it was started first.
    pub started: Option<Timestamp>,
    /// When its state changed last.
    pub changed: Timestamp,
    /// Tokens paid for so far, of prompts and answers.
    pub tokens: (u64, u64),
    /// Its files, by number.
    pub files: Vec<JobFile>,
}

/// What is in an uploaded file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A PDF.
    Pdf,
    /// Explanations, to rebuild outputs from.
    Json,
    /// Requests, one per line. Its pages are its lines: a request has the number of its line.
    Jsonl,
}

/// An uploaded file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// Its number in the job, from 1; never used again in it.
    pub number: u32,
    /// Its name, for people; unique in the job, and never part of a path.
    pub name: String,
    /// What is in it.
    pub kind: FileKind,
    /// The name it is stored under: random.
    pub(crate) stored: String,
    /// Its size.
    pub bytes: u64,
    /// What is known of it.
    pub status: FileStatus,
    /// It can be read with its password alone, which is kept in memory and never stored.
    pub encrypted: bool,
    /// How many pages the document has; 0 until it was opened.
    pub page_count: u32,
    /// The document's title.
    pub title: Option<String>,
    /// The tokens of each page's own text, or of each request, as estimated; empty until it was read.
    pub(crate) page_tokens: Vec<u32>,
    /// The state of each page that was chosen, or of all before the start. Parallel to `numbers`.
    pub(crate) states: Vec<PageState>,
    /// The numbers of these pages.
    pub(crate) numbers: Vec<u32>,
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileStatus {
    /// Not opened yet.
    Unread,
    /// It can be read.
    Readable,
    /// It cannot be opened without its password, which is kept in memory alone.
    NeedsPassword {
        /// A password was given, and it is wrong.
        wrong: bool,
    },
    /// It cannot be read.
    Broken(String),
}

impl Job {
    /// All pages' states.
    pub(crate) fn counts(&self) -> Counts {
        Counts::of(self.files.iter().flat_map(|file| &file.states))
    }

    /// The file of that number.
    pub(crate) fn file(&self, number: u32) -> Option<&JobFile> {
        self.files.iter().find(|file| file.number == number)
    }

    pub(crate) fn file_mut(&mut self, number: u32) -> Option<&mut JobFile> {
        self.files.iter_mut().find(|file| file.number == number)
    }
}

impl JobFile {
    /// The pages with their states, in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, PageState)> + Clone {
        self.numbers.iter().copied().zip(self.states.iter().copied())
    }

    /// Where a page is in `states`.
    pub(crate) fn position(&self, page: u32) -> Option<usize> {
        self.numbers.binary_search(&page).ok()
    }

    pub(crate) fn state(&self, page: u32) -> Option<PageState> {
        self.position(page).map(|at| self.states[at])
    }

    /// Sets which pages there are; those that were there keep their state.
    pub(crate) fn choose(&mut self, numbers: Vec<u32>) {
        let states = numbers.iter().map(|&page| self.state(page).unwrap_or_default()).collect();
        (self.numbers, self.states) = (numbers, states);
    }
}

/// Makes a name that came from elsewhere one that can be shown: no control or format characters that reorder text, no path, not
/// too long.
pub(crate) fn display_name(text: &str, otherwise: &str) -> String {
    let last = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let shown: String = last.chars().filter(|c| !hidden(*c)).take(NAME_CHARS_MAX).collect();
    let shown = shown.trim().trim_start_matches('.');
    if shown.is_empty() { otherwise.to_owned() } else { shown.to_owned() }
}

/// Makes a name unique among `taken`, compared without case: `a.pdf`, `a (2).pdf`.
pub(crate) fn unique_name<'a>(name: String, taken: impl Iterator<Item = &'a str> + Clone) -> String {
    let is_taken = |name: &str| taken.clone().any(|other| other.to_lowercase() == name.to_lowercase());
    if !is_taken(&name) {
        return name;
    }
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem, format!(".{ending}")),
        None => (name.as_str(), String::new()),
    };
    (2..).map(|number| format!("{stem} ({number}){ending}")).find(|name| !is_taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_shown_without_harm() {
        assert_eq!(display_name("../../etc/passwd", "file"), "passwd");
        assert_eq!(display_name("C:\\temp\\a.pdf", "file"), "a.pdf");
        assert_eq!(display_name("a\u{202e}fdp.exe\n\u{7}", "file"), "afdp.exe");
        assert_eq!(display_name("...", "file"), "file");
        assert_eq!(display_name(&"x".repeat(500), "file").len(), 120);
        let taken = ["a.pdf", "A (2).pdf"];
        assert_eq!(unique_name("A.pdf".into(), taken.into_iter()), "A (3).pdf");
    }

    #[test]
    fn pages_that_stay_chosen_keep_their_state() {
        let mut file = JobFile {
            number: 1,
            name: "a.pdf".into(),
            kind: FileKind::Pdf,
            stored: String::new(),
            bytes: 0,
            status: FileStatus::Unread,
            encrypted: false,
            page_count: 5,
            title: None,
            page_tokens: Vec::new(),
            states: vec![PageState::Done, PageState::Failed],
            numbers: vec![2, 5],
        };
        file.choose(vec![1, 2, 3]);
        assert_eq!(file.states, [PageState::Waiting, PageState::Done, PageState::Waiting]);
        assert_eq!((file.state(2), file.state(5)), (Some(PageState::Done), None));
    }
}
