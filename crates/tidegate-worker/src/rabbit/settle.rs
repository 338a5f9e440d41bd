//! Performs the plans of deliveries that are being settled, each in a task of its own: one that is stuck holds up no other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_amqp::Settle;
use tidegate_loop::{Task, sleep, spawn, timeout};
use tidegate_sync::Event;

use super::consumer::{Held, Shared};
use super::core::{Core, Place};
use super::engine::plan::{Next, Outcome, Plan, Step};
use super::engine::publisher::{Fate, Terms};
use super::message::Stored;
use super::topology::REVOKED;
use crate::broker::{BrokerError, Settled, Tag};
use crate::task::TaskId;

/// How long a note may take; without it a crash is counted too much.
const NOTE_PATIENCE: Duration = Duration::from_secs(1);

/// A plan whose delivery was lost goes on if the task comes here again within this time.
const KEPT_FOR: Duration = Duration::from_secs(1_800);

/// One attempt at a task. A copy of it has another: more retries or crashes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) id: TaskId,
    pub(super) retries: u32,
    /// As its message says, without what the broker counts.
    pub(super) crashes: u32,
}

/// A delivery that is being settled.
pub(super) struct Settling {
    /// By which delivery it is settled in the end: the one it came with, or a later one of the same attempt.
    held: RefCell<Held>,
    settled: Cell<Option<Settled>>,
    /// Someone was answered that it is pending, and will ask again.
    asked: Cell<bool>,
    changed: Event,
    task: RefCell<Option<Task>>,
}

impl Settling {
    pub(super) fn attempt(&self) -> Attempt {
        self.held.borrow().attempt()
    }

    pub(super) fn queue(&self) -> String {
        self.held.borrow().stored.envelope.queue.clone()
    }

    pub(super) fn id(&self) -> TaskId {
        self.held.borrow().stored.envelope.id.clone()
    }

    /// Waits for the end.
    pub(super) async fn ended(&self) {
        while self.settled.get().is_none() {
            self.changed.wait().await;
        }
    }

    /// How it ended, or that it has not.
    pub(super) fn answer(&self) -> Settled {
        let settled = self.settled.get();
        self.asked.set(settled.is_none());
        settled.unwrap_or(Settled::Pending)
    }

    /// Its delivery is lost; the plan is only kept in case it comes back.
    pub(super) fn is_parked(&self) -> bool {
        self.settled.get() == Some(Settled::Lost)
    }

    /// Ends it where it is; what was not acknowledged comes again.
    pub(super) fn cancel(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.cancel();
        }
    }
}

/// Begins to settle a delivery.
pub(super) fn begin(shared: &Rc<Shared>, held: Held, plan: Plan) -> Rc<Settling> {
    let (tag, attempt) = (held.tag, held.attempt());
    let settling = Rc::new(Settling {
        held: RefCell::new(held),
        settled: Cell::new(None),
        asked: Cell::new(false),
        changed: Event::new(),
        task: RefCell::default(),
    });
    shared.settling.borrow_mut().insert(tag, Rc::clone(&settling));
    let running = spawn(run(Rc::clone(shared), Rc::clone(&settling), plan, tag, attempt));
    *settling.task.borrow_mut() = Some(running.task());
    settling
}

/// If the task of this delivery is being settled here, it is settled by this delivery, and does not run again.
pub(super) fn join(shared: &Shared, held: Held) -> Option<Held> {
    let waiting = shared.settling.borrow().values().find(|settling| settling.attempt() == held.attempt()).cloned();
    let Some(settling) = waiting else { return Some(held) };
    *settling.held.borrow_mut() = held;
    settling.changed.notify_all();
    None
}

async fn run(shared: Rc<Shared>, settling: Rc<Settling>, mut plan: Plan, tag: Tag, attempt: Attempt) {
    let settled = perform_all(&shared, &settling, &mut plan).await;
    settling.settled.set(Some(settled));
    settling.changed.notify_all();
    shared.settling.borrow_mut().remove(&tag);
    if settling.asked.get() {
        shared.ended.borrow_mut().insert(tag, settled);
    }
    if settled == Settled::Lost && plan.is_begun() {
        tracing::warn!(task.id = %attempt.id, "a task was lost while it was settled; it may run twice");
    }
    // There is room for another delivery.
    shared.changed.notify_all();
}

/// Until the plan is finished, or its delivery is lost.
async fn perform_all(shared: &Rc<Shared>, settling: &Settling, plan: &mut Plan) -> Settled {
    let mut settled = Settled::Lost;
    while plan.next() != Next::Finished {
        let is_after_end = matches!(plan.step(), Some(Step::Release(_)));
        if !is_after_end && !is_ours(shared, settling) {
            // Nothing more is written for a delivery that another worker may have, unless it comes back here.
            if !plan.is_begun() {
                return Settled::Lost;
            }
            settling.settled.set(Some(Settled::Lost));
            settling.changed.notify_all();
            let back = async {
                while !is_ours(shared, settling) {
                    settling.changed.wait().await;
                }
            };
            if timeout(KEPT_FOR, back).await.is_err() {
                return Settled::Lost;
            }
        }
        let Some(step) = plan.step() else { break };
        let outcome = match step {
            Step::Ack | Step::Requeue => {
                let how = if matches!(step, Step::Ack) { Settle::Ack } else { Settle::Requeue };
                let (amqp, epoch) = {
                    let held = settling.held.borrow();
                    (held.amqp, held.tag.epoch)
                };
                if !shared.settle_amqp(amqp, epoch, how) {
                    continue;
                }
                settled = Settled::Done;
                Outcome::Done
            }
            Step::Note => {
                let attempt = settling.attempt();
                told(shared.core.note(&[attempt]).await)
            }
            step => shared.core.perform(step).await,
        };
        if let Next::Wait { wait, reason } = plan.handle(outcome) {
            tracing::warn!(task.id = %settling.id(), reason, "a task cannot be settled yet");
            sleep(wait).await;
        }
    }
    settled
}

fn is_ours(shared: &Shared, settling: &Settling) -> bool {
    settling.held.borrow().tag.epoch == shared.epoch.get() && shared.connection.borrow().is_some()
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
                Err(error) => Outcome::Again { reason: error.to_string() },
            },
            Step::Raw(message) => match self.send_raw(message.clone(), self.lasting()).await {
                Ok(fates) => Outcome::Fates(fates),
                Err(error) => Outcome::Again { reason: error.to_string() },
            },
            Step::Release(envelope) => told(self.release(envelope).await),
            Step::Note | Step::Ack | Step::Requeue => Outcome::Done,
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
