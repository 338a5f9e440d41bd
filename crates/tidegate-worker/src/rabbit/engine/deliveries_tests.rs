//! A simulated broker, worker and drivers: everything that can happen does, in the order of a seed. After each event the broker's
//! unacknowledged deliveries are compared with those that the machine has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use fastrand::Rng;
use tidegate_amqp::Settle;

use super::*;
use crate::broker::TaskResult;
use crate::rabbit::engine::publisher::Fate;
use crate::task::Unique;

/// A message in the simulated broker.
#[derive(Debug, Clone)]
struct Message {
    attempt: Attempt,
    redelivered: bool,
    /// How often a consumer had it.
    delivered: u32,
    is_unique: bool,
    is_expired: bool,
    is_early: bool,
}

#[derive(Default)]
struct Broker {
    ready: VecDeque<Message>,
    dead: Vec<Attempt>,
    /// Whether the connection is up, as the broker sees it.
    is_up: bool,
    /// By number, of the current connection.
    unacked: BTreeMap<u64, Message>,
    /// Sent by the consumer, and not read by the broker.
    acks: VecDeque<(u64, Settle)>,
    next: u64,
    /// How many messages of an attempt there ever were: more than one if an id was published twice, or a confirm or ack was lost.
    stored: HashMap<Attempt, u32>,
}

impl Broker {
    fn read_acks(&mut self, count: usize) {
        for (number, how) in self.acks.drain(..count) {
            let mut message = self.unacked.remove(&number).expect("each delivery is settled once");
            if how == Settle::Requeue {
                message.redelivered = true;
                self.ready.push_front(message);
            }
        }
    }

    /// Every connection ends; some of the last acks were read.
    fn cut(&mut self, rng: &mut Rng) {
        self.read_acks(rng.usize(..=self.acks.len()));
        self.acks.clear();
        for mut message in std::mem::take(&mut self.unacked).into_values().rev() {
            message.redelivered = true;
            self.ready.push_front(message);
        }
        self.is_up = false;
    }

    /// A message by a copy.
    fn store(&mut self, stored: &Stored, place: Place) {
        let Stored { envelope, retries, crashes, .. } = stored;
        let attempt = Attempt { id: envelope.id.clone(), retries: *retries, crashes: *crashes };
        if place == Place::Dead {
            return self.dead.push(attempt);
        }
        *self.stored.entry(attempt.clone()).or_default() += 1;
        self.ready.push_back(Message {
            attempt,
            redelivered: false,
            delivered: 0,
            is_unique: envelope.unique.is_some(),
            is_expired: false,
            is_early: false,
        });
    }
}

/// Beside the deliveries: what the plans are, and what they must have done before the ack.
#[derive(Default)]
struct Known {
    revoked: RefCell<HashSet<TaskId>>,
    returned: RefCell<HashMap<Attempt, u32>>,
    /// By delivery: what is to be confirmed before its ack.
    owed: RefCell<HashMap<Tag, Vec<String>>>,
    /// Left for good.
    finished: RefCell<HashSet<TaskId>>,
}

fn name(stored: &Stored, place: Place) -> String {
    format!("{place:?} {} {} {}", stored.envelope.id, stored.retries, stored.crashes)
}

fn result(held: &Held) -> Step {
    let (id, value, ttl) = (held.id().clone(), serde_json::Value::Null, Duration::ZERO);
    Step::Result(TaskResult { id, state: TaskState::Succeeded, value, error: None, ttl })
}

impl Known {
    fn owe(&self, held: &Held, result_first: bool, copies: Vec<(Stored, Place)>, is_end: bool) -> Plan {
        let (mut steps, mut owed) = (Vec::new(), Vec::new());
        if result_first {
            steps.push(result(held));
            owed.push("result".to_owned());
        }
        for copy in copies {
            owed.push(name(&copy.0, copy.1));
            steps.push(if copy.1 == Place::Queue { Step::Follow(vec![copy]) } else { Step::Copy(Box::new(copy)) });
        }
        steps.push(Step::Ack);
        if is_end {
            self.finished.borrow_mut().insert(held.id().clone());
            if held.stored.envelope.unique.is_some() {
                steps.push(Step::Release(Arc::clone(&held.stored.envelope)));
            }
        }
        self.owed.borrow_mut().insert(held.tag, owed);
        Plan::new(steps)
    }
}

