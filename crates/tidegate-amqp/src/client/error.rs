//! What goes wrong between us and a broker; named by what to do next.

use std::fmt;

use crate::message::Returned;
use crate::session::{Closed, Refusal, Unsent};

/// Why there is no connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConnectError {
    /// No answer at any of the addresses: try again, or check them.
    Unreachable {
        /// Each with its reason.
        tried: Vec<(String, String)>,
    },
    /// The broker's certificate, or ours.
    Tls {
        /// Whose.
        host: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker does not know who we are.
    Login {
        /// Which broker.
        host: String,
        /// Who we said we were.
        user: String,
        /// In the broker's words.
        reason: String,
    },
    /// The broker knows us, but there is no such vhost, or it is not for us.
    Vhost {
        /// Which broker.
        host: String,
        /// Where we wanted to go.
        vhost: String,
        /// Who we are.
        user: String,
        /// In the broker's words.
        reason: String,
    },
    /// Something of our own: a file that cannot be read.
    Setup {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
}

impl ConnectError {
    /// Returns `true` if trying again may help without a change of configuration.
    pub fn is_temporary(&self) -> bool {
        matches!(self, ConnectError::Unreachable { .. })
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Unreachable { tried } => {
                f.write_str("no broker answered")?;
                for (at, (host, reason)) in tried.iter().enumerate() {
                    write!(f, "{} {host}: {reason}", if at == 0 { ":" } else { ";" })?;
                }
                f.write_str("; is it running, and is the address right?")
            }
            ConnectError::Tls { host, reason } => write!(f, "{host} cannot be trusted: {reason}"),
            ConnectError::Login { host, user, reason } => write!(
                f,
                "{host} refused to log in {user}: {reason}; check the name and the password of the broker's address \
                 (the user guest may only come from the broker's own machine)"
            ),
            ConnectError::Vhost { host, vhost, user, reason } => write!(
                f,
                "{host} does not let {user} into the vhost {vhost:?}: {reason}; create it (rabbitmqctl add_vhost) and grant \
                 it (rabbitmqctl set_permissions), or name another behind the host's slash"
            ),
            ConnectError::Setup { what, reason } => write!(f, "{what} cannot be used: {reason}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Why a request failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The broker refused; the channel was opened again, deliveries of before it are void.
    Refused {
        /// What was asked for: `queue "mail"`.
        what: String,
        /// Which broker and vhost.
        place: String,
        /// Why.
        refusal: Refusal,
    },
    /// The connection is gone: make another.
    Lost {
        /// Which broker and vhost.
        place: String,
        /// How it went.
        reason: String,
    },
    /// It could never be sent.
    Unsent(Unsent),
    /// We closed it.
    Closed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { what, place, refusal } => match (refusal.difference(), refusal.code) {
                (Some(difference), _) => write!(
                    f,
                    "{what} exists at {place} with other arguments: {} is {}, asked for was {}; ask for the same, or delete it \
                     once it is empty",
                    difference.argument, difference.current, difference.asked
                ),
                (None, 403) => write!(
                    f,
                    "{what} at {place} is not for this user: {}; grant it (rabbitmqctl set_permissions)",
                    refusal.text
                ),
                (None, 404) => write!(f, "{what} does not exist at {place}: {}", refusal.text),
                (None, 405) => write!(f, "{what} at {place} belongs to another connection: {}", refusal.text),
                _ => write!(f, "{what} was refused at {place}: {refusal}"),
            },
            Error::Lost { place, reason } => write!(f, "the connection to {place} is lost: {reason}"),
            Error::Unsent(unsent) => unsent.fmt(f),
            Error::Closed => f.write_str("the connection was closed"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Unsent> for Error {
    fn from(unsent: Unsent) -> Error {
        Error::Unsent(unsent)
    }
}

impl Error {
    pub(super) fn of_end(place: &str, closed: &Closed) -> Error {
        match closed {
            Closed::ByUs => Error::Closed,
            other => Error::Lost { place: place.to_owned(), reason: other.to_string() },
        }
    }
}

/// Why a published message is not known to be kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PublishError {
    /// No queue took it: declare one, or bind it.
    Returned(Box<Returned>),
    /// The broker could not keep it: a queue is full, or failed.
    Rejected,
    /// The connection or channel went before the broker said anything: it may have been kept or not.
    Unknown {
        /// How it went.
        reason: String,
    },
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Returned(returned) => write!(
                f,
                "no queue takes what is published to exchange {:?} with key {:?} ({}); declare the queue or bind it",
                returned.exchange, returned.routing_key, returned.text
            ),
            PublishError::Rejected => f.write_str("the broker could not keep the message: its queue is full or failed"),
            PublishError::Unknown { reason } => write!(f, "the message may or may not be stored: {reason}"),
        }
    }
}

impl std::error::Error for PublishError {}
