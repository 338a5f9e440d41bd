//! One page, asked about outside of a run: with another prompt or by another provider, to compare.

use std::fmt;
use std::path::PathBuf;

use tidegate_pdf::{Document, Reader};

use super::options::Options;
use super::page::{PageContext, Prepared, Ready, Texts};
use super::prompt::{Prompt, PromptError};
use crate::call_error::CallError;
use crate::output::SeenAs;
use crate::provider::{Asked, Provider};
use crate::question::Answer;
use crate::run::ItemScope;
use crate::store::{Kept, Record, Store, StoreError};

/// A question about one page of a run's file.
#[derive(Clone, Debug)]
pub struct PageAsk {
    path: PathBuf,
    file: String,
    page: u32,
    context_pages: u32,
    picture_px: u32,
    reader: Reader,
    own: Wording,
    asked: Wording,
}

#[derive(Clone, Debug)]
struct Wording {
    prompt: Prompt,
    language: String,
}

/// An answer, and how the page was read for it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PageAnswer {
    /// The answer.
    pub answer: Answer,
    /// Requests that were sent for it.
    pub attempts: u32,
    /// How the page was sent.
    pub seen_as: SeenAs,
    /// What is wrong with the page's text, if anything.
    pub quality: Option<String>,
    /// What was odd about the page.
    pub warnings: Vec<String>,
}

/// Why a page has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum PageAskError {
    /// The file or the page cannot be read.
    Unreadable(
        /// Why.
        String,
    ),
    /// There is nothing to ask about: the page is blank, or it is a picture and the provider takes none.
    Skipped(
        /// Why.
        String,
    ),
    /// The provider has not answered.
    Call(CallError),
    /// The answer could not be stored.
    Store(StoreError),
}

impl fmt::Display for PageAskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageAskError::Unreadable(reason) | PageAskError::Skipped(reason) => f.write_str(reason),
            PageAskError::Call(error) => error.fmt(f),
            PageAskError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PageAskError {}

impl PageAsk {
    /// The question that a run with these options asks about `page`, from 1, of its `file`-th input, from 0.
    ///
    /// # Panics
    /// If there is no such input.
    #[must_use]
    pub fn new(options: &Options, file: usize, page: u32) -> PageAsk {
        let input = &options.inputs[file];
        let own = Wording { prompt: options.prompt.clone(), language: options.language.clone() };
        PageAsk {
            path: input.path.clone(),
            file: input.name(),
            page,
            context_pages: options.context_pages,
            picture_px: options.picture_px,
            reader: Reader::new(),
            asked: own.clone(),
            own,
        }
    }

    /// The same with another reader: other limits, a password.
    #[must_use]
    pub fn reader(mut self, reader: Reader) -> PageAsk {
        self.reader = reader;
        self
    }

    /// The same with another prompt.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn prompt(mut self, text: &str) -> Result<PageAsk, PromptError> {
        self.asked.prompt = Prompt::parse(text)?;
        Ok(self)
    }

    /// The same with the answer in another language.
    #[must_use]
    pub fn language(mut self, language: &str) -> PageAsk {
        self.asked.language = language.into();
        self
    }

    /// Asks `provider`, through the gate, and stores nothing.
    ///
    /// # Errors
    /// [`PageAskError`].
    ///
    /// # Cancel safety
    /// As [`Provider::ask`].
    pub async fn ask(&self, provider: &dyn Provider, scope: &ItemScope) -> Result<PageAnswer, PageAskError> {
        let ready = self.prepare(&self.asked, provider).await?;
        let asked = provider.ask(scope, &ready.question).await.map_err(PageAskError::Call)?;
        let Asked { answer, attempts, .. } = asked;
        let Ready { seen_as, quality, warnings, .. } = ready;
        Ok(PageAnswer { answer, attempts, seen_as, quality, warnings })
    }

    /// Stores `answer` as that to the run's own question, which the run asks of `own`. A run that goes on takes it over by
    /// [`Control::reload`](crate::Control::reload); the next run finds it.
    ///
    /// # Errors
    /// [`PageAskError`].
    ///
    /// # Cancel safety
    /// Dropped, the answer may have been stored.
    pub async fn replace(&self, answer: &PageAnswer, own: &dyn Provider, store: &Store) -> Result<(), PageAskError> {
        let ready = self.prepare(&self.own, own).await?;
        let record = Record {
            kept: Kept::Answered(answer.answer.clone()),
            source: self.file.clone(),
            number: u64::from(self.page),
            attempts: answer.attempts,
        };
        store.put(ready.key, record).await.map_err(PageAskError::Store)
    }

    async fn prepare(&self, wording: &Wording, provider: &dyn Provider) -> Result<Ready, PageAskError> {
        let unreadable = |error: &dyn fmt::Display| PageAskError::Unreadable(error.to_string());
        let document: Document = self.reader.open(&self.path).await.map_err(|error| unreadable(&error))?;
        if self.page == 0 || self.page > document.page_count() {
            let has = document.page_count();
            return Err(PageAskError::Unreadable(format!("{} has {has} pages, and no page {}", self.file, self.page)));
        }
        let context = PageContext {
            prompt: &wording.prompt,
            language: &wording.language,
            file: &self.file,
            identity: provider.identity(),
            provider: provider.model(),
            takes_pictures: provider.takes_pictures(),
            picture_px: self.picture_px,
        };
        match Texts::new(&document, self.context_pages).prepare(self.page, &context, false).await {
            Prepared::Ask(ready) => Ok(*ready),
            Prepared::Skip { reason, .. } => Err(PageAskError::Skipped(reason)),
            Prepared::Later => unreachable!("a picture is put off only on request"),
            Prepared::Blank => Err(PageAskError::Skipped("the page is blank".into())),
            Prepared::Unreadable { reason } => Err(PageAskError::Unreadable(reason)),
        }
    }
}
