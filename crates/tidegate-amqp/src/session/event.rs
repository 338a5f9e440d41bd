//! What a session tells.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::message::{Delivery, Returned, Tag};

/// Something that happened on a session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The channel is open, for the first time or again; tags of earlier epochs are void.
    Open {
        /// Which opening this is.
        epoch: u32,
    },
    /// A request was answered; answers come in the order of the requests.
    Reply {
        /// As the request returned it.
        request: u64,
        /// The answer.
        reply: Reply,
    },
    /// A message.
    Delivery(Delivery),
    /// A message beyond [`SessionOptions::body_bytes_max`](super::SessionOptions::body_bytes_max), without its body. It is not
    /// settled: it returns to its queue when the channel ends, unless it is settled before.
    Oversized {
        /// By what it is settled.
        tag: Tag,
        /// Of which consumer; empty for a message that was asked for singly.
        consumer: Arc<str>,
        /// How long its body was.
        bytes: u64,
    },
    /// The broker's word on what was published: numbers `first` to `last`, those of them it had not spoken of before.
    Confirmed {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
        /// It took responsibility; otherwise it could not.
        acked: bool,
    },
    /// A mandatory message no queue took; its confirmation follows.
    Returned {
        /// Which one, as [`Session::publish`](super::Session::publish) returned it; `None` without confirms.
        number: Option<u64>,
        /// The message.
        returned: Returned,
    },
    /// The broker ended a consumer: its queue was deleted, or moved.
    ConsumerCancelled {
        /// Its tag.
        consumer: String,
    },
    /// The broker is short of memory or disk: nothing published will be taken before [`Unblocked`](Event::Unblocked).
    Blocked {
        /// In the broker's words.
        reason: String,
    },
    /// It takes messages again.
    Unblocked,
    /// The broker closed the channel; outstanding requests and confirmations are void, unsettled deliveries return. The session
    /// can [open](super::Session::reopen) it again.
    ChannelClosed(Refusal),
    /// The end. Nothing follows.
    Closed(Closed),
}

/// A request's answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// It is done.
    Done,
    /// A queue is there.
    Declared(Declared),
    /// Deliveries will follow.
    Consuming {
        /// Under this tag.
        consumer: String,
    },
    /// The number of messages that were deleted.
    Dropped(u32),
    /// A message, or that there is none.
    Got(Option<Delivery>),
}

/// A queue's state when it was declared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// As asked for, or as the broker made it up.
    pub name: String,
    /// Ready to be delivered.
    pub messages: u32,
    /// Consumers it has.
    pub consumers: u32,
}

/// Why the broker closed a channel or a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// 403 access, 404 not found, 405 locked, 406 precondition, 530 not allowed, 320 forced, 541 internal.
    pub code: u16,
    /// In the broker's words.
    pub text: String,
}

/// What exists with another value than was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// `x-max-priority`, `durable`, …
    pub argument: String,
    /// What we asked for.
    pub asked: String,
    /// What it is.
    pub current: String,
}

impl Refusal {
    /// What differs, if that is why.
    ///
    /// ```
    /// use tidegate_amqp::Refusal;
    /// let refusal = Refusal::new(406, "PRECONDITION_FAILED - inequivalent arg 'x-max-priority' for queue 'q' in vhost '/': \
    ///     received none but current is the value '5' of type 'long'");
    /// let difference = refusal.difference().unwrap();
    /// assert_eq!((&*difference.argument, &*difference.asked, &*difference.current), ("x-max-priority", "none", "5"));
    /// ```
    pub fn difference(&self) -> Option<Difference> {
        let (_, rest) = self.text.split_once("inequivalent arg '")?;
        let (argument, rest) = rest.split_once('\'')?;
        let (_, rest) = rest.split_once("': received ")?;
        let (asked, current) = rest.split_once(" but current is ")?;
        Some(Difference { argument: argument.to_owned(), asked: plain(asked), current: plain(current) })
    }

    /// One as a broker says it.
    pub fn new(code: u16, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }
}

/// `the value '5' of type 'long'`, `'true'`, `none`.
fn plain(told: &str) -> String {
    let value = told.strip_prefix("the value ").unwrap_or(told);
    let value = value.rsplit_once(" of type ").map_or(value, |(value, _)| value);
    let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
    quoted.unwrap_or(value).to_owned()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// As we asked, in order.
    ByUs,
    /// The broker closed it.
    ByBroker {
        /// Why.
        refusal: Refusal,
        /// Whether that was before it was open: who we are or where we want to go is not to its liking.
        opening: bool,
    },
    /// Not a byte for two heartbeats.
    Silent {
        /// For how long.
        silent: Duration,
    },
    /// The bytes ended without a word.
    Ended {
        /// Whether that was before it was open; old brokers refuse that way.
        opening: bool,
    },
    /// The other end does not keep to the protocol.
    Protocol {
        /// How.
        reason: String,
    },
    /// The broker offers no way of logging in that we were given.
    NoMechanism {
        /// What it offers.
        offered: String,
    },
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::ByUs => f.write_str("the connection was closed"),
            Closed::ByBroker { refusal, .. } => write!(f, "the broker closed the connection: {refusal}"),
            Closed::Silent { silent } => write!(f, "the broker was silent for {silent:?}"),
            Closed::Ended { opening: true } => f.write_str("the broker hung up while the connection was being opened"),
            Closed::Ended { opening: false } => f.write_str("the broker hung up"),
            Closed::Protocol { reason } => write!(f, "the other end breaks the protocol: {reason}"),
            Closed::NoMechanism { offered } => write!(f, "the broker offers other ways of logging in: {offered}"),
        }
    }
}
