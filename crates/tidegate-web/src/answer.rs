//! What a handler returns: a page, a redirect, JSON, a file; or a failure that becomes an error page or an error in JSON.

use std::borrow::Cow;
use std::fmt;

use axum::body::Body;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::page::Page;

/// The answer of a handler.
#[derive(Debug)]
pub struct Answer(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Page(Box<Page>),
    Response(http::Response<Body>),
}

impl Answer {
    /// Sends the browser to another page of this site, as after every form (303). `to` is a path of this site.
    #[must_use]
    pub fn see_other(to: &str) -> Answer {
        let mut response = http::Response::new(Body::empty());
        *response.status_mut() = StatusCode::SEE_OTHER;
        let to = HeaderValue::from_str(local_path(to)).unwrap_or(HeaderValue::from_static("/"));
        response.headers_mut().insert(header::LOCATION, to);
        Answer(Kind::Response(response))
    }

    /// A value as JSON.
    ///
    /// # Errors
    /// When `value` cannot be serialised.
    pub fn json(value: &impl Serialize) -> Result<Answer, Failure> {
        let text = serde_json::to_vec(value).map_err(|error| Failure::internal(&error))?;
        Ok(Answer::bytes("application/json", text))
    }

    /// Bytes of the given media type, shown by the browser.
    #[must_use]
    pub fn bytes(media_type: &'static str, body: impl Into<Body>) -> Answer {
        let mut response = http::Response::new(body.into());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        Answer(Kind::Response(response))
    }

    /// Bytes that the browser saves as `file_name`, of which only letters, digits, dots, dashes and underscores are kept.
    #[must_use]
    pub fn download(media_type: &'static str, file_name: &str, body: impl Into<Body>) -> Answer {
        let mut answer = Answer::bytes(media_type, body);
        let name: String = file_name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' })
            .take(120)
            .collect();
        let Kind::Response(response) = &mut answer.0 else { unreachable!("bytes are a response") };
        if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
            response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
        }
        answer
    }

    /// A response of the handler's own making.
    #[must_use]
    pub fn response(response: http::Response<Body>) -> Answer {
        Answer(Kind::Response(response))
    }
}

impl From<Page> for Answer {
    fn from(page: Page) -> Answer {
        Answer(Kind::Page(Box::new(page)))
    }
}

/// Returns `path` if it leads to this site and no other, `/` otherwise.
pub(crate) fn local_path(path: &str) -> &str {
    let local =
        path.starts_with('/') && !path.starts_with("//") && !path.contains('\\') && !path.contains(char::is_control);
    if local { path } else { "/" }
}

/// Why a request failed: shown as a page, or as `{"error": {"code", "message"}}` under `/api/`.
///
/// The message is shown as text; it names the thing and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: Cow<'static, str>,
    pub(crate) retry_after: Option<u64>,
}

impl Failure {
    /// A failure with this status and message.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Failure {
        Failure { status, message: message.into(), retry_after: None }
    }

    /// 400: the request is malformed or a value is not allowed.
    #[must_use]
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404: there is no such thing.
    #[must_use]
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, message)
    }

    /// 409: it exists, and its state does not allow this.
    #[must_use]
    pub fn conflict(message: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::CONFLICT, message)
    }

    /// 500: `error` is logged, and not shown.
    #[must_use]
    pub fn internal(error: &dyn fmt::Display) -> Failure {
        log::error!("web: {error}");
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "An error occurred on the server; its log has the details.")
    }

    pub(crate) fn too_large(limit: u64) -> Failure {
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("The request is larger than {limit} bytes."))
    }

    /// The status it is answered with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is shown.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::local_path;

    #[test]
    fn a_redirect_never_leaves_the_site() {
        assert_eq!(local_path("/limits?u=a#b"), "/limits?u=a#b");
        for path in ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "", "/a\r\nSet-Cookie: x"] {
            assert_eq!(local_path(path), "/", "{path}");
        }
    }
}
