//! The error of a request or a body, with a variant for each reaction of the caller.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::tls::TlsFault;

/// The error of a request or of reading a body. Messages name the host; they never contain a URL's user name or password,
/// or a header's value.
///
/// ```
/// use tidegate_http::{Client, Error};
///
/// tidegate_loop::run(async {
///     let error = Client::new().get("ftp://files.example/").await.unwrap_err();
///     assert!(matches!(error, Error::BadUrl { .. }));
///     assert_eq!(error.to_string(), "ftp://files.example/ cannot be requested: the scheme must be http or https");
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be requested.
    #[non_exhaustive]
    BadUrl {
        /// The URL, without user name and password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No address was found for the name: it is misspelt, or the name server cannot be reached.
    #[non_exhaustive]
    Resolve {
        /// The name that was looked up.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The connection was not established. Nothing was sent, so any request may be tried again.
    #[non_exhaustive]
    Connect {
        /// Host and port that were tried, the proxy's if there is one.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A limit of [`Timeouts`](crate::Timeouts) expired.
    #[non_exhaustive]
    Timeout {
        /// The host of the request.
        host: String,
        /// Which of the limits.
        which: Wait,
        /// The limit.
        after: Duration,
    },
    /// The peer's certificate or its TLS cannot be trusted.
    #[non_exhaustive]
    Tls {
        /// The host that the certificate should have been for.
        host: String,
        /// What is wrong.
        fault: TlsFault,
    },
    /// The proxy refused the request, or its setting in the environment cannot be used.
    #[non_exhaustive]
    Proxy {
        /// The host of the request.
        host: String,
        /// The proxy, without user name and password.
        proxy: String,
        /// The proxy's answer, or what is wrong with the setting.
        reason: String,
    },
    /// The peer closed the connection before it answered. It may have carried out the request.
    #[non_exhaustive]
    Closed {
        /// The host of the request.
        host: String,
        /// How the connection ended.
        reason: String,
    },
    /// The peer does not follow the HTTP protocol, or the request cannot be sent in it.
    #[non_exhaustive]
    Protocol {
        /// The host of the request.
        host: String,
        /// What is wrong.
        reason: String,
    },
    /// A body broke off: the connection was lost, its compression is damaged, or its source failed.
    #[non_exhaustive]
    Body {
        /// The host of the request.
        host: String,
        /// What happened.
        reason: String,
    },
    /// A body is larger than its reader allows; see [`Body::bytes_up_to`](crate::Body::bytes_up_to).
    #[non_exhaustive]
    TooLarge {
        /// The host of the request.
        host: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A body is not the JSON that was expected.
    #[non_exhaustive]
    Json {
        /// The host of the request.
        host: String,
        /// The parser's error.
        reason: String,
    },
    /// A redirection cannot be followed; only with [`redirects`](crate::ClientBuilder::redirects).
    #[non_exhaustive]
    Redirect {
        /// The host that redirected.
        host: String,
        /// Why it was not followed.
        reason: String,
    },
    /// The client or server cannot be set up: a certificate file is missing or empty.
    #[non_exhaustive]
    Setup {
        /// What cannot be used.
        what: String,
        /// Why.
        reason: String,
    },
}

/// The time-out that expired.
///
/// ```
/// assert_eq!(tidegate_http::Wait::Read.to_string(), "read");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The time-out for a connection: name lookup, connecting, the proxy, TLS.
    Connect,
    /// The time-out for the next byte on the connection.
    Read,
    /// The time-out for the whole request, from the call to the end of the body.
    Total,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wait::Connect => "connect",
            Wait::Read => "read",
            Wait::Total => "total",
        })
    }
}

impl Error {
    /// The host of the request, if the error is about one.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let error = tidegate_http::Client::new().get("/relative").await.unwrap_err();
    /// assert_eq!(error.host(), None);
    /// # }).unwrap();
    /// ```
    pub fn host(&self) -> Option<&str> {
        match self {
            Error::BadUrl { .. } | Error::Setup { .. } => None,
            Error::Connect { address: host, .. }
            | Error::Resolve { host, .. }
            | Error::Timeout { host, .. }
            | Error::Tls { host, .. }
            | Error::Proxy { host, .. }
            | Error::Closed { host, .. }
            | Error::Protocol { host, .. }
            | Error::Body { host, .. }
            | Error::TooLarge { host, .. }
            | Error::Json { host, .. }
            | Error::Redirect { host, .. } => Some(host),
        }
    }

    /// Whether nothing of the request can have reached the server, so that it is safe to repeat.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let error = tidegate_http::Client::new().get("/relative").await.unwrap_err();
    /// assert!(error.is_before_sending());
    /// # }).unwrap();
    /// ```
    pub fn is_before_sending(&self) -> bool {
        matches!(
            self,
            Error::BadUrl { .. }
                | Error::Setup { .. }
                | Error::Resolve { .. }
                | Error::Connect { .. }
                | Error::Tls { .. }
                | Error::Timeout { which: Wait::Connect, .. }
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadUrl { url, reason } => write!(f, "{url} cannot be requested: {reason}"),
            Error::Resolve { host, source } => write!(f, "no address found for {host}: {source}"),
            Error::Connect { address, source } => {
                // The loop's errors begin with the address too.
                let (source, begins) = (source.to_string(), format!("cannot connect to {address}: "));
                write!(f, "{begins}{}", source.strip_prefix(&begins).unwrap_or(&source))
            }
            Error::Timeout { host, which, after } => match which {
                Wait::Connect => write!(f, "{host}: no connection within {after:?} (connect time-out)"),
                Wait::Read => write!(f, "{host}: nothing sent or received for {after:?} (read time-out)"),
                Wait::Total => write!(f, "{host}: not done within {after:?} (total time-out)"),
            },
            Error::Tls { host, fault } => write!(f, "{host} cannot be trusted: {fault}"),
            Error::Proxy { host, proxy, reason } => write!(f, "{host} through the proxy {proxy}: {reason}"),
            Error::Closed { host, reason } => {
                write!(f, "{host} closed the connection before it answered: {reason}")
            }
            Error::Protocol { host, reason } => write!(f, "{host}: {reason}"),
            Error::Body { host, reason } => write!(f, "{host}: the body broke off: {reason}"),
            Error::TooLarge { host, limit } => {
                write!(f, "{host}: the body is larger than {limit} bytes; raise the limit or read it as a stream")
            }
            Error::Json { host, reason } => write!(f, "{host}: the body is not the JSON expected: {reason}"),
            Error::Redirect { host, reason } => write!(f, "{host}: redirection not followed: {reason}"),
            Error::Setup { what, reason } => write!(f, "{what} cannot be used: {reason}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Resolve { source, .. } | Error::Connect { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns an error's message with those of its causes, which hyper's messages leave out.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_reached_is_named_once() {
        let text = |source: &str| {
            let source = std::io::Error::other(source.to_owned());
            Error::Connect { address: "127.0.0.1:1".into(), source }.to_string()
        };
        let refused = "cannot connect to 127.0.0.1:1: connection refused";
        assert_eq!(text(refused), refused);
        assert_eq!(text("connection refused"), refused);
        assert_eq!(
            text("cannot connect to 10.0.0.1:1: timed out"),
            "cannot connect to 127.0.0.1:1: cannot connect to 10.0.0.1:1: timed out",
            "another address says more"
        );
    }
}
