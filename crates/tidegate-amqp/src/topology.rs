//! Queues and exchanges as they are asked for.

use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

/// A queue to declare.
///
/// ```
/// use tidegate_amqp::Queue;
/// let queue = Queue::durable("mail").argument("x-max-priority", 10).argument("x-dead-letter-exchange", "");
/// assert_eq!(queue.name, "mail");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Queue {
    /// Empty: the broker makes one up.
    pub name: String,
    /// Only look whether it is there.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// For this connection only, and gone with it.
    pub exclusive: bool,
    /// Gone with its last consumer.
    pub auto_delete: bool,
    /// `x-…`.
    pub arguments: FieldTable,
}

impl Queue {
    /// One that survives a restart of the broker.
    pub fn durable(name: impl Into<String>) -> Queue {
        Queue {
            name: name.into(),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: FieldTable::default(),
        }
    }

    /// One for this connection, gone with it.
    pub fn exclusive(name: impl Into<String>) -> Queue {
        Queue { durable: false, exclusive: true, ..Queue::durable(name) }
    }

    /// A look whether it is there and what it holds.
    pub fn passive(name: impl Into<String>) -> Queue {
        Queue { passive: true, ..Queue::durable(name) }
    }

    /// Adds an argument.
    pub fn argument(mut self, name: &str, value: impl Argument) -> Queue {
        self.arguments.insert(ShortString::from(name), value.into_value());
        self
    }
}

/// An exchange to declare; it survives a restart of the broker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// `direct`, `fanout`, `topic`, `headers`.
    pub kind: String,
    /// Only look whether it is there.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Gone with its last binding.
    pub auto_delete: bool,
}

impl Exchange {
    /// One that survives a restart of the broker.
    pub fn durable(name: impl Into<String>, kind: impl Into<String>) -> Exchange {
        Exchange { name: name.into(), kind: kind.into(), passive: false, durable: true, auto_delete: false }
    }

    /// A look whether it is there.
    pub fn passive(name: impl Into<String>) -> Exchange {
        Exchange { passive: true, ..Exchange::durable(name, "") }
    }
}

/// What a queue's argument may be.
pub trait Argument: sealed::Sealed {
    #[doc(hidden)]
    fn into_value(self) -> AMQPValue;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for bool {}
}

impl Argument for &str {
    fn into_value(self) -> AMQPValue {
        AMQPValue::LongString(self.into())
    }
}

impl Argument for i32 {
    fn into_value(self) -> AMQPValue {
        AMQPValue::LongInt(self)
    }
}

impl Argument for i64 {
    fn into_value(self) -> AMQPValue {
        AMQPValue::LongLongInt(self)
    }
}

impl Argument for bool {
    fn into_value(self) -> AMQPValue {
        AMQPValue::Boolean(self)
    }
}
