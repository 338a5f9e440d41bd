//! What the broker says of its queues, for the status pages: one inspection for any number of requests.
//!
//! An inspection costs the broker: RabbitMQ a connection, SQLite a scan on the thread that also settles. So it is made at
//! most once per [`AGE_MAX`], one at a time, and never on behalf of a single request: a client that goes away cancels
//! nothing, and so it cannot start another one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_loop::{LoopHandle, spawn, timeout};
use tidegate_sync::Event;

use crate::broker::{Broker, QueueStats};

/// How old a snapshot may be before the next request has it taken again.
pub(super) const AGE_MAX: Duration = Duration::from_secs(5);

/// How long the broker may take to answer. Without an answer the snapshot says so.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// `None`: the broker did not answer.
pub(super) type Queues = Option<Rc<[QueueStats]>>;

/// The last inspection, and the one that runs. Clones are the same.
#[derive(Clone)]
pub(super) struct Snapshots {
    inner: Rc<Inner>,
}

struct Inner {
    broker: Rc<dyn Broker>,
    state: RefCell<SnapshotState>,
}

#[derive(Default)]
struct SnapshotState {
    /// When it was taken, and what the broker said.
    last: Option<(Instant, Queues)>,
    /// Set by the first request that finds the snapshot too old; cleared when the inspection ends, however it ends.
    in_flight: Option<Rc<Event>>,
}

impl Snapshots {
    pub(super) fn new(broker: Rc<dyn Broker>) -> Snapshots {
        Snapshots { inner: Rc::new(Inner { broker, state: RefCell::default() }) }
    }

    /// Returns the snapshot, at most [`AGE_MAX`] old. Waits for the inspection if there is none that young.
    pub(super) async fn queues(&self) -> Queues {
        let in_flight = {
            let mut state = self.inner.state.borrow_mut();
            let now = LoopHandle::current().time();
            let young = |at: &Instant| now.saturating_duration_since(*at) < AGE_MAX;
            if let Some((_, queues)) = state.last.as_ref().filter(|(at, _)| young(at)) {
                return queues.clone();
            }
            Rc::clone(state.in_flight.get_or_insert_with(|| {
                let ended = Rc::new(Event::new());
                spawn(Refresh { inner: Rc::clone(&self.inner), ended: Rc::clone(&ended) }.run());
                ended
            }))
        };
        in_flight.wait().await;
        self.inner.state.borrow().last.as_ref().and_then(|(_, queues)| queues.clone())
    }
}

/// An inspection that runs. Dropped, it lets the requests go on that wait for it.
struct Refresh {
    inner: Rc<Inner>,
    ended: Rc<Event>,
}

impl Refresh {
    async fn run(self) {
        let answer = timeout(INSPECT_TIMEOUT, self.inner.broker.inspect()).await;
        let queues = answer.ok().and_then(Result::ok).map(Rc::from);
        self.inner.state.borrow_mut().last = Some((LoopHandle::current().time(), queues));
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().in_flight = None;
        self.ended.set();
    }
}
