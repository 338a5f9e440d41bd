//! Events on their way out: kept while the broker is slow, dropped beyond a bound, sent together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tidegate_amqp::{Connection, Exchange};
use tidegate_loop::{LoopHandle, sleep, sleep_until, timeout, timeout_at};
use tidegate_sync::Event;

use super::super::core::Core;
use super::super::link::{Link, of_request};
use super::{PresenceOptions, Shared, log};
use crate::broker::BrokerError;

/// Nobody reads more than this after an outage; the oldest go first.
const EVENTS_MAX: usize = 10_000;

/// For one batch. Events are worth no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a good-bye may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long events are gathered: monitors are for eyes.
const GATHER: Duration = Duration::from_millis(50);

pub(super) struct Outbox {
    events: RefCell<VecDeque<Value>>,
    changed: Event,
    link: Link,
    exchange: String,
    /// The connection on which the exchange is known to be there.
    declared: RefCell<Option<Rc<Connection>>>,
    dropped: Cell<u64>,
}

impl Outbox {
    pub(super) fn new(core: &Core, options: &PresenceOptions) -> Outbox {
        Outbox {
            events: RefCell::default(),
            changed: Event::new(),
            link: Link::new(core.uri.clone(), format!("{} events", core.options.name)),
            exchange: options.event_exchange.clone(),
            declared: RefCell::default(),
            dropped: Cell::new(0),
        }
    }

    pub(super) fn event(&self, event: Value) {
        let mut events = self.events.borrow_mut();
        if events.len() >= EVENTS_MAX {
            events.pop_front();
            self.dropped.set(self.dropped.get() + 1);
        }
        events.push_back(event);
        drop(events);
        self.changed.set();
    }

    fn take(&self) -> Vec<Value> {
        self.changed.clear();
        self.events.borrow_mut().drain(..).collect()
    }

    async fn ready(&self) -> Result<(), BrokerError> {
        let connection = self.link.connection().await?;
        let known = self.declared.borrow().as_ref().is_some_and(|known| Rc::ptr_eq(known, &connection));
        if !known {
            let exchange = Exchange::durable(self.exchange.as_str(), "topic");
            connection.declare_exchange(&exchange).await.map_err(|error| of_request(&error))?;
            *self.declared.borrow_mut() = Some(connection);
        }
        Ok(())
    }

    async fn flush(&self, shared: &Shared) -> Result<(), BrokerError> {
        self.ready().await?;
        let messages = shared.sender.borrow().messages(self.take());
        if messages.is_empty() {
            return Ok(());
        }
        let posted = self.link.post(messages, PATIENCE).await;
        if matches!(posted, Err(BrokerError::Refused { .. })) {
            // The exchange is gone.
            self.declared.borrow_mut().take();
        }
        posted
    }

    /// The last words.
    pub(super) async fn finish(&self, shared: &Shared) {
        shared.heartbeat("worker-offline");
        if let Err(error) = timeout(FAREWELL, self.flush(shared)).await.unwrap_or(Ok(())) {
            log("the good-bye was not heard", &error);
        }
        self.declared.borrow_mut().take();
        self.link.close().await;
    }
}

/// Sends what there is to send, and heartbeats, for as long as the worker lives.
pub(super) async fn send(shared: Rc<Shared>) {
    let outbox = &shared.outbox;
    let mut online = false;
    let mut beat_at = LoopHandle::current().time();
    loop {
        if timeout_at(beat_at, outbox.changed.wait()).await.is_ok() {
            sleep(GATHER).await;
        }
        let now = LoopHandle::current().time();
        if now >= beat_at {
            beat_at = now + shared.options.heartbeat;
            // Who was silent for a while comes online anew.
            shared.heartbeat(if online { "worker-heartbeat" } else { "worker-online" });
        }
        online = match outbox.flush(&shared).await {
            Ok(()) => true,
            Err(error) => {
                log("events are not heard", &error);
                sleep_until(beat_at).await;
                false
            }
        };
        let dropped = outbox.dropped.take();
        if dropped > 0 {
            tracing::warn!(dropped, "more events than the broker takes; monitors miss some");
        }
    }
}
