//! Queues in memory: the same promises as the others within one process, and none beyond it. For tests, for programs that are
//! their own worker, and for simulated time.
//!
//! `store.rs` decides, `consumer.rs` waits; here are the handles.

mod consumer;
mod store;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_loop::timeout;
use tidegate_sync::Event;

use crate::broker::{
    Broker, BrokerError, Consumer, DeadLetter, Local, Published, QueueStats, Selection, Subscription, TaskResult,
};
use crate::clock::{self, LoopClock};
use crate::envelope_check;
use crate::task::{Envelope, TaskId};

use consumer::MemoryConsumer;
use store::{ConsumerId, Store};

/// The options of the queues.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// After this long the deliveries of a consumer that was dropped without `close` return.
    pub lease: Duration,
    /// For how long it is kept that a task expired or was revoked.
    pub result_ttl: Duration,
    /// For how long a revoke waits for its task.
    pub revoke_memory: Duration,
    /// Larger bodies are refused.
    pub body_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(30),
            result_ttl: Duration::from_secs(3_600),
            revoke_memory: Duration::from_secs(86_400),
            body_bytes_max: envelope_check::BODY_BYTES_MAX,
        }
    }
}

struct Shared {
    store: RefCell<Store>,
    clock: LoopClock,
    /// Set when something changed that consumers or waits for results may depend on.
    changed: Event,
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Waits for a change, or until that instant.
    async fn change(&self, until: Option<Timestamp>) {
        match until {
            None => self.changed.wait().await,
            Some(until) => {
                let wait = clock::until(until, self.now());
                // Whether it came or the time passed: the caller looks again.
                let _ = timeout(wait, self.changed.wait()).await;
            }
        }
    }
}

/// A broker in memory. Made on a loop, whose time it follows: virtual where the loop's is.
///
/// ```
/// use tidegate_worker::{Broker, Envelope, Incoming, MemoryBroker, Settlement, Subscription, Verdict};
///
/// tidegate_loop::run(async {
///     let broker = MemoryBroker::new();
///     broker.publish(vec![Envelope::new("mail", b"hello".to_vec())]).await.unwrap();
///     let what = Subscription { queues: vec!["mail".into()], prefetch: 10, consumer: "example".into() };
///     let consumer = broker.subscribe(what).await.unwrap();
///     for incoming in consumer.recv_all().await.unwrap() {
///         let Incoming::Delivery(delivery) = incoming else { continue };
///         assert_eq!(delivery.envelope.body, b"hello");
///         let done = Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None };
///         consumer.settle(vec![done]).await.unwrap();
///     }
/// })
/// .unwrap();
/// ```
pub struct MemoryBroker {
    shared: Rc<Shared>,
    consumers: RefCell<Vec<ConsumerId>>,
    closed: Cell<bool>,
}

impl MemoryBroker {
    /// Empty, with the usual options.
    ///
    /// # Panics
    /// Without a running loop, whose clock it needs.
    #[expect(clippy::new_without_default, reason = "it needs a running loop, which a default must not")]
    pub fn new() -> MemoryBroker {
        MemoryBroker::with(Options::default())
    }

    /// Empty, with these options.
    pub fn with(options: Options) -> MemoryBroker {
        let shared =
            Shared { store: RefCell::new(Store::new(options)), clock: LoopClock::new(), changed: Event::new() };
        MemoryBroker::of(Rc::new(shared))
    }

    fn of(shared: Rc<Shared>) -> MemoryBroker {
        MemoryBroker { shared, consumers: RefCell::default(), closed: Cell::new(false) }
    }

    /// Another handle to the same queues, as another process would have; closing one leaves the other open.
    pub fn connect(&self) -> MemoryBroker {
        MemoryBroker::of(Rc::clone(&self.shared))
    }

    /// Acts as if every consumer had lost its connection: their tasks go to the next consumer, and they are notified. For tests
    /// of what must survive that.
    pub fn lose_leases(&self) {
        self.shared.store.borrow_mut().lose_leases();
        self.shared.changed.notify_all();
    }

    /// Runs `look` on the store, brought up to date.
    fn look<'a, T: 'a>(
        &'a self,
        look: impl FnOnce(&mut Store, Timestamp) -> Result<T, BrokerError>,
    ) -> Local<'a, Result<T, BrokerError>> {
        let outcome = if self.closed.get() {
            Err(BrokerError::Closed)
        } else {
            let now = self.shared.now();
            let mut store = self.shared.store.borrow_mut();
            store.advance(now);
            look(&mut store, now)
        };
        Box::pin(std::future::ready(outcome))
    }

    /// The same, and wakes everything that waits for a change.
    fn act<'a, T: 'a>(
        &'a self,
        act: impl FnOnce(&mut Store, Timestamp) -> Result<T, BrokerError>,
    ) -> Local<'a, Result<T, BrokerError>> {
        let outcome = self.look(act);
        self.shared.changed.notify_all();
        outcome
    }
}

impl Broker for MemoryBroker {
    fn describe(&self) -> String {
        "memory:".into()
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>> {
        self.act(|store, now| {
            envelope_check::check(&batch, store.options().body_bytes_max)?;
            Ok(store.publish(batch, now))
        })
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        self.act(|store, _| {
            what.queues.iter().try_for_each(|queue| envelope_check::queue_name(queue))?;
            let id = store.register(what);
            self.consumers.borrow_mut().push(id);
            Ok(Rc::new(MemoryConsumer { shared: Rc::clone(&self.shared), id }) as Rc<dyn Consumer>)
        })
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        self.look(|store, now| Ok(store.inspect(now)))
    }

    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>> {
        self.look(|store, _| Ok(store.peek(queue, limit)))
    }

    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>> {
        self.act(|store, _| Ok(store.purge(queue)))
    }

    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>> {
        self.look(|store, _| Ok(store.dead(queue, limit)))
    }

    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.act(|store, _| Ok(store.dead_retry(&which)))
    }

    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.act(|store, _| Ok(store.dead_drop(&which)))
    }

    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>> {
        self.act(|store, now| {
            store.revoke(id, now);
            Ok(())
        })
    }

    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>> {
        self.look(|store, now| Ok(store.result(id, now)))
    }

    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>> {
        let id = id.clone();
        Box::pin(async move {
            loop {
                if self.closed.get() {
                    return Err(BrokerError::Closed);
                }
                let found = self.shared.store.borrow().result(&id, self.shared.now());
                if let Some(result) = found.filter(|result| result.state.is_final()) {
                    return Ok(result);
                }
                self.shared.change(None).await;
            }
        })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        if !self.closed.replace(true) {
            let mut store = self.shared.store.borrow_mut();
            self.consumers.take().into_iter().for_each(|id| store.close(id));
        }
        self.shared.changed.notify_all();
        Box::pin(std::future::ready(Ok(())))
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("closed", &self.closed.get()).finish_non_exhaustive()
    }
}
