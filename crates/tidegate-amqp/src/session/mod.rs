//! One connection with one channel, without I/O: bytes and time in, bytes and events out.
//!
//! `mod.rs` has the connection (opening, heartbeats, closing), `channel.rs` what arrives on the channel, `request.rs` the
//! requests on it, `confirms.rs` which publishes are confirmed, `event.rs` the events for the caller.

mod channel;
mod confirms;
mod event;
mod request;

pub use event::{Closed, Declared, Difference, Event, Refusal, Reply};
pub use request::{Consume, Unsent};

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use amq_protocol::protocol::{AMQPClass, channel as channel_class, connection};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};

use tidegate_secret::Redactor;

use crate::uri::Sasl;
use crate::wire::{self, Fault, Frame};
use channel::Channel;

/// RabbitMQ's own; more does not pay.
const FRAME_BYTES_MAX: u32 = 128 * 1024;

/// Longest properties that a message can be published with, encoded, unless the broker wants smaller frames than 128 KiB.
pub const PROPERTIES_BYTES_MAX: usize = FRAME_BYTES_MAX as usize - wire::OVERHEAD - PROPERTIES_OFFSET;

/// Class, weight and length of the body stand before the properties in their frame.
const PROPERTIES_OFFSET: usize = 12;

/// The smallest a peer may ask for.
const FRAME_BYTES_MIN: u32 = 4096;

/// The only channel there is.
const CHANNEL: u16 = 1;

/// Answers of the broker's that it owes at most; more are a flood.
const EVENTS_MAX: usize = 1 << 20;

/// What a session asks for.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Who we are.
    pub sasl: Sasl,
    /// Where we want to go.
    pub vhost: String,
    /// Zero: none. The broker may want less.
    pub heartbeat: Duration,
    /// What the broker shows of us: its management lists connections by this name.
    pub name: String,
    /// The bodies of longer messages are dropped as they come; [`Event::Oversized`] says so, and leaves them unsettled.
    pub body_bytes_max: u64,
    /// After a message longer than this nothing more is read until [`resume`](Session::resume) is called, so that a program has one
    /// such message in memory at a time; never unless set.
    pub pause_above: u64,
    /// Whether published messages are confirmed.
    pub confirms: bool,
    /// How long a [lazy settlement](Session::settle_lazily) may wait for others, to be sent with them; zero: not at all.
    /// It never waits while anything else is sent, nor once it is a quarter of the prefetch: the broker would have to wait.
    pub ack_patience: Duration,
}

impl SessionOptions {
    /// For this login and vhost: heartbeats every 30 s, messages up to 128 MiB, confirms, no patience
    /// with acknowledgements.
    pub fn new(sasl: Sasl, vhost: impl Into<String>) -> SessionOptions {
        SessionOptions {
            sasl,
            vhost: vhost.into(),
            heartbeat: Duration::from_secs(30),
            name: "tidegate".to_owned(),
            body_bytes_max: 128 << 20,
            pause_above: u64::MAX,
            confirms: true,
            ack_patience: Duration::ZERO,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Our header is out; `connection.start` is due.
    Start,
    /// We said who we are; `connection.tune` is due.
    Tune,
    /// We said where we go; `connection.open-ok` is due.
    Opening,
    Open,
    /// We said `connection.close`, or shall once the channel is closed.
    Closing,
    Closed,
}

/// An AMQP 0-9-1 connection with one channel, as a state machine.
///
/// Bytes that came in go to [`handle_bytes`](Self::handle_bytes), what is to be sent comes out of
/// [`poll_transmit`](Self::poll_transmit), what happened out of [`poll_event`](Self::poll_event). Time is an argument:
/// [`handle_timeout`](Self::handle_timeout) at the instant that [`poll_timeout`](Self::poll_timeout) names.
///
/// ```
/// use std::time::Instant;
/// use tidegate_amqp::{Sasl, Session, SessionOptions};
///
/// let mut session = Session::new(SessionOptions::new(Sasl::External, "/"), Instant::now());
/// let mut out = Vec::new();
/// assert!(session.poll_transmit(Instant::now(), &mut out));
/// assert_eq!(out, b"AMQP\0\0\x09\x01");
/// ```
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    state: State,
    /// Encoded, not yet taken.
    out: Vec<u8>,
    /// The beginning of a frame whose rest has not come.
    partial: Vec<u8>,
    events: VecDeque<Event>,
    frame_max: usize,
    /// As agreed.
    heartbeat: Option<Duration>,
    last_sent: Instant,
    last_received: Instant,
    /// A large message has come, and is still in use.
    paused: bool,
    /// When acknowledgements that wait for company go out without it.
    acks_due: Option<Instant>,
    /// There is one among them that does not wait.
    acks_press: bool,
    channel: Channel,
    next_request: u64,
    properties: FieldTable,
    /// Empty, with room: for properties and bodies that come.
    spare: Vec<Vec<u8>>,
    /// For what the broker says in words: it may repeat what it was sent.
    redactor: Redactor,
}

impl Session {
    /// One that says hello.
    pub fn new(options: SessionOptions, now: Instant) -> Session {
        let mut out = Vec::with_capacity(256);
        wire::put_protocol_header(&mut out);
        let redactor = match &options.sasl {
            Sasl::Plain { password, .. } => Redactor::new([password]),
            Sasl::External => Redactor::default(),
        };
        Session {
            options,
            state: State::Start,
            out,
            partial: Vec::new(),
            events: VecDeque::new(),
            frame_max: FRAME_BYTES_MAX as usize,
            heartbeat: None,
            last_sent: now,
            last_received: now,
            paused: false,
            acks_due: None,
            acks_press: false,
            channel: Channel::default(),
            next_request: 1,
            properties: FieldTable::default(),
            spare: Vec::new(),
            redactor,
        }
    }

