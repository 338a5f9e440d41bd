//! What becomes of each delivery of one consumer. Pure: the drivers (`../consumer.rs`, `../supervisor.rs`, `../settle.rs`) report
//! what happens and do what [`Deliveries::poll_action`] and [`Deliveries::poll`] ask for.
//!
//! | state | event | next |
//! |---|---|---|
//! | arrived | its attempt was being settled when a connection was lost | settling, by this delivery |
//! | arrived | revoked, expired, not due | settling |
//! | arrived | redelivered, and the reason is not known | judging |
//! | arrived | anything else | held |
//! | judging | the notes explain the redelivery, or the queue counts it | held |
//! | judging | they do not | settling: a copy with one crash more takes its place (recount) |
//! | held | there is room, and it is not revoked | running |
//! | running | the worker settles it | acknowledged, or settling |
//! | settling | see [`settling`](super::settling) | |
//! | held, running | stop, close | returning: one note for all, then requeued |
//! | any | connection lost | the broker has it; settling: see there |
//!
//! A delivery is in one of these states until it is acknowledged, requeued, or lost with its connection. Only deliveries of the
//! current connection are held, run, or acknowledged: the tag of each names its connection, and a lost connection takes all of
//! its deliveries out, at once.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::held::{Attempt, DELIVERED_MAX, Held};
use super::plan::{Outcome, Plan, Step};
use super::settling::{After, Join, Settlements, Todo};
use crate::broker::{Delivery, Incoming, Settled, Settlement, Tag, TaskState, Verdict};
use crate::clock;
use crate::hash::QuickMap;
use crate::rabbit::core::Place;
use crate::rabbit::delay;
use crate::rabbit::message::Stored;
use crate::share::share;
use crate::task::{Envelope, TaskId};

/// What a lost connection sends back comes within this time, unless others take it.
const PARDONED_FOR: Duration = Duration::from_secs(30);

/// How a delivery came.
#[derive(Debug, Clone, Copy)]
pub(in crate::rabbit) struct Arrival {
    /// Some consumer had it before.
    pub(in crate::rabbit) redelivered: bool,
    /// It comes from where its producer had it wait.
    pub(in crate::rabbit) delayed: bool,
    /// Its queue counts deliveries.
    pub(in crate::rabbit) quorum: bool,
    pub(in crate::rabbit) wall: Timestamp,
    pub(in crate::rabbit) now: Instant,
}

/// What is known beside the deliveries, at the time of the call.
pub(in crate::rabbit) trait Facts {
    fn is_revoked(&self, id: &TaskId) -> bool;

    /// How often an attempt returned to its queue without a crash, as far as the notes were read.
    fn returned(&self, attempt: &Attempt) -> u32;

    /// Uses up a return; `false` if there was none.
    fn take_returned(&self, attempt: &Attempt) -> bool;

    /// What is to be done for a task that leaves with this state and never runs.
    fn end_plan(&self, held: &Held, state: TaskState) -> Plan;

    /// What is to be done before the broker may forget a delivery that ran.
    fn plan(&self, held: &Held, settlement: &Settlement) -> Plan;
}

/// What the drivers do next.
#[derive(Debug)]
pub(in crate::rabbit) enum Action {
    /// Start a driver that performs what [`Deliveries::poll`] says.
    Settle(Tag),
    /// Read the notes of returned tasks, then call [`Deliveries::judged`].
    Judge(Tag),
    /// Report a task that ended before any worker saw it.
    Unseen(Arc<Envelope>, TaskState),
    /// Something changed: the worker may receive, or an end is no longer waited for.
    Wake,
}

/// The answer to a settlement of the worker.
#[derive(Debug)]
pub(in crate::rabbit) enum Reply {
    /// Acknowledge this, and that is all.
    Ack(Held),
    /// Its plan has just begun.
    Begun,
    /// It was being settled before.
    Pending,
    Settled(Settled),
}

