//! Performs the plans of deliveries that are being settled, each in a task of its own: one that is stuck holds up no other.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_loop::{LoopHandle, Task, sleep, spawn, timeout};
use tidegate_sync::Event;

use super::consumer::Shared;
use super::core::{Core, Place, dying};
use super::engine::held::Attempt;
use super::engine::plan::{Outcome, Step};
use super::engine::publisher::{Fate, Terms};
use super::engine::settling::{After, Todo};
use super::message::{self, Stored};
use super::topology::REVOKED;
use crate::broker::{BrokerError, Tag};
use crate::hash::QuickMap;

/// How long a note may take; without it a crash is counted too much.
const NOTE_PATIENCE: Duration = Duration::from_secs(1);

/// How long a copy with a new count of crashes is waited for while it cannot be stored.
const RECOUNT_PATIENCE: Duration = Duration::from_secs(2);

struct Driver {
    task: Task,
    /// Notified when it stops, or its delivery is lost.
    changed: Rc<Event>,
}

/// The tasks that perform plans.
#[derive(Default)]
pub(super) struct Drivers(RefCell<QuickMap<Tag, Driver>>);

impl Drivers {
    /// Ends every plan where it is; what was not acknowledged comes again.
    pub(super) fn cancel_all(&self) {
        self.0.take().values().for_each(|driver| _ = driver.task.cancel());
    }

    /// Has those that wait for an end look again.
    pub(super) fn notify_all(&self) {
        let all: Vec<Rc<Event>> = self.0.borrow().values().map(|driver| Rc::clone(&driver.changed)).collect();
        all.iter().for_each(|changed| _ = changed.notify_all());
    }

    fn changed(&self, key: Tag) -> Option<Rc<Event>> {
        self.0.borrow().get(&key).map(|driver| Rc::clone(&driver.changed))
    }
}

/// Starts the driver of a settlement.
pub(super) fn drive(shared: &Rc<Shared>, key: Tag) {
    let task = spawn(run(Rc::clone(shared), key)).task();
    shared.drivers.0.borrow_mut().insert(key, Driver { task, changed: Rc::new(Event::new()) });
}

/// Waits for the end of a settlement, or until its delivery is lost.
pub(super) async fn ended(shared: &Shared, key: Tag) {
    while shared.deliveries.borrow().is_pending(key) {
        let Some(changed) = shared.drivers.changed(key) else { return };
        changed.wait().await;
    }
}

async fn run(shared: Rc<Shared>, key: Tag) {
    loop {
        let todo = shared.deliveries.borrow_mut().poll(key, LoopHandle::current().time());
        match todo {
            Todo::Perform(step) => {
                let outcome = shared.core.perform(&step).await;
                let after = shared.deliveries.borrow_mut().handle(key, step, outcome);
                match after {
                    After::Poll => {}
                    After::Wait(wait) => sleep(wait).await,
                    After::Stop => break,
                }
            }
            Todo::Send(amqp, how) => {
                let sent = shared.ack_by(|connection| connection.settle(amqp, how));
                shared.deliveries.borrow_mut().sent(key, sent);
            }
            Todo::Stop => break,
        }
    }
    let driver = shared.drivers.0.borrow_mut().remove(&key);
    if let Some(driver) = driver {
        driver.changed.notify_all();
    }
    shared.act();
}

fn told(done: Result<(), BrokerError>) -> Outcome {
    match done {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Again { reason: error.to_string() },
    }
}

/// As [`told`], where a refusal would come again and again.
fn told_once(done: Result<(), BrokerError>) -> Outcome {
    match done {
        Err(BrokerError::Refused { message }) => Outcome::Never { reason: message },
        done => told(done),
    }
}

impl Core {
    /// Writes to the log that these return to their queues, and that no worker has died with them.
    pub(super) async fn note(&self, attempts: &[Attempt]) -> Result<(), BrokerError> {
        let entry = |attempt: &Attempt| json!([attempt.id, attempt.retries, attempt.crashes]);
        let entry = json!({ "returned": attempts.iter().map(entry).collect::<Vec<_>>() });
        let late = |_| Err(BrokerError::Retry { message: "the log of notes is not up".to_owned() });
        timeout(NOTE_PATIENCE, self.append(REVOKED, &entry)).await.unwrap_or_else(late)
    }

