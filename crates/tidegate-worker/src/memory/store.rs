//! What is in the queues, as plain values: no clock, no waiting. Called by the broker's handles and consumers, which pass the
//! time and wait themselves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::broker::{
    DeadLetter, Delivery, Incoming, Published, QueueStats, Selection, Settled, Settlement, Subscription, Tag,
    TaskResult, TaskState, Verdict,
};
use crate::envelope_check::PRIORITY_MAX;
use crate::share::share;
use crate::task::{Envelope, TaskId};

use super::Options;

/// The order of publishing; never used twice.
type Seq = u64;

/// Which consumer; never used twice, so it is the epoch of its tags as well.
pub(super) type ConsumerId = u32;

/// Priorities ascend in the order they run.
type Rank = u8;

#[derive(Debug)]
struct Stored {
    envelope: Envelope,
    published: Timestamp,
    retries: u32,
    crashes: u32,
}

#[derive(Debug)]
struct Dead {
    at: Timestamp,
    reason: String,
    traceback: Option<String>,
}

#[derive(Debug)]
struct Claim {
    id: TaskId,
    until: Timestamp,
    past_settle: bool,
}

#[derive(Debug)]
struct Reader {
    subscription: Subscription,
    /// Handed out and not yet settled, by the number of the delivery: a task that comes back has another one.
    running: BTreeMap<u64, Seq>,
    /// To be told at its next look.
    notices: VecDeque<Incoming>,
    /// Takes no more.
    stopped: bool,
    /// Dropped without `close`: what it has returns at this instant.
    dying: Option<Timestamp>,
    /// Where the next claim begins among its queues, so that none comes last for ever.
    turn: usize,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    options: Options,
    /// Every task there is; each is in exactly one of `ready`, `delayed`, a reader's `running`, `dead`.
    tasks: BTreeMap<Seq, Stored>,
    by_id: BTreeMap<TaskId, Seq>,
    ready: BTreeMap<String, BTreeSet<(Rank, Seq)>>,
    delayed: BTreeSet<(Timestamp, Seq)>,
    dead: BTreeMap<Seq, Dead>,
    unique: BTreeMap<String, Claim>,
    revoked: BTreeMap<TaskId, Timestamp>,
    results: BTreeMap<TaskId, (TaskResult, Timestamp)>,
    readers: BTreeMap<ConsumerId, Reader>,
    next_seq: Seq,
    next_delivery: u64,
    next_consumer: ConsumerId,
}

impl Store {
    pub(super) fn new(options: Options) -> Store {
        Store { options, ..Store::default() }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn publish(&mut self, batch: Vec<Envelope>, now: Timestamp) -> Vec<Published> {
        batch.into_iter().map(|envelope| self.publish_one(envelope, now)).collect()
    }

    fn publish_one(&mut self, envelope: Envelope, now: Timestamp) -> Published {
        if self.by_id.contains_key(&envelope.id) {
            return Published::Duplicate(envelope.id);
        }
        if let Some(unique) = &envelope.unique {
            if let Some(claim) = self.unique.get(&unique.key).filter(|claim| claim.until > now) {
                return Published::Duplicate(claim.id.clone());
            }
            let claim =
                Claim { id: envelope.id.clone(), until: later(now, unique.hold), past_settle: unique.past_settle };
            self.unique.insert(unique.key.clone(), claim);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.by_id.insert(envelope.id.clone(), seq);
        let eta = envelope.eta;
        self.ready.entry(envelope.queue.clone()).or_default();
        self.tasks.insert(seq, Stored { envelope, published: now, retries: 0, crashes: 0 });
        self.make_ready_at(seq, eta.unwrap_or(now), now);
        Published::Stored
    }

    fn make_ready(&mut self, seq: Seq) {
        let envelope = &self.tasks[&seq].envelope;
        let rank = PRIORITY_MAX - envelope.priority;
        self.ready.entry(envelope.queue.clone()).or_default().insert((rank, seq));
    }

    fn make_ready_at(&mut self, seq: Seq, at: Timestamp, now: Timestamp) {
        if at > now {
            self.delayed.insert((at, seq));
        } else {
            self.make_ready(seq);
        }
    }

    pub(super) fn register(&mut self, subscription: Subscription) -> ConsumerId {
        let id = self.next_consumer;
        self.next_consumer += 1;
        for queue in &subscription.queues {
            self.ready.entry(queue.clone()).or_default();
        }
        let reader = Reader {
            subscription,
            running: BTreeMap::new(),
            notices: VecDeque::new(),
            stopped: false,
            dying: None,
            turn: 0,
        };
        self.readers.insert(id, reader);
        id
    }

    /// Brings everything that waits for a time up to this one.
    pub(super) fn advance(&mut self, now: Timestamp) {
        while let Some(&(at, seq)) = self.delayed.first().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, seq));
            self.make_ready(seq);
        }
        let gone: Vec<ConsumerId> = self
            .readers
            .iter()
            .filter(|(_, reader)| reader.dying.is_some_and(|at| at <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in gone {
            self.expel(id);
            self.readers.remove(&id);
        }
        self.results.retain(|_, (_, until)| *until > now);
        self.revoked.retain(|_, until| *until > now);
        self.unique.retain(|_, claim| claim.until > now);
    }

    /// Its deliveries return, each counted as a crash.
    fn expel(&mut self, id: ConsumerId) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        for seq in std::mem::take(&mut reader.running).into_values() {
            self.tasks.get_mut(&seq).expect("running tasks are stored").crashes += 1;
            self.make_ready(seq);
        }
    }

