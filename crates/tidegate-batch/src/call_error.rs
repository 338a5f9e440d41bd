//! Why a call has no answer, by what can be done about it.

use std::fmt;

use bytes::Bytes;
use tidegate_limit::EnterError;

use crate::parameter;
use crate::provider::BadModel;

/// Why a call has no answer, when there have been enough attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// This request alone can never fit under a limit: make it smaller, or raise the limit.
    TooLarge {
        /// Which limit, and by how much.
        reason: String,
    },
    /// The server says that the request is wrong: correct it.
    Refused {
        /// The answer's status.
        status: u16,
        /// What the server said about it.
        message: String,
        /// The answer's body.
        body: Bytes,
    },
    /// The model takes no pictures, and this page was sent as one: send only text, or choose another model.
    NoPictures {
        /// The answer's status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The model's name cannot be part of the request's address, so nothing was sent: choose another model.
    BadModel {
        /// What is wrong with the name.
        reason: String,
    },
    /// The provider will not answer this: a content filter, a refusal.
    Declined {
        /// What it said.
        reason: String,
    },
    /// No request will succeed until somebody acts: a wrong key, no credit.
    Shut {
        /// What has to be done.
        reason: String,
    },
    /// The server could not be reached, failed, or throttled for too long: another time.
    Unavailable {
        /// Requests that were sent.
        attempts: u32,
        /// What happened the last time.
        reason: String,
    },
    /// The server answered, but nothing that makes sense: is it the right server?
    Garbled {
        /// Requests that were sent.
        attempts: u32,
        /// What was wrong with the last answer.
        reason: String,
    },
    /// What is counted could not be written down first.
    Journal {
        /// What the journal said.
        reason: String,
    },
    /// The job is being stopped.
    Closed,
}

/// What else fails for the same reason as a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorScope {
    /// This request; others may succeed.
    Request,
    /// All requests with this parameter: the model does not take it.
    Parameter(
        /// Its name.
        String,
    ),
    /// All requests to the same model and address with the same key: there is no such model, the key has no right to it, or the
    /// server is elsewhere.
    Address,
    /// All requests, until a person acts.
    Run,
    /// None: the run stops.
    Stopped,
}

impl CallError {
    /// What else fails for the same reason.
    #[must_use]
    pub fn scope(&self) -> ErrorScope {
        match self {
            CallError::Closed => ErrorScope::Stopped,
            CallError::Shut { .. } | CallError::Journal { .. } => ErrorScope::Run,
            CallError::Refused { status: 300..=399 | 403 | 404 | 405 | 407, .. } => ErrorScope::Address,
            CallError::Refused { status: 400 | 422, body, .. } => {
                parameter::refused(body).map_or(ErrorScope::Request, ErrorScope::Parameter)
            }
            _ => ErrorScope::Request,
        }
    }

    /// Whether the same request would fail the same way tomorrow. Such failures are kept, so that they are not paid for
    /// again.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            CallError::Declined { .. } => true,
            // A key without rights, a model that does not exist, an address that has moved: the next run may have another.
            CallError::Refused { status, .. } => !matches!(status, 300..=399 | 401 | 403 | 404 | 407),
            _ => false,
        }
    }

    /// A name for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            CallError::TooLarge { .. } => "too_large",
            CallError::Refused { .. } => "refused",
            CallError::NoPictures { .. } => "no_pictures",
            CallError::BadModel { .. } => "bad_model",
            CallError::Declined { .. } => "declined",
            CallError::Shut { .. } => "shut",
            CallError::Unavailable { .. } => "unavailable",
            CallError::Garbled { .. } => "garbled",
            CallError::Journal { .. } => "journal",
            CallError::Closed => "stopped",
        }
    }
}

impl From<BadModel> for CallError {
    fn from(error: BadModel) -> CallError {
        CallError::BadModel { reason: error.to_string() }
    }
}

impl From<EnterError> for CallError {
    fn from(error: EnterError) -> CallError {
        match error {
            EnterError::TooLarge { limit, cost, capacity } => CallError::TooLarge {
                reason: format!(
                    "this would be counted as {cost} under limit {limit}, which is {capacity}: raise the limit, send \
                     fewer pages as context, or ask for a shorter answer"
                ),
            },
            EnterError::Shut { reason, .. } => CallError::Shut { reason: reason.to_string() },
            EnterError::Journal { .. } => CallError::Journal { reason: error.to_string() },
            EnterError::Closed => CallError::Closed,
            other => CallError::Unavailable { attempts: 0, reason: other.to_string() },
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::TooLarge { reason } => write!(f, "too large: {reason}"),
            CallError::Refused { status, message, .. } => {
                write!(f, "the server refused the request ({status}): {message}")
            }
            CallError::NoPictures { status, message } => write!(f, "the model takes no pictures ({status}): {message}"),
            CallError::BadModel { reason }
            | CallError::Declined { reason }
            | CallError::Shut { reason }
            | CallError::Journal { reason } => f.write_str(reason),
            CallError::Unavailable { attempts: 0, reason } => write!(f, "not sent: {reason}"),
            CallError::Unavailable { attempts: 1, reason } => write!(f, "gave up after 1 attempt: {reason}"),
            CallError::Unavailable { attempts, reason } => write!(f, "gave up after {attempts} attempts: {reason}"),
            CallError::Garbled { attempts, reason } => {
                write!(f, "the answer makes no sense (asked {attempts} times): {reason}; is this the right server?")
            }
            CallError::Closed => f.write_str("stopped before it was its turn"),
        }
    }
}

impl std::error::Error for CallError {}
