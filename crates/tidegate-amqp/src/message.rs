//! What is delivered and what is published.

use std::fmt;
use std::sync::Arc;

use amq_protocol::protocol::BasicProperties;

use crate::properties::{self, Glance};
use crate::wire;

/// A delivery's name: its number, and the epoch of the channel it came over. A number means nothing on any other channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Which channel: 1 for a session's first, one more each time it is opened again.
    pub epoch: u32,
    /// Which delivery of it.
    pub number: u64,
}

/// A message from a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// By what it is settled.
    pub tag: Tag,
    /// Of which consumer; empty for a message that was asked for singly.
    pub consumer: Arc<str>,
    /// Whether it was, or may have been, delivered before.
    pub redelivered: bool,
    /// Where it was published; empty for the default exchange.
    pub exchange: Arc<str>,
    /// With which key.
    pub routing_key: Arc<str>,
    /// What it says of itself.
    pub properties: RawProperties,
    /// What it carries.
    pub body: Vec<u8>,
}

/// Properties as received. Decoding them costs more than the rest of a delivery, and not every caller needs them.
#[derive(Clone, PartialEq, Eq)]
pub struct RawProperties(Vec<u8>);

impl RawProperties {
    pub(crate) fn new(raw: &[u8], mut memory: Vec<u8>) -> RawProperties {
        memory.extend_from_slice(raw);
        RawProperties(memory)
    }

    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.0
    }

    /// As they came.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they are malformed or nested too deeply. That is the publisher's fault, not the connection's.
    pub fn read(&self) -> Result<BasicProperties, Unreadable> {
        wire::properties(&self.0).ok_or(Unreadable)
    }

    /// Reads them in place: for those who look at every message.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn glance(&self) -> Result<Glance<'_>, Unreadable> {
        properties::glance(&self.0).ok_or(Unreadable)
    }
}

impl From<&BasicProperties> for RawProperties {
    fn from(properties: &BasicProperties) -> RawProperties {
        RawProperties(wire::encode_properties(properties))
    }
}

impl fmt::Debug for RawProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.read() {
            Ok(properties) => properties.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

/// Properties that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message's properties cannot be read")
    }
}

impl std::error::Error for Unreadable {}

/// A message to publish.
///
/// ```
/// use tidegate_amqp::{Message, types::BasicProperties};
///
/// let message = Message::to_queue("mail", b"hello".to_vec())
///     .properties(&BasicProperties::default().with_delivery_mode(2).with_priority(5))
///     .mandatory(true);
/// assert_eq!(message.routing_key, "mail");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Empty for the default exchange, which delivers to the queue the key names.
    pub exchange: String,
    /// Decides where it goes.
    pub routing_key: String,
    /// Comes back if no queue takes it.
    pub mandatory: bool,
    /// What it carries.
    pub body: Vec<u8>,
    pub(crate) properties: Vec<u8>,
}

impl Message {
    /// One for whatever `exchange` makes of the key.
    pub fn new(exchange: impl Into<String>, routing_key: impl Into<String>, body: Vec<u8>) -> Message {
        let properties = vec![0, 0];
        Message { exchange: exchange.into(), routing_key: routing_key.into(), mandatory: false, body, properties }
    }

    /// One for a queue, through the default exchange.
    pub fn to_queue(queue: impl Into<String>, body: Vec<u8>) -> Message {
        Message::new("", queue, body)
    }

    /// What it says of itself; nothing unless set.
    pub fn properties(mut self, properties: &BasicProperties) -> Message {
        self.properties = wire::encode_properties(properties);
        self
    }

    /// Properties as they came with another message.
    pub fn raw_properties(mut self, properties: &RawProperties) -> Message {
        self.properties.clone_from(&properties.0);
        self
    }

    /// Returns how many bytes its properties have; see [`PROPERTIES_BYTES_MAX`](crate::PROPERTIES_BYTES_MAX).
    #[must_use]
    pub fn properties_bytes(&self) -> usize {
        self.properties.len()
    }

    /// Whether it comes back if no queue takes it; not unless set.
    pub fn mandatory(mut self, mandatory: bool) -> Message {
        self.mandatory = mandatory;
        self
    }
}

/// A mandatory message no queue took.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Returned {
    /// 312 for no route.
    pub code: u16,
    /// In the broker's words.
    pub text: String,
    /// Where it was published.
    pub exchange: Arc<str>,
    /// With which key.
    pub routing_key: Arc<str>,
    /// What it says of itself.
    pub properties: RawProperties,
    /// What it carries.
    pub body: Vec<u8>,
}