    /// Acts as if every consumer had lost its connection: their tasks go to the next consumer, and they are notified.
    pub(super) fn lose_leases(&mut self) {
        let ids: Vec<ConsumerId> = self.readers.keys().copied().collect();
        for id in ids {
            let reader = self.readers.get_mut(&id).expect("listed above");
            let lost: Vec<Incoming> =
                reader.running.keys().map(|&number| Incoming::Lost(Tag { epoch: id, number })).collect();
            reader.notices.extend(lost);
            self.expel(id);
        }
    }

    /// Notices first, then as many tasks as the prefetch has room for.
    pub(super) fn take(&mut self, id: ConsumerId, now: Timestamp) -> Vec<Incoming> {
        self.advance(now);
        let Some(reader) = self.readers.get_mut(&id) else { return Vec::new() };
        let mut incoming: Vec<Incoming> = reader.notices.drain(..).collect();
        if reader.stopped {
            return incoming;
        }
        let mut room = reader.subscription.prefetch.saturating_sub(reader.running.len());
        let queues = reader.subscription.queues.clone();
        let turn = reader.turn;
        reader.turn = (turn + 1) % queues.len().max(1);
        while room > 0 {
            let waiting: Vec<usize> =
                queues.iter().map(|queue| self.ready.get(queue).map_or(0, BTreeSet::len)).collect();
            let shares = share(&waiting, room, turn);
            let mut delivered = 0;
            for (queue, count) in queues.iter().zip(shares) {
                for _ in 0..count {
                    let Some((_, seq)) = self.ready.get_mut(queue).and_then(BTreeSet::pop_first) else { break };
                    match self.claim(seq, id, now) {
                        Some(Incoming::Delivery(delivery)) => {
                            incoming.push(Incoming::Delivery(delivery));
                            delivered += 1;
                        }
                        other => incoming.extend(other),
                    }
                }
            }
            room -= delivered;
            if queues.iter().all(|queue| self.ready.get(queue).is_none_or(BTreeSet::is_empty)) {
                break;
            }
        }
        incoming
    }

    fn claim(&mut self, seq: Seq, id: ConsumerId, now: Timestamp) -> Option<Incoming> {
        let stored = &self.tasks[&seq];
        let task = stored.envelope.id.clone();
        if self.revoked.contains_key(&task) {
            self.drop_task(seq);
            self.store_end(task, TaskState::Revoked, now);
            return None;
        }
        if stored.envelope.expires.is_some_and(|expires| expires <= now) {
            self.drop_task(seq);
            self.store_end(task.clone(), TaskState::Expired, now);
            return Some(Incoming::Expired(task));
        }
        let number = self.next_delivery;
        self.next_delivery += 1;
        self.readers.get_mut(&id).expect("it asks").running.insert(number, seq);
        let stored = &self.tasks[&seq];
        Some(Incoming::Delivery(Delivery {
            tag: Tag { epoch: id, number },
            envelope: Arc::new(stored.envelope.clone()),
            retries: stored.retries,
            crashes: stored.crashes,
            published: stored.published,
        }))
    }

    pub(super) fn settle(&mut self, id: ConsumerId, batch: Vec<Settlement>, now: Timestamp) -> Vec<Settled> {
        batch.into_iter().map(|settlement| self.settle_one(id, settlement, now)).collect()
    }

