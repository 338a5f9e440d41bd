//! What requests, answers and refusals look like, one file per provider. Pure: values in, values out.

mod anthropic;
mod gemini;
mod openai;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::Value;

use crate::fault::{Counting, Refusals};
use crate::ledger::{Level, Refusal};
use crate::text::{TOKENS_PER_PICTURE, tokens_of};
use crate::window::Now;

/// The usual size of a reply.
const REPLY_BYTES: usize = 1_024;

/// The provider that is imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Gemini,
    Anthropic,
}

/// A request, understood.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) model: String,
    /// What the answer is made from: the last thing the user said.
    pub(crate) prompt: String,
    /// All of it, pictures included.
    pub(crate) tokens_in: u64,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) task: Task,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Chat,
    Embed,
}

/// A text, and what it cost.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) text: &'a str,
    pub(crate) whole: bool,
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
    pub(crate) number: u64,
}

/// An answer before it is one of axum's.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// JSON. Answers are written without a tree of all they say: a server that many ask would do little else.
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: &impl Serialize) -> Reply {
        let mut json = Vec::with_capacity(REPLY_BYTES);
        serde_json::to_writer(&mut json, body).expect("strings, numbers and lists of them");
        Reply { status, headers: HeaderMap::new(), body: json }
    }

    fn header(&mut self, name: &str, value: impl ToString) {
        let pair = (HeaderName::try_from(name), HeaderValue::try_from(value.to_string()));
        if let (Ok(name), Ok(value)) = pair {
            self.headers.insert(name, value);
        }
    }
}

/// Why a request is wrong.
#[derive(Debug)]
pub(crate) enum Wrong {
    Key,
    Model(String),
    /// What it says does not make sense.
    Request(String),
    Path(String),
}

impl Dialect {
    /// The key a request brought along.
    pub(crate) fn key(self, headers: &HeaderMap) -> Option<&str> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        match self {
            Dialect::OpenAi => header("authorization").and_then(|value| value.strip_prefix("Bearer ")),
            Dialect::Gemini => header("x-goog-api-key"),
            Dialect::Anthropic => header("x-api-key"),
        }
    }

    /// Understands a request. The model stands in Gemini's path, and in the others' body.
    pub(crate) fn read(self, body: &[u8], model: Option<&str>, task: Task) -> Result<Ask, Wrong> {
        let body: Value =
            serde_json::from_slice(body).map_err(|error| Wrong::Request(format!("the body is not JSON: {error}")))?;
        let ask = match self {
            Dialect::OpenAi => openai::read(&body, task),
            Dialect::Gemini => gemini::read(&body, model.unwrap_or_default()),
            Dialect::Anthropic => anthropic::read(&body),
        };
        ask.map_err(Wrong::Request)
    }

    /// How many tokens a request counts against the tokens per minute.
    pub(crate) fn cost(self, ask: &Ask, tokens_out: u64, counting: Counting) -> u64 {
        match (counting, self) {
            (Counting::Input, _) | (Counting::Auto, Dialect::Gemini | Dialect::Anthropic) => ask.tokens_in,
            (Counting::Usage | Counting::Auto, _) => ask.tokens_in + tokens_out,
            (Counting::Declared, _) => ask.tokens_in.max(ask.max_tokens.unwrap_or(0)),
        }
    }

    /// How many tokens a request counts against the output tokens per minute.
    pub(crate) fn cost_out(ask: &Ask, tokens_out: u64, counting: Counting) -> u64 {
        match counting {
            Counting::Declared => ask.max_tokens.unwrap_or(tokens_out),
            Counting::Auto | Counting::Usage | Counting::Input => tokens_out,
        }
    }

    pub(crate) fn answer(self, ask: &Ask, answer: &Answer<'_>, levels: &[Level], now: Now) -> Reply {
        match self {
            Dialect::OpenAi => openai::answer(ask, answer, levels, now),
            Dialect::Gemini => gemini::answer(ask, answer),
            Dialect::Anthropic => anthropic::answer(ask, answer, levels, now),
        }
    }

    pub(crate) fn refuse(self, refusal: &Refusal, model: &str, how: Refusals, levels: &[Level], now: Now) -> Reply {
        match self {
            Dialect::OpenAi => openai::refuse(refusal, model, how, levels),
            Dialect::Gemini => gemini::refuse(refusal, model, how),
            Dialect::Anthropic => anthropic::refuse(refusal, how, levels, now),
        }
    }

    pub(crate) fn reject(self, wrong: &Wrong) -> Reply {
        match self {
            Dialect::OpenAi => openai::reject(wrong),
            Dialect::Gemini => gemini::reject(wrong),
            Dialect::Anthropic => anthropic::reject(wrong),
        }
    }

    /// 500, 503 or 529.
    pub(crate) fn fail(self, status: u16) -> Reply {
        match self {
            Dialect::OpenAi => openai::fail(status),
            Dialect::Gemini => gemini::fail(status),
            Dialect::Anthropic => anthropic::fail(status),
        }
    }

    pub(crate) fn models(self, models: &[String]) -> Value {
        match self {
            Dialect::OpenAi | Dialect::Anthropic => openai::models(models),
            Dialect::Gemini => gemini::models(models),
        }
    }
}

/// What was said, in text and in pictures.
#[derive(Debug, Default)]
struct Said {
    text: String,
    pictures: u64,
}

impl Said {
    /// A text, or a list of parts of which some have a `text`; the others are taken for pictures.
    fn read(content: &Value) -> Said {
        let mut said = Said::default();
        match content {
            Value::String(text) => said.text.push_str(text),
            Value::Array(parts) => {
                for part in parts {
                    match part.get("text").and_then(Value::as_str) {
                        Some(text) => {
                            if !said.text.is_empty() {
                                said.text.push('\n');
                            }
                            said.text.push_str(text);
                        }
                        None => said.pictures += 1,
                    }
                }
            }
            _ => {}
        }
        said
    }

    fn tokens(&self) -> u64 {
        let text = if self.text.is_empty() { 0 } else { tokens_of(&self.text) };
        text + self.pictures * TOKENS_PER_PICTURE
    }
}

/// The prompt of a list of messages: what the user said last, and the tokens of them all.
fn conversation<'a>(said: impl Iterator<Item = (&'a str, Said)>) -> (String, u64) {
    let (mut prompt, mut tokens) = (String::new(), 0);
    for (role, said) in said {
        tokens += said.tokens();
        if role == "user" {
            prompt = said.text;
        }
    }
    (prompt, tokens)
}
