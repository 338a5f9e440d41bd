//! A handler that posts its task to a URL.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_http::{Client, Error as HttpError};
use tidegate_secret::{Redactor, Secret, UserInfo};

use crate::broker::{Local, TaskError};
use crate::context::TaskContext;
use crate::handlers::{Handler, HandlerError};
use crate::json as exact;
use crate::task::Task;

/// Answers larger than this are refused.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Posts `{"id", "task", "args", "kwargs", "retries"}` as JSON to a URL. The answer decides:
///
/// | answer | outcome |
/// |---|---|
/// | 2xx with JSON | success, that value |
/// | 2xx without a body | success, `null` |
/// | 2xx with anything else | failure |
/// | 408, 425, 429, 502, 503, 504 | retry, after `Retry-After` (in seconds) if the answer has it |
/// | any other 4xx | rejected: the same request would be refused again |
/// | 3xx, 5xx | failure |
/// | none: not reached, cut off | failure |
///
/// A run that is dropped (time limit, stop, revoke) closes its connection.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_worker::{Handlers, HttpHandler};
///
/// let handlers = Handlers::new().handler("mail.send", Rc::new(HttpHandler::new("http://localhost:8080/mail")));
/// assert_eq!(handlers.names(), ["mail.send"]);
/// ```
#[derive(Debug, Clone)]
pub struct HttpHandler {
    /// With user and password, if it has some: the client makes a header of them.
    url: Secret,
    /// Removes the passwords, of the URL and of the client's proxies, from messages and from answers.
    messages: Redactor,
    answers: Redactor,
    client: Client,
}

impl HttpHandler {
    /// Posts to this URL.
    pub fn new(url: &str) -> HttpHandler {
        HttpHandler::with_client(url, Client::new())
    }

    /// Posts through this client, whose connections may be shared by several handlers.
    pub fn with_client(url: &str, client: Client) -> HttpHandler {
        let (_, user) = UserInfo::split(url);
        let secrets = || user.iter().flat_map(UserInfo::secrets).chain(client.secrets());
        let (messages, answers) = (Redactor::new(secrets()), Redactor::for_data(secrets()));
        HttpHandler { url: Secret::new(url), messages, answers, client }
    }
}

impl Handler for HttpHandler {
    fn call(&self, task: Task, _context: TaskContext) -> Local<'static, Result<Value, HandlerError>> {
        let HttpHandler { url, messages, answers, client } = self.clone();
        Box::pin(async move {
            let body = json!({
                "id": task.id, "task": task.name, "args": task.args, "kwargs": task.kwargs, "retries": task.retries,
            });
            let response =
                client.post_json_text(url.expose(), exact::to_string(&body).into_bytes()).await.map_err(unreachable)?;
            let status = response.status().as_u16();
            let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
            let bytes = response.into_body().bytes_up_to(ANSWER_BYTES_MAX).await.map_err(unreachable)?;
            // Before anything is shortened: a debug proxy answers with the request's own headers.
            let redactor = if (200..300).contains(&status) { &answers } else { &messages };
            let clean = redactor.redact_bytes(&bytes);
            read_answer(status, after, clean.as_deref().unwrap_or(&bytes)).map_err(|error| {
                match messages.redact_bytes(&bytes) {
                    Some(clean) => read_answer(status, after, &clean).err().unwrap_or(error),
                    None => error,
                }
            })
        })
    }
}

/// What an answer means: the table above.
fn read_answer(status: u16, after: Option<Duration>, body: &[u8]) -> Result<Value, HandlerError> {
    let error = |message: String| TaskError { kind: format!("Http{status}"), message, traceback: None };
    match status {
        200..=299 if body.iter().all(u8::is_ascii_whitespace) => Ok(Value::Null),
        200..=299 => exact::from_slice(body)
            .map_err(|why| HandlerError::Failed(error(format!("the answer is no JSON ({why}): {}", shown(body))))),
        408 | 425 | 429 | 502..=504 => Err(HandlerError::Retry { after, error: error(shown(body)) }),
        400..=499 => Err(HandlerError::rejected(format!("the handler answered {status}: {}", shown(body)))),
        _ => Err(HandlerError::Failed(error(shown(body)))),
    }
}

/// The beginning of a body, for messages.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(800)]);
    let short: String = text.trim().chars().take(200).collect();
    if short.is_empty() { "no text came with it".to_owned() } else { short }
}

fn unreachable(error: HttpError) -> HandlerError {
    HandlerError::Failed(TaskError { kind: "Http".to_owned(), message: error.to_string(), traceback: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_outcome() {
        assert_eq!(read_answer(200, None, b"{\"n\":1}"), Ok(json!({"n": 1})));
        assert_eq!(read_answer(204, None, b" \n"), Ok(Value::Null));
        let kind = |status, body: &[u8]| match read_answer(status, Some(Duration::from_secs(7)), body) {
            Ok(_) => "success",
            Err(HandlerError::Retry { after: Some(after), .. }) if after.as_secs() == 7 => "retry",
            Err(HandlerError::Rejected { .. }) => "rejected",
            Err(HandlerError::Failed(_)) => "failed",
            Err(_) => "other",
        };
        assert_eq!(kind(200, b"<html>"), "failed");
        for status in [408, 425, 429, 502, 503, 504] {
            assert_eq!(kind(status, b""), "retry", "{status}");
        }
        for status in [400, 401, 404, 410, 422] {
            assert_eq!(kind(status, b"no"), "rejected", "{status}");
        }
        for status in [301, 500, 501, 505] {
            assert_eq!(kind(status, b"no"), "failed", "{status}");
        }
    }

    #[test]
    fn an_integer_beyond_64_bits_stays_an_integer() {
        let value = read_answer(200, None, b"[1000000000000000000000000000001]").unwrap();
        assert_eq!(exact::to_string(&value), "[1000000000000000000000000000001]");
    }

    #[test]
    fn a_message_shows_only_the_beginning_of_a_body() {
        assert_eq!(shown(&[b'x'; 100_000]).len(), 200);
        assert_eq!(shown(b" \n"), "no text came with it");
    }
}
