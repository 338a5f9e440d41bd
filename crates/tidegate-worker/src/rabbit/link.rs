//! A connection that is made when it is needed, and again when it is gone; and the publishing over it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tidegate_amqp::{ConnectError, Connection, Error, Message, PublishError, Publishing, Refusal, Uri};
use tidegate_loop::{LoopHandle, sleep_until, timeout, timeout_at};
use tidegate_sync::Mutex;

use super::backoff::Backoff;
use super::engine::publisher::{Action, Answer, Fate, Publisher, Terms, WARN_EVERY};
use crate::broker::BrokerError;

/// Workers that come back at once are no help to a broker that starts.
pub(super) const BACKOFF_FIRST: Duration = Duration::from_millis(100);

/// Consumption resumes soon after a broker is back.
pub(super) const BACKOFF_MOST: Duration = Duration::from_secs(1);

pub(super) fn of_connect(error: &ConnectError) -> BrokerError {
    let message = error.to_string();
    if error.is_temporary() { BrokerError::Retry { message } } else { BrokerError::Refused { message } }
}

pub(super) fn of_request(error: &Error) -> BrokerError {
    let message = error.to_string();
    match error {
        Error::Refused { refusal, .. } if is_down(refusal) => BrokerError::Retry { message },
        // 541 is the broker's own fault, 320 its operator's: both pass.
        Error::Refused { refusal, .. } if !matches!(refusal.code, 320 | 541) => BrokerError::Refused { message },
        Error::Unsent(unsent) if *unsent != tidegate_amqp::Unsent::NotOpen => BrokerError::Refused { message },
        Error::Closed => BrokerError::Closed,
        _ => BrokerError::Retry { message },
    }
}

/// Whether a queue is there but not up: its node, or its part of a node, is away or still starting.
pub(super) fn is_down(refusal: &Refusal) -> bool {
    refusal.text.contains("is down or inaccessible")
}

pub(super) struct Link {
    uri: Uri,
    options: tidegate_amqp::Options,
    current: RefCell<Option<Rc<Connection>>>,
    /// One attempt at a time, whoever asks.
    opening: Mutex<()>,
    closed: Cell<bool>,
    /// When a full queue was last reported.
    warned: RefCell<HashMap<String, Instant>>,
}

impl Link {
    pub(super) fn new(uri: Uri, name: String) -> Link {
        let mut options = tidegate_amqp::Options::default();
        options.name = name;
        let current = RefCell::new(None);
        let (opening, closed, warned) = (Mutex::new(()), Cell::new(false), RefCell::default());
        Link { uri, options, current, opening, closed, warned }
    }

    fn live(&self) -> Option<Rc<Connection>> {
        self.current.borrow().as_ref().filter(|connection| !connection.is_ended()).cloned()
    }

    /// The connection there is, or a new one.
    pub(super) async fn connection(&self) -> Result<Rc<Connection>, BrokerError> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let _turn = self.opening.lock().await;
        if self.closed.get() {
            return Err(BrokerError::Closed);
        }
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let opened = Connection::open(&self.uri, &self.options).await.map_err(|error| of_connect(&error))?;
        let opened = Rc::new(opened);
        *self.current.borrow_mut() = Some(opened.clone());
        Ok(opened)
    }

    pub(super) async fn close(&self) {
        self.closed.set(true);
        let current = self.current.borrow_mut().take();
        if let Some(connection) = current {
            // A broker that does not answer any more is left alone.
            let _ = timeout(Duration::from_secs(5), connection.close()).await;
        }
    }

    /// Publishes a batch and returns one fate per message. `declare` makes what a returned message needs, and the message anew.
    ///
    /// # Errors
    /// Nothing was sent: the broker could not be reached within the patience, or refuses the connection.
    pub(super) async fn send(
        &self,
        messages: Vec<Message>,
        terms: Terms,
        declare: impl AsyncFnMut(usize) -> Result<Message, BrokerError>,
    ) -> Result<Vec<Fate>, BrokerError> {
        self.send_over(None, messages, terms, declare).await
    }

    /// As [`send`](Self::send), over one channel and no other if it is given: a connection and its epoch.
    pub(super) async fn send_over(
        &self,
        channel: Option<(Rc<Connection>, u32)>,
        mut messages: Vec<Message>,
        terms: Terms,
        mut declare: impl AsyncFnMut(usize) -> Result<Message, BrokerError>,
    ) -> Result<Vec<Fate>, BrokerError> {
        let routes = messages.iter().map(|message| (message.exchange.as_str(), message.routing_key.as_str()));
        let mut publisher = Publisher::new(routes, terms, now(), fastrand::u64(..));
        let mut in_flight = InFlight::default();
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
        loop {
            match publisher.poll(now()) {
                Action::Finished => break,
                Action::Send { index, attempt } => {
                    match self.send_one(&channel, &messages[index], publisher.deadline()).await {
                        Ok(publishing) => {
                            backoff.reset();
                            in_flight.0.push_back((index, attempt, publishing));
                        }
                        Err(Unsent::Never(reason)) => {
                            publisher.handle(index, attempt, Answer::Unsendable { reason }, now());
                        }
                        Err(Unsent::Later) => {
                            publisher.handle(index, attempt, Answer::Unsent, now());
                            publisher.down(now() + backoff.next());
                        }
                        Err(Unsent::Failed(error)) => {
                            publisher.handle(index, attempt, Answer::Unsent, now());
                            if publisher.is_untouched() {
                                return Err(error);
                            }
                            publisher.give_up(&error.to_string(), now());
                        }
                    }
                }
                Action::Declare { index } => {
                    let declared = declare(index).await;
                    let declared = declared.map(|message| messages[index] = message).map_err(|error| error.to_string());
                    publisher.declared(index, declared, now());
                }
                Action::Warn { queue, waiting, since } => self.warn(&queue, waiting, since),
                Action::Wait => in_flight.wait(&mut publisher).await,
            }
        }
        if publisher.is_untouched() && !messages.is_empty() {
            let message = format!("{} took nothing within {:?}", self.uri, terms.patience.unwrap_or_default());
            return Err(BrokerError::Retry { message });
        }
        Ok(publisher.into_fates())
    }

    /// Publishes to places that others name, and returns once all is stored. `Refused`: one of those places does not exist.
    pub(super) async fn post(&self, messages: Vec<Message>, patience: Duration) -> Result<(), BrokerError> {
        let terms = Terms { declares: false, ..Terms::within(patience) };
        let declare = async |_| Err(BrokerError::Refused { message: "it is not ours to declare".to_owned() });
        all_stored(self.send(messages, terms, declare).await?)
    }

    /// Hands one message to the connection; until then it waits for room.
    async fn send_one(
        &self,
        channel: &Option<(Rc<Connection>, u32)>,
        message: &Message,
        until: Option<Instant>,
    ) -> Result<Publishing, Unsent> {
        let sent = async {
            let connection = match channel {
                Some((connection, epoch)) if connection.is_ended() || connection.epoch() != *epoch => {
                    let message = format!("the connection to {} was lost", self.uri);
                    return Err(Unsent::Failed(BrokerError::Retry { message }));
                }
                Some((connection, _)) => Ok(Rc::clone(connection)),
                None => self.connection().await,
            };
            let connection = match connection {
                Ok(connection) => connection,
                Err(BrokerError::Retry { .. }) => return Err(Unsent::Later),
                Err(error) => return Err(Unsent::Failed(error)),
            };
            // Notices are of no use here.
            connection.try_recv_all();
            connection.publish(message).await.map_err(|error| match error {
                Error::Unsent(unsent) if unsent != tidegate_amqp::Unsent::NotOpen => Unsent::Never(unsent.to_string()),
                _ => Unsent::Later,
            })
        };
        match until {
            Some(until) => timeout_at(until, sent).await.unwrap_or(Err(Unsent::Later)),
            None => sent.await,
        }
    }

    /// One line per full queue and minute, however many batches wait for it.
    fn warn(&self, queue: &str, waiting: usize, since: Instant) {
        let now = now();
        let mut warned = self.warned.borrow_mut();
        warned.retain(|_, at| now.saturating_duration_since(*at) < WARN_EVERY);
        if !warned.contains_key(queue) {
            warned.insert(queue.to_owned(), now);
            let seconds = now.saturating_duration_since(since).as_secs();
            tracing::warn!(queue, waiting, seconds, "the queue is full: messages wait to be published");
        }
    }
}

