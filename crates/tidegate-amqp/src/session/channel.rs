//! What arrives on the channel: answers, confirmations, and messages in pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, exchange, queue};

use super::confirms::{Confirms, fingerprint};
use super::{CHANNEL, Declared, Event, Refusal, Reply, Session, State};
use crate::acks::{AckTracker, Settle};
use crate::message::{Delivery, RawProperties, Returned, Tag};
use crate::wire::{self, Deliver, Fault, Frame, Hot};

/// A body's buffer starts no larger than this: the length is only what the other end says.
const BODY_BYTES_START: u64 = 1 << 20;

/// How many messages' memory is kept for later ones; only that of small messages.
const SPARE_MAX: usize = 2_048;
const SPARE_BYTES_MAX: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Shut,
    Opening,
    Open,
    /// `channel.close` is out; whatever comes before its answer is void.
    Closing,
}

/// The answer that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expect {
    Qos,
    Declare,
    ExchangeDeclare,
    Bind,
    ExchangeBind,
    /// Of the consumer with this tag.
    Consume(String),
    /// Of the consumer with this tag.
    Cancel(String),
    Purge,
    Delete,
    Get,
    /// Sent by the session itself; its answer is not reported.
    Confirms,
}

impl Expect {
    /// Returns `true` if answers to later requests may come first. In RabbitMQ the channel answers most requests itself, in order.
    /// The answers about consumers come from the queue and pass through the channel's mailbox, behind requests that wait there.
    fn may_be_late(&self) -> bool {
        matches!(self, Expect::Consume(_) | Expect::Cancel(_))
    }
}

#[derive(Debug)]
enum Kind {
    Delivery,
    Got,
    Returned { code: u16, text: String },
}

/// A message of which the method has come.
#[derive(Debug)]
struct Content {
    kind: Kind,
    number: u64,
    redelivered: bool,
    consumer: Arc<str>,
    exchange: Arc<str>,
    routing_key: Arc<str>,
    /// `None` until the header has come.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    properties: RawProperties,
    body: Vec<u8>,
    /// Bytes still to come.
    missing: u64,
    /// The body is beyond the limit: its bytes are dropped as they come.
    oversized: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    state: Phase,
    pub(super) epoch: u32,
    acks: AckTracker,
    pub(super) confirms: Option<Confirms>,
    /// Outstanding requests, oldest first.
    pub(super) expected: VecDeque<(u64, Expect)>,
    content: Option<Content>,
    consumer: Name,
    exchange: Name,
    routing_key: Name,
    /// Consumers that want no acknowledgements.
    pub(super) unacknowledged: Vec<String>,
    /// As was asked for last.
    pub(super) prefetch: u16,
}

/// This many acknowledgements are sent without waiting for more, whatever the prefetch.
const ACKS_TOGETHER: usize = 256;

/// The last name that was used: the next one is the same, mostly.
#[derive(Debug)]
struct Name(Arc<str>);

impl Default for Name {
    fn default() -> Name {
        Name("".into())
    }
}

impl Name {
    #[inline]
    fn of(&mut self, bytes: &[u8]) -> Result<Arc<str>, Fault> {
        if self.0.as_bytes() != bytes {
            let name = std::str::from_utf8(bytes).map_err(|_| Fault::Malformed("a name is not UTF-8"))?;
            self.0 = name.into();
        }
        Ok(self.0.clone())
    }
}

impl Channel {
    pub(super) fn is_open(&self) -> bool {
        self.state == Phase::Open
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.acks.is_dirty()
    }

    /// Whether the broker would soon have nothing to send, for want of acknowledgements.
    pub(super) fn is_full(&self) -> bool {
        let quarter = usize::from(self.prefetch).div_ceil(4);
        let enough = if quarter == 0 { ACKS_TOGETHER } else { quarter.min(ACKS_TOGETHER) };
        self.acks.settled() >= enough
    }

    /// Whether there is anything to close.
    pub(super) fn begin_closing(&mut self) -> bool {
        let open = matches!(self.state, Phase::Open | Phase::Opening);
        self.forget();
        if open {
            self.state = Phase::Closing;
        }
        open
    }

    pub(super) fn forget(&mut self) {
        self.state = Phase::Shut;
        self.acks = AckTracker::default();
        self.confirms = None;
        self.expected.clear();
        self.content = None;
        self.unacknowledged.clear();
        self.prefetch = 0;
    }
}

