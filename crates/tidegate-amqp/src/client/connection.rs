//! What a program holds: a connection with one channel.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::connect::{self, Options};
use super::driver::now;
use super::error::{ConnectError, Error, PublishError};
use super::shared::{Confirmation, Shared, Slot};
use crate::acks::Settle;
use crate::message::{Delivery, Message, Returned, Tag};
use crate::session::{Closed, Consume, Declared, Refusal, Reply, Session, Unsent};
use crate::topology::{Exchange, Queue};
use crate::uri::Uri;

/// Something that came in.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming {
    /// A message.
    Delivery(Delivery),
    /// A message beyond the limit, without its body. It is not settled: it returns to its queue with the end of the connection.
    Oversized {
        /// By what it is settled.
        tag: Tag,
        /// Of which consumer; empty for a message that was asked for singly.
        consumer: Arc<str>,
        /// Its length.
        bytes: u64,
    },
    /// The broker ended a consumer.
    ConsumerCancelled {
        /// Its tag.
        consumer: String,
    },
    /// The broker closed the channel over a request; it is being opened again. Tags of before it are void, consumers gone.
    ChannelClosed(Refusal),
    /// The channel is open again.
    Reopened {
        /// Its epoch.
        epoch: u32,
    },
    /// A mandatory message no queue took, on a connection without confirms.
    Returned(Returned),
}

/// A connection at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Messages that came in.
    pub delivered: u64,
    /// Of `delivered`: not settled yet.
    pub unsettled: usize,
    /// Received and not yet taken by the caller.
    pub waiting: usize,
    /// Messages that went out.
    pub published: u64,
    /// Of them, those the broker has spoken of.
    pub confirmed: u64,
    /// Of them, those it has not.
    pub unconfirmed: usize,
    /// The broker takes no messages for the time being.
    pub blocked: bool,
}

/// A connection to a broker, with one channel. Requests, settlements and messages are written together by its coroutine.
///
/// Unsettled deliveries return when it ends. Dropped, it is closed in order in the background, also when the loop ends meanwhile; a
/// broker that does not answer is left after two seconds. [`close`](Self::close) waits for the end.
///
/// ```no_run
/// use tidegate_amqp::{Connection, Consume, Incoming, Message, Options, Queue, Settle};
///
/// # tidegate_loop::run(async {
/// let uri = "amqp://guest:guest@localhost".parse()?;
/// let connection = Connection::open(&uri, &Options::default()).await?;
/// connection.declare(&Queue::durable("mail")).await?;
/// connection.publish(&Message::to_queue("mail", b"hello".to_vec()).mandatory(true)).await?.await?;
///
/// connection.qos(100).await?;
/// connection.consume(&Consume::from("mail")).await?;
/// for incoming in connection.recv_all().await? {
///     if let Incoming::Delivery(delivery) = incoming {
///         connection.settle(delivery.tag, Settle::Ack);
///     }
/// }
/// connection.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
pub struct Connection {
    shared: Rc<Shared>,
}

impl Connection {
    pub(super) fn new(shared: Rc<Shared>) -> Connection {
        Connection { shared }
    }

    /// Connects: the hosts of the address in their order, until the channel is open.
    ///
    /// # Errors
    /// What was wrong where, and the way out.
    ///
    /// # Cancel safety
    /// Safe: if the future is dropped, the attempt ends.
    pub async fn open(uri: &Uri, options: &Options) -> Result<Connection, ConnectError> {
        connect::connect(uri, options).await
    }

    /// Which broker and vhost.
    pub fn place(&self) -> &str {
        &self.shared.place
    }

    async fn ask(
        &self,
        what: impl FnOnce() -> String,
        request: impl FnOnce(&mut Session) -> Result<u64, Unsent>,
    ) -> Result<Reply, Error> {
        self.opened().await?;
        let slot = {
            let mut inner = self.shared.inner.borrow_mut();
            let number = request(&mut inner.session)?;
            inner.ask(number, what())
        };
        self.shared.nudge();
        poll_fn(|cx| slot.poll(cx)).await
    }

