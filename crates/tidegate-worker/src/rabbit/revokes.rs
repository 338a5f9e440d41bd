//! Which tasks must not run: the log of revokes, followed over a connection of its own, so that a log that is not up holds up
//! no task.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_amqp::{Connection, Incoming as Arrived, Settle};
use tidegate_loop::{LoopHandle, Task, sleep, spawn};
use tidegate_sync::{Event, Mutex};

use super::backoff::Backoff;
use super::consumer::Shared;
use super::core::{self, Core};
use super::engine::held::Attempt;
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::topology::REVOKED;
use crate::broker::BrokerError;
use crate::task::TaskId;

/// Entries a read ahead.
const PREFETCH: u16 = 1000;

/// Attempts that are remembered as returned.
const RETURNED_MAX: usize = 100_000;

/// One reading to the end at a time.
struct CatchingUp(Mutex<()>);

impl Default for CatchingUp {
    fn default() -> CatchingUp {
        CatchingUp(Mutex::new(()))
    }
}

#[derive(Default)]
pub(super) struct Revokes {
    known: RefCell<HashMap<TaskId, Timestamp>>,
    /// The last entry read, so that a new connection goes on behind it.
    offset: Cell<Option<i64>>,
    /// Set once everything was read that was there at the beginning.
    pub(super) read: Event,
    /// Attempts that returned to their queues without a crash, and how often.
    returned: RefCell<HashMap<Attempt, u32>>,
    /// The marker that is waited for; `None` once it was read.
    awaited: RefCell<Option<String>>,
    marked: Event,
    /// When the last reading to the end began.
    caught_up: Cell<Option<Instant>>,
    catching_up: CatchingUp,
}

impl Revokes {
    pub(super) fn contains(&self, id: &TaskId) -> bool {
        self.known.borrow().contains_key(id)
    }

    /// A task must not begin until then, whatever the log says.
    pub(super) fn note(&self, id: &TaskId, until: Timestamp) {
        self.known.borrow_mut().insert(id.clone(), until);
    }

    pub(super) fn ids(&self) -> Vec<TaskId> {
        self.known.borrow().keys().cloned().collect()
    }

    /// How often an attempt returned to its queue without a crash.
    pub(super) fn returned(&self, attempt: &Attempt) -> u32 {
        self.returned.borrow().get(attempt).copied().unwrap_or(0)
    }

    /// Uses up a return; `false` if there was none.
    pub(super) fn take_returned(&self, attempt: &Attempt) -> bool {
        let mut returned = self.returned.borrow_mut();
        let Some(count) = returned.get_mut(attempt) else { return false };
        *count -= 1;
        if *count == 0 {
            returned.remove(attempt);
        }
        true
    }

    fn hear_returned(&self, entry: &Value) {
        let Some(attempts) = entry.get("returned").and_then(Value::as_array) else { return };
        let mut returned = self.returned.borrow_mut();
        if returned.len() > RETURNED_MAX {
            // The oldest are not known; what is forgotten costs one crash of a task's allowance.
            returned.clear();
        }
        for attempt in attempts {
            let number =
                |at: usize| attempt.get(at).and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
            let id = attempt.get(0).and_then(Value::as_str).map(TaskId::from);
            if let (Some(id), Some(retries), Some(crashes)) = (id, number(1), number(2)) {
                *returned.entry(Attempt { id, retries, crashes }).or_default() += 1;
            }
        }
    }

    /// Reads everything that was written before this call.
    pub(super) async fn catch_up(&self, core: &Core) -> Result<(), BrokerError> {
        let asked = LoopHandle::current().time();
        let _turn = self.catching_up.0.lock().await;
        if self.caught_up.get().is_some_and(|began| began > asked) {
            return Ok(());
        }
        let began = LoopHandle::current().time();
        let marker = TaskId::new().to_string();
        *self.awaited.borrow_mut() = Some(marker.clone());
        core.append(REVOKED, &json!({ "marker": marker })).await?;
        while self.awaited.borrow().is_some() {
            self.marked.wait().await;
        }
        self.caught_up.set(Some(began));
        Ok(())
    }

