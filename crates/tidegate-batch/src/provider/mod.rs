//! Who explains: the offline provider, or a server that speaks one of three dialects. Building a request and reading an
//! answer are plain functions (`openai.rs`, `gemini.rs`, `anthropic.rs`); `remote.rs` sends them through the caller.

mod anthropic;
mod counts;
mod event_stream;
mod gemini;
pub mod local;
mod model;
mod openai;
mod remote;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde_json::Value;
use tidegate_limit::feedback;
use tidegate_limit::{Cost, Dimension};

pub use local::Local;
pub use model::BadModel;
pub use remote::Remote;

use self::counts::Metered;
use crate::call::CallerStats;
use crate::call_error::CallError;
use crate::estimate::Estimate;
use crate::key::ApiKey;
use crate::question::{Answer, Question, Usage};
use crate::run::ItemScope;

/// Who can explain a page.
pub trait Provider {
    /// What, besides the question, decides the answer: the provider, its address, the model, the parameters. Results are
    /// kept under it, so that another model's answers are not taken for this one's.
    fn identity(&self) -> &str;

    /// The model's name, for people.
    fn model(&self) -> &str;

    /// Whether a page can be shown as a picture.
    fn takes_pictures(&self) -> bool;

    /// What a question will cost, at the most.
    fn estimate(&self, question: &Question) -> Estimate;

    /// What it has sent so far, if it sends anything.
    fn traffic(&self) -> CallerStats {
        CallerStats::default()
    }

    /// What a question costs at the gate, about: what the last ones did. For those who want to know how long the limits
    /// will hold up the rest.
    fn typical_cost(&self) -> Cost {
        Cost::request()
    }

    /// Asks, once the gate lets it: waits in `scope`, and returns when there is an answer or no hope for one.
    ///
    /// # Errors
    /// [`CallError`], when there have been enough attempts.
    ///
    /// # Cancel safety
    /// Dropped while it waits at the gate, nothing has happened; dropped later, the request counts and its answer is lost.
    fn ask<'a>(&'a self, scope: &'a ItemScope, question: &'a Question) -> Asking<'a>;
}

/// The future of [`Provider::ask`].
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Asked, CallError>> + 'a>>;

/// An answer, and how it was come by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Asked {
    /// What was said.
    pub answer: Answer,
    /// Requests that were sent for it.
    pub attempts: u32,
}

impl Asked {
    /// An answer that took so many requests; at least one, unless nothing was sent.
    #[must_use]
    pub fn new(answer: Answer, attempts: u32) -> Asked {
        Asked { answer, attempts }
    }
}

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// OpenAI's chat completions, and everything compatible.
    OpenAi,
    /// Gemini's `generateContent`.
    Gemini,
    /// Anthropic's Messages.
    Anthropic,
}

/// What a question is sent with.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The model.
    pub model: String,
    /// The greatest length of an answer in tokens; the server's own limit if there is none.
    pub max_tokens: Option<u32>,
    /// How much chance there is in an answer; the server's default if there is none.
    pub temperature: Option<f32>,
}

