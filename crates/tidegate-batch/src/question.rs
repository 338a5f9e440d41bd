//! What is asked about a page, and what comes back: plain values, the same for every provider.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A question about one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The instruction, its variables filled in.
    pub prompt: String,
    /// The language to answer in; the document's own if it is empty.
    pub language: String,
    /// The file's name.
    pub file: String,
    /// The page's number, from 1.
    pub page: u32,
    /// How many pages the file has.
    pub pages: u32,
    /// The page's text; empty if only its picture is of use.
    pub text: String,
    /// The neighbours' text, in the order of their numbers.
    pub context: Vec<ContextPage>,
    /// The page's picture, if it is to be looked at.
    pub picture: Option<Picture>,
}

/// A neighbouring page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextPage {
    /// Its number, from 1.
    pub page: u32,
    /// Its text.
    pub text: String,
}

/// A page's picture.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// The bytes of a PNG file.
    pub png: Bytes,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({}×{}, {} bytes)", self.width, self.height, self.png.len())
    }
}

impl Question {
    /// Everything but the picture as one text: the instruction, the neighbours before, the page, the neighbours after.
    ///
    /// ```
    /// use tidegate_batch::{ContextPage, Question};
    ///
    /// let question = Question {
    ///     prompt: "Explain.".into(),
    ///     page: 2,
    ///     text: "Tides.".into(),
    ///     context: vec![ContextPage { page: 1, text: "The moon.".into() }],
    ///     ..Question::default()
    /// };
    /// let text = question.to_text();
    /// assert!(text.starts_with("Explain."));
    /// assert!(text.find("The moon.") < text.find("Tides."));
    /// ```
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::with_capacity(self.prompt.len() + self.text.len() + 256);
        out.push_str(self.prompt.trim_end());
        let (before, after): (Vec<_>, Vec<_>) = self.context.iter().partition(|context| context.page < self.page);
        for context in before {
            push_page(&mut out, context.page, "for context only", &context.text);
        }
        let label =
            if self.picture.is_some() { "the page to explain; its picture is attached" } else { "the page to explain" };
        push_page(&mut out, self.page, label, &self.text);
        for context in after {
            push_page(&mut out, context.page, "for context only", &context.text);
        }
        out
    }
}

fn push_page(out: &mut String, page: u32, label: &str, text: &str) {
    use std::fmt::Write as _;
    let _ = write!(out, "\n\n[page {page}: {label}]\n{}", text.trim());
}

/// What a provider says about a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The explanation, Markdown as a rule.
    pub text: String,
    /// What it cost, as far as the provider says.
    pub usage: Usage,
    /// How it ended.
    pub finish: Finish,
    /// The model that answered, as it calls itself.
    pub model: Option<String>,
}

/// Tokens that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the question.
    pub input_tokens: u64,
    /// Of the answer, thoughts included.
    pub output_tokens: u64,
}

impl Usage {
    /// Both.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
    }
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finish {
    /// By itself.
    #[default]
    Complete,
    /// Cut off, because it reached the greatest length allowed.
    Truncated,
}