    /// Waits until the channel is open: at once, but for a moment after a refusal.
    ///
    /// # Errors
    /// When the connection has ended.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn opened(&self) -> Result<(), Error> {
        let slot = {
            let mut inner = self.shared.inner.borrow_mut();
            match &inner.end {
                Some(end) => return Err(Error::of_end(&self.shared.place, end)),
                None if inner.session.is_ready() => return Ok(()),
                None => inner.wait_open(),
            }
        };
        poll_fn(|cx| slot.poll(cx)).await
    }

    /// At most `prefetch` unsettled deliveries for each consumer that starts from now on; 0: any number.
    ///
    /// # Errors
    /// When the broker refuses, or the connection is gone.
    ///
    /// # Cancel safety
    /// Dropped, it may be carried out all the same; so may every request below.
    pub async fn qos(&self, prefetch: u16) -> Result<(), Error> {
        self.ask(|| format!("a prefetch of {prefetch}"), |session| session.qos(prefetch)).await.map(drop)
    }

    /// Makes sure that a queue is there, or looks.
    ///
    /// # Errors
    /// When it exists with other arguments (the message says which), does not exist, or the connection is gone.
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn declare(&self, queue: &Queue) -> Result<Declared, Error> {
        match self.ask(|| format!("queue {:?}", queue.name), |session| session.declare_queue(queue)).await? {
            Reply::Declared(declared) => Ok(declared),
            other => unreachable!("the session matches answers to requests: {other:?}"),
        }
    }

    /// Makes sure that an exchange is there, or looks.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn declare_exchange(&self, exchange: &Exchange) -> Result<(), Error> {
        let what = || format!("exchange {:?}", exchange.name);
        self.ask(what, |session| session.declare_exchange(exchange)).await.map(drop)
    }

    /// Has an exchange send what matches `key` to a queue.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
        let what = || format!("binding queue {queue:?} to exchange {exchange:?}");
        self.ask(what, |session| session.bind_queue(queue, exchange, key)).await.map(drop)
    }

    /// Has the exchange `source` send what matches `key` to another one.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn bind_exchange(&self, destination: &str, source: &str, key: &str) -> Result<(), Error> {
        let what = || format!("binding exchange {destination:?} to exchange {source:?}");
        self.ask(what, |session| session.bind_exchange(destination, source, key)).await.map(drop)
    }

    /// Begins to receive; the answer is the consumer's tag.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn consume(&self, consume: &Consume) -> Result<String, Error> {
        match self.ask(|| format!("queue {:?}", consume.queue), |session| session.consume(consume)).await? {
            Reply::Consuming { consumer } => Ok(consumer),
            other => unreachable!("the session matches answers to requests: {other:?}"),
        }
    }

    /// Receives no more on this consumer; what was delivered is still to be settled.
    ///
    /// # Errors
    /// When the connection is gone.
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn cancel(&self, consumer: &str) -> Result<(), Error> {
        self.ask(|| format!("consumer {consumer:?}"), |session| session.cancel(consumer)).await.map(drop)
    }

    /// Asks for one message, to be settled like any other.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// Not safe: dropped, a message may stay unsettled until the connection closes.
    pub async fn get(&self, queue: &str) -> Result<Option<Delivery>, Error> {
        match self.ask(|| format!("queue {queue:?}"), |session| session.get(queue)).await? {
            Reply::Got(delivery) => Ok(delivery),
            other => unreachable!("the session matches answers to requests: {other:?}"),
        }
    }

    /// Deletes the waiting messages of a queue; returns how many.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn purge(&self, queue: &str) -> Result<u32, Error> {
        match self.ask(|| format!("queue {queue:?}"), |session| session.purge(queue)).await? {
            Reply::Dropped(count) => Ok(count),
            other => unreachable!("the session matches answers to requests: {other:?}"),
        }
    }

    /// Deletes a queue; says how many messages went with it.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn delete(&self, queue: &str) -> Result<u32, Error> {
        match self.ask(|| format!("queue {queue:?}"), |session| session.delete_queue(queue)).await? {
            Reply::Dropped(count) => Ok(count),
            other => unreachable!("the session matches answers to requests: {other:?}"),
        }
    }

    /// Deletes a queue that has neither messages nor consumers.
    ///
    /// # Errors
    /// When it has (code 406), or as [`declare`](Self::declare).
    ///
    /// # Cancel safety
    /// See [`qos`](Self::qos).
    pub async fn delete_idle(&self, queue: &str) -> Result<(), Error> {
        self.ask(|| format!("queue {queue:?}"), |session| session.delete_idle_queue(queue)).await.map(drop)
    }

    /// Waits for something, then takes everything there is.
    ///
    /// # Errors
    /// When the connection has ended and everything that came before was taken.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was taken.
    pub async fn recv_all(&self) -> Result<Vec<Incoming>, Error> {
        poll_fn(|cx| self.shared.inner.borrow_mut().poll_inbox(cx)).await;
        let mut inner = self.shared.inner.borrow_mut();
        match &inner.end {
            Some(end) if inner.inbox.is_empty() => Err(Error::of_end(&self.shared.place, end)),
            _ => Ok(inner.take_inbox()),
        }
    }

    /// Takes everything there is, without waiting.
    pub fn try_recv_all(&self) -> Vec<Incoming> {
        self.shared.inner.borrow_mut().take_inbox()
    }

    /// Settles a delivery. All settlements before the coroutine's next turn are sent together. Returns `false` if the tag belongs
    /// to an earlier channel, is unknown, or is settled already.
    pub fn settle(&self, tag: Tag, settle: Settle) -> bool {
        self.settle_by(|session| session.settle(tag, settle))
    }

    /// As [`settle`](Self::settle), and the broker may learn of it later, within the [patience](Options::ack_patience) there
    /// is: for what costs less to do again than to tell at once.
    pub fn settle_lazily(&self, tag: Tag, settle: Settle) -> bool {
        self.settle_by(|session| session.settle_lazily(tag, settle))
    }

    fn settle_by(&self, settle: impl FnOnce(&mut Session) -> bool) -> bool {
        let (settled, urgent) = {
            let session = &mut self.shared.inner.borrow_mut().session;
            (settle(session), session.wants_transmit())
        };
        // Otherwise the driver has set its alarm.
        if settled && urgent {
            self.shared.nudge();
        }
        settled
    }

    /// Takes the memory of a delivery that was read for the next ones. Saves allocations with many small messages.
    pub fn reuse(&self, delivery: Delivery) {
        let session = &mut self.shared.inner.borrow_mut().session;
        session.reuse(delivery.properties.into_memory());
        session.reuse(delivery.body);
    }

    /// As [`reuse`](Self::reuse), for a body that was taken out of its delivery.
    pub fn reuse_body(&self, body: Vec<u8>) {
        self.shared.inner.borrow_mut().session.reuse(body);
    }

    /// Reads on after a [large message](Options::pause_above), which is out of memory now.
    pub fn resume(&self) {
        self.shared.inner.borrow_mut().session.resume(now());
        self.shared.nudge();
    }

    /// Publishes, as soon as there is room: not while the broker blocks, nor while a megabyte waits to be sent. The
    /// returned future is the broker's confirmation; many may be outstanding at a time.
    ///
    /// # Errors
    /// When the connection is gone, or the message could never be sent.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was published.
    pub async fn publish(&self, message: &Message) -> Result<Publishing, Error> {
        loop {
            self.opened().await?;
            poll_fn(|cx| self.shared.inner.borrow_mut().poll_room(cx)).await;
            let mut inner = self.shared.inner.borrow_mut();
            if let Some(end) = &inner.end {
                return Err(Error::of_end(&self.shared.place, end));
            }
            // Closed again while we waited for room.
            if !inner.session.is_ready() {
                continue;
            }
            let number = inner.session.publish(message)?;
            let slot = (number > 0).then(|| inner.note_publish());
            drop(inner);
            self.shared.nudge();
            return Ok(Publishing { slot });
        }
    }

    /// Waits for the end of the connection, whichever side ends it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ended(&self) -> Closed {
        poll_fn(|cx| self.shared.inner.borrow_mut().poll_end(cx)).await
    }

    /// Ends the connection in order: what was settled and published is sent, channel and connection are closed. Unsettled
    /// deliveries return.
    ///
    /// # Cancel safety
    /// If the future is dropped, closing goes on; [`ended`](Self::ended) waits for it.
    pub async fn close(&self) {
        self.shared.with_session(Session::close);
        self.shared.nudge();
        self.ended().await;
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        self.shared.inner.borrow().end.is_some()
    }

    /// The channel's epoch.
    pub fn epoch(&self) -> u32 {
        self.shared.inner.borrow().session.epoch()
    }

    /// What the broker said of itself: product, version, capabilities.
    pub fn server_property(&self, name: &str) -> Option<String> {
        self.shared.inner.borrow().session.server_property(name)
    }

    /// As agreed with the broker.
    pub fn heartbeat(&self) -> Option<std::time::Duration> {
        self.shared.inner.borrow().session.heartbeat()
    }

    /// A connection at a glance.
    pub fn stats(&self) -> ConnectionStats {
        let inner = self.shared.inner.borrow();
        ConnectionStats {
            delivered: inner.delivered,
            unsettled: inner.session.outstanding(),
            waiting: inner.inbox.len(),
            published: inner.published,
            confirmed: inner.confirmed,
            unconfirmed: inner.unconfirmed(),
            blocked: inner.blocked,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.abandoned.set(true);
        self.shared.nudge();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("place", &self.shared.place).finish_non_exhaustive()
    }
}

/// What the broker says of a published message; ready at once on a connection without confirms.
///
/// Dropped, the message is published all the same.
#[must_use = "whether the broker kept the message is only known by awaiting this"]
pub struct Publishing {
    slot: Option<Slot<Confirmation>>,
}

impl Future for Publishing {
    type Output = Result<(), PublishError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.as_ref().map_or(Poll::Ready(Ok(())), |slot| slot.poll(cx))
    }
}

impl fmt::Debug for Publishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publishing").finish_non_exhaustive()
    }
}