/// Which redeliveries are not counted as crashes.
#[derive(Debug)]
struct Excuses {
    /// What was here when a connection was lost.
    missed: HashSet<TaskId>,
    /// How many others may come again before it counts: they were on their way to us, or our acknowledgement to the broker.
    left: usize,
    until: Timestamp,
}

impl Excuses {
    fn excuse(&mut self, id: &TaskId, now: Timestamp) -> bool {
        if self.missed.remove(id) {
            return true;
        }
        let excused = self.left > 0 && now < self.until;
        self.left -= usize::from(excused);
        excused
    }
}

#[derive(Debug)]
struct Judging {
    held: Held,
    quorum: bool,
    excused: bool,
}

#[derive(Debug)]
pub(in crate::rabbit) struct Deliveries {
    prefetch: usize,
    /// Of the connection that deliveries come over; every new one has another.
    epoch: u32,
    /// Whether that connection is up. If not, there is no delivery but in `settlements`.
    is_up: bool,
    is_stopped: bool,
    judging: QuickMap<Tag, Judging>,
    /// By queue, as they are subscribed to.
    held: Vec<VecDeque<Held>>,
    /// Where the next sharing out begins among the queues, so that none comes last for ever.
    turn: usize,
    running: QuickMap<Tag, Held>,
    returning: QuickMap<Tag, Held>,
    settlements: Settlements,
    excuses: Excuses,
    /// Handed out before any delivery.
    notices: Vec<Incoming>,
    actions: VecDeque<Action>,
    wake: bool,
}

impl Deliveries {
    pub(in crate::rabbit) fn new(queues: usize, prefetch: usize) -> Deliveries {
        Deliveries {
            prefetch,
            epoch: 0,
            is_up: false,
            is_stopped: false,
            judging: QuickMap::default(),
            held: (0..queues).map(|_| VecDeque::new()).collect(),
            turn: 0,
            running: QuickMap::default(),
            returning: QuickMap::default(),
            settlements: Settlements::new(4 * prefetch),
            excuses: Excuses { missed: HashSet::new(), left: 0, until: Timestamp::MIN },
            notices: Vec::new(),
            actions: VecDeque::new(),
            wake: false,
        }
    }