    /// The task of an entry, if those that have it must be told. A revoke may spare what runs already, as Celery's do unless
    /// they say otherwise.
    fn hear(&self, entry: &Value, now: Timestamp) -> Option<TaskId> {
        let id = entry.get("revoked").and_then(Value::as_str).map(TaskId::from)?;
        let until = entry.get("until").and_then(Value::as_i64).and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let until = until.filter(|until| *until > now)?;
        let mut known = self.known.borrow_mut();
        known.retain(|_, until| *until > now);
        known.insert(id.clone(), until);
        (entry.get("running") != Some(&Value::Bool(false))).then_some(id)
    }
}

/// Follows for as long as it is held.
pub(super) struct Follower(Task);

impl Follower {
    pub(super) fn start(shared: Rc<Shared>) -> Follower {
        Follower(spawn(follow(shared)).task())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn follow(shared: Rc<Shared>) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    let mut up = true;
    loop {
        let error = match follow_once(&shared, &mut backoff, &mut up).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if matches!(error, BrokerError::Closed) {
            return;
        }
        if up {
            tracing::warn!(broker = %shared.core.uri, %error, "the log of revoked tasks is not up; revokes are heard later");
            up = false;
        }
        sleep(backoff.next()).await;
    }
}

async fn follow_once(
    shared: &Rc<Shared>,
    backoff: &mut Backoff,
    up: &mut bool,
) -> Result<std::convert::Infallible, BrokerError> {
    let (core, revokes) = (&shared.core, &shared.revokes);
    // Makes the log if nobody has, and tells where its end is now.
    let marker = core.mark(REVOKED).await?;
    let mut options = tidegate_amqp::Options::default();
    options.name = format!("{} revokes", core.options.name);
    let connection = Connection::open(&core.uri, &options).await.map_err(|error| of_connect(&error))?;
    connection.qos(PREFETCH).await.map_err(|error| of_request(&error))?;
    let reading = core::reading(REVOKED, revokes.offset.get());
    connection.consume(&reading).await.map_err(|error| of_request(&error))?;
    if !*up {
        tracing::info!(broker = connection.place(), "the log of revoked tasks is up again");
    }
    *up = true;
    backoff.reset();
    loop {
        for arrived in connection.recv_all().await.map_err(|error| of_request(&error))? {
            let Arrived::Delivery(delivery) = arrived else {
                return Err(BrokerError::Retry { message: format!("reading was ended: {arrived:?}") });
            };
            connection.settle(delivery.tag, Settle::Ack);
            revokes.offset.set(core::offset(&delivery).or(revokes.offset.get()));
            let Ok(entry) = serde_json::from_slice::<Value>(&delivery.body) else { continue };
            revokes.hear_returned(&entry);
            if let Some(nonce) = entry.get("marker").and_then(Value::as_str) {
                if revokes.awaited.borrow().as_deref() == Some(nonce) {
                    revokes.awaited.take();
                    revokes.marked.notify_all();
                }
                if nonce == marker {
                    revokes.read.set();
                }
            } else if let Some(id) = revokes.hear(&entry, core.now()) {
                shared.deliveries.borrow_mut().revoked(id);
                shared.act();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoke_is_heard_until_its_time_is_over_and_may_spare_what_runs() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let revokes = Revokes::default();
        let entry = json!({"revoked": "a", "until": 100});
        assert_eq!(revokes.hear(&entry, at(0)), Some(TaskId::from("a")));
        assert!(revokes.contains(&TaskId::from("a")));
        let sparing = json!({"revoked": "c", "until": 100, "running": false});
        assert_eq!(revokes.hear(&sparing, at(1)), None);
        assert!(revokes.contains(&TaskId::from("c")));
        assert_eq!(revokes.hear(&json!({"revoked": "c", "until": 100}), at(2)), Some(TaskId::from("c")));
        assert_eq!(revokes.hear(&entry, at(100)), None);
        assert_eq!(revokes.hear(&json!({"revoked": "b", "until": 200}), at(100)), Some(TaskId::from("b")));
        assert!(!revokes.contains(&TaskId::from("a")));
    }
}
