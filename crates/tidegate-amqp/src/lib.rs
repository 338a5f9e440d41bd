//! AMQP 0-9-1, as RabbitMQ speaks it: a state machine without I/O ([`Session`]), and its driver on tidegate's loop
//! ([`Connection`]).
//!
//! One connection, one channel, one coroutine that reads; whatever is settled, asked or published meanwhile is written
//! together. Deliveries are named by [`Tag`]s that carry their channel's epoch, so that one of yesterday's channel settles
//! nothing on today's.
//!
//! Called by the worker's RabbitMQ broker. It leaves out transactions, several channels a connection, and going on by itself
//! after a connection is lost: what to restore is the caller's to know.
//!
//! # Where to read
//! `acks.rs` (which settlements share a frame), `wire.rs` (bytes), `properties.rs` (a message's
//! properties in place), `session/` (the protocol), `uri.rs` (address and user), then
//! `client/`: `connection.rs` what a program uses, `driver.rs` the coroutine, `gather.rs` when it lets a flood gather, `connect.rs` how one comes to be, `error.rs` what
//! goes wrong.

#![forbid(unsafe_code)]

mod acks;
mod client;
mod message;
mod properties;
mod session;
mod topology;
mod uri;
mod wire;

/// amq-protocol's types that appear in this crate's surface.
pub mod types {
    pub use amq_protocol::protocol::BasicProperties;
    pub use amq_protocol::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
}

pub use acks::{AckFrame, AckTracker, Settle};
pub use client::{ConnectError, Connection, ConnectionStats, Error, Incoming, Options, PublishError, Publishing};
pub use message::{Delivery, Message, RawProperties, Returned, Tag, Unreadable};
pub use properties::{Field, Fields, Glance, Headers};
pub use session::{
    Closed, Consume, Declared, Difference, Event, PROPERTIES_BYTES_MAX, Refusal, Reply, Session, SessionOptions, Unsent,
};
pub use topology::{Argument, Exchange, Queue};
pub use uri::{Host, Sasl, Uri, UriError};