impl Dialect {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::OpenAi => "openai",
            Dialect::Gemini => "gemini",
            Dialect::Anthropic => "anthropic",
        }
    }

    /// Where it is spoken, unless told otherwise.
    #[must_use]
    pub fn default_base_url(self) -> &'static str {
        match self {
            Dialect::OpenAi => "https://api.openai.com/v1",
            Dialect::Gemini => "https://generativelanguage.googleapis.com",
            Dialect::Anthropic => "https://api.anthropic.com",
        }
    }

    /// The variable that its key is usually in.
    #[must_use]
    pub fn default_key_variable(self) -> &'static str {
        match self {
            Dialect::OpenAi => "OPENAI_API_KEY",
            Dialect::Gemini => "GEMINI_API_KEY",
            Dialect::Anthropic => "ANTHROPIC_API_KEY",
        }
    }

    /// How its answers tell of limits.
    #[must_use]
    pub fn feedback(self) -> feedback::Provider {
        match self {
            Dialect::OpenAi => feedback::Provider::OpenAi,
            Dialect::Gemini => feedback::Provider::Gemini,
            Dialect::Anthropic => feedback::Provider::Anthropic,
        }
    }

    /// The headers of every request. A server of one's own may need no key.
    pub(crate) fn headers(self, key: Option<&ApiKey>) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        if let Some(key) = key {
            headers.push(match self {
                Dialect::OpenAi => (AUTHORIZATION, key.header("Bearer ")),
                Dialect::Gemini => (HeaderName::from_static("x-goog-api-key"), key.header("")),
                Dialect::Anthropic => (HeaderName::from_static("x-api-key"), key.header("")),
            });
        }
        if self == Dialect::Anthropic {
            headers.push((HeaderName::from_static("anthropic-version"), HeaderValue::from_static(anthropic::VERSION)));
        }
        headers
    }

    /// Returns the path below the base URL that questions to `model` go to.
    ///
    /// # Errors
    /// [`BadModel`] if the name would be part of the path and could lead elsewhere. Only Gemini has the name in the
    /// path; elsewhere it is a text in the body, and any name will do.
    pub fn path(self, model: &str) -> Result<String, BadModel> {
        match self {
            Dialect::OpenAi => Ok("/chat/completions".into()),
            Dialect::Gemini => gemini::path(model),
            Dialect::Anthropic => Ok("/v1/messages".into()),
        }
    }

    /// A question as the body of a request.
    #[must_use]
    pub fn body(self, question: &Question, parameters: &Parameters) -> Bytes {
        let body = match self {
            Dialect::OpenAi => openai::body(question, parameters),
            Dialect::Gemini => gemini::body(question, parameters),
            Dialect::Anthropic => anthropic::body(question, parameters),
        };
        Bytes::from(body.to_string())
    }

    /// What the body of a successful answer says.
    ///
    /// # Errors
    /// [`Unreadable`], by what can be done about it.
    pub fn answer(self, body: &[u8]) -> Result<Answer, Unreadable> {
        if self == Dialect::OpenAi
            && let Some(answer) = openai::plain_answer(body)
        {
            return Ok(answer);
        }
        let body = json(body)?;
        match self {
            Dialect::OpenAi => openai::answer(&body),
            Dialect::Gemini => gemini::answer(&body),
            Dialect::Anthropic => anthropic::answer(&body),
        }
    }

    /// Returns `true` if the text of this part of an answer is joined to what the answer says.
    pub(crate) fn is_said(self, part: &Value) -> bool {
        match self {
            Dialect::OpenAi => true,
            Dialect::Gemini => gemini::is_said(part),
            Dialect::Anthropic => anthropic::is_said(part),
        }
    }

    /// Returns a chat completion that was streamed although no stream was asked for as the body it would have been; any
    /// other body as it is.
    pub(crate) fn assembled(self, body: Bytes) -> Bytes {
        match self {
            Dialect::OpenAi => event_stream::chat_completion(&body).map_or(body, |whole| whole.to_string().into()),
            Dialect::Gemini | Dialect::Anthropic => body,
        }
    }

    /// What the body of an answer says it cost, if it does.
    #[must_use]
    pub fn usage(self, body: &Value) -> Option<Usage> {
        match self {
            Dialect::OpenAi => openai::usage(body),
            Dialect::Gemini => gemini::usage(body),
            Dialect::Anthropic => anthropic::usage(body),
        }
    }

    /// The same of a body that nobody has read yet.
    pub(crate) fn usage_in(self, body: &[u8]) -> Option<Usage> {
        let Ok(Metered { usage, usage_metadata }) = serde_json::from_slice(body) else {
            return self.usage(&serde_json::from_slice(body).ok()?);
        };
        match self {
            Dialect::OpenAi => usage.map(|counts| openai::usage_of(|name| counts.of(name))),
            Dialect::Gemini => usage_metadata.map(|counts| gemini::usage_of(|name| counts.of(name))),
            Dialect::Anthropic => usage.map(|counts| anthropic::usage_of(|name| counts.of(name))),
        }
    }

    /// What limits count, of tokens in and out. Under tokens a minute Gemini and Anthropic count those that are asked,
    /// OpenAI all of them; those in and those out are there apart as well.
    #[must_use]
    pub fn cost(self, input_tokens: u64, output_tokens: u64) -> Cost {
        self.cost_together(input_tokens, output_tokens)
            .and(Dimension::INPUT_TOKENS, input_tokens)
            .and(Dimension::OUTPUT_TOKENS, output_tokens)
    }

    /// The same for a gate that does not count prompts and answers apart: nothing is allocated for it.
    pub(crate) fn cost_together(self, input_tokens: u64, output_tokens: u64) -> Cost {
        Cost::tokens(match self {
            Dialect::OpenAi => input_tokens.saturating_add(output_tokens),
            Dialect::Gemini | Dialect::Anthropic => input_tokens,
        })
    }
}

/// Why an answer that came is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is not what this dialect answers: perhaps another time.
    Garbled(String),
    /// The provider will not answer this: asking again is of no use.
    Declined(String),
}

/// Reads the body of a successful answer as JSON.
///
/// # Errors
/// [`Unreadable`]. An event stream is not asked for again: the server would stream again.
pub(crate) fn json(body: &[u8]) -> Result<Value, Unreadable> {
    if body.is_empty() {
        return Err(Unreadable::Garbled("it is empty (0 bytes)".into()));
    }
    serde_json::from_slice(body).map_err(|error| match event_stream::is_event_stream(body) {
        true => Unreadable::Declined(format!(
            "the server sent an event stream where one JSON object was asked for; switch streaming off: {}",
            excerpt(body)
        )),
        false => Unreadable::Garbled(format!("it is not JSON ({error}): {}", excerpt(body))),
    })
}

/// The beginning of something that was to be JSON, for a message.
pub(crate) fn excerpt(body: &[u8]) -> String {
    const LEN: usize = 160;
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * LEN)]);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LEN) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// A text under `key`.
fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// A count under `key`; what is no count is none.
fn count(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_of_any_shape_panics() {
        let shapes =
            ["null", "[]", "{}", "3", r#"{"choices":[]}"#, r#"{"choices":{}}"#, r#"{"candidates":[{}]}"#, "<html>"];
        for dialect in [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic] {
            for shape in shapes {
                assert!(matches!(dialect.answer(shape.as_bytes()), Err(Unreadable::Garbled(_))), "{dialect:?} {shape}");
            }
        }
    }

    #[test]
    fn keys_go_where_each_dialect_wants_them() {
        let key = ApiKey::new("k", "a test").unwrap();
        let name = |dialect: Dialect| dialect.headers(Some(&key))[0].0.to_string();
        assert_eq!(name(Dialect::OpenAi), "authorization");
        assert_eq!(name(Dialect::Gemini), "x-goog-api-key");
        assert_eq!(name(Dialect::Anthropic), "x-api-key");
        assert!(Dialect::OpenAi.headers(None).is_empty());
        assert!(Dialect::OpenAi.headers(Some(&key))[0].1.is_sensitive());
    }

    #[test]
    fn only_openai_counts_what_is_answered_under_tokens() {
        let tokens = |dialect: Dialect| dialect.cost(100, 7).of(Dimension::TOKENS);
        assert_eq!([Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic].map(tokens), [107, 100, 100]);
    }
}
