//! Jobs as plain values: what is to be done, what state it is in, how far each page has come. No I/O.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_batch::{DEFAULT_PROMPT, Prompt, Selection};

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
}

/// The state of a job as it is stored. A job that runs and has nothing in flight because a limit has no room is shown as blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Files are being added; not started yet.
    Draft,
    /// Started, also across restarts of the server.
    Running,
    /// Paused by a person: nothing is sent until it is resumed.
    Paused,
    /// Ended. Some pages may have failed.
    Done,
    /// Stopped by an error that concerns all of its pages.
    Failed,
    /// Cancelled by a person.
    Cancelled,
}

impl JobState {
    /// The name in the database and the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            JobState::Draft => "draft",
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<JobState> {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        [Draft, Running, Paused, Done, Failed, Cancelled].into_iter().find(|state| state.name() == name)
    }

    /// Returns `true` if nothing more happens by itself.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }

    /// The state that an action leads to; an error names what the job is instead.
    pub(crate) fn after(self, action: Action) -> Result<JobState, IllegalAction> {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        match (self, action) {
            (Draft, Action::Start) => Ok(Running),
            (Running, Action::Pause) => Ok(Paused),
            (Paused | Failed | Cancelled, Action::Resume) => Ok(Running),
            (Running | Paused, Action::Cancel) => Ok(Cancelled),
            (Running | Done | Failed | Cancelled | Paused, Action::Retry) => Ok(Running),
            (state, action) => Err(IllegalAction { state, action }),
        }
    }
}

/// What a person does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts a draft.
    Start,
    /// Stops sending; what is in flight is finished.
    Pause,
    /// Goes on.
    Resume,
    /// Ends it before its end.
    Cancel,
    /// Asks again about pages that failed.
    Retry,
}

/// An action that a job in this state does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalAction {
    pub(crate) state: JobState,
    pub(crate) action: Action,
}

impl fmt::Display for IllegalAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Start => "started",
            Action::Pause => "paused",
            Action::Resume => "resumed",
            Action::Cancel => "cancelled",
            Action::Retry => "retried",
        };
        write!(f, "a job that is {} cannot be {action}", self.state.name())
    }
}

/// How far a page has come: one letter in the grid, in events and in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PageState {
    /// Not sent yet.
    #[default]
    Waiting,
    /// Next to be sent, when a limit has room.
    Blocked,
    /// Sent, not answered.
    InFlight,
    /// Explained.
    Done,
    /// Explained earlier; not paid for again.
    Cached,
    /// Could not be explained.
    Failed,
    /// Blank, or without anything that the model can read.
    Skipped,
}

impl PageState {
    /// All of them, in the order of legends.
    pub(crate) const ALL: [PageState; 7] = [
        PageState::Waiting,
        PageState::Blocked,
        PageState::InFlight,
        PageState::Done,
        PageState::Cached,
        PageState::Failed,
        PageState::Skipped,
    ];

    /// The class of its mark.
    pub(crate) fn letter(self) -> char {
        match self {
            PageState::Waiting => 'w',
            PageState::Blocked => 'b',
            PageState::InFlight => 'i',
            PageState::Done => 'd',
            PageState::Cached => 'k',
            PageState::Failed => 'x',
            PageState::Skipped => 's',
        }
    }

    pub(crate) fn parse(letter: &str) -> Option<PageState> {
        PageState::ALL.into_iter().find(|state| letter.chars().eq([state.letter()]))
    }

    /// The word beside its mark.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PageState::Waiting => "waiting",
            PageState::Blocked => "blocked",
            PageState::InFlight => "in flight",
            PageState::Done => "done",
            PageState::Cached => "cached",
            PageState::Failed => "failed",
            PageState::Skipped => "skipped",
        }
    }

    /// Returns `true` if it has a result.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, PageState::Done | PageState::Cached | PageState::Failed | PageState::Skipped)
    }

    /// Returns `true` if it has an explanation.
    pub(crate) fn is_explained(self) -> bool {
        matches!(self, PageState::Done | PageState::Cached)
    }
}

/// How many pages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    /// All of them.
    pub pages: u64,
    /// Not sent yet.
    pub waiting: u64,
    /// Next, when a limit has room.
    pub blocked: u64,
    /// Sent, not answered.
    pub in_flight: u64,
    /// Explained by this job.
    pub done: u64,
    /// Explained earlier.
    pub cached: u64,
    /// Failed.
    pub failed: u64,
    /// Blank or unreadable.
    pub skipped: u64,
}

