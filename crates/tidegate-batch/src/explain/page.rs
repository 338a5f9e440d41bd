//! The question about one page: its text or its picture, and the pages around it.

use std::collections::BTreeMap;

use tidegate_pdf::{Document, Quality, Want};

use super::prompt::{Prompt, Variables};
use crate::output::SeenAs;
use crate::question::{ContextPage, Picture, Question};
use crate::store::Key;

/// Counts up when the same question would be put differently.
const VERSION: &[u8] = b"tidegate/explanation/1";

/// A page's text, as far as it can be read.
#[derive(Clone, Debug)]
pub(super) struct ReadPage {
    text: String,
    quality: Quality,
    /// Nothing was found on the page; its picture decides.
    may_be_blank: bool,
    warnings: Vec<String>,
}

/// The texts of the pages around the one whose turn it is; only those are kept.
pub(super) struct Texts<'a> {
    document: &'a Document,
    /// On each side.
    context: u32,
    read: BTreeMap<u32, Result<ReadPage, String>>,
}

/// What is to be done with a page.
pub(super) enum Prepared {
    Ask(Box<Ready>),
    /// The provider does not look at pictures, and there is nothing else.
    Skip {
        reason: String,
        quality: String,
        warnings: Vec<String>,
    },
    /// There is nothing on the page: the provider is not asked.
    Blank,
    /// It is to be looked at as a picture, for which there is no room now.
    Later,
    /// It cannot be read.
    Unreadable {
        reason: String,
    },
}

/// A question, ready to be asked.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) question: Question,
    pub(super) key: Key,
    pub(super) seen_as: SeenAs,
    /// What is wrong with the text, if anything.
    pub(super) quality: Option<String>,
    pub(super) warnings: Vec<String>,
}

/// What all questions about a file have in common.
pub(super) struct PageContext<'a> {
    pub(super) prompt: &'a Prompt,
    pub(super) language: &'a str,
    pub(super) file: &'a str,
    pub(super) identity: &'a str,
    /// The provider's name, for messages.
    pub(super) provider: &'a str,
    pub(super) takes_pictures: bool,
    pub(super) picture_px: u32,
}

