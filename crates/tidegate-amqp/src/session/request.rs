//! What is asked of the broker. Requests may be sent one behind the other without waiting; their answers come in order,
//! except those about consumers, which may be late.

use amq_protocol::protocol::{AMQPClass, basic, exchange, queue};
use amq_protocol::types::{FieldTable, ShortString};

use super::channel::Expect;
use super::confirms::fingerprint;
use super::{CHANNEL, PROPERTIES_OFFSET, Session};
use crate::message::Message;
use crate::topology::{Exchange, Queue};
use crate::wire;

/// Why a request was not even sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsent {
    /// The channel is not open: wait for [`Event::Open`](super::Event::Open).
    NotOpen,
    /// A name or key is longer than the protocol's 255 bytes.
    NameTooLong,
    /// The properties do not fit into one frame.
    PropertiesTooLong,
}

impl std::fmt::Display for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unsent::NotOpen => "the channel is not open",
            Unsent::NameTooLong => "a name or key has more than 255 bytes, which AMQP has no room for",
            Unsent::PropertiesTooLong => "a message's properties have more bytes than fit into a frame",
        })
    }
}

impl std::error::Error for Unsent {}

fn short(name: &str) -> Result<ShortString, Unsent> {
    ShortString::try_new(name).map_err(|_| Unsent::NameTooLong)
}

/// What a consumer asks for.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Consume {
    /// From which queue.
    pub queue: String,
    /// By which tag; empty: one is made up.
    pub tag: String,
    /// Deliveries count as settled when they are sent.
    pub no_ack: bool,
    /// No other consumer may consume from the queue.
    pub exclusive: bool,
    /// `x-priority`, `x-stream-offset`, …
    pub arguments: FieldTable,
}

impl Consume {
    /// From this queue, with acknowledgements.
    pub fn from(queue: impl Into<String>) -> Consume {
        Consume { queue: queue.into(), ..Consume::default() }
    }
}

/// Each returns the number its [`Event::Reply`](super::Event::Reply) carries, or says why nothing was sent.
impl Session {
    /// Whether the channel is open, so that requests are sent.
    pub fn is_ready(&self) -> bool {
        self.channel.is_open() && (!self.options.confirms || self.channel.confirms.is_some())
    }

    fn request(&mut self, expect: Expect, class: AMQPClass) -> Result<u64, Unsent> {
        if !self.is_ready() {
            return Err(Unsent::NotOpen);
        }
        let request = self.next_request;
        self.next_request += 1;
        self.channel.expected.push_back((request, expect));
        self.put(CHANNEL, class);
        Ok(request)
    }

