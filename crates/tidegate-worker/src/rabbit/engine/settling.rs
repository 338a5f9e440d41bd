//! Deliveries that are being settled: by which connection they may be acknowledged, and what becomes of their plans when a connection is lost.
//! A part of [`Deliveries`](super::deliveries::Deliveries); what a plan does is in [`plan`](super::plan).
//!
//! | state | event | next |
//! |---|---|---|
//! | current | plan finished | ended |
//! | current | connection lost; the ack could not be sent | lost |
//! | current, ack sent | connection lost | current: what follows the ack (the key) needs no delivery |
//! | lost | the same attempt is delivered again | current, by the new delivery, at its first open step |
//! | lost | its driver asks, and no step was performed | forgotten |
//! | lost | its driver asks, and a step was performed | lost, without a driver: kept for 30 minutes |
//!
//! Nothing is begun for a lost delivery: another worker may have it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tidegate_amqp::Settle;

use super::held::{Attempt, Held};
use super::plan::{Next, Outcome, Plan, Step};
use super::publisher::Fate;
use crate::broker::{Settled, Tag};
use crate::hash::QuickMap;
use crate::task::TaskId;

/// The plan of a lost delivery goes on if the attempt is delivered here again within this time.
const KEPT_FOR: Duration = Duration::from_secs(1_800);

/// What the driver of a settlement does next.
#[derive(Debug)]
pub(in crate::rabbit) enum Todo {
    /// Perform this, then report to [`handle`](super::deliveries::Deliveries::handle).
    Perform(Step),
    /// Send this over the current connection, then report to [`sent`](super::deliveries::Deliveries::sent).
    Send(tidegate_amqp::Tag, Settle),
    /// Stop asking: it has ended, or waits for its delivery.
    Stop,
}

/// What the driver of a settlement does after a step.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::rabbit) enum After {
    Poll,
    /// Wait before it polls.
    Wait(Duration),
    /// Stop asking: the settlement is over.
    Stop,
}

/// A recount that waits for its ack.
#[derive(Debug, Default)]
struct Recount {
    /// The copy, if it is delivered before the first delivery is acknowledged. It waits: if it ran now and this process died,
    /// both would run.
    copy: Option<Held>,
}

#[derive(Debug)]
struct Settling {
    /// The delivery to acknowledge: the one it began with, or a later one of the same attempt.
    held: Held,
    plan: Plan,
    /// Set once the ack or requeue is sent. What is left of the plan needs no delivery.
    is_sent: bool,
    /// Set once the ack is sent. If the broker never read it, a later delivery of the attempt only needs another one.
    is_acked: bool,
    /// A driver performs it. At most one does.
    is_driven: bool,
    /// The worker will ask how it ended.
    is_asked: bool,
    lost_at: Option<Instant>,
    recount: Option<Recount>,
}

/// What becomes of a delivery whose attempt may be known.
#[derive(Debug)]
pub(super) enum Join {
    /// The attempt is not being settled here.
    Fresh(Held),
    /// It is settled by this delivery. `drive`: it needs a driver.
    Joined { key: Tag, drive: bool },
}

/// The delivery whose recount is not stored, and what waited behind it.
pub(super) type RefusedRecount = (Held, Option<Held>);

/// By the tag each began with: the worker and the driver know it by that.
#[derive(Debug, Default)]
pub(super) struct Settlements {
    /// Their deliveries are of the current connection, or their ack is sent.
    current: QuickMap<Tag, Settling>,
    lost: QuickMap<Tag, Settling>,
    /// How those ended that the worker will ask for.
    ended: QuickMap<Tag, Settled>,
    /// Recounts in `current`.
    recounts: usize,
    kept_max: usize,
}

impl Settlements {
    pub(super) fn new(kept_max: usize) -> Settlements {
        Settlements { kept_max, ..Settlements::default() }
    }

    /// Settlements that take up room of the prefetch.
    pub(super) fn len(&self) -> usize {
        self.current.len()
    }

