//! Schedules: who publishes what when. Every worker runs the same schedules; each occurrence has a key of its own, so the
//! broker keeps one of those that are published and answers the others with its id.

mod expression;
mod schedule;

use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_loop::sleep;

pub use expression::{Cron, CronError};
pub use schedule::Schedule;

use crate::broker::{BrokerError, Published};
use crate::codec::native;
use crate::metrics::add;
use crate::moment;
use crate::pool::Shared;
use crate::retry::Backoff;
use crate::task::{Envelope, TaskId, Unique};

/// How long an occurrence's key is kept: a worker whose clock is later than this publishes it a second time.
const KEY_HELD: Duration = Duration::from_secs(3600);

/// The wall clock may be set meanwhile, so it is looked at now and then.
const SLEEP_MAX: Duration = Duration::from_secs(30);

const BACKOFF: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(10) };

/// Publishes what is due, for ever.
pub(crate) async fn publish(shared: Rc<Shared>, schedules: Vec<Schedule>) {
    let mut seen = shared.broker.now();
    loop {
        let Some(next) = schedules.iter().filter_map(|schedule| schedule.next(seen)).min() else {
            tracing::warn!("no schedule will ever be due again");
            return;
        };
        loop {
            let left = moment::since(next, shared.broker.now());
            if left.is_zero() {
                break;
            }
            sleep(left.min(SLEEP_MAX)).await;
        }
        let batch = due(&schedules, seen, next);
        seen = next.max(shared.broker.now());
        send(&shared, batch).await;
    }
}

/// What is due at `at` and was not at `seen`.
fn due(schedules: &[Schedule], seen: Timestamp, at: Timestamp) -> Vec<Envelope> {
    let due = schedules.iter().filter(|schedule| schedule.next(seen) == Some(at));
    due.map(|schedule| {
        let mut task = schedule.task.clone();
        task.id = TaskId::from(format!("{}@{at}", schedule.name).as_str());
        let mut envelope = Envelope::of(&task, &schedule.queue, native::encode(&task));
        let key = format!("cron:{}:{at}", schedule.name);
        envelope.unique = Some(Unique { key, hold: KEY_HELD, past_settle: true });
        envelope
    })
    .collect()
}

/// How often an occurrence is published at most.
const ATTEMPTS: u32 = 10;

async fn send(shared: &Shared, mut batch: Vec<Envelope>) {
    for attempt in 0.. {
        let reason = match shared.broker.publish(batch.clone()).await {
            Ok(answers) => {
                let mut open = None;
                let mut answers = answers.into_iter();
                batch.retain(|envelope| match answers.next() {
                    Some(Published::Stored) => {
                        add(&shared.counters.scheduled, 1);
                        tracing::info!(task.id = %envelope.id, queue = %envelope.queue, "scheduled");
                        false
                    }
                    Some(Published::Duplicate(_)) | None => {
                        tracing::debug!(task.id = %envelope.id, "another worker has scheduled it");
                        false
                    }
                    Some(Published::Refused { reason } | Published::Unknown { reason }) => {
                        open = Some(reason);
                        true
                    }
                });
                match open {
                    None => return,
                    Some(reason) => reason,
                }
            }
            Err(error @ (BrokerError::Damaged { .. } | BrokerError::Closed)) => {
                tracing::error!(%error, occurrences = batch.len(), "scheduled tasks could not be published and are skipped");
                return;
            }
            Err(error) => error.to_string(),
        };
        if attempt == ATTEMPTS {
            tracing::error!(
                reason,
                occurrences = batch.len(),
                "scheduled tasks could not be published and are skipped"
            );
            return;
        }
        tracing::warn!(reason, "cannot publish scheduled tasks; trying again");
        sleep(BACKOFF.delay(attempt, shared.chance())).await;
    }
}