    /// What the broker says in words, without the password.
    fn told(&self, text: &str) -> String {
        self.redactor.redact(text).into_owned()
    }

    /// Takes bytes from the broker, cut anywhere. Whatever they are, the worst that happens is [`Event::Closed`].
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Instant) {
        self.last_received = now;
        if self.partial.is_empty() {
            let used = self.handle_frames(bytes);
            if self.state != State::Closed {
                self.partial.extend_from_slice(&bytes[used..]);
            }
            return;
        }
        let mut buffer = std::mem::take(&mut self.partial);
        buffer.extend_from_slice(bytes);
        let used = self.handle_frames(&buffer);
        if self.state != State::Closed {
            buffer.drain(..used);
            self.partial = buffer;
        }
    }

    fn handle_frames(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while self.state != State::Closed {
            match wire::split(&bytes[used..], self.frame_max) {
                Ok(Some(frame)) => {
                    used += frame.whole.len();
                    if let Err(fault) = self.handle_frame(&frame) {
                        self.fail(fault);
                    }
                    if self.events.len() > EVENTS_MAX {
                        self.fail(Fault::Malformed("more messages than the prefetch allows"));
                    }
                }
                Ok(None) => break,
                Err(fault) => self.fail(fault),
            }
        }
        used
    }

    fn handle_frame(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        match (frame.kind, frame.channel) {
            (wire::HEARTBEAT, 0) => Ok(()),
            (wire::METHOD, 0) => match wire::method(frame)? {
                AMQPClass::Connection(method) => self.handle_connection(method),
                _ => Err(Fault::Malformed("a channel's method on the connection itself")),
            },
            (_, CHANNEL) if matches!(self.state, State::Open | State::Closing) => self.handle_channel_frame(frame),
            _ => Err(Fault::Malformed("a frame on a channel that is not open")),
        }
    }