impl Session {
    /// Opens the channel again after [`Event::ChannelClosed`]; [`Event::Open`] says when it is.
    pub fn reopen(&mut self) {
        if self.state != State::Open || self.channel.state != Phase::Shut {
            return;
        }
        self.channel.forget();
        self.channel.state = Phase::Opening;
        self.channel.epoch += 1;
        self.put(CHANNEL, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})));
        if self.options.confirms {
            self.channel.expected.push_back((0, Expect::Confirms));
            let select = confirm::Select { nowait: false };
            self.put(CHANNEL, AMQPClass::Confirm(confirm::AMQPMethod::Select(select)));
        }
    }

    /// Settles a delivery. `false`: it is of an earlier epoch, unknown, or settled already, and nothing is said to the broker.
    pub fn settle(&mut self, tag: Tag, settle: Settle) -> bool {
        let settled = self.settle_lazily(tag, settle);
        self.acks_press |= settled;
        settled
    }

    /// As [`settle`](Self::settle), and the broker may learn of it later, within the
    /// [patience](super::SessionOptions::ack_patience) there is.
    pub fn settle_lazily(&mut self, tag: Tag, settle: Settle) -> bool {
        self.channel.is_open() && tag.epoch == self.channel.epoch && self.channel.acks.settle(tag.number, settle)
    }

    /// Takes the memory of a message that is no longer needed for the next ones. Large messages, and more than are likely needed
    /// at a time, are freed.
    pub fn reuse(&mut self, mut memory: Vec<u8>) {
        if (1..=SPARE_BYTES_MAX).contains(&memory.capacity()) && self.spare.len() < SPARE_MAX {
            memory.clear();
            self.spare.push(memory);
        }
    }

    /// The number of unsettled deliveries.
    pub fn outstanding(&self) -> usize {
        self.channel.acks.outstanding()
    }

    /// How many unsettled deliveries one consumer may have; `usize::MAX`: any number.
    pub fn prefetch(&self) -> usize {
        match self.channel.prefetch {
            0 => usize::MAX,
            prefetch => prefetch.into(),
        }
    }

    /// How many more messages the broker may send before it receives the settlements.
    pub fn room(&self) -> usize {
        let acks = &self.channel.acks;
        match self.prefetch() {
            usize::MAX => usize::MAX,
            prefetch => prefetch.saturating_sub(acks.outstanding() + acks.settled()),
        }
    }

    /// Which opening of the channel this is; 0 before the first.
    pub fn epoch(&self) -> u32 {
        self.channel.epoch
    }

    /// Sends waiting acknowledgements with the next frame.
    pub(crate) fn flush_acks(&mut self) {
        (self.acks_due, self.acks_press) = (None, false);
        let out = &mut self.out;
        self.channel.acks.flush(|frame| wire::put_ack(out, CHANNEL, frame));
    }

    pub(super) fn handle_channel_frame(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        match frame.kind {
            wire::METHOD => {}
            // What was on its way while we closed.
            wire::HEADER | wire::BODY if self.channel.state == Phase::Closing => return Ok(()),
            wire::HEADER => return self.handle_header(frame.payload),
            wire::BODY => return self.handle_body(frame.payload),
            _ => return Err(Fault::Malformed("a heartbeat on a channel")),
        }
        if self.channel.content.is_some() {
            return Err(Fault::Malformed("a method in the middle of a message"));
        }
        match wire::hot(frame.payload) {
            Some(_) if self.channel.state == Phase::Closing => Ok(()),
            Some(_) if self.channel.state != Phase::Open => {
                Err(Fault::Malformed("a message before the channel is open"))
            }
            Some(Hot::Deliver(deliver)) => self.begin_delivery(&deliver),
            Some(Hot::Confirm { tag, multiple, acked }) => self.handle_confirm(tag, multiple, acked),
            None => {
                let method = wire::method(frame)?;
                self.handle_method(method)
            }
        }
    }

    fn begin_delivery(&mut self, deliver: &Deliver<'_>) -> Result<(), Fault> {
        let channel = &mut self.channel;
        channel.content = Some(Content {
            kind: Kind::Delivery,
            number: deliver.tag,
            redelivered: deliver.redelivered,
            consumer: channel.consumer.of(deliver.consumer)?,
            exchange: channel.exchange.of(deliver.exchange)?,
            routing_key: channel.routing_key.of(deliver.routing_key)?,
            rest: None,
        });
        Ok(())
    }

    fn handle_confirm(&mut self, tag: u64, multiple: bool, acked: bool) -> Result<(), Fault> {
        let spoken = self.channel.confirms.as_mut().and_then(|confirms| confirms.spoken(tag, multiple));
        let (first, last) = spoken.ok_or(Fault::Malformed("it confirms what was never published"))?;
        self.events.push_back(Event::Confirmed { first, last, acked });
        Ok(())
    }

    fn handle_header(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let Some(content) = self.channel.content.as_mut().filter(|content| content.rest.is_none()) else {
            return Err(Fault::Malformed("a message's header out of turn"));
        };
        let (length, properties) =
            wire::content_header(payload).ok_or(Fault::Malformed("a message's header cannot be read"))?;
        let oversized = (length > self.options.body_bytes_max).then_some(length);
        let start = if oversized.is_some() { 0 } else { length.min(BODY_BYTES_START) };
        let properties = RawProperties::new(properties, self.spare.pop().unwrap_or_default());
        let mut body = self.spare.pop().unwrap_or_default();
        body.reserve_exact(start as usize);
        content.rest = Some(Rest { properties, body, missing: length, oversized });
        if length == 0 { self.finish_content() } else { Ok(()) }
    }

    fn handle_body(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let Some(rest) = self.channel.content.as_mut().and_then(|content| content.rest.as_mut()) else {
            return Err(Fault::Malformed("a message's body out of turn"));
        };
        let Some(missing) = rest.missing.checked_sub(payload.len() as u64) else {
            return Err(Fault::Malformed("a message's body is longer than its header says"));
        };
        rest.missing = missing;
        if rest.oversized.is_none() {
            rest.body.extend_from_slice(payload);
        }
        if missing == 0 { self.finish_content() } else { Ok(()) }
    }

    fn finish_content(&mut self) -> Result<(), Fault> {
        let Some(Content { kind, number, redelivered, consumer, exchange, routing_key, rest: Some(rest) }) =
            self.channel.content.take()
        else {
            unreachable!("called once the last byte has come")
        };
        if let Kind::Returned { code, text } = kind {
            let known = fingerprint(&exchange, &routing_key, &rest.body);
            let number = self.channel.confirms.as_mut().and_then(|confirms| confirms.returned(known));
            let Rest { properties, body, .. } = rest;
            let returned = Returned { code, text, exchange, routing_key, properties, body };
            self.events.push_back(Event::Returned { number, returned });
            return Ok(());
        }
        let settled = self.channel.unacknowledged.iter().any(|tag| **tag == *consumer);
        let channel = &mut self.channel;
        let noted = if settled { channel.acks.delivered_settled(number) } else { channel.acks.delivered(number) };
        if !noted {
            return Err(Fault::Malformed("a delivery's number is not the next one"));
        }
        let tag = Tag { epoch: self.channel.epoch, number };
        self.paused |= rest.body.len() as u64 > self.options.pause_above;
        if let Some(bytes) = rest.oversized {
            self.events.push_back(Event::Oversized { tag, consumer, bytes });
            if matches!(kind, Kind::Got) {
                let request = self.expected(&Expect::Get)?;
                self.events.push_back(Event::Reply { request, reply: Reply::Got(None) });
            }
            return Ok(());
        }
        let Rest { properties, body, .. } = rest;
        let delivery = Delivery { tag, consumer, redelivered, exchange, routing_key, properties, body };
        let event = match kind {
            Kind::Got => Event::Reply { request: self.expected(&Expect::Get)?, reply: Reply::Got(Some(delivery)) },
            _ => Event::Delivery(delivery),
        };
        self.events.push_back(event);
        Ok(())
    }

    fn handle_method(&mut self, method: AMQPClass) -> Result<(), Fault> {
        use AMQPClass as C;
        let answer = match (self.channel.state, method) {
            (Phase::Closing, C::Channel(channel::AMQPMethod::CloseOk(_))) => {
                self.channel.forget();
                self.close_connection();
                return Ok(());
            }
            (state, C::Channel(channel::AMQPMethod::Close(close))) => {
                self.handle_channel_close(state, &close);
                return Ok(());
            }
            (Phase::Closing, _) => return Ok(()),
            (Phase::Opening, C::Channel(channel::AMQPMethod::OpenOk(_))) => {
                self.channel.state = Phase::Open;
                if !self.options.confirms {
                    self.events.push_back(Event::Open { epoch: self.channel.epoch });
                }
                return Ok(());
            }
            (Phase::Open, method) => method,
            _ => return Err(Fault::Malformed("a method before the channel is open")),
        };
        let (expect, reply) = match answer {
            C::Confirm(confirm::AMQPMethod::SelectOk(_)) => {
                self.expected(&Expect::Confirms)?;
                self.channel.confirms = Some(Confirms::default());
                self.events.push_back(Event::Open { epoch: self.channel.epoch });
                return Ok(());
            }
            C::Channel(channel::AMQPMethod::Flow(flow)) => {
                self.put(CHANNEL, C::Channel(channel::AMQPMethod::FlowOk(channel::FlowOk { active: flow.active })));
                let reason = "the broker asks to stop publishing".to_owned();
                self.events.push_back(if flow.active { Event::Unblocked } else { Event::Blocked { reason } });
                return Ok(());
            }
            C::Basic(basic::AMQPMethod::Cancel(cancel)) => {
                if !cancel.nowait {
                    let consumer_tag = cancel.consumer_tag.clone();
                    self.put(CHANNEL, C::Basic(basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag })));
                }
                self.events.push_back(Event::ConsumerCancelled { consumer: cancel.consumer_tag.to_string() });
                return Ok(());
            }
            C::Basic(basic::AMQPMethod::Return(method)) => {
                self.channel.content = Some(Content {
                    kind: Kind::Returned { code: method.reply_code, text: self.told(method.reply_text.as_str()) },
                    number: 0,
                    redelivered: false,
                    consumer: "".into(),
                    exchange: self.channel.exchange.of(method.exchange.as_str().as_bytes())?,
                    routing_key: self.channel.routing_key.of(method.routing_key.as_str().as_bytes())?,
                    rest: None,
                });
                return Ok(());
            }
            C::Basic(basic::AMQPMethod::GetOk(method)) => {
                self.channel.content = Some(Content {
                    kind: Kind::Got,
                    number: method.delivery_tag,
                    redelivered: method.redelivered,
                    consumer: "".into(),
                    exchange: self.channel.exchange.of(method.exchange.as_str().as_bytes())?,
                    routing_key: self.channel.routing_key.of(method.routing_key.as_str().as_bytes())?,
                    rest: None,
                });
                return Ok(());
            }
            C::Basic(basic::AMQPMethod::GetEmpty(_)) => (Expect::Get, Reply::Got(None)),
            C::Basic(basic::AMQPMethod::QosOk(_)) => (Expect::Qos, Reply::Done),
            C::Basic(basic::AMQPMethod::ConsumeOk(ok)) => {
                let consumer = ok.consumer_tag.to_string();
                (Expect::Consume(consumer.clone()), Reply::Consuming { consumer })
            }
            C::Basic(basic::AMQPMethod::CancelOk(ok)) => (Expect::Cancel(ok.consumer_tag.to_string()), Reply::Done),
            C::Queue(queue::AMQPMethod::DeclareOk(ok)) => {
                let (messages, consumers) = (ok.message_count, ok.consumer_count);
                let declared = Declared { name: ok.queue.to_string(), messages, consumers };
                (Expect::Declare, Reply::Declared(declared))
            }
            C::Queue(queue::AMQPMethod::BindOk(_)) => (Expect::Bind, Reply::Done),
            C::Queue(queue::AMQPMethod::PurgeOk(ok)) => (Expect::Purge, Reply::Dropped(ok.message_count)),
            C::Queue(queue::AMQPMethod::DeleteOk(ok)) => (Expect::Delete, Reply::Dropped(ok.message_count)),
            C::Exchange(exchange::AMQPMethod::DeclareOk(_)) => (Expect::ExchangeDeclare, Reply::Done),
            C::Exchange(exchange::AMQPMethod::BindOk(_)) => (Expect::ExchangeBind, Reply::Done),
            _ => return Err(Fault::Malformed("a method only clients send")),
        };
        let request = self.expected(&expect)?;
        self.events.push_back(Event::Reply { request, reply });
        Ok(())
    }

    fn handle_channel_close(&mut self, state: Phase, close: &channel::Close) {
        self.put(CHANNEL, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})));
        // Ours is out too: its answer comes, and goes on from there.
        if state == Phase::Closing {
            return;
        }
        self.channel.forget();
        let refusal = Refusal::new(close.reply_code, self.told(close.reply_text.as_str()));
        self.events.push_back(Event::ChannelClosed(refusal));
    }

    /// Returns the request whose answer has come: the oldest one that waits for this answer. Answers come in the order of their
    /// requests, except that those [about consumers](Expect::may_be_late) may be late.
    fn expected(&mut self, expect: &Expect) -> Result<u64, Fault> {
        let waiting = &mut self.channel.expected;
        let found = waiting.iter().position(|(_, expected)| expected == expect);
        let skipped =
            |at: usize| expect.may_be_late() || waiting.range(..at).all(|(_, expected)| expected.may_be_late());
        match found.filter(|at| skipped(*at)).and_then(|at| waiting.remove(at)) {
            Some((request, _)) => Ok(request),
            None => Err(Fault::Malformed("an answer without a request")),
        }
    }
}