/// Whether a whole batch is stored; otherwise the first reason why not.
pub(super) fn all_stored(fates: Vec<Fate>) -> Result<(), BrokerError> {
    for fate in fates {
        match fate {
            Fate::Stored => {}
            Fate::Returned { reason } => return Err(BrokerError::Refused { message: reason }),
            Fate::Refused { reason } | Fate::Unknown { reason } => return Err(BrokerError::Retry { message: reason }),
        }
    }
    Ok(())
}

/// Why a message was not handed to a connection.
enum Unsent {
    /// The connection is down, or takes nothing.
    Later,
    /// No connection could send it.
    Never(String),
    /// There will be no connection.
    Failed(BrokerError),
}

/// Messages whose answers are to come: index, attempt, answer.
#[derive(Default)]
struct InFlight(VecDeque<(usize, u32, Publishing)>);

impl InFlight {
    /// Waits for the oldest one's answer, or until the publisher has something to do.
    async fn wait(&mut self, publisher: &mut Publisher) {
        let until = publisher.poll_timeout();
        let Some((index, attempt, publishing)) = self.0.front_mut() else {
            match until {
                Some(until) => sleep_until(until).await,
                None => unreachable!("a message without an answer is in flight, or has a time to be sent at"),
            }
            return;
        };
        let confirmed = match until {
            Some(until) => timeout_at(until, publishing).await,
            None => Ok(publishing.await),
        };
        if let Ok(confirmed) = confirmed {
            let (index, attempt) = (*index, *attempt);
            self.0.pop_front();
            return publisher.handle(index, attempt, answer(confirmed), now());
        }
        // Before time is called on messages: answers that came out of order.
        let answered = poll_fn(|cx| {
            let mut answered = Vec::new();
            self.0.retain_mut(|(index, attempt, publishing)| match Pin::new(publishing).poll(cx) {
                Poll::Pending => true,
                Poll::Ready(confirmed) => {
                    answered.push((*index, *attempt, answer(confirmed)));
                    false
                }
            });
            Poll::Ready(answered)
        });
        for (index, attempt, answer) in answered.await {
            publisher.handle(index, attempt, answer, now());
        }
    }
}

fn answer(confirmed: Result<(), PublishError>) -> Answer {
    match confirmed {
        Ok(()) => Answer::Acked,
        Err(PublishError::Returned(returned)) => {
            Answer::Returned { reason: format!("no queue takes {:?}: {}", returned.routing_key, returned.text) }
        }
        Err(PublishError::Unknown { reason }) => Answer::Lost { missing: missing_exchange(&reason), reason },
        Err(_) => Answer::Nacked,
    }
}

/// The exchange whose absence closed a channel, in the broker's words: `NOT_FOUND - no exchange 'name' in vhost '/'`.
fn missing_exchange(reason: &str) -> Option<String> {
    let (_, behind) = reason.split_once("NOT_FOUND - no exchange '")?;
    behind.split_once('\'').map(|(name, _)| name.to_owned())
}

fn now() -> Instant {
    LoopHandle::current().time()
}
