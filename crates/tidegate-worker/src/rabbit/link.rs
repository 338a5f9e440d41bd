//! A connection that is made when it is needed, and again when it is gone; and the publishing over it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_amqp::{ConnectError, Connection, Error, Message, PublishError, Publishing, Uri};
use tidegate_loop::{sleep, timeout};
use tidegate_sync::Mutex;

use super::backoff::Backoff;
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
        // A queue that is there but not up: its node, or its part of a node, is still starting.
        Error::Refused { refusal, .. } if refusal.text.contains("is down or inaccessible") => {
            BrokerError::Retry { message }
        }
        // 541 is the broker's own fault, 320 its operator's: both pass.
        Error::Refused { refusal, .. } if !matches!(refusal.code, 320 | 541) => BrokerError::Refused { message },
        Error::Unsent(unsent) if *unsent != tidegate_amqp::Unsent::NotOpen => BrokerError::Refused { message },
        Error::Closed => BrokerError::Closed,
        _ => BrokerError::Retry { message },
    }
}

/// Why messages could not be handed over.
#[derive(Debug)]
pub(super) enum SendError {
    /// The queue or exchange of this key is not there.
    Unrouted(String),
    Broker(BrokerError),
}

impl From<BrokerError> for SendError {
    fn from(error: BrokerError) -> SendError {
        SendError::Broker(error)
    }
}

pub(super) struct Link {
    uri: Uri,
    options: tidegate_amqp::Options,
    current: RefCell<Option<Rc<Connection>>>,
    /// One attempt at a time, whoever asks.
    opening: Mutex<()>,
    closed: Cell<bool>,
    patience: Duration,
}

impl Link {
    pub(super) fn new(uri: Uri, name: String, patience: Duration) -> Link {
        let mut options = tidegate_amqp::Options::default();
        options.name = name;
        let current = RefCell::new(None);
        Link { uri, options, current, opening: Mutex::new(()), closed: Cell::new(false), patience }
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

    /// Hands all of them over, and returns once the broker has said that it keeps them. What a lost connection leaves open is
    /// sent again on the next.
    pub(super) async fn send(&self, messages: &[Message]) -> Result<(), SendError> {
        match timeout(self.patience, self.send_all(messages)).await {
            Ok(sent) => sent,
            Err(_) => {
                let message = format!("{} did not take what was published within {:?}", self.uri, self.patience);
                Err(BrokerError::Retry { message }.into())
            }
        }
    }

    async fn send_all(&self, messages: &[Message]) -> Result<(), SendError> {
        let mut left: Vec<&Message> = messages.iter().collect();
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
        loop {
            match self.connection().await {
                Ok(connection) => left = send_over(&connection, left).await?,
                Err(BrokerError::Retry { .. }) => {}
                Err(other) => return Err(other.into()),
            }
            if left.is_empty() {
                return Ok(());
            }
            sleep(backoff.next()).await;
        }
    }
}

/// What is left, though nothing is wrong with it.
async fn send_over<'a>(connection: &Connection, messages: Vec<&'a Message>) -> Result<Vec<&'a Message>, SendError> {
    let mut under_way: Vec<(&Message, Publishing)> = Vec::with_capacity(messages.len());
    let mut left = Vec::new();
    for message in messages {
        match connection.publish(message).await {
            Ok(publishing) => under_way.push((message, publishing)),
            Err(error @ Error::Unsent(_)) => return Err(of_request(&error).into()),
            Err(_) => left.push(message),
        }
    }
    for (message, publishing) in under_way {
        match publishing.await {
            Ok(()) => {}
            Err(PublishError::Returned(returned)) => return Err(SendError::Unrouted(returned.routing_key.to_string())),
            // The channel was closed because of an exchange that is not there: nobody else's messages name any.
            Err(PublishError::Unknown { reason }) if reason.contains("NOT_FOUND - no exchange") => {
                return Err(SendError::Unrouted(message.routing_key.clone()));
            }
            Err(PublishError::Unknown { .. }) => left.push(message),
            Err(error) => return Err(BrokerError::Retry { message: error.to_string() }.into()),
        }
    }
    // Notices that nobody reads here.
    connection.try_recv_all();
    Ok(left)
}