impl<'a> Texts<'a> {
    pub(super) fn new(document: &'a Document, context: u32) -> Texts<'a> {
        Texts { document, context, read: BTreeMap::new() }
    }

    /// Makes sure that the texts of `page` and its neighbours are there, and forgets those before them.
    async fn fetch(&mut self, page: u32) {
        let first = page.saturating_sub(self.context).max(1);
        let last = page.saturating_add(self.context).min(self.document.page_count());
        self.read = self.read.split_off(&first);
        for number in first..=last {
            if !self.read.contains_key(&number) {
                let read = match self.document.page(number, Want::text()).await {
                    Ok(page) => {
                        let warnings = page.warnings.iter().map(ToString::to_string).collect();
                        let (text, quality, may_be_blank) = match page.text {
                            Some(text) => {
                                let (quality, may_be_blank) = (text.quality(), text.may_be_blank());
                                (text.text, quality, may_be_blank)
                            }
                            None => (String::new(), Quality::Missing, false),
                        };
                        Ok(ReadPage { text, quality, may_be_blank, warnings })
                    }
                    Err(error) => Err(error.to_string()),
                };
                self.read.insert(number, read);
            }
        }
    }

    /// The neighbours' texts, as far as they are worth reading.
    fn around(&self, page: u32) -> Vec<ContextPage> {
        self.read
            .range(page.saturating_sub(self.context)..=page.saturating_add(self.context))
            .filter(|(number, _)| **number != page)
            .filter_map(|(&page, read)| {
                let read = read.as_ref().ok().filter(|read| is_readable(&read.quality))?;
                Some(ContextPage { page, text: read.text.clone() })
            })
            .collect()
    }

    /// The question about `page`. A picture is put off if `no_picture`.
    pub(super) async fn prepare(&mut self, page: u32, context: &PageContext<'_>, no_picture: bool) -> Prepared {
        self.fetch(page).await;
        let ReadPage { mut text, quality, may_be_blank, mut warnings } = match &self.read[&page] {
            Ok(read) => read.clone(),
            Err(reason) => return Prepared::Unreadable { reason: reason.clone() },
        };
        let good = quality.is_good();
        if no_picture && !good && context.takes_pictures {
            return Prepared::Later;
        }
        let mut picture = None;
        if !good && (context.takes_pictures || may_be_blank) {
            let want = Want::picture(context.picture_px);
            let want = if may_be_blank { want.and_text() } else { want };
            match self.document.page(page, want).await {
                Ok(page) if page.is_blank() => return Prepared::Blank,
                Ok(page) => {
                    for warning in page.warnings.iter().map(ToString::to_string) {
                        if !warnings.contains(&warning) {
                            warnings.push(warning);
                        }
                    }
                    picture = page.picture.filter(|_| context.takes_pictures);
                }
                Err(error) => return Prepared::Unreadable { reason: error.to_string() },
            }
        }
        if !is_readable(&quality) {
            if picture.is_none() {
                let provider = context.provider;
                let reason = format!("the page's text is {quality}, and provider {provider} does not look at pictures");
                return Prepared::Skip { reason, quality: quality.to_string(), warnings };
            }
            text.clear();
        }
        let pages = self.document.page_count();
        let title = self.document.title().unwrap_or(context.file);
        let variables = Variables { file: context.file, title, page, pages, language: context.language };
        let question = Question {
            prompt: context.prompt.fill(&variables),
            language: context.language.into(),
            file: context.file.into(),
            page,
            pages,
            text,
            context: self.around(page),
            picture: picture.map(|picture| Picture {
                png: picture.bytes.into(),
                width: picture.width,
                height: picture.height,
            }),
        };
        let seen_as = if question.picture.is_some() { SeenAs::Picture } else { SeenAs::Text };
        let key = key_of(&question, context.identity);
        let quality = (!good).then(|| quality.to_string());
        Prepared::Ask(Box::new(Ready { question, key, seen_as, quality, warnings }))
    }
}

/// Whether a text says something, though perhaps not in order.
fn is_readable(quality: &Quality) -> bool {
    matches!(quality, Quality::Good | Quality::Unordered)
}

/// Everything that decides an answer.
pub(super) fn key_of(question: &Question, identity: &str) -> Key {
    let text = question.to_text();
    let picture = question.picture.as_ref().map_or(&[][..], |picture| &picture.png);
    Key::of([VERSION, identity.as_bytes(), question.language.as_bytes(), text.as_bytes(), picture])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_with_everything_that_decides_the_answer() {
        let question = Question {
            prompt: "Explain.".into(),
            page: 2,
            text: "Tides.".into(),
            context: vec![ContextPage { page: 1, text: "Moon.".into() }],
            ..Question::default()
        };
        let key = key_of(&question, "local 1");
        assert_eq!(key, key_of(&question.clone(), "local 1"));
        let changed = |change: fn(&mut Question)| {
            let mut other = question.clone();
            change(&mut other);
            key_of(&other, "local 1")
        };
        let others = [
            key_of(&question, "local 2"),
            changed(|question| question.prompt = "Explain!".into()),
            changed(|question| question.language = "de".into()),
            changed(|question| question.text = "Tide.".into()),
            changed(|question| question.page = 3),
            changed(|question| question.context[0].text = "Sun.".into()),
            changed(|question| question.context.clear()),
            changed(|question| {
                question.picture = Some(Picture { png: bytes::Bytes::from_static(b"p"), width: 1, height: 1 });
            }),
        ];
        let distinct: std::collections::HashSet<_> = others.iter().chain([&key]).collect();
        assert_eq!(distinct.len(), others.len() + 1);
    }
}