    /// Terms of a settlement: its delivery stays unsettled for as long as it takes.
    fn lasting(&self) -> Terms {
        Terms { patience: None, ..self.terms() }
    }

    async fn perform(&self, step: &Step) -> Outcome {
        let backend = self.backend.borrow().clone();
        match step {
            Step::Result(result) => told(self.store_results(std::slice::from_ref(result)).await),
            Step::Begin(chord) => match backend {
                Some(backend) => told(backend.begin_chord(chord).await),
                None => Outcome::Done,
            },
            Step::Follow(tasks) => self.follow(tasks).await,
            Step::Answers(answers) => match backend {
                Some(backend) => told(backend.store(answers).await),
                None => told(self.reply(answers.clone()).await),
            },
            Step::Part(message, part) => self.add_part(message, part).await,
            Step::EndChord(part) => match backend {
                Some(backend) => told(backend.end_chord(part).await),
                None => Outcome::Done,
            },
            Step::Copy(copy) => match self.write_each(std::slice::from_ref(&**copy), self.lasting()).await {
                Ok(fates) => Outcome::Fates(fates),
                // It would be refused again and again. A dead letter has room: it leaves out what has none.
                Err(BrokerError::Refused { message }) if copy.1 != Place::Dead && !message::fits(&copy.0) => {
                    let letter = dying(copy.0.clone(), self.now(), message, None);
                    Outcome::Then(vec![Step::Copy(Box::new((letter, Place::Dead)))])
                }
                Err(error) => Outcome::Again { reason: error.to_string() },
            },
            Step::Recount(copy) => {
                // One that may be stored must not run beside its copy.
                let terms = Terms { until_known: true, ..Terms::within(RECOUNT_PATIENCE) };
                match self.write_each(std::slice::from_ref(&**copy), terms).await {
                    Ok(fates) => Outcome::Fates(fates),
                    Err(error) => Outcome::Again { reason: error.to_string() },
                }
            }
            Step::Raw(message) => match self.send_raw(message.clone(), self.lasting()).await {
                Ok(fates) => Outcome::Fates(fates),
                Err(error) => Outcome::Again { reason: error.to_string() },
            },
            Step::Release(envelope) => told(self.release(envelope).await),
            Step::Note(attempt) => told(self.note(std::slice::from_ref(attempt)).await),
            Step::Ack | Step::Requeue => Outcome::Done,
        }
    }

    async fn follow(&self, tasks: &[(Stored, Place)]) -> Outcome {
        for (stored, _) in tasks {
            if let Err(error) = self.reach(&stored.envelope.queue).await {
                return Outcome::Again { reason: error.to_string() };
            }
        }
        match self.write_each(tasks, self.lasting()).await {
            Ok(fates) => return Outcome::Fates(fates),
            Err(BrokerError::Refused { message }) if tasks.len() == 1 => return Outcome::Never { reason: message },
            Err(BrokerError::Refused { .. }) => {}
            Err(error) => return Outcome::Again { reason: error.to_string() },
        }
        // Nothing was sent, because of one of them: its odd queue must not keep the others from being sent.
        let mut fates = Vec::with_capacity(tasks.len());
        for task in tasks {
            fates.extend(match self.write_each(std::slice::from_ref(task), self.lasting()).await {
                Ok(fates) => fates,
                Err(BrokerError::Refused { message }) => vec![Fate::Returned { reason: message }],
                Err(error) => vec![Fate::Refused { reason: error.to_string() }],
            });
        }
        Outcome::Fates(fates)
    }

    async fn add_part(
        &self,
        message: &Rc<crate::codec::celery::Message>,
        part: &crate::codec::celery::Part,
    ) -> Outcome {
        let Some(backend) = self.backend.borrow().clone() else { return Outcome::Done };
        let whole = match backend.part(part).await {
            Ok(Some(whole)) => whole,
            Ok(None) => return Outcome::Done,
            other => return told_once(other.map(drop)),
        };
        let (mut following, now) = (self.following(), self.now());
        following.take(message, message.after_chord(part, &whole.parts, whole.shape.as_ref(), now), now);
        let (mut steps, parts) = following.into_steps();
        steps.push(Step::EndChord(part.clone()));
        // The end of a chord may be a part of the one around it.
        steps.extend(parts);
        Outcome::Then(steps)
    }
}
