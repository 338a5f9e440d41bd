//! What a run is to do.

use std::path::PathBuf;

use super::inputs::Input;
use super::job::{ExplainError, REPORT};
use super::prompt::{DEFAULT_PROMPT, Prompt};
use super::selection::Selection;
use crate::concurrency::AutoConcurrency;
use crate::output::mark;
use crate::output::overview::INDEX;
use crate::outputs;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files.
    pub inputs: Vec<Input>,
    /// Where outputs go; it has to be there.
    pub out: PathBuf,
    /// What is asked about each page.
    pub prompt: Prompt,
    /// The same as it was written, for the outputs.
    pub prompt_text: String,
    /// The language of the answer; that of the page if it is empty.
    pub language: String,
    /// Which pages.
    pub selection: Selection,
    /// How many neighbours on each side a page is sent with.
    pub context_pages: u32,
    /// How many pages of a file are in flight at once; by its [`Size`](crate::Size) if there is none.
    pub page_concurrency: Option<u32>,
    /// How many pages of a file are in flight at once that are sent as pictures; if there is none, as many as of all pages.
    pub picture_concurrency: Option<u32>,
    /// How many files are open at once; by their [`Size`](crate::Size) if there is none.
    pub file_concurrency: Option<u32>,
    /// Raises both, and the gate's limit `global`, as far as the stated limits and the answer times need it; what was stated
    /// above stays.
    pub auto_concurrency: Option<AutoConcurrency>,
    /// Pages that the provider would not explain are asked about again.
    pub retry_failed: bool,
    /// What was kept is not looked at; new results take its place.
    pub fresh: bool,
    /// The longest side of pictures for the provider, in pixels.
    pub picture_px: u32,
    /// The longest side of pictures in the HTML page; none if there is none.
    pub html_px: Option<u32>,
    /// How many bytes of pictures for the provider are in memory at once, about.
    pub picture_bytes_max: u64,
    /// What is written of each file.
    pub outputs: Outputs,
}

/// What is written of each file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outputs {
    /// JSON, Markdown and HTML.
    #[default]
    All,
    /// JSON, of which [`Rebuild`](crate::Rebuild) makes the others.
    Json,
}

impl Options {
    /// The usual way for these files and that folder.
    #[must_use]
    pub fn new(inputs: Vec<Input>, out: impl Into<PathBuf>) -> Options {
        Options {
            inputs,
            out: out.into(),
            prompt: Prompt::default(),
            prompt_text: DEFAULT_PROMPT.into(),
            language: String::new(),
            selection: Selection::all(),
            context_pages: 1,
            page_concurrency: None,
            picture_concurrency: None,
            file_concurrency: None,
            auto_concurrency: None,
            retry_failed: false,
            fresh: false,
            picture_px: 1_400,
            html_px: Some(1_000),
            picture_bytes_max: 256 << 20,
            outputs: Outputs::All,
        }
    }
}

impl Options {
    /// Refuses outputs that would replace a file which tidegate did not write.
    pub(super) fn check_outputs(&self) -> Result<(), ExplainError> {
        let outputs = self.inputs.iter().flat_map(|input| outputs::paths(&self.out, &input.stem));
        for path in outputs.chain([self.out.join(REPORT), self.out.join(INDEX)]) {
            mark::may_replace(&path).map_err(|source| ExplainError::Foreign { path, source })?;
        }
        Ok(())
    }
}