    fn settle_one(&mut self, id: ConsumerId, settlement: Settlement, now: Timestamp) -> Settled {
        let reader = self.readers.get_mut(&id).filter(|_| settlement.tag.epoch == id);
        let Some(seq) = reader.and_then(|reader| reader.running.remove(&settlement.tag.number)) else {
            return Settled::Lost;
        };
        let task = self.tasks[&seq].envelope.id.clone();
        let comes_back = matches!(settlement.verdict, Verdict::Retry { .. } | Verdict::Crash { .. } | Verdict::Return);
        if comes_back && self.revoked.contains_key(&task) {
            self.drop_task(seq);
            self.store_end(task, TaskState::Revoked, now);
            return Settled::Done;
        }
        match settlement.verdict {
            Verdict::Ack => self.drop_task(seq),
            Verdict::Return => self.make_ready(seq),
            Verdict::Retry { at } => {
                self.tasks.get_mut(&seq).expect("checked above").retries += 1;
                self.make_ready_at(seq, at, now);
            }
            Verdict::Crash { at } => {
                self.tasks.get_mut(&seq).expect("checked above").crashes += 1;
                self.make_ready_at(seq, at, now);
            }
            Verdict::Dead { reason, traceback } => {
                self.release_unique(seq);
                self.dead.insert(seq, Dead { at: now, reason, traceback });
            }
        }
        if let Some(result) = settlement.result {
            self.store_result(result, now);
        }
        Settled::Done
    }

    fn drop_task(&mut self, seq: Seq) {
        self.release_unique(seq);
        let stored = self.tasks.remove(&seq).expect("it is dropped once");
        self.by_id.remove(&stored.envelope.id);
    }

    fn release_unique(&mut self, seq: Seq) {
        let envelope = &self.tasks[&seq].envelope;
        let Some(unique) = &envelope.unique else { return };
        if self.unique.get(&unique.key).is_some_and(|claim| claim.id == envelope.id && !claim.past_settle) {
            self.unique.remove(&unique.key);
        }
    }

    fn store_end(&mut self, id: TaskId, state: TaskState, now: Timestamp) {
        let ttl = self.options.result_ttl;
        self.store_result(TaskResult { id, state, value: serde_json::Value::Null, error: None, ttl }, now);
    }

    fn store_result(&mut self, result: TaskResult, now: Timestamp) {
        let until = later(now, result.ttl);
        self.results.insert(result.id.clone(), (result, until));
    }

