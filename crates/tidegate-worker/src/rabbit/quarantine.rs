//! Deliveries that no worker can run: too large, unreadable, from a source that is not known. All of their bytes go to the dead
//! letters, confirmed before they are acknowledged, whatever the arguments of their queue; none is ever rejected.

use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_amqp::{Connection, Delivery};
use tidegate_loop::{LoopHandle, spawn};

use super::consumer::Shared;
use super::core::Core;
use super::engine::held::Held;
use super::engine::plan::{Plan, Step};
use super::message::{self, Death, Stored};
use super::settle;
use super::supervisor;
use crate::task::Envelope;

/// Larger messages stay with the broker, whose own limit this is unless its configuration says otherwise.
pub(super) const BYTES_MAX: u64 = 128 << 20;

/// Returns why this worker cannot run a delivery, if it cannot.
pub(super) fn reason(shared: &Shared, delivery: &Delivery) -> Option<String> {
    let (bytes, most) = (delivery.body.len(), shared.core.options.body_bytes_max);
    (bytes > most).then(|| format!("it has {bytes} bytes, more than the {most} that this worker takes"))
}

/// Moves a delivery to the dead letters of a queue of the subscription, and reads on once a large one is out of memory.
pub(super) fn begin(
    shared: &Rc<Shared>,
    connection: &Rc<Connection>,
    at: usize,
    mut delivery: Delivery,
    reason: &str,
    now: Timestamp,
) {
    let queue = &shared.subscription.queues[at];
    let (kind, amqp, redelivered) = (shared.core.kind(queue), delivery.tag, delivery.redelivered);
    let delivered = supervisor::delivered(kind, &delivery);
    tracing::warn!(queue, reason, bytes = delivery.body.len(), "a message that cannot be run goes to the dead letters");
    let (stored, plan) = match Core::read(queue, kind, &mut delivery, now, None) {
        Some(stored) => {
            let plan = shared.quarantine_plan(&stored, reason);
            (stored, plan)
        }
        None => {
            let death = Death { at: now, reason: reason.to_owned(), traceback: None };
            let letter = message::raw_letter(kind.dead_name(queue), delivery, &death);
            let envelope = Arc::new(Envelope::new(queue, Vec::new()));
            let stored = Stored { envelope, retries: 0, crashes: 0, published: now, dead: None };
            (stored, Plan::new([Step::Raw(letter), Step::Ack]))
        }
    };
    let tag = shared.deliveries.borrow().tag(amqp.number);
    let held = Held { at, tag, amqp, stored, counted: delivered, delivered, due: false, handed_out: None };
    let key = shared.deliveries.borrow_mut().quarantine(held, redelivered, plan, LoopHandle::current().time());
    shared.act();
    let (shared, connection) = (Rc::clone(shared), Rc::clone(connection));
    drop(spawn(async move {
        settle::ended(&shared, key).await;
        connection.resume();
    }));
}
