//! What travels between the asker and the workers: plain values and their JSON.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_batch::{Answer, CallError, ContextPage, Parameters, Picture, Question};

/// The task's name.
pub const TASK: &str = "explain.page";

/// The argument that holds the page.
pub(crate) const ARGUMENT: &str = "page";

/// The server to call. A worker calls one server and refuses tasks for others, because a message must not decide which
/// server receives the worker's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The provider's name, such as `openai`.
    pub provider: String,
    /// Its address; empty for the offline provider.
    pub base_url: String,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base_url.as_str() {
            "" => write!(f, "provider {}", self.provider),
            url => write!(f, "{} at {url}", self.provider),
        }
    }
}

/// A question on its way to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PageTask {
    pub(crate) server: Server,
    #[serde(default)]
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    prompt: String,
    #[serde(default)]
    language: String,
    file: String,
    page: u32,
    pages: u32,
    #[serde(default)]
    text: String,
    #[serde(default)]
    context: Vec<Neighbour>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    picture: Option<Png>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Neighbour {
    page: u32,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Png {
    base64: String,
    width: u32,
    height: u32,
}

impl PageTask {
    pub(crate) fn new(server: &Server, parameters: Option<&Parameters>, question: &Question) -> PageTask {
        PageTask {
            server: server.clone(),
            model: parameters.map(|parameters| parameters.model.clone()).unwrap_or_default(),
            max_tokens: parameters.and_then(|parameters| parameters.max_tokens),
            temperature: parameters.and_then(|parameters| parameters.temperature),
            prompt: question.prompt.clone(),
            language: question.language.clone(),
            file: question.file.clone(),
            page: question.page,
            pages: question.pages,
            text: question.text.clone(),
            context: question
                .context
                .iter()
                .map(|context| Neighbour { page: context.page, text: context.text.clone() })
                .collect(),
            picture: question.picture.as_ref().map(|picture| Png {
                base64: BASE64.encode(&picture.png),
                width: picture.width,
                height: picture.height,
            }),
        }
    }

    pub(crate) fn parameters(&self) -> Parameters {
        Parameters { model: self.model.clone(), max_tokens: self.max_tokens, temperature: self.temperature }
    }

    /// The question, or what is wrong with it.
    pub(crate) fn into_question(self) -> Result<Question, String> {
        let picture = match self.picture {
            None => None,
            Some(Png { base64, width, height }) => {
                let png = BASE64.decode(base64).map_err(|error| format!("its picture is no base64: {error}"))?;
                Some(Picture { png: png.into(), width, height })
            }
        };
        let context = self.context.into_iter().map(|context| ContextPage { page: context.page, text: context.text });
        Ok(Question {
            prompt: self.prompt,
            language: self.language,
            file: self.file,
            page: self.page,
            pages: self.pages,
            text: self.text,
            context: context.collect(),
            picture,
        })
    }
}

/// What a worker found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PageResult {
    /// Who asked.
    pub(crate) worker: String,
    /// Requests that were sent for it.
    pub(crate) attempts: u32,
    #[serde(flatten)]
    pub(crate) outcome: PageOutcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PageOutcome {
    Answer(Answer),
    Error(Refusal),
}

/// A [`CallError`] on its way back; a server's own words without their form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    code: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

impl PageResult {
    pub(crate) fn read(value: Value) -> Result<PageResult, String> {
        serde_json::from_value(value).map_err(|error| format!("a worker's result makes no sense: {error}"))
    }
}

impl Refusal {
    pub(crate) fn of(error: &CallError) -> Refusal {
        let (message, status) = match error {
            CallError::Refused { status, message, .. } | CallError::NoPictures { status, message } => {
                (message.clone(), Some(*status))
            }
            CallError::TooLarge { reason }
            | CallError::BadModel { reason }
            | CallError::Declined { reason }
            | CallError::Shut { reason }
            | CallError::Unavailable { reason, .. }
            | CallError::Garbled { reason, .. }
            | CallError::Journal { reason } => (reason.clone(), None),
            other => (other.to_string(), None),
        };
        Refusal { code: error.code().into(), message, status }
    }

    /// Returns the error that `worker` met after `attempts` attempts.
    pub(crate) fn into_error(self, worker: &str, attempts: u32) -> CallError {
        let Refusal { code, message, status } = self;
        let reason = message;
        match code.as_str() {
            "too_large" => CallError::TooLarge { reason },
            "refused" => {
                CallError::Refused { status: status.unwrap_or(400), message: reason, body: bytes::Bytes::new() }
            }
            "no_pictures" => CallError::NoPictures { status: status.unwrap_or(400), message: reason },
            "bad_model" => CallError::BadModel { reason },
            "declined" => CallError::Declined { reason },
            // Whose key it is matters where it is mended.
            "shut" | "journal" => CallError::Shut { reason: format!("worker {worker}: {reason}") },
            "garbled" => CallError::Garbled { attempts, reason },
            _ => CallError::Unavailable { attempts, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            prompt: "Explain.".into(),
            language: "de".into(),
            file: "a.pdf".into(),
            page: 2,
            pages: 9,
            text: "Tides \u{1f30a}.".into(),
            context: vec![ContextPage { page: 1, text: "Moon.".into() }],
            picture: Some(Picture { png: bytes::Bytes::from_static(&[0, 255, 7]), width: 4, height: 5 }),
        }
    }

    #[test]
    fn a_question_comes_out_as_it_went_in() {
        let server = Server { provider: "openai".into(), base_url: "http://localhost/v1".into() };
        let parameters = Parameters { model: "m".into(), max_tokens: Some(9), temperature: Some(0.5) };
        let task = PageTask::new(&server, Some(&parameters), &question());
        let travelled: PageTask = serde_json::from_str(&serde_json::to_string(&task).unwrap()).unwrap();
        assert_eq!((travelled.server.clone(), travelled.parameters()), (server, parameters));
        assert_eq!(travelled.into_question().unwrap(), question());
    }

    #[test]
    fn a_picture_that_is_none_is_named() {
        let server = Server { provider: "local".into(), base_url: String::new() };
        let mut task = PageTask::new(&server, None, &question());
        task.picture.as_mut().unwrap().base64 = "%".into();
        assert!(task.into_question().unwrap_err().contains("picture"));
    }

    #[test]
    fn errors_come_back_as_what_they_were() {
        let errors = [
            CallError::TooLarge { reason: "a".into() },
            CallError::Refused { status: 404, message: "b".into(), body: bytes::Bytes::new() },
            CallError::BadModel { reason: "x".into() },
            CallError::Declined { reason: "c".into() },
            CallError::Unavailable { attempts: 3, reason: "d".into() },
            CallError::Garbled { attempts: 3, reason: "e".into() },
        ];
        for error in errors {
            assert_eq!(Refusal::of(&error).into_error("w", 3), error);
        }
        let shut = Refusal::of(&CallError::Shut { reason: "no credit".into() }).into_error("host-7", 1);
        assert_eq!(shut, CallError::Shut { reason: "worker host-7: no credit".into() });
    }

    #[test]
    fn a_result_of_any_other_shape_is_named() {
        for value in [Value::Null, serde_json::json!({}), serde_json::json!({"worker": "w", "attempts": 1})] {
            assert!(PageResult::read(value).unwrap_err().contains("makes no sense"));
        }
    }
}