    /// At most `prefetch` unsettled deliveries for each consumer that starts from now on.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn qos(&mut self, prefetch: u16) -> Result<u64, Unsent> {
        let qos = basic::Qos { prefetch_count: prefetch, global: false };
        let request = self.request(Expect::Qos, AMQPClass::Basic(basic::AMQPMethod::Qos(qos)))?;
        self.channel.prefetch = prefetch;
        Ok(request)
    }

    /// Makes sure that a queue is there, or looks.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn declare_queue(&mut self, queue: &Queue) -> Result<u64, Unsent> {
        let declare = queue::Declare {
            queue: short(&queue.name)?,
            passive: queue.passive,
            durable: queue.durable,
            exclusive: queue.exclusive,
            auto_delete: queue.auto_delete,
            nowait: false,
            arguments: queue.arguments.clone(),
        };
        self.request(Expect::Declare, AMQPClass::Queue(queue::AMQPMethod::Declare(declare)))
    }

    /// Makes sure that an exchange is there, or looks.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn declare_exchange(&mut self, exchange: &Exchange) -> Result<u64, Unsent> {
        let declare = exchange::Declare {
            exchange: short(&exchange.name)?,
            kind: short(&exchange.kind)?,
            passive: exchange.passive,
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: false,
            nowait: false,
            arguments: FieldTable::default(),
        };
        self.request(Expect::ExchangeDeclare, AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare)))
    }

    /// Has an exchange send what matches `key` to a queue.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn bind_queue(&mut self, queue: &str, exchange: &str, key: &str) -> Result<u64, Unsent> {
        let bind = queue::Bind {
            queue: short(queue)?,
            exchange: short(exchange)?,
            routing_key: short(key)?,
            nowait: false,
            arguments: FieldTable::default(),
        };
        self.request(Expect::Bind, AMQPClass::Queue(queue::AMQPMethod::Bind(bind)))
    }

    /// Has the exchange `source` send what matches `key` to another one.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn bind_exchange(&mut self, destination: &str, source: &str, key: &str) -> Result<u64, Unsent> {
        let bind = exchange::Bind {
            destination: short(destination)?,
            source: short(source)?,
            routing_key: short(key)?,
            nowait: false,
            arguments: FieldTable::default(),
        };
        self.request(Expect::ExchangeBind, AMQPClass::Exchange(exchange::AMQPMethod::Bind(bind)))
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn consume(&mut self, consume: &Consume) -> Result<u64, Unsent> {
        // Made up here and not by the broker: deliveries may come before its answer.
        let tag = match consume.tag.as_str() {
            "" => format!("tidegate-{}", self.next_request),
            tag => tag.to_owned(),
        };
        let method = basic::Consume {
            queue: short(&consume.queue)?,
            consumer_tag: short(&tag)?,
            no_local: false,
            no_ack: consume.no_ack,
            exclusive: consume.exclusive,
            nowait: false,
            arguments: consume.arguments.clone(),
        };
        let request =
            self.request(Expect::Consume(tag.clone()), AMQPClass::Basic(basic::AMQPMethod::Consume(method)))?;
        if consume.no_ack {
            self.channel.unacknowledged.push(tag);
        }
        Ok(request)
    }

    /// Receives no more; what was delivered is still to be settled.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn cancel(&mut self, consumer: &str) -> Result<u64, Unsent> {
        let cancel = basic::Cancel { consumer_tag: short(consumer)?, nowait: false };
        self.request(Expect::Cancel(consumer.to_owned()), AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)))
    }

    /// Asks for one message.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn get(&mut self, queue: &str) -> Result<u64, Unsent> {
        let get = basic::Get { queue: short(queue)?, no_ack: false };
        self.request(Expect::Get, AMQPClass::Basic(basic::AMQPMethod::Get(get)))
    }

    /// Deletes the waiting messages of a queue.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn purge(&mut self, queue: &str) -> Result<u64, Unsent> {
        let purge = queue::Purge { queue: short(queue)?, nowait: false };
        self.request(Expect::Purge, AMQPClass::Queue(queue::AMQPMethod::Purge(purge)))
    }

    /// Deletes a queue and what is in it.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn delete_queue(&mut self, queue: &str) -> Result<u64, Unsent> {
        self.delete(queue, false)
    }

    /// Deletes a queue if it has neither messages nor consumers.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn delete_idle_queue(&mut self, queue: &str) -> Result<u64, Unsent> {
        self.delete(queue, true)
    }

    fn delete(&mut self, queue: &str, if_idle: bool) -> Result<u64, Unsent> {
        let delete = queue::Delete { queue: short(queue)?, if_unused: if_idle, if_empty: if_idle, nowait: false };
        self.request(Expect::Delete, AMQPClass::Queue(queue::AMQPMethod::Delete(delete)))
    }

    /// Publishes. The number is what [`Event::Confirmed`](super::Event::Confirmed) will speak of; 0 without confirms.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub fn publish(&mut self, message: &Message) -> Result<u64, Unsent> {
        if !self.is_ready() {
            return Err(Unsent::NotOpen);
        }
        if message.exchange.len() > 255 || message.routing_key.len() > 255 {
            return Err(Unsent::NameTooLong);
        }
        if message.properties.len() + PROPERTIES_OFFSET + wire::OVERHEAD > self.frame_max {
            return Err(Unsent::PropertiesTooLong);
        }
        let Message { exchange, routing_key, mandatory, body, properties } = message;
        let known = mandatory.then(|| fingerprint(exchange, routing_key, body));
        let number = self.channel.confirms.as_mut().map_or(0, |confirms| confirms.published(known));
        wire::put_publish(&mut self.out, CHANNEL, self.frame_max, exchange, routing_key, *mandatory, properties, body);
        Ok(number)
    }
}
