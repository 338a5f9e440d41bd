//! What can be wrong with a setting.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Text that is not what it should be, and what would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    text: String,
    what: &'static str,
    expected: &'static str,
}

impl ParseError {
    pub(crate) fn new(text: &str, what: &'static str, expected: &'static str) -> ParseError {
        ParseError { text: text.to_owned(), what, expected }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}; write {}", self.text, self.what, self.expected)
    }
}

impl std::error::Error for ParseError {}

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened on.
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// A daily limit is in an unknown time zone.
    Zone(
        /// Its name.
        String,
    ),
    /// The thread or its loop did not start.
    Thread(
        /// Why.
        io::Error,
    ),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen { address, error } => {
                write!(f, "cannot listen on {address}: {error}; choose another address, or port 0 for a free one")
            }
            StartError::Zone(zone) => write!(f, "there is no time zone {zone:?}; write it as America/Los_Angeles"),
            StartError::Thread(error) => write!(f, "cannot start the server's thread: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Listen { error, .. } | StartError::Thread(error) => Some(error),
            StartError::Zone(_) => None,
        }
    }
}
