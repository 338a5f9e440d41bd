//! What became of tasks: a log that everybody appends to, read into memory by those who ask.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::{Connection, Incoming, Settle};
use tidegate_loop::{Task, sleep, spawn};
use tidegate_sync::Event;

use super::backoff::Backoff;
use super::core::{self, Core};
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::topology::RESULTS;
use crate::broker::{BrokerError, TaskResult};
use crate::json;
use crate::task::TaskId;

/// Entries read before the log is swept for those that have expired.
const SWEEP_EVERY: u32 = 10_000;

#[derive(Default)]
struct Read {
    known: RefCell<HashMap<TaskId, (TaskResult, Timestamp)>>,
    /// Markers that questions of this process wait for, and whether they were read.
    markers: RefCell<HashMap<String, bool>>,
    /// The last entry read, so that a new connection goes on behind it.
    offset: Cell<Option<i64>>,
    failure: RefCell<Option<BrokerError>>,
    changed: Event,
}

/// Begins to read with the first question.
#[derive(Default)]
pub(super) struct Results {
    read: Rc<Read>,
    reader: RefCell<Option<Task>>,
}

impl Results {
    /// What is known of a task now.
    pub(super) async fn get(&self, core: &Rc<Core>, id: &TaskId) -> Result<Option<TaskResult>, BrokerError> {
        self.start(core).await?;
        let marker = Marker::new(&self.read);
        core.append(RESULTS, &json!({ "marker": marker.name })).await?;
        self.until(|_| marker.was_read().then_some(())).await?;
        Ok(self.read.result(id, core.now()))
    }

    /// Waits for the last word on a task.
    pub(super) async fn wait(&self, core: &Rc<Core>, id: &TaskId) -> Result<TaskResult, BrokerError> {
        self.start(core).await?;
        self.until(|read| read.result(id, core.now()).filter(|result| result.state.is_final())).await
    }

    pub(super) fn close(&self) {
        *self.read.failure.borrow_mut() = Some(BrokerError::Closed);
        if let Some(reader) = self.reader.borrow_mut().take() {
            reader.cancel();
        }
        self.read.changed.notify_all();
    }

    async fn until<T>(&self, mut look: impl FnMut(&Read) -> Option<T>) -> Result<T, BrokerError> {
        loop {
            if let Some(found) = look(&self.read) {
                return Ok(found);
            }
            if let Some(failure) = self.read.failure.borrow().clone() {
                return Err(failure);
            }
            self.read.changed.wait().await;
        }
    }

    async fn start(&self, core: &Rc<Core>) -> Result<(), BrokerError> {
        if self.reader.borrow().is_some() {
            return Ok(());
        }
        core.declare_log(RESULTS).await?;
        if self.reader.borrow().is_none() {
            let task = spawn(follow(core.clone(), self.read.clone()));
            *self.reader.borrow_mut() = Some(task.task());
        }
        Ok(())
    }
}

/// An entry of no meaning: once it was read, everything before it was. Known before it is written, and until it is dropped.
struct Marker<'a> {
    read: &'a Read,
    name: String,
}

impl<'a> Marker<'a> {
    fn new(read: &'a Read) -> Marker<'a> {
        let name = TaskId::new().to_string();
        read.markers.borrow_mut().insert(name.clone(), false);
        Marker { read, name }
    }

    fn was_read(&self) -> bool {
        self.read.markers.borrow()[&self.name]
    }
}

impl Drop for Marker<'_> {
    fn drop(&mut self) {
        self.read.markers.borrow_mut().remove(&self.name);
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.close();
    }
}

impl Read {
    fn result(&self, id: &TaskId, now: Timestamp) -> Option<TaskResult> {
        self.known.borrow().get(id).filter(|(_, until)| *until > now).map(|(result, _)| result.clone())
    }

    fn hear(&self, entry: Value, now: Timestamp) {
        if let Some(marker) = entry.get("marker").and_then(Value::as_str) {
            if let Some(was_read) = self.markers.borrow_mut().get_mut(marker) {
                *was_read = true;
            }
        } else if let Some((result, until)) = core::read_result(entry, now) {
            self.known.borrow_mut().insert(result.id.clone(), (result, until));
        }
    }
}

async fn follow(core: Rc<Core>, read: Rc<Read>) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    loop {
        match follow_once(&core, &read, &mut backoff).await {
            BrokerError::Retry { message } => tracing::debug!(message, "reading results again in a moment"),
            error => {
                *read.failure.borrow_mut() = Some(error);
                read.changed.notify_all();
                return;
            }
        }
        sleep(backoff.next()).await;
    }
}

async fn follow_once(core: &Core, read: &Read, backoff: &mut Backoff) -> BrokerError {
    let mut options = tidegate_amqp::Options::default();
    options.name = format!("{} results", core.options.name);
    let connection = match Connection::open(&core.uri, &options).await {
        Ok(connection) => connection,
        Err(error) => return of_connect(&error),
    };
    let mut since_sweep = 0;
    let followed = async {
        connection.qos(1000).await?;
        connection.consume(&core::reading(RESULTS, read.offset.get())).await?;
        backoff.reset();
        loop {
            let now = core.now();
            for incoming in connection.recv_all().await? {
                let Incoming::Delivery(delivery) = incoming else {
                    // The log was deleted, or its node is going: read on over a new connection.
                    let (place, reason) = (connection.place().to_owned(), format!("reading was ended: {incoming:?}"));
                    return Err(tidegate_amqp::Error::Lost { place, reason });
                };
                connection.settle(delivery.tag, Settle::Ack);
                read.offset.set(core::offset(&delivery).or(read.offset.get()));
                if let Ok(entry) = json::from_slice(&delivery.body) {
                    read.hear(entry, now);
                }
                since_sweep += 1;
            }
            if since_sweep > SWEEP_EVERY {
                since_sweep = 0;
                read.known.borrow_mut().retain(|_, (_, until)| *until > now);
            }
            read.changed.notify_all();
        }
    };
    let ended: Result<(), tidegate_amqp::Error> = followed.await;
    of_request(&ended.expect_err("it ends by an error"))
}
