//! A request as handlers see it: its path, query, form, JSON or upload, all bounded.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;

use crate::answer::Failure;
use crate::guard::Who;

/// The largest body of a form or a JSON request; uploads state their own limit.
pub const FORM_BYTES_MAX: u64 = 64 << 10;

/// A request that the guard has let through.
#[derive(Debug)]
pub struct Request {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) body: Body,
    pub(crate) peer: SocketAddr,
    pub(crate) who: Who,
    pub(crate) may_act: bool,
    /// Taken by the audit log when the handler is done.
    pub(crate) detail: Rc<RefCell<Option<String>>>,
}

impl Request {
    /// The value of `{name}` in the route's path; empty if the route has none of that name.
    #[must_use]
    pub fn path(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The first value of `name` in the query.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        Form::parse(self.uri.query().unwrap_or_default().as_bytes()).take(name)
    }

    /// The request's headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The address and path asked for.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// By what right it is answered.
    #[must_use]
    pub fn who(&self) -> Who {
        self.who
    }

    /// Whether this request's sender may change anything: render buttons only if so.
    #[must_use]
    pub fn may_act(&self) -> bool {
        self.may_act
    }

    /// Adds what exactly is changed to the audit log's line of this request, such as `rpm 150 -> 300`.
    pub fn audit(&self, detail: impl Into<String>) {
        *self.detail.borrow_mut() = Some(detail.into());
    }

    /// The body as a form (`application/x-www-form-urlencoded`), at most [`FORM_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// 413, 415, or 400 when the body ends early.
    pub async fn form(&mut self) -> Result<Form, Failure> {
        self.expect_type("application/x-www-form-urlencoded")?;
        Ok(Form::parse(&self.bytes(FORM_BYTES_MAX).await?))
    }

    /// The body as JSON, at most [`FORM_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// 413, 415, or 400 when it is not such a value; the message says where.
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        self.expect_type("application/json")?;
        let bytes = self.bytes(FORM_BYTES_MAX).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::bad_request(format!("The JSON is not valid here: {error}.")))
    }

    /// The whole body, at most `limit` bytes.
    ///
    /// # Errors
    /// 413, or 400 when the body ends early.
    pub async fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, Failure> {
        let mut upload = self.upload(limit)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = upload.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The body piece by piece, for what is written to a file as it comes.
    ///
    /// # Errors
    /// 413 when the request states a length above `limit`.
    pub fn upload(&mut self, limit: u64) -> Result<Upload, Failure> {
        let stated =
            self.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if stated.is_some_and(|stated| stated > limit) {
            return Err(Failure::too_large(limit));
        }
        Ok(Upload { body: std::mem::take(&mut self.body), limit, read: 0 })
    }

    fn expect_type(&self, media_type: &str) -> Result<(), Failure> {
        let given = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let given = given.split(';').next().unwrap_or_default().trim();
        if given.eq_ignore_ascii_case(media_type) {
            return Ok(());
        }
        Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("The body must be {media_type}.")))
    }
}

/// A body that is read piece by piece and ends with an error beyond its limit.
#[derive(Debug)]
pub struct Upload {
    body: Body,
    limit: u64,
    read: u64,
}

impl Upload {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// 413 beyond the limit; 400 when the connection ended or was too slow.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost: the next call returns the same piece.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = std::future::poll_fn(|cx| pin!(&mut self.body).poll_frame(cx)).await;
            let Some(frame) = frame else { return Ok(None) };
            let frame =
                frame.map_err(|_| Failure::bad_request("The request's body ended early or came too slowly."))?;
            let Ok(data) = frame.into_data() else { continue };
            self.read += data.len() as u64;
            if self.read > self.limit {
                return Err(Failure::too_large(self.limit));
            }
            return Ok(Some(data));
        }
    }
}

/// The fields of a form or a query, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// Reads `a=b&c=d`; what is not UTF-8 is replaced.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Form {
        let decode = |part: &[u8]| {
            let spaced: Vec<u8> = part.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
            percent_decode(&spaced).decode_utf8_lossy().into_owned()
        };
        let fields = bytes.split(|&byte| byte == b'&').filter(|field| !field.is_empty()).map(|field| {
            let mut halves = field.splitn(2, |&byte| byte == b'=');
            (decode(halves.next().unwrap_or_default()), decode(halves.next().unwrap_or_default()))
        });
        Form(fields.collect())
    }

    /// The first value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every field, in its order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn take(self, name: &str) -> Option<String> {
        self.0.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::Form;

    #[test]
    fn a_form_is_read_as_browsers_write_it() {
        let form = Form::parse(b"a=1+2&b=%C3%BC%26&a=3&empty=&flag&%FF=x");
        assert_eq!(form.all("a").collect::<Vec<_>>(), ["1 2", "3"]);
        assert_eq!(form.get("b"), Some("\u{fc}&"));
        assert_eq!((form.get("empty"), form.get("flag"), form.get("none")), (Some(""), Some(""), None));
        assert_eq!(form.get("\u{fffd}"), Some("x"));
        assert_eq!(Form::parse(b""), Form::default());
    }
}