    fn handle_connection(&mut self, method: connection::AMQPMethod) -> Result<(), Fault> {
        use connection::AMQPMethod as M;
        match (self.state, method) {
            (State::Start, M::Start(start)) => self.say_who(start),
            (State::Tune, M::Tune(tune)) => self.agree(&tune),
            (State::Tune, M::Secure(_)) => {
                return Err(Fault::Malformed(
                    "it asks a question back, which neither PLAIN nor EXTERNAL has an answer to",
                ));
            }
            (State::Opening, M::OpenOk(_)) => {
                self.state = State::Open;
                self.reopen();
            }
            (State::Open | State::Closing, M::Blocked(blocked)) => {
                let reason = self.told(blocked.reason.as_str());
                self.events.push_back(Event::Blocked { reason });
            }
            (State::Open | State::Closing, M::Unblocked(_)) => self.events.push_back(Event::Unblocked),
            // We have no secret to renew but the one we were given; the broker goes on with the old one until it expires.
            (State::Open | State::Closing, M::UpdateSecretOk(_)) => {}
            (State::Closing, M::CloseOk(_)) => self.end(Closed::ByUs),
            (state, M::Close(close)) => {
                self.put(0, AMQPClass::Connection(M::CloseOk(connection::CloseOk {})));
                let opening = matches!(state, State::Start | State::Tune | State::Opening);
                let refusal = Refusal::new(close.reply_code, self.told(close.reply_text.as_str()));
                self.end(if state == State::Closing { Closed::ByUs } else { Closed::ByBroker { refusal, opening } });
            }
            _ => return Err(Fault::Malformed("a method of the connection out of turn")),
        }
        Ok(())
    }