    pub(in crate::rabbit) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front().or_else(|| std::mem::take(&mut self.wake).then_some(Action::Wake))
    }

    pub(in crate::rabbit) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The name of a delivery of the current connection.
    pub(in crate::rabbit) fn tag(&self, number: u64) -> Tag {
        Tag { epoch: self.epoch, number }
    }

    pub(in crate::rabbit) fn running(&self) -> impl Iterator<Item = &Held> {
        self.running.values()
    }

    /// Tasks of a queue that this consumer has.
    pub(in crate::rabbit) fn count(&self, queue: &str) -> usize {
        let judging = self.judging.values().map(|judging| &judging.held);
        let all = self.running.values().chain(self.held.iter().flatten()).chain(judging);
        let all = all.chain(self.returning.values()).chain(self.settlements.current());
        all.filter(|held| held.stored.envelope.queue == queue).count()
    }

    /// A connection is up, and may deliver.
    pub(in crate::rabbit) fn connected(&mut self) {
        debug_assert!(!self.is_up, "the connection before is reported as lost");
        self.epoch += 1;
        self.is_up = true;
    }

    /// The connection is gone: the broker delivers again what it had delivered over it, to this consumer or to others.
    pub(in crate::rabbit) fn lost(&mut self) {
        self.is_up = false;
        let missed = &mut self.excuses.missed;
        if missed.len() > 4 * self.prefetch {
            // Others have long had them.
            missed.clear();
        }
        self.settlements.lose(missed);
        missed.extend(self.held.iter_mut().flat_map(|queue| queue.drain(..)).map(|held| held.id().clone()));
        missed.extend(self.running.values().map(|held| held.id().clone()));
        let mut tags: Vec<Tag> = self.running.drain().map(|(tag, _)| tag).collect();
        tags.sort_unstable();
        self.notices.extend(tags.into_iter().map(Incoming::Lost));
        // The notes say of those what there is to say, or the excuses do.
        self.returning.clear();
        self.judging.clear();
        self.wake = true;
    }

    /// After a connection was lost, what comes again is excused. A broker that was away takes everything it had for delivered
    /// before; otherwise it is what was on the way, there and back, to this many consumers.
    pub(in crate::rabbit) fn excuse(&mut self, away: bool, sources: usize, now: Timestamp) {
        let Excuses { left, until, .. } = &mut self.excuses;
        // A second loss does not make good for the first.
        let before = if *until > now { *left } else { 0 };
        *left = if away { usize::MAX } else { before.max(2 * sources * self.prefetch) };
        *until = now.checked_add(PARDONED_FOR).unwrap_or(Timestamp::MAX);
    }

    pub(in crate::rabbit) fn arrived(&mut self, held: Held, arrival: Arrival, facts: &impl Facts) {
        let Arrival { redelivered, delayed, quorum, wall, now } = arrival;
        debug_assert!(self.is_up && held.tag.epoch == self.epoch, "it is of the current connection");
        let mut excused = false;
        let held = if redelivered {
            let Some(held) = self.join(held, now) else { return };
            excused = self.excuses.excuse(held.id(), wall);
            held
        } else {
            let Some(held) = self.settlements.wait_behind(held) else { return };
            held
        };
        let envelope = &held.stored.envelope;
        if facts.is_revoked(&envelope.id) {
            self.conclude(held, TaskState::Revoked, facts);
        } else if envelope.expires.is_some_and(|expires| expires <= wall) {
            self.notice(Incoming::Expired(envelope.id.clone()));
            self.conclude(held, TaskState::Expired, facts);
        } else if envelope.eta.is_some_and(|eta| clock::until(eta, wall) > delay::UNIT) {
            let copy = Step::Copy(Box::new((held.stored.clone(), Place::Due)));
            self.begin(held, Plan::new([copy, Step::Ack]));
        } else if redelivered && !delayed {
            self.judge(Judging { held, quorum, excused }, facts);
        } else {
            self.hold(held);
        }
    }

    /// A delivery that no worker can run. Returns the key of its settlement.
    pub(in crate::rabbit) fn quarantine(&mut self, held: Held, redelivered: bool, plan: Plan, now: Instant) -> Tag {
        if !redelivered {
            return self.begin(held, plan);
        }
        match self.settlements.join(held, now) {
            Join::Fresh(held) => self.begin(held, plan),
            Join::Joined { key, drive } => {
                self.joined(key, drive);
                key
            }
        }
    }

    fn join(&mut self, held: Held, now: Instant) -> Option<Held> {
        match self.settlements.join(held, now) {
            Join::Fresh(held) => Some(held),
            Join::Joined { key, drive } => {
                self.joined(key, drive);
                None
            }
        }
    }

    fn joined(&mut self, key: Tag, drive: bool) {
        if drive {
            self.actions.push_back(Action::Settle(key));
        }
    }

    /// Finds out how many of a task's deliveries ended by a crash: the broker only says that there were some.
    fn judge(&mut self, mut judging: Judging, facts: &impl Facts) {
        let Judging { held, quorum, excused } = &mut judging;
        let attempt = held.attempt();
        let is_known = if *quorum {
            // The queue has counted every delivery, whatever its end was.
            let innocent = facts.returned(&attempt) + u32::from(*excused);
            let is_known = innocent >= held.delivered;
            held.discount(if is_known { innocent } else { 0 });
            is_known
        } else {
            *excused || facts.take_returned(&attempt)
        };
        if is_known {
            return self.hold(judging.held);
        }
        let tag = judging.held.tag;
        self.judging.insert(tag, judging);
        self.actions.push_back(Action::Judge(tag));
    }

    /// The notes of other workers were read, as far as they can be.
    pub(in crate::rabbit) fn judged(&mut self, tag: Tag, facts: &impl Facts) {
        // Otherwise its connection is lost.
        let Some(Judging { mut held, quorum, excused }) = self.judging.remove(&tag) else { return };
        let attempt = held.attempt();
        if quorum {
            held.discount(facts.returned(&attempt) + u32::from(excused));
            self.hold(held);
        } else if facts.take_returned(&attempt) {
            self.hold(held);
        } else {
            let plan = held.recount_plan();
            self.begin(held, plan);
        }
    }

    /// Keeps a task for the worker, or gives it back if the worker wants no more.
    fn hold(&mut self, held: Held) {
        if self.is_stopped {
            let plan = held.return_plan();
            self.begin(held, plan);
        } else {
            self.held[held.at].push_back(held);
            self.wake = true;
        }
    }

    /// Has a task that must not run leave with a result.
    fn conclude(&mut self, held: Held, state: TaskState, facts: &impl Facts) {
        self.actions.push_back(Action::Unseen(Arc::clone(&held.stored.envelope), state));
        let plan = facts.end_plan(&held, state);
        self.begin(held, plan);
    }

    fn begin(&mut self, held: Held, plan: Plan) -> Tag {
        let key = self.settlements.begin(held, plan, false);
        self.actions.push_back(Action::Settle(key));
        key
    }

    fn notice(&mut self, incoming: Incoming) {
        self.notices.push(incoming);
        self.wake = true;
    }

    /// A task was revoked. A worker that runs it gets a notice.
    pub(in crate::rabbit) fn revoked(&mut self, id: TaskId) {
        if self.running.values().any(|held| *held.id() == id) {
            self.notice(Incoming::Revoked(id));
        }
    }

    /// What is there for the worker now.
    pub(in crate::rabbit) fn hand_out(&mut self, facts: &impl Facts, now: Instant) -> Vec<Incoming> {
        let mut incoming = std::mem::take(&mut self.notices);
        if self.is_stopped {
            return incoming;
        }
        let room = self.prefetch.saturating_sub(self.running.len() + self.settlements.len());
        let shares = if let [queue] = &self.held[..] {
            vec![room.min(queue.len())]
        } else {
            let waiting: Vec<usize> = self.held.iter().map(VecDeque::len).collect();
            let turn = self.turn;
            self.turn = (turn + 1) % waiting.len().max(1);
            share(&waiting, room, turn)
        };
        incoming.reserve(shares.iter().sum());
        let mut revoked = Vec::new();
        for (queue, count) in self.held.iter_mut().zip(shares) {
            for mut held in queue.drain(..count) {
                // Revoked while it lay here, where nothing looks for it.
                if facts.is_revoked(held.id()) {
                    revoked.push(held);
                    continue;
                }
                let Stored { envelope, retries, crashes, published, .. } = &held.stored;
                incoming.push(Incoming::Delivery(Delivery {
                    tag: held.tag,
                    envelope: Arc::clone(envelope),
                    retries: *retries,
                    crashes: *crashes,
                    published: *published,
                }));
                held.handed_out = Some(now);
                self.running.insert(held.tag, held);
            }
        }
        revoked.into_iter().for_each(|held| self.conclude(held, TaskState::Revoked, facts));
        incoming
    }

    /// Returns `true` if nothing is to be done but to acknowledge, or there is nothing to be done.
    pub(in crate::rabbit) fn is_plain(&self, settlement: &Settlement) -> bool {
        let unique = |held: &Held| held.stored.envelope.unique.is_some();
        matches!(settlement.verdict, Verdict::Ack)
            && settlement.result.is_none()
            && !self.running.get(&settlement.tag).is_some_and(unique)
    }

    /// Settles what the worker has. Asked again, it says how it ended.
    pub(in crate::rabbit) fn settle(&mut self, settlement: &Settlement, facts: &impl Facts) -> Reply {
        let is_plain = self.is_plain(settlement);
        let Some(held) = self.running.remove(&settlement.tag) else {
            return match self.settlements.answer(settlement.tag) {
                Settled::Pending => Reply::Pending,
                settled => Reply::Settled(settled),
            };
        };
        if is_plain {
            self.wake |= self.held.iter().any(|queue| !queue.is_empty());
            return Reply::Ack(held);
        }
        let plan = facts.plan(&held, settlement);
        let key = self.settlements.begin(held, plan, true);
        self.actions.push_back(Action::Settle(key));
        Reply::Begun
    }

    /// How a settlement ended, or that it has not.
    pub(in crate::rabbit) fn answer(&mut self, key: Tag) -> Settled {
        self.settlements.answer(key)
    }

    /// Returns `true` while a settlement goes on by a delivery of the current connection.
    pub(in crate::rabbit) fn is_pending(&self, key: Tag) -> bool {
        self.settlements.is_pending(key)
    }

    /// What the driver of a settlement does next.
    pub(in crate::rabbit) fn poll(&mut self, key: Tag, now: Instant) -> Todo {
        let (todo, copy) = self.settlements.poll(key, now);
        if matches!(todo, Todo::Stop) {
            // There is room for another delivery.
            self.wake = true;
        }
        copy.into_iter().for_each(|copy| self.hold(copy));
        todo
    }

    /// Whether what [`Todo::Send`] asked for could be sent.
    pub(in crate::rabbit) fn sent(&mut self, key: Tag, sent: bool) {
        self.settlements.sent(key, sent);
    }

    /// What came of a step. A driver that is to stop does so before any other action: the delivery may soon have another one.
    pub(in crate::rabbit) fn handle(&mut self, key: Tag, step: Step, outcome: Outcome) -> After {
        let (after, refused) = self.settlements.handle(key, step, outcome);
        if let Some((mut held, copy)) = refused {
            held.stored.crashes += 1;
            held.counted += 1;
            self.hold(held);
            copy.into_iter().for_each(|copy| self.hold(copy));
        }
        after
    }

    /// The worker wants no more; `false` if that was known.
    pub(in crate::rabbit) fn stop(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stopped, true)
    }

    /// Begins to give back what is held, and with `running` what the worker has. Returns those that one note is written for, before
    /// [`returned`](Self::returned).
    pub(in crate::rabbit) fn give_back(&mut self, running: bool, facts: &impl Facts) -> Vec<(Tag, Attempt)> {
        let mut all: Vec<Held> = self.held.iter_mut().flat_map(|queue| queue.drain(..)).collect();
        if running {
            all.extend(self.running.drain().map(|(_, held)| held));
        }
        let mut noted = Vec::new();
        for held in all {
            if facts.is_revoked(held.id()) {
                self.conclude(held, TaskState::Revoked, facts);
            } else if held.delivered < DELIVERED_MAX {
                noted.push((held.tag, held.attempt()));
                self.returning.insert(held.tag, held);
            } else {
                let plan = held.return_plan();
                self.begin(held, plan);
            }
        }
        // So that those returned together keep their order.
        noted.sort_unstable_by_key(|(tag, _)| *tag);
        noted
    }

    /// The note is written, or cannot be: returns what is to be requeued. What was lost meanwhile is not.
    pub(in crate::rabbit) fn returned(&mut self, noted: &[(Tag, Attempt)]) -> Vec<tidegate_amqp::Tag> {
        noted.iter().filter_map(|(tag, _)| self.returning.remove(tag)).map(|held| held.amqp).collect()
    }

    /// Returns `true` if a close need not wait: the worker's own deliveries are all there is.
    pub(in crate::rabbit) fn is_settled(&self) -> bool {
        self.judging.is_empty() && self.settlements.len() == 0
    }

    pub(in crate::rabbit) fn has_ended(&self) -> bool {
        self.settlements.has_ended()
    }
}

#[cfg(test)]
#[path = "deliveries_tests.rs"]
mod tests;