impl Counts {
    /// Counts `states`.
    pub(crate) fn of<'a>(states: impl IntoIterator<Item = &'a PageState>) -> Counts {
        let mut counts = Counts::default();
        for state in states {
            counts.pages += 1;
            *counts.slot(*state) += 1;
        }
        counts
    }

    fn slot(&mut self, state: PageState) -> &mut u64 {
        match state {
            PageState::Waiting => &mut self.waiting,
            PageState::Blocked => &mut self.blocked,
            PageState::InFlight => &mut self.in_flight,
            PageState::Done => &mut self.done,
            PageState::Cached => &mut self.cached,
            PageState::Failed => &mut self.failed,
            PageState::Skipped => &mut self.skipped,
        }
    }

    pub(crate) fn get(mut self, state: PageState) -> u64 {
        *self.slot(state)
    }

    /// Pages with a result.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.done + self.cached + self.failed + self.skipped
    }

    /// Pages without one.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.pages - self.settled()
    }
}

/// What is asked about each page, and how much at once. Changed until the job starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JobOptions {
    /// What is asked; the variables {file} {title} {page} {pages} {language} are filled in.
    pub prompt: String,
    /// The language of the answer; empty: that of the page.
    pub language: String,
    /// Which pages of each file, such as 3-10,15; empty: all.
    pub pages: String,
    /// Neighbour pages on each side that a page is sent with.
    pub context_pages: u32,
    /// Pages of one file in flight at once; by its size if there is none.
    pub page_concurrency: Option<u32>,
    /// Files at once; by their size if there is none.
    pub file_concurrency: Option<u32>,
    /// The greatest length of an answer, in tokens.
    pub max_tokens: Option<u32>,
    /// The temperature, from 0 up; the server's own if there is none.
    pub temperature: Option<f32>,
    /// Pages whose text cannot be read are not sent as pictures.
    pub text_only: bool,
}

impl Default for JobOptions {
    fn default() -> JobOptions {
        JobOptions {
            prompt: DEFAULT_PROMPT.into(),
            language: String::new(),
            pages: String::new(),
            context_pages: 1,
            page_concurrency: None,
            file_concurrency: None,
            max_tokens: None,
            temperature: None,
            text_only: false,
        }
    }
}

/// The longest prompt.
pub(crate) const PROMPT_BYTES_MAX: usize = 64 * 1024;

/// The longest name of a job or a file, in characters.
const NAME_CHARS_MAX: usize = 120;

impl JobOptions {
    /// Returns what is wrong, in words for the person who filled in the form.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.prompt.len() > PROMPT_BYTES_MAX {
            return Err(format!("the prompt is longer than {} KiB", PROMPT_BYTES_MAX / 1024));
        }
        Prompt::parse(&self.prompt).map_err(|error| error.to_string())?;
        self.selection()?;
        if self.language.chars().count() > NAME_CHARS_MAX {
            return Err("the language is too long".into());
        }
        if self.context_pages > 10 {
            return Err("at most 10 neighbour pages on each side".into());
        }
        let counts = [self.page_concurrency, self.file_concurrency, self.max_tokens];
        if counts.contains(&Some(0)) {
            return Err("a concurrency and a length have to be above 0; leave them empty for the default".into());
        }
        if self.temperature.is_some_and(|it| !it.is_finite() || it < 0.0) {
            return Err("the temperature is a number from 0 up".into());
        }
        Ok(())
    }

    pub(crate) fn selection(&self) -> Result<Selection, String> {
        match self.pages.trim() {
            "" => Ok(Selection::all()),
            pages => pages.parse().map_err(|error: tidegate_batch::BadSelection| error.to_string()),
        }
    }
}

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
    /// The tokens of each page's own text, as estimated; empty until it was read.
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
    fn each_state_takes_the_actions_that_make_sense() {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        let taken = |action: Action| -> Vec<JobState> {
            [Draft, Running, Paused, Done, Failed, Cancelled].into_iter().filter(|s| s.after(action).is_ok()).collect()
        };
        assert_eq!(taken(Action::Start), [Draft]);
        assert_eq!(taken(Action::Pause), [Running]);
        assert_eq!(taken(Action::Resume), [Paused, Failed, Cancelled]);
        assert_eq!(taken(Action::Cancel), [Running, Paused]);
        assert_eq!(Draft.after(Action::Retry).unwrap_err().to_string(), "a job that is draft cannot be retried");
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        for state in PageState::ALL {
            assert_eq!(PageState::parse(&state.letter().to_string()), Some(state));
        }
        for name in ["draft", "running", "paused", "done", "failed", "cancelled"] {
            assert_eq!(JobState::parse(name).unwrap().name(), name);
        }
        assert_eq!((PageState::parse("dd"), JobState::parse("x")), (None, None));
    }

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
    fn options_that_make_no_sense_are_refused_with_a_reason() {
        let options = JobOptions::default();
        assert_eq!(options.check(), Ok(()));
        for bad in [
            JobOptions { prompt: "{pgae}".into(), ..options.clone() },
            JobOptions { prompt: "x".repeat(PROMPT_BYTES_MAX + 1), ..options.clone() },
            JobOptions { pages: "9-3".into(), ..options.clone() },
            JobOptions { page_concurrency: Some(0), ..options.clone() },
            JobOptions { temperature: Some(f32::NAN), ..options.clone() },
            JobOptions { context_pages: 11, ..options.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
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