    pub(super) fn is_pending(&self, key: Tag) -> bool {
        self.current.contains_key(&key)
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn current(&self) -> impl Iterator<Item = &Held> {
        self.current.values().map(|settling| &settling.held)
    }

    /// `is_asked`: the worker will ask how it ends.
    pub(super) fn begin(&mut self, held: Held, plan: Plan, is_asked: bool) -> Tag {
        let key = held.tag;
        let recount = matches!(plan.step(), Some(Step::Recount(_))).then(Recount::default);
        self.recounts += usize::from(recount.is_some());
        let settling =
            Settling { held, plan, is_sent: false, is_acked: false, is_driven: true, is_asked, lost_at: None, recount };
        self.current.insert(key, settling);
        key
    }

    /// Returns the delivery unless it is the copy of a recount whose first delivery is not acknowledged.
    pub(super) fn wait_behind(&mut self, held: Held) -> Option<Held> {
        if self.recounts == 0 {
            return Some(held);
        }
        let copy = held.attempt();
        let first = self.current.values_mut().find_map(|settling| {
            let Attempt { id, retries, crashes } = settling.held.attempt();
            let is_first = copy == Attempt { id, retries, crashes: crashes + 1 };
            settling.recount.as_mut().filter(|recount| is_first && recount.copy.is_none())
        });
        match first {
            Some(recount) => {
                recount.copy = Some(held);
                None
            }
            None => Some(held),
        }
    }

    /// If the attempt lost its delivery while it was settled, it goes on with this one and does not run again.
    pub(super) fn join(&mut self, held: Held, now: Instant) -> Join {
        let attempt = held.attempt();
        let of_attempt = |settling: &Settling| settling.held.is_of(&attempt);
        let lost = self.lost.iter().filter(|(_, settling)| of_attempt(settling) && !is_old(settling.lost_at, now));
        let lost = lost.map(|(key, _)| *key).min();
        if let Some((key, mut settling)) = lost.and_then(|key| self.lost.remove_entry(&key)) {
            settling.held = held;
            settling.lost_at = None;
            self.recounts += usize::from(settling.recount.is_some());
            let drive = !std::mem::replace(&mut settling.is_driven, true);
            self.current.insert(key, settling);
            return Join::Joined { key, drive };
        }
        // Everything was done but the ack, which was lost with its connection. One that is of this connection is another message
        // with the same id: both are settled.
        let acked = |settling: &Settling| {
            settling.is_acked && settling.held.tag.epoch != held.tag.epoch && of_attempt(settling)
        };
        if self.current.values().any(acked) {
            let key = self.begin(held, Plan::new([Step::Ack]), false);
            return Join::Joined { key, drive: true };
        }
        Join::Fresh(held)
    }

    /// What the driver does next, and what waited for the end of this settlement.
    pub(super) fn poll(&mut self, key: Tag, now: Instant) -> (Todo, Option<Held>) {
        let Some(settling) = self.current.get_mut(&key) else {
            self.park(key, now);
            return (Todo::Stop, None);
        };
        let how = match settling.plan.step() {
            Some(Step::Ack) => Settle::Ack,
            Some(Step::Requeue) => Settle::Requeue,
            _ => {
                return match settling.plan.take() {
                    Some(step) => (Todo::Perform(step), None),
                    None => (Todo::Stop, self.finish(key)),
                };
            }
        };
        (Todo::Send(settling.held.amqp, how), None)
    }

    fn finish(&mut self, key: Tag) -> Option<Held> {
        let settling = self.current.remove(&key)?;
        if settling.is_asked {
            self.ended.insert(key, if settling.is_sent { Settled::Done } else { Settled::Lost });
        }
        self.recounts -= usize::from(settling.recount.is_some());
        settling.recount.and_then(|recount| recount.copy)
    }

    /// The driver of a lost settlement stops.
    fn park(&mut self, key: Tag, now: Instant) {
        let Some(settling) = self.lost.get_mut(&key) else { return };
        if settling.plan.is_begun() {
            settling.is_driven = false;
            settling.lost_at.get_or_insert(now);
            self.expire(now);
        } else {
            self.lost.remove(&key);
        }
    }

    /// Forgets plans that are too old or too many.
    fn expire(&mut self, now: Instant) {
        let kept = self.lost.iter().filter(|(_, settling)| !settling.is_driven);
        let mut kept: Vec<(Option<Instant>, Tag)> = kept.map(|(key, settling)| (settling.lost_at, *key)).collect();
        kept.sort_unstable();
        let surplus = kept.len().saturating_sub(self.kept_max);
        for (at, (lost_at, key)) in kept.into_iter().enumerate() {
            if (at < surplus || is_old(lost_at, now))
                && let Some(settling) = self.lost.remove(&key)
            {
                let id = &settling.held.stored.envelope.id;
                tracing::warn!(task.id = %id, "a task was lost while it was settled; it may run twice");
            }
        }
    }

    /// Whether the ack or requeue could be sent. If not, the connection has ended, though that is not reported yet.
    pub(super) fn sent(&mut self, key: Tag, sent: bool) {
        let Some(settling) = self.current.get_mut(&key) else { return };
        if !sent {
            self.lose_one(key);
        } else if let Some(step) = settling.plan.take() {
            settling.is_sent = true;
            settling.is_acked = matches!(step, Step::Ack);
            settling.plan.handle(step, Outcome::Done);
        }
    }

    fn lose_one(&mut self, key: Tag) {
        if let Some(settling) = self.current.remove(&key) {
            self.recounts -= usize::from(settling.recount.is_some());
            self.lost.insert(key, settling);
        }
    }

    /// What came of a step. A recount that is refused ends here.
    pub(super) fn handle(&mut self, key: Tag, step: Step, outcome: Outcome) -> (After, Option<RefusedRecount>) {
        let is_current = self.current.contains_key(&key);
        let all = if is_current { &mut self.current } else { &mut self.lost };
        let Some(settling) = all.get_mut(&key) else { return (After::Stop, None) };
        if matches!(step, Step::Recount(_)) && is_refused(&outcome) {
            // It is not worth waiting for: the count is right for this run.
            let refused = all.remove(&key).filter(|_| is_current);
            self.recounts -= usize::from(is_current);
            return (
                After::Stop,
                refused.map(|settling| (settling.held, settling.recount.and_then(|recount| recount.copy))),
            );
        }
        match settling.plan.handle(step, outcome) {
            Next::Wait { wait, reason } => {
                let id = &settling.held.stored.envelope.id;
                tracing::warn!(task.id = %id, reason, "a task cannot be settled yet");
                (After::Wait(wait), None)
            }
            Next::Perform | Next::Finished => (After::Poll, None),
        }
    }

    /// How it ended, or that it has not. A lost one is reported once.
    pub(super) fn answer(&mut self, key: Tag) -> Settled {
        if self.current.contains_key(&key) {
            return Settled::Pending;
        }
        if let Some(settling) = self.lost.get_mut(&key) {
            settling.is_asked = false;
        }
        self.ended.remove(&key).unwrap_or(Settled::Lost)
    }

    /// The connection is lost. Adds the tasks that may come again.
    pub(super) fn lose(&mut self, missed: &mut HashSet<TaskId>) {
        let all = self.current.values().chain(self.lost.values());
        missed.extend(all.map(|settling| settling.held.stored.envelope.id.clone()));
        let lost: Vec<Tag> =
            self.current.iter().filter(|(_, settling)| !settling.is_sent).map(|(key, _)| *key).collect();
        lost.into_iter().for_each(|key| self.lose_one(key));
        let copies = self.lost.values_mut().filter_map(|settling| settling.recount.as_mut()?.copy.take());
        missed.extend(copies.map(|copy| copy.stored.envelope.id.clone()));
    }
}

fn is_old(lost_at: Option<Instant>, now: Instant) -> bool {
    lost_at.is_some_and(|lost_at| now.saturating_duration_since(lost_at) >= KEPT_FOR)
}

#[cfg(test)]
impl Settlements {
    /// Deliveries that wait for their ack.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> {
        let unsent = self.current.values().filter(|settling| !settling.is_sent).map(|settling| settling.held.tag);
        let copies = self.current.values().chain(self.lost.values()).filter_map(|settling| {
            let copy = settling.recount.as_ref()?.copy.as_ref()?;
            Some(copy.tag)
        });
        unsent.chain(copies)
    }

    /// Attempts whose plans are kept, or still performed, without a delivery.
    pub(super) fn lost_attempts(&self) -> impl Iterator<Item = Attempt> {
        self.lost.values().map(|settling| settling.held.attempt())
    }

    /// Plans that are kept without a driver.
    pub(super) fn kept(&self) -> usize {
        self.lost.values().filter(|settling| !settling.is_driven).count()
    }
}

/// Returns `true` if nothing of it is stored.
fn is_refused(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Fates(fates) => {
            fates.iter().all(|fate| matches!(fate, Fate::Refused { .. } | Fate::Returned { .. })) && !fates.is_empty()
        }
        Outcome::Again { .. } | Outcome::Never { .. } => true,
        Outcome::Done | Outcome::Then(_) => false,
    }
}
