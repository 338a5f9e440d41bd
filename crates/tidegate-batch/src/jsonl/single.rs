//! One request of a file, asked by itself: of another model, or with another prompt.

use std::fmt;
use std::io;

use serde_json::Value;

use super::asking;
use super::line::{Format, RequestLine, result_line};
use super::path::Paths;
use super::view::{RequestFile, ResultView, prompt_pointer};
use crate::caller::Caller;
use crate::run::ItemScope;

/// A request that is asked by itself. The result belongs to the caller: the file of results is not written.
#[derive(Clone, Debug)]
pub struct RequestAsk {
    request: RequestLine,
}

/// A result, as its line and for people.
#[derive(Clone, Debug)]
pub struct RequestResult {
    /// The line, its end included.
    pub line: Vec<u8>,
    /// What it says.
    pub view: ResultView,
}

/// Why a request is not asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestAskError {
    /// The file cannot be read.
    Io(io::Error),
    /// There is no request in that line.
    NoRequest,
    /// It has no text, several, or other parts, so that it is not known what another prompt would replace.
    NoPrompt,
    /// The provider does not understand such a request.
    Unfit(String),
    /// It names no model, and none was given.
    NoModel,
}

impl fmt::Display for RequestAskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestAskError::Io(error) => write!(f, "the requests cannot be read: {error}"),
            RequestAskError::NoRequest => f.write_str("there is no request in that line"),
            RequestAskError::NoPrompt => f.write_str(
                "this request does not end with one text of the user, so that its prompt cannot be replaced; change it in the file",
            ),
            RequestAskError::Unfit(reason) => write!(f, "the request cannot be sent there: {reason}"),
            RequestAskError::NoModel => f.write_str("the request names no model; choose one"),
        }
    }
}

impl std::error::Error for RequestAskError {}

impl RequestAsk {
    /// Reads the request in a line. Blocking.
    ///
    /// # Errors
    /// [`RequestAskError::Io`] and [`RequestAskError::NoRequest`].
    pub fn read(file: &RequestFile, line: u64) -> Result<RequestAsk, RequestAskError> {
        let request = file.line(line).map_err(RequestAskError::Io)?.ok_or(RequestAskError::NoRequest)?;
        Ok(RequestAsk { request })
    }

    /// The same with another prompt: the text of its last message.
    ///
    /// # Errors
    /// [`RequestAskError::NoPrompt`].
    pub fn prompt(mut self, text: &str) -> Result<RequestAsk, RequestAskError> {
        let mut body: Value = serde_json::from_slice(&self.request.body).unwrap_or_default();
        let pointer = prompt_pointer(&body).ok_or(RequestAskError::NoPrompt)?;
        *body.pointer_mut(&pointer).ok_or(RequestAskError::NoPrompt)? = text.into();
        self.request.body = body.to_string().into_bytes();
        Ok(self)
    }

    /// Checks that `caller`'s provider takes it.
    ///
    /// # Errors
    /// [`RequestAskError::Unfit`] and [`RequestAskError::NoModel`].
    pub fn check(&self, caller: &Caller, model: Option<&str>) -> Result<(), RequestAskError> {
        self.request.fits(caller.dialect(), Paths::Known).map_err(RequestAskError::Unfit)?;
        if self.request.format == Format::Gemini && model.is_none() {
            return Err(RequestAskError::NoModel);
        }
        Ok(())
    }

    /// Asks it through the gate, of `model` if one is given.
    ///
    /// # Errors
    /// As [`check`](Self::check). A request that was sent and failed is a result.
    ///
    /// # Cancel safety
    /// Dropped while it waits at the gate, nothing has happened; dropped later, the request counts and its answer is lost.
    pub async fn ask(
        self,
        caller: &Caller,
        scope: &ItemScope,
        model: Option<&str>,
    ) -> Result<RequestResult, RequestAskError> {
        self.check(caller, model)?;
        let RequestLine { format, id, url, body } = self.request;
        let outcome = match asking::call_for(caller, model, format, &url, body) {
            Ok(call) => asking::send(caller, scope, &call, None).await.map(|(answered, _)| answered),
            Err(bad) => Err(bad.into()),
        };
        let line = result_line(format, &id, &outcome);
        let view = ResultView::read(&line, caller.dialect());
        Ok(RequestResult { view: view.expect("it was written as a result"), line })
    }
}
