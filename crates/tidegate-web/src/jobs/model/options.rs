//! What is asked about each page of a job that explains documents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_batch::{DEFAULT_PROMPT, Prompt, Selection};

use super::NAME_CHARS_MAX;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