    pub(super) fn stop(&mut self, id: ConsumerId) {
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.stopped = true;
        }
    }

    /// Everything it has returns, uncounted.
    pub(super) fn close(&mut self, id: ConsumerId) {
        let Some(reader) = self.readers.remove(&id) else { return };
        for seq in reader.running.into_values() {
            self.make_ready(seq);
        }
    }

    /// Stops the renewals of a consumer, as if its process had died; its lease will expire.
    pub(super) fn abandon(&mut self, id: ConsumerId, now: Timestamp) {
        let until = later(now, self.options.lease);
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.stopped = true;
            reader.dying = Some(until);
        }
    }

    pub(super) fn is_open(&self, id: ConsumerId) -> bool {
        self.readers.contains_key(&id)
    }

    /// When `advance` next has something to do that a consumer could wait for.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let delayed = self.delayed.first().map(|(at, _)| *at);
        let dying = self.readers.values().filter_map(|reader| reader.dying).min();
        delayed.into_iter().chain(dying).min()
    }

    pub(super) fn inspect(&self, now: Timestamp) -> Vec<QueueStats> {
        let mut all: BTreeMap<&str, QueueStats> = self
            .ready
            .iter()
            .map(|(name, ready)| {
                let oldest = ready.iter().map(|(_, seq)| self.tasks[seq].published).min();
                let stats = QueueStats {
                    queue: name.clone(),
                    ready: ready.len() as u64,
                    delayed: 0,
                    running: 0,
                    dead: 0,
                    consumers: 0,
                    oldest_ms: oldest.map_or(0, |at| now.duration_since(at).as_millis().max(0) as u64),
                };
                (name.as_str(), stats)
            })
            .collect();
        let mut of = |seq: &Seq, count: fn(&mut QueueStats)| {
            if let Some(stats) = all.get_mut(self.tasks[seq].envelope.queue.as_str()) {
                count(stats);
            }
        };
        self.delayed.iter().for_each(|(_, seq)| of(seq, |stats| stats.delayed += 1));
        self.dead.keys().for_each(|seq| of(seq, |stats| stats.dead += 1));
        for reader in self.readers.values() {
            reader.running.values().for_each(|seq| of(seq, |stats| stats.running += 1));
        }
        for queue in self.readers.values().filter(|reader| !reader.stopped).flat_map(|it| &it.subscription.queues) {
            if let Some(stats) = all.get_mut(queue.as_str()) {
                stats.consumers += 1;
            }
        }
        all.into_values().collect()
    }

    pub(super) fn peek(&self, queue: &str, limit: usize) -> Vec<Envelope> {
        let ready = self.ready.get(queue).into_iter().flatten().map(|(_, seq)| seq);
        let delayed = self.delayed.iter().map(|(_, seq)| seq).filter(|seq| self.tasks[seq].envelope.queue == queue);
        ready.chain(delayed).take(limit).map(|seq| self.tasks[seq].envelope.clone()).collect()
    }

    pub(super) fn purge(&mut self, queue: &str) -> u64 {
        let ready = self.ready.get_mut(queue).map(std::mem::take).unwrap_or_default();
        let mut dropped: Vec<Seq> = ready.into_iter().map(|(_, seq)| seq).collect();
        let tasks = &self.tasks;
        self.delayed.retain(|(_, seq)| {
            let keep = tasks[seq].envelope.queue != queue;
            if !keep {
                dropped.push(*seq);
            }
            keep
        });
        dropped.iter().for_each(|&seq| self.drop_task(seq));
        dropped.len() as u64
    }

    pub(super) fn dead(&self, queue: Option<&str>, limit: usize) -> Vec<DeadLetter> {
        let mut letters: Vec<(&Seq, &Dead)> = self
            .dead
            .iter()
            .filter(|(seq, _)| queue.is_none_or(|queue| self.tasks[seq].envelope.queue == queue))
            .collect();
        letters.sort_by_key(|(seq, dead)| (dead.at, **seq));
        let letter = |(seq, dead): (&Seq, &Dead)| DeadLetter {
            envelope: self.tasks[seq].envelope.clone(),
            reason: dead.reason.clone(),
            traceback: dead.traceback.clone(),
            at: dead.at,
            retries: self.tasks[seq].retries,
        };
        letters.into_iter().take(limit).map(letter).collect()
    }

    fn select_dead(&mut self, which: &Selection) -> Vec<Seq> {
        let chosen: Vec<Seq> = match which {
            Selection::Ids(ids) => ids.iter().filter_map(|id| self.by_id.get(id).copied()).collect(),
            Selection::Queue(queue) => {
                self.dead.keys().copied().filter(|seq| self.tasks[seq].envelope.queue == *queue).collect()
            }
            Selection::All => self.dead.keys().copied().collect(),
        };
        chosen.into_iter().filter(|seq| self.dead.remove(seq).is_some()).collect()
    }

    pub(super) fn dead_retry(&mut self, which: &Selection) -> u64 {
        let chosen = self.select_dead(which);
        for &seq in &chosen {
            let stored = self.tasks.get_mut(&seq).expect("dead letters are stored");
            (stored.retries, stored.crashes) = (0, 0);
            self.make_ready(seq);
        }
        chosen.len() as u64
    }

    pub(super) fn dead_drop(&mut self, which: &Selection) -> u64 {
        let chosen = self.select_dead(which);
        chosen.iter().for_each(|&seq| self.drop_task(seq));
        chosen.len() as u64
    }

    pub(super) fn revoke(&mut self, id: &TaskId, now: Timestamp) {
        self.revoked.insert(id.clone(), later(now, self.options.revoke_memory));
        let Some(&seq) = self.by_id.get(id) else { return };
        if let Some(reader) = self.readers.values_mut().find(|reader| reader.running.values().any(|it| *it == seq)) {
            reader.notices.push_back(Incoming::Revoked(id.clone()));
            return;
        }
        if self.dead.contains_key(&seq) {
            return;
        }
        let rank = PRIORITY_MAX - self.tasks[&seq].envelope.priority;
        if let Some(ready) = self.ready.get_mut(&self.tasks[&seq].envelope.queue) {
            ready.remove(&(rank, seq));
        }
        self.delayed.retain(|(_, delayed)| *delayed != seq);
        self.drop_task(seq);
        self.store_end(id.clone(), TaskState::Revoked, now);
    }

    pub(super) fn result(&self, id: &TaskId, now: Timestamp) -> Option<TaskResult> {
        self.results.get(id).filter(|(_, until)| *until > now).map(|(result, _)| result.clone())
    }
}

/// An instant that far away, or the last one there is.
pub(super) fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}