impl Facts for Known {
    fn is_revoked(&self, id: &TaskId) -> bool {
        self.revoked.borrow().contains(id)
    }

    fn returned(&self, attempt: &Attempt) -> u32 {
        self.returned.borrow().get(attempt).copied().unwrap_or(0)
    }

    fn take_returned(&self, attempt: &Attempt) -> bool {
        match self.returned.borrow_mut().get_mut(attempt) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    fn end_plan(&self, held: &Held, _: TaskState) -> Plan {
        self.owe(held, true, Vec::new(), true)
    }

    fn plan(&self, held: &Held, settlement: &Settlement) -> Plan {
        let mut copy = held.stored.clone();
        match &settlement.verdict {
            Verdict::Ack => self.owe(held, true, Vec::new(), true),
            Verdict::Return => held.return_plan(),
            Verdict::Retry { .. } => {
                copy.retries += 1;
                self.owe(held, true, vec![(copy, Place::Due)], false)
            }
            Verdict::Crash { .. } => {
                copy.crashes += 1;
                self.owe(held, false, vec![(copy, Place::Due)], false)
            }
            Verdict::Dead { .. } => {
                let mut next = copy.clone();
                Arc::make_mut(&mut next.envelope).id = TaskId::from(format!("{}-next", held.id()).as_str());
                self.owe(held, true, vec![(next, Place::Queue), (copy, Place::Dead)], true)
            }
        }
    }
}

#[derive(Debug)]
enum Driver {
    Ready,
    Performing(Step),
}

struct World {
    rng: Rng,
    prefetch: usize,
    quorum: bool,
    /// Some ids are published twice: those are two tasks.
    has_twins: bool,
    deliveries: Deliveries,
    broker: Broker,
    known: Known,
    drivers: BTreeMap<Tag, Driver>,
    judging: Vec<Tag>,
    /// What the worker runs.
    running: BTreeSet<Tag>,
    /// What the worker settles, and was answered that it is pending.
    pending: BTreeMap<Tag, Settlement>,
    returning: Vec<Vec<(Tag, Attempt)>>,
    /// Confirmed steps, by settlement.
    done: HashMap<Tag, Vec<String>>,
    /// Settlements whose ack or requeue was sent.
    sent: HashSet<Tag>,
    /// Attempts that left by an ack of a settlement.
    left: HashSet<Attempt>,
    published: Vec<TaskId>,
    is_calm: bool,
    wall_ms: i64,
    start: Instant,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let prefetch = rng.usize(1..=4);
        World {
            prefetch,
            quorum: rng.bool(),
            has_twins: rng.u8(..4) == 0,
            rng,
            deliveries: Deliveries::new(1, prefetch),
            broker: Broker::default(),
            known: Known::default(),
            drivers: BTreeMap::new(),
            judging: Vec::new(),
            running: BTreeSet::new(),
            pending: BTreeMap::new(),
            returning: Vec::new(),
            done: HashMap::new(),
            sent: HashSet::new(),
            left: HashSet::new(),
            published: Vec::new(),
            is_calm: false,
            wall_ms: 0,
            start: Instant::now(),
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.wall_ms.unsigned_abs())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + self.wall_ms).unwrap()
    }

    /// A fault, unless the calm at the end has begun.
    fn fails(&mut self, one_in: u8) -> bool {
        !self.is_calm && self.rng.u8(..one_in) == 0
    }

    fn publish(&mut self) {
        let id = match self.published.last() {
            Some(last) if self.has_twins && self.rng.bool() => last.clone(),
            _ => TaskId::from(format!("t{}", self.published.len()).as_str()),
        };
        self.published.push(id.clone());
        let (is_unique, is_expired, is_early) = (self.fails(3), self.fails(12), self.fails(12));
        let attempt = Attempt { id, retries: 0, crashes: 0 };
        *self.broker.stored.entry(attempt.clone()).or_default() += 1;
        let message = Message { attempt, redelivered: false, delivered: 0, is_unique, is_expired, is_early };
        self.broker.ready.push_back(message);
    }

    /// The broker delivers one message, as far as the prefetch of the consumer allows.
    fn deliver(&mut self) {
        let is_room = self.broker.unacked.len() < self.prefetch;
        if !self.broker.is_up || !self.deliveries.is_up || self.deliveries.is_stopped || !is_room {
            return;
        }
        let Some(mut message) = self.broker.ready.pop_front() else { return };
        let number = self.broker.next;
        self.broker.next += 1;
        let Message { attempt, redelivered, delivered, is_unique, is_expired, is_early } = message.clone();
        message.delivered += 1;
        self.broker.unacked.insert(number, message);
        let mut envelope = Envelope::new("mail", Vec::new());
        envelope.id = attempt.id;
        let (key, hold) = ("key".to_owned(), Duration::from_secs(60));
        envelope.unique = is_unique.then_some(Unique { key, hold, past_settle: false });
        envelope.expires = is_expired.then(|| self.wall());
        envelope.eta = is_early.then(|| self.wall() + Duration::from_secs(60));
        let delivered = if self.quorum { delivered } else { 0 };
        let crashes = attempt.crashes + delivered;
        let (tag, published) = (self.deliveries.tag(number), Timestamp::UNIX_EPOCH);
        let stored = Stored { envelope: Arc::new(envelope), retries: attempt.retries, crashes, published, dead: None };
        let amqp = tidegate_amqp::Tag { epoch: tag.epoch, number };
        let held = Held { at: 0, tag, amqp, stored, counted: delivered, delivered, due: false, handed_out: None };
        let arrival = Arrival { redelivered, delayed: false, quorum: self.quorum, wall: self.wall(), now: self.now() };
        self.deliveries.arrived(held, arrival, &self.known);
    }

    /// Sends over the current connection, or finds that it has ended.
    fn send(&mut self, amqp: tidegate_amqp::Tag, how: Settle) -> bool {
        assert!(self.deliveries.is_up, "nothing is sent while there is no connection");
        assert_eq!(amqp.epoch, self.deliveries.epoch, "nothing is sent for a delivery of an earlier connection");
        if self.broker.is_up {
            assert!(self.broker.unacked.contains_key(&amqp.number), "{amqp:?} is not delivered");
            assert!(self.broker.acks.iter().all(|(number, _)| *number != amqp.number), "{amqp:?} is settled twice");
            self.broker.acks.push_back((amqp.number, how));
        }
        self.broker.is_up
    }

    fn act(&mut self) {
        while let Some(action) = self.deliveries.poll_action() {
            match action {
                Action::Settle(key) => {
                    let before = self.drivers.insert(key, Driver::Ready);
                    assert!(before.is_none(), "a settlement has one driver");
                }
                Action::Judge(tag) => self.judging.push(tag),
                Action::Unseen(..) | Action::Wake => {}
            }
        }
    }

    fn hand_out(&mut self) {
        let incoming = self.deliveries.hand_out(&self.known, self.now());
        let mut handed = false;
        for incoming in incoming {
            match incoming {
                Incoming::Delivery(delivery) => {
                    handed = true;
                    assert!(self.running.insert(delivery.tag), "{:?} is handed out once", delivery.tag);
                    assert_eq!(delivery.tag.epoch, self.deliveries.epoch, "it is of the current connection");
                    let held = &self.deliveries.running[&delivery.tag];
                    let kept = self.deliveries.settlements.lost_attempts().any(|attempt| held.is_of(&attempt));
                    let is_only = self.broker.stored[&held.attempt()] == 1;
                    assert!(!kept || !is_only, "it runs again though its plan is kept: {delivery:?}");
                }
                // Unless the worker has settled it meanwhile.
                Incoming::Lost(tag) => _ = self.running.remove(&tag),
                Incoming::Revoked(_) | Incoming::Expired(_) => {}
            }
        }
        let room = self.deliveries.running.len() + self.deliveries.settlements.len();
        assert!(!handed || room <= self.prefetch, "{room} with a prefetch of {}", self.prefetch);
    }

    /// The worker settles one of what it runs, or asks again for one that is pending.
    fn settle(&mut self) {
        let is_again = !self.pending.is_empty() && (self.running.is_empty() || self.rng.bool());
        let settlement = if is_again {
            let at = self.rng.usize(..self.pending.len());
            let tag = *self.pending.keys().nth(at).unwrap();
            self.pending.remove(&tag).unwrap()
        } else {
            if self.running.is_empty() {
                return;
            }
            let at = self.rng.usize(..self.running.len());
            let tag = *self.running.iter().nth(at).unwrap();
            self.running.remove(&tag);
            let at = Timestamp::UNIX_EPOCH;
            let verdict = match if self.is_calm { 0 } else { self.rng.u8(..8) } {
                0..=2 => Verdict::Ack,
                3 | 4 => Verdict::Retry { at },
                5 => Verdict::Crash { at },
                6 => Verdict::Return,
                _ => Verdict::Dead { reason: String::new(), traceback: None },
            };
            let ttl = Duration::ZERO;
            let result = self.rng.bool().then(|| {
                let (id, value) = (TaskId::from("any"), serde_json::Value::Null);
                TaskResult { id, state: TaskState::Succeeded, value, error: None, ttl }
            });
            Settlement { tag, verdict, result }
        };
        match self.deliveries.settle(&settlement, &self.known) {
            Reply::Ack(held) => {
                assert!(!is_again, "it was taken before");
                if self.send(held.amqp, Settle::Ack) {
                    self.known.finished.borrow_mut().insert(held.id().clone());
                }
            }
            Reply::Begun => {
                assert!(!is_again);
                self.pending.insert(settlement.tag, settlement);
            }
            Reply::Pending => _ = self.pending.insert(settlement.tag, settlement),
            Reply::Settled(Settled::Done) => assert!(self.sent.contains(&settlement.tag)),
            Reply::Settled(settled) => assert_eq!(settled, Settled::Lost),
        }
    }

    fn drive(&mut self) {
        if self.drivers.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.drivers.len());
        let key = *self.drivers.keys().nth(at).unwrap();
        let driver = self.drivers.get_mut(&key).unwrap();
        if let Driver::Performing(step) = std::mem::replace(driver, Driver::Ready) {
            let outcome = self.perform(key, &step);
            if self.deliveries.handle(key, step, outcome) == After::Stop {
                self.drivers.remove(&key);
            }
            return;
        }
        match self.deliveries.poll(key, self.now()) {
            Todo::Perform(step) => _ = self.drivers.insert(key, Driver::Performing(step)),
            Todo::Send(amqp, how) => {
                if how == Settle::Ack {
                    self.check_ack(key, amqp);
                }
                let sent = self.send(amqp, how);
                if sent {
                    self.sent.insert(key);
                }
                self.deliveries.sent(key, sent);
            }
            Todo::Stop => _ = self.drivers.remove(&key),
        }
    }

    /// What follows from a delivery is confirmed before it is acknowledged.
    fn check_ack(&mut self, key: Tag, amqp: tidegate_amqp::Tag) {
        let none = Vec::new();
        let done = self.done.get(&key).unwrap_or(&none);
        let attempt = self.broker.unacked.get(&amqp.number).map(|message| message.attempt.clone());
        if let Some(owed) = self.known.owed.borrow().get(&key) {
            assert!(owed.iter().all(|step| done.contains(step)), "{owed:?} before the ack, done: {done:?}");
        } else {
            // A recount or a copy that is not due, or the second ack of an attempt that left before.
            let left = attempt.as_ref().is_none_or(|attempt| self.left.contains(attempt));
            assert!(!done.is_empty() || left, "{attempt:?} is acknowledged for nothing");
        }
        self.left.extend(attempt);
    }

    fn confirmed(&mut self, key: Tag, step: String) {
        let done = self.done.entry(key).or_default();
        assert!(!done.contains(&step), "{step} is done twice for {key:?}");
        done.push(step);
    }

    fn publish_copy(&mut self, key: Tag, stored: &Stored, place: Place) -> Fate {
        let reason = String::new;
        match if self.is_calm { 9 } else { self.rng.u8(..10) } {
            0 => Fate::Refused { reason: reason() },
            1 if place != Place::Queue => Fate::Returned { reason: reason() },
            2 => Fate::Unknown { reason: reason() },
            3 => {
                self.broker.store(stored, place);
                Fate::Unknown { reason: reason() }
            }
            _ => {
                self.broker.store(stored, place);
                self.confirmed(key, name(stored, place));
                Fate::Stored
            }
        }
    }

    fn perform(&mut self, key: Tag, step: &Step) -> Outcome {
        if self.fails(6) {
            return Outcome::Again { reason: "away".to_owned() };
        }
        match step {
            Step::Result(_) => self.confirmed(key, "result".to_owned()),
            Step::Copy(copy) | Step::Recount(copy) => {
                return Outcome::Fates(vec![self.publish_copy(key, &copy.0, copy.1)]);
            }
            Step::Follow(tasks) => {
                let fates = tasks.iter().map(|(stored, place)| self.publish_copy(key, stored, *place));
                return Outcome::Fates(fates.collect());
            }
            Step::Note(attempt) => self.note(attempt),
            Step::Release(_) => assert!(self.sent.contains(&key), "the key is freed after the ack"),
            other => panic!("not to be performed: {other:?}"),
        }
        Outcome::Done
    }

    fn note(&mut self, attempt: &Attempt) {
        *self.known.returned.borrow_mut().entry(attempt.clone()).or_default() += 1;
    }

    fn judge(&mut self) {
        if !self.judging.is_empty() {
            let at = self.rng.usize(..self.judging.len());
            let tag = self.judging.swap_remove(at);
            self.deliveries.judged(tag, &self.known);
        }
    }

    fn reconnect(&mut self) {
        if !self.broker.is_up && self.deliveries.is_up {
            self.deliveries.lost();
        } else if !self.broker.is_up && !self.deliveries.is_stopped {
            self.broker.is_up = true;
            self.broker.next = 1;
            self.deliveries.connected();
            let away = self.rng.bool();
            self.deliveries.excuse(away, self.rng.usize(..3), self.wall());
        }
    }

    fn give_back(&mut self, running: bool) {
        let noted = self.deliveries.give_back(running, &self.known);
        if running {
            self.running.clear();
        }
        self.returning.push(noted);
    }

    fn give_back_noted(&mut self) {
        let Some(noted) = self.returning.pop() else { return };
        if !self.fails(4) {
            noted.iter().for_each(|(_, attempt)| self.note(attempt));
        }
        for amqp in self.deliveries.returned(&noted) {
            self.send(amqp, Settle::Requeue);
        }
    }

    /// Another worker settles a task, or dies with it.
    fn other_worker(&mut self) {
        if let Some(mut message) = self.broker.ready.pop_front() {
            if self.rng.bool() {
                self.known.finished.borrow_mut().insert(message.attempt.id);
            } else {
                (message.redelivered, message.delivered) = (true, message.delivered + 1);
                self.broker.ready.push_front(message);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.u8(..if self.is_calm { 24 } else { 32 }) {
            0..4 => self.deliver(),
            4..7 => self.hand_out(),
            7..11 => self.settle(),
            11..18 => self.drive(),
            18 | 19 => self.judge(),
            20 => self.reconnect(),
            21 => self.broker.read_acks(self.rng.usize(..=self.broker.acks.len())),
            22 => self.give_back_noted(),
            23 => self.wall_ms += self.rng.i64(0..2_000),
            24 | 25 if self.published.len() < 40 => self.publish(),
            26 => self.other_worker(),
            27 if self.rng.u8(..3) == 0 && self.broker.is_up => self.broker.cut(&mut self.rng),
            28 if self.rng.u8(..4) == 0 => {
                let id = self.published.last().cloned();
                id.into_iter().for_each(|id| {
                    self.known.revoked.borrow_mut().insert(id.clone());
                    self.deliveries.revoked(id);
                });
            }
            // Reconnecting is as likely as losing the connection.
            29 => self.reconnect(),
            _ => {}
        }
        self.act();
        self.check();
    }

    /// Each delivery has one state, and none that the broker waits for is forgotten.
    fn check(&self) {
        let d = &self.deliveries;
        let judging = d.judging.keys().copied();
        let all = judging.chain(d.held.iter().flatten().map(|held| held.tag)).chain(d.running.keys().copied());
        let mut tags: Vec<Tag> = all.chain(d.returning.keys().copied()).chain(d.settlements.tags()).collect();
        tags.sort_unstable();
        let count = tags.len();
        tags.dedup();
        assert_eq!(count, tags.len(), "a delivery has one state: {tags:?}");
        if d.is_up && self.broker.is_up {
            let acked: Vec<u64> = self.broker.acks.iter().map(|(number, _)| *number).collect();
            let numbers = self.broker.unacked.keys().filter(|number| !acked.contains(number));
            let unacked: Vec<Tag> = numbers.map(|number| d.tag(*number)).collect();
            assert_eq!(tags, unacked, "the deliveries here, and those that the broker waits for");
        }
        if !d.is_up {
            assert!(tags.is_empty(), "a lost connection leaves no delivery: {tags:?}");
        }
        assert!(d.settlements.kept() <= 4 * self.prefetch);
    }

    /// Every task waits, is dead, or ended.
    fn check_tasks(&self, seed: u64) {
        let waiting = |id: &TaskId| self.broker.ready.iter().any(|message| message.attempt.id == *id);
        let finished = self.known.finished.borrow();
        for id in &self.published {
            let dead = self.broker.dead.iter().any(|attempt| attempt.id == *id);
            assert!(waiting(id) || dead || finished.contains(id), "{id} is nowhere, seed {seed}");
        }
    }
}

#[test]
fn no_delivery_is_forgotten_and_nothing_is_done_twice() {
    for seed in tidegate_seeds::seeds(1_000) {
        let mut world = World::new(seed);
        world.reconnect();
        for _ in 0..world.rng.usize(..600) {
            world.step();
        }
        world.is_calm = true;
        let mut rounds = 0;
        let is_over = |world: &World| {
            let is_empty = world.broker.ready.is_empty() && world.broker.unacked.is_empty();
            is_empty && world.drivers.is_empty() && world.deliveries.count("mail") == 0
        };
        while !is_over(&world) {
            world.step();
            rounds += 1;
            assert!(rounds < 100_000, "it does not end: {:?}", world.deliveries);
        }
        world.check_tasks(seed);
    }
}

#[test]
fn a_stop_and_a_close_at_any_point_leave_every_task_with_the_broker() {
    for seed in tidegate_seeds::seeds(1_000) {
        let mut world = World::new(seed);
        world.reconnect();
        for _ in 0..world.rng.usize(..300) {
            world.step();
        }
        assert!(world.deliveries.stop() && !world.deliveries.stop());
        // The worker may go on for a while, with what it has.
        world.give_back(false);
        world.act();
        for _ in 0..world.rng.usize(..100) {
            world.step();
            assert!(world.deliveries.held.iter().all(VecDeque::is_empty), "nothing is held any more");
        }
        world.give_back(true);
        world.is_calm = true;
        let mut rounds = 0;
        while !(world.deliveries.is_settled() && world.returning.is_empty()) {
            world.step();
            rounds += 1;
            assert!(rounds < 100_000, "it does not end: {:?}", world.deliveries);
        }
        if world.broker.is_up {
            world.broker.read_acks(world.broker.acks.len());
            assert!(world.broker.unacked.is_empty(), "all was acknowledged or given back: {:?}", world.broker.unacked);
        }
        world.check_tasks(seed);
    }
}

#[path = "deliveries_cases.rs"]
mod cases;