    fn say_who(&mut self, start: connection::Start) {
        let (mechanism, response) = match &self.options.sasl {
            Sasl::Plain { user, password } => ("PLAIN", format!("\0{user}\0{}", password.expose())),
            Sasl::External => ("EXTERNAL", String::new()),
        };
        let offered = start.mechanisms.to_string();
        if !offered.split(' ').any(|offer| offer == mechanism) {
            return self.end(Closed::NoMechanism { offered: self.told(&offered) });
        }
        self.properties = start.server_properties;
        let start_ok = connection::StartOk {
            client_properties: client_properties(&self.options.name),
            mechanism: mechanism.into(),
            response: response.into(),
            locale: "en_US".into(),
        };
        self.put(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(start_ok)));
        self.state = State::Tune;
    }

    fn agree(&mut self, tune: &connection::Tune) {
        let asked = u16::try_from(self.options.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let heartbeat = match (asked, tune.heartbeat) {
            (0, _) => 0,
            (asked, 0) => asked,
            (asked, offered) => asked.min(offered),
        };
        let frame_max = match tune.frame_max {
            0 => FRAME_BYTES_MAX,
            offered => offered.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX),
        };
        self.frame_max = frame_max as usize;
        self.heartbeat = (heartbeat > 0).then(|| Duration::from_secs(heartbeat.into()));
        let tune_ok = connection::TuneOk { channel_max: CHANNEL, frame_max, heartbeat };
        self.put(0, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tune_ok)));
        // A name that does not fit is none of the broker's; it would be refused there too.
        let virtual_host = ShortString::try_new(self.options.vhost.as_str()).unwrap_or_default();
        self.put(0, AMQPClass::Connection(connection::AMQPMethod::Open(connection::Open { virtual_host })));
        self.state = State::Opening;
    }

    /// The bytes have ended.
    pub fn handle_end(&mut self) {
        match self.state {
            State::Closed => {}
            State::Closing => self.end(Closed::ByUs),
            state => self.end(Closed::Ended { opening: state != State::Open }),
        }
    }

    /// To be called at the instant of [`poll_timeout`](Self::poll_timeout); earlier or later does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.acks_due.is_some_and(|due| due <= now) {
            self.flush_acks();
        }
        let Some(interval) = self.heartbeat.filter(|_| self.state != State::Closed) else { return };
        let silent = now.saturating_duration_since(self.last_received);
        if silent >= interval * 2 && !self.paused {
            self.end(Closed::Silent { silent });
        } else if now.saturating_duration_since(self.last_sent) >= interval / 2 && self.out.is_empty() {
            wire::put_heartbeat(&mut self.out);
        }
    }

    /// When something is due though nothing comes in: a heartbeat or acknowledgements to send, or the end of patience.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let heartbeat = self.heartbeat.map(|interval| {
            let sent = self.last_sent + interval / 2;
            if self.paused { sent } else { sent.min(self.last_received + interval * 2) }
        });
        heartbeat.into_iter().chain(self.acks_due).min()
    }

    /// Returns `true` while nothing is to be read, because of a [large message](SessionOptions::pause_above).
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The large message is out of memory: reading goes on.
    pub fn resume(&mut self, now: Instant) {
        if self.paused {
            self.paused = false;
            self.last_received = now;
        }
    }

    /// Moves what is to be sent into `into`, everything at once, acknowledgements included; `false` if there is nothing, or
    /// nothing yet.
    pub fn poll_transmit(&mut self, now: Instant, into: &mut Vec<u8>) -> bool {
        if self.out.is_empty() && self.acks_may_wait() {
            let patience = self.options.ack_patience;
            if now < *self.acks_due.get_or_insert(now + patience) {
                return false;
            }
        }
        self.flush_acks();
        if self.out.is_empty() {
            return false;
        }
        self.last_sent = now;
        if into.is_empty() {
            std::mem::swap(&mut self.out, into);
        } else {
            into.append(&mut self.out);
        }
        true
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) should be asked: for what it has, or because it does not know yet since
    /// when there are acknowledgements to send.
    pub fn wants_transmit(&self) -> bool {
        !self.out.is_empty() || (self.channel.is_dirty() && !(self.acks_due.is_some() && self.acks_may_wait()))
    }

    fn acks_may_wait(&self) -> bool {
        !self.acks_press && !self.options.ack_patience.is_zero() && self.channel.is_dirty() && !self.channel.is_full()
    }

    /// Bytes waiting to be sent, acknowledgements aside.
    pub fn transmit_bytes(&self) -> usize {
        self.out.len()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Begins to close in order: what was settled and published is sent, the channel closed, then the connection.
    /// [`Event::Closed`] says when it is done.
    pub fn close(&mut self) {
        self.paused = false;
        match self.state {
            State::Open => {
                self.state = State::Closing;
                self.flush_acks();
                if !self.channel.begin_closing() {
                    return self.close_connection();
                }
                let close =
                    channel_class::Close { reply_code: 200, reply_text: "bye".into(), class_id: 0, method_id: 0 };
                self.put(CHANNEL, AMQPClass::Channel(channel_class::AMQPMethod::Close(close)));
            }
            State::Closing | State::Closed => {}
            State::Start | State::Tune | State::Opening => self.end(Closed::ByUs),
        }
    }

    fn close_connection(&mut self) {
        let close = connection::Close { reply_code: 200, reply_text: "bye".into(), class_id: 0, method_id: 0 };
        self.put(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
    }

    /// Returns `true` if the end was reported, or will be by the next events.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// What the broker said of itself when it was opened: product, version, capabilities.
    pub fn server_properties(&self) -> &FieldTable {
        &self.properties
    }

    /// One of them, if it is a text; without the password.
    pub(crate) fn server_property(&self, name: &str) -> Option<String> {
        match self.properties.inner().get(name) {
            Some(AMQPValue::LongString(text)) => Some(self.told(&text.to_string())),
            _ => None,
        }
    }

    /// As agreed with the broker.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.heartbeat
    }

    fn put(&mut self, channel: u16, class: AMQPClass) {
        wire::put_method(&mut self.out, channel, class);
    }

    fn end(&mut self, how: Closed) {
        self.state = State::Closed;
        self.partial = Vec::new();
        self.channel.forget();
        self.events.push_back(Event::Closed(how));
    }

    /// Ends the session with an error, and sends the peer a close frame if the protocol allows one.
    fn fail(&mut self, fault: Fault) {
        let reason = match fault {
            Fault::OtherVersion([major, minor, revision]) => {
                format!("it wants AMQP {major}-{minor}-{revision}, this is AMQP 0-9-1")
            }
            Fault::Malformed(what) => what.to_owned(),
        };
        if self.state != State::Start {
            let reply_text = ShortString::try_new(reason.as_str()).unwrap_or_default();
            let close = connection::Close { reply_code: 501, reply_text, class_id: 0, method_id: 0 };
            self.put(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
        }
        self.end(Closed::Protocol { reason });
    }
}

fn client_properties(name: &str) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut capabilities = FieldTable::default();
    for capability in [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "publisher_confirms",
    ] {
        capabilities.insert(capability.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    properties.insert("product".into(), text("tidegate"));
    properties.insert("version".into(), text(env!("CARGO_PKG_VERSION")));
    properties.insert("platform".into(), text("Rust"));
    properties.insert("connection_name".into(), text(name));
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    properties
}

#[cfg(test)]
mod tests;
