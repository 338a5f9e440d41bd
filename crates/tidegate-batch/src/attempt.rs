//! How an attempt at a request ended.

use std::time::Duration;

/// Attempts so far, by how they ended.
#[derive(Default)]
pub(crate) struct Tries {
    pub(crate) attempts: u32,
    pub(crate) failed: u32,
    pub(crate) garbled: u32,
    /// Attempts that did not count because the server could not be reached.
    pub(crate) unsent: u32,
}

/// Why a request is to be tried again, and when, if the server says so.
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) delay: Option<Duration>,
}

/// What follows from an answer for its request.
pub(crate) enum Judged<T> {
    Served(T),
    /// The gate has been told; it waits as long as need be.
    Throttled,
    Again(Failure),
}

/// Why there is no response.
pub(crate) struct NoAnswer {
    pub(crate) error: tidegate_http::Error,
    /// For how long the server has been down, if it is.
    pub(crate) down_for: Option<Duration>,
}
