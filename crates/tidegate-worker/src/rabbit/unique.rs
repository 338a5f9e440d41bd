//! One task per unique key: the queues behind the protocol in `engine/keys.rs`, and publishing under it.
//!
//! | queue | what it is |
//! |---|---|
//! | `tidegate.key.DIGEST` | the key; its dead-letter routing key names the holder; expires by itself when its time is over |
//! | `tidegate.pending.NONCE` | of one publish: there until its tasks are stored |
//! | `tidegate.pending.NONCE.alive` | of one publish: there while its channel is open, because it is consumed over that and auto-delete |
//! | `tidegate.key.DIGEST.lock` | exclusive: of the one who deletes the key |
//!
//! Looking at a queue renews its expiry. So only the queues of the publish are looked at; the key is declared under other names,
//! which is refused and renews nothing.
//!
//! Whether a publisher lives is the existence of a queue and not a number of consumers: a quorum queue whose leader does not
//! answer at once is said to have none.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_amqp::{Connection, Consume, Error, Queue, Refusal};
use tidegate_loop::{LoopHandle, Task, sleep, sleep_until, spawn};
use tidegate_sync::Mutex;

use super::backoff::Backoff;
use super::core::{Core, Place};
use super::engine::keys::{ASKING, Action, Answer, Holder, Outcome, PENDING_MARGIN, Shown, Taking};
use super::engine::publisher::{Fate, Terms};
use super::link::{BACKOFF_FIRST, BACKOFF_MOST, Link, is_down, of_request};
use super::message::Stored;
use super::topology::{QueueKind, together};
use crate::broker::{BrokerError, Published};
use crate::task::{Envelope, TaskId, Unique};

/// The broker's own limit for an expiry.
const EXPIRES_MS_MAX: u128 = (1 << 32) - 1;

/// It is consumed by the next request behind its declaration; this is for a publisher that dies in between.
const ALIVE_EXPIRES_MS: i64 = 60_000;

/// How often a release looks whether the lock is free, and how long in between.
const LOCK_LOOKS: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

const HOLDER: &str = "x-dead-letter-routing-key";

/// Keys may be longer than a queue's name, so it is named by a digest: two of FNV's, from different starts.
fn digest(key: &str) -> String {
    let digest =
        |start: u64| key.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{:016x}{:016x}", digest(0xcbf2_9ce4_8422_2325), digest(0x6c62_272e_07bb_0142))
}

fn name(key: &str) -> String {
    format!("tidegate.key.{}", digest(key))
}

/// The key of a task that version 0.1.0 has published. Its holder is the task's id.
fn old_key(unique: &Unique, id: &TaskId) -> Queue {
    Queue::durable(format!("tidegate.unique.{}", digest(&unique.key)))
        .argument("x-expires", expires_ms(unique.hold))
        .argument("x-dead-letter-exchange", "")
        .argument(HOLDER, id.as_str())
}

fn pending_name(nonce: &str) -> String {
    format!("tidegate.pending.{nonce}")
}

fn alive_name(nonce: &str) -> String {
    format!("tidegate.pending.{nonce}.alive")
}

/// The broker deletes it when its one consumer ends; if there never was one, after a minute.
fn alive_queue(nonce: &str) -> Queue {
    let mut queue = Queue::durable(alive_name(nonce));
    queue.auto_delete = true;
    queue.argument("x-expires", ALIVE_EXPIRES_MS).argument("x-queue-type", "classic")
}

fn expires_ms(hold: Duration) -> i64 {
    hold.as_millis().clamp(1, EXPIRES_MS_MAX) as i64
}

/// A key as it is declared. Another publisher may have declared it for another time or as another kind; it is asked for as it is
/// then, because a refusal names one difference only.
#[derive(Clone)]
struct Key {
    name: String,
    expires_ms: i64,
    quorum: bool,
}

impl Key {
    fn new(unique: &Unique, kind: QueueKind) -> Key {
        let (name, expires_ms) = (name(&unique.key), expires_ms(unique.hold));
        Key { name, expires_ms, quorum: kind == QueueKind::Quorum }
    }

    fn queue(&self, holder: &str) -> Queue {
        let queue = Queue::durable(&self.name)
            .argument("x-expires", self.expires_ms)
            .argument("x-dead-letter-exchange", "")
            .argument(HOLDER, holder);
        if self.quorum { queue.argument("x-queue-type", "quorum") } else { queue }
    }

    fn lock(&self) -> Queue {
        Queue::exclusive(format!("{}.lock", self.name))
    }

    /// Takes over what the other publisher has declared; `false`: that is not the difference.
    fn adapt(&mut self, refusal: &Refusal) -> bool {
        match refusal.difference() {
            Some(difference) if difference.argument == "x-expires" => {
                difference.current.parse().map(|expires| self.expires_ms = expires).is_ok()
            }
            Some(difference) if difference.argument == "x-queue-type" => {
                self.quorum = difference.current == "quorum";
                true
            }
            _ => false,
        }
    }
}

/// The holder of a key, by the refusal of a claim.
fn holder_in(refusal: &Refusal) -> Option<Holder> {
    match refusal.difference() {
        // The text of a refusal has 255 bytes; the rest is three dots.
        Some(difference) if difference.argument == HOLDER && !refusal.text.ends_with('\'') => {
            Some(Holder::read(difference.current.trim_start_matches('\'').trim_end_matches('.'), true))
        }
        Some(difference) if difference.argument == HOLDER => Some(Holder::read(&difference.current, false)),
        Some(_) => None,
        None => refusal.text.contains(HOLDER).then(|| Holder::read("", true)),
    }
}

/// Requests about keys. Many are refused, which closes their channel: they have a connection of their own, and take turns.
pub(super) struct Keys {
    link: Link,
    turn: Mutex<()>,
    /// A lock is the whole connection's, so one deletes at a time.
    deleting: Mutex<()>,
}

impl Keys {
    pub(super) fn new(link: Link) -> Keys {
        Keys { link, turn: Mutex::new(()), deleting: Mutex::new(()) }
    }

    pub(super) async fn close(&self) {
        self.link.close().await;
    }

    async fn ask<T>(
        &self,
        request: impl AsyncFnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<Result<T, Refusal>, BrokerError> {
        let _turn = self.turn.lock().await;
        let connection = self.link.connection().await?;
        let answer = request(&connection).await;
        connection.try_recv_all();
        match answer {
            Ok(answer) => Ok(Ok(answer)),
            Err(Error::Refused { refusal, .. }) if matches!(refusal.code, 404..=406) => Ok(Err(refusal)),
            Err(error) => Err(of_request(&error)),
        }
    }

    async fn declare(&self, key: &Key, holder: &str) -> Result<Answer, BrokerError> {
        let (mut asked, mut name) = (key.clone(), holder);
        // Expiry and kind may both be another's, and the queue may be another one each time.
        for _ in 0..10 {
            let queue = asked.queue(name);
            let refusal = match self.ask(async |connection| connection.declare(&queue).await).await? {
                Ok(_) if name == holder => return Ok(Answer::Done),
                // The other key vanished meanwhile.
                Ok(_) => return Ok(Answer::Held(Holder::new("", "", 0))),
                Err(refusal) => refusal,
            };
            if let Some(holder) = holder_in(&refusal) {
                return Ok(Answer::Held(holder));
            }
            if is_down(&refusal) {
                return Err(BrokerError::Retry { message: refusal.text });
            }
            if !asked.adapt(&refusal) {
                let message = format!("the queue {:?} of a unique key is refused: {refusal}", key.name);
                return Err(BrokerError::Refused { message });
            }
            // Only asked for: claimed, the key would be held for the other publisher's time.
            name = ASKING;
        }
        Err(BrokerError::Retry { message: format!("the queue {:?} of a unique key changes too often", key.name) })
    }

    /// A publisher deletes its pending queue before the other one ends. So the other one is looked at first: a publisher that ends
    /// between the two looks has stored its tasks.
    async fn look(&self, nonce: &str) -> Result<Answer, BrokerError> {
        // One whose node is away shows no open channel: the channel was on that node.
        if self.find(alive_name(nonce)).await?.is_ok() {
            return Ok(Answer::Pending { alive: true });
        }
        match self.find(pending_name(nonce)).await? {
            Ok(()) => Ok(Answer::Pending { alive: false }),
            Err(refusal) if is_down(&refusal) => Err(BrokerError::Retry { message: refusal.text }),
            Err(_) => Ok(Answer::Missing),
        }
    }

    async fn find(&self, queue: String) -> Result<Result<(), Refusal>, BrokerError> {
        let queue = Queue::passive(queue);
        self.ask(async |connection| connection.declare(&queue).await.map(drop)).await
    }

    async fn lock(&self, key: &Key) -> Result<Answer, BrokerError> {
        let locked = self.ask(async |connection| connection.declare(&key.lock()).await).await?;
        Ok(locked.map_or(Answer::Busy, |_| Answer::Done))
    }

    async fn delete(&self, queue: &str) -> Result<Answer, BrokerError> {
        self.ask(async |connection| connection.delete(queue).await).await.map(|_| Answer::Done)
    }

    /// Takes a key for a task of this publish.
    async fn take(
        &self,
        key: &Key,
        id: &TaskId,
        pending: &mut Pending<'_>,
        patience: Duration,
        clock: impl Fn() -> u64,
    ) -> Result<Outcome, BrokerError> {
        // The broker removes quorum queues late.
        let lasts = key.quorum.then(|| Duration::from_millis(key.expires_ms as u64));
        let mut taking = Taking::new((now(), clock()), patience, lasts, pending.shown);
        let mut deleting = None;
        loop {
            let answer = match taking.poll() {
                Action::Show => pending.show().await?,
                Action::Renew => {
                    let renewed = self.ask(async |connection| connection.declare(&pending.queue).await).await?;
                    renewed.map_err(|refusal| BrokerError::Retry { message: refusal.text })?;
                    Answer::Done
                }
                Action::Claim { until_ms } => {
                    self.declare(key, &Holder::new(&pending.nonce, id.as_str(), until_ms).text()).await?
                }
                Action::Ask => self.declare(key, ASKING).await?,
                Action::Look { nonce } => self.look(&nonce).await?,
                Action::Pause { until } => {
                    sleep_until(until).await;
                    Answer::Done
                }
                Action::Lock => {
                    deleting = Some(self.deleting.lock().await);
                    let locked = self.lock(key).await?;
                    if locked == Answer::Busy {
                        deleting = None;
                    }
                    locked
                }
                Action::Unlock => {
                    let unlocked = self.delete(&key.lock().name).await?;
                    drop(deleting.take());
                    unlocked
                }
                Action::Delete => self.delete(&key.name).await?,
                Action::Finished(outcome) => {
                    pending.shown = taking.shown();
                    return Ok(outcome);
                }
            };
            taking.handle(answer, now(), clock());
        }
    }

    /// Deletes a key whose holder is ours.
    async fn free(&self, key: &Key, is_ours: impl Fn(&Holder) -> bool) -> Result<(), BrokerError> {
        for _ in 0..LOCK_LOOKS {
            let _deleting = self.deleting.lock().await;
            if self.lock(key).await? == Answer::Busy {
                sleep(LOCK_PAUSE).await;
                continue;
            }
            match self.declare(key, ASKING).await? {
                Answer::Held(holder) if !is_ours(&holder) => {}
                _ => drop(self.delete(&key.name).await?),
            }
            return self.delete(&key.lock().name).await.map(drop);
        }
        Err(BrokerError::Retry { message: format!("the queue {:?} of a unique key stays locked", key.name) })
    }

    /// Deletes a key of version 0.1.0 that is held for this task. Its publishers would take their next task for a duplicate.
    async fn free_old(&self, unique: &Unique, id: &TaskId) -> Result<(), BrokerError> {
        let key = old_key(unique, id);
        if self.find(key.name.clone()).await?.is_err() {
            return Ok(());
        }
        // Another task's is refused.
        match self.ask(async |connection| connection.declare(&key).await).await? {
            Ok(_) => self.delete(&key.name).await.map(drop),
            Err(_) => Ok(()),
        }
    }
}

/// The pending queue of one publish, and the channel that the tasks go over. Dropped, its keys are orphans.
struct Pending<'a> {
    nonce: String,
    queue: Queue,
    publisher: &'a Link,
    shown: Option<Shown>,
    /// The channel that shows the publish, as a connection and its epoch; its tasks go over no other.
    channel: Option<(Rc<Connection>, u32)>,
}

impl<'a> Pending<'a> {
    fn new(publisher: &'a Link, quorum: bool, hold: Duration) -> Pending<'a> {
        let nonce = format!("{:016x}", fastrand::u64(..));
        let queue =
            Queue::durable(pending_name(&nonce)).argument("x-expires", expires_ms(hold.saturating_add(PENDING_MARGIN)));
        let queue = if quorum { queue.argument("x-queue-type", "quorum") } else { queue };
        Pending { nonce, queue, publisher, shown: None, channel: None }
    }

    async fn show(&mut self) -> Result<Answer, BrokerError> {
        let connection = self.publisher.connection().await?;
        connection.opened().await.map_err(|error| of_request(&error))?;
        // Before the requests: dropped in between, it may be consumed.
        let (connection, epoch) = &*self.channel.insert((Rc::clone(&connection), connection.epoch()));
        let alive = alive_queue(&self.nonce);
        let mut consume = Consume::from(&alive.name);
        consume.tag.clone_from(&alive.name);
        let (queues, consume) = ([Some(&self.queue), Some(&alive), None], &consume);
        // One behind the other: a broker may take longer to answer than an unconsumed queue lives.
        let shown = together(queues.into_iter().map(|queue| async move {
            match queue {
                Some(queue) => connection.declare(queue).await.map(drop),
                None => connection.consume(consume).await.map(drop),
            }
        }));
        match shown.await {
            Ok(()) if connection.epoch() == *epoch => Ok(Answer::Done),
            Ok(()) => Ok(Answer::Expired),
            Err(Error::Refused { refusal, .. }) if refusal.code == 404 && !is_down(&refusal) => Ok(Answer::Expired),
            Err(error) => Err(of_request(&error)),
        }
    }

    /// The broker may have noticed that too: its keys are orphans.
    fn is_lost(&self) -> bool {
        self.channel.as_ref().is_none_or(|(connection, epoch)| connection.is_ended() || connection.epoch() != *epoch)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_lost()
            && let Some((connection, _)) = self.channel.take()
            && Task::try_current().is_some()
        {
            let tag = alive_name(&self.nonce);
            drop(spawn(async move {
                // A connection that is gone consumes nothing either.
                let _ = connection.cancel(&tag).await;
            }));
        }
    }
}

/// Tasks of one publish that have keys, and what became of them so far.
struct Batch {
    tasks: Vec<Stored>,
    published: Vec<Option<Published>>,
    /// Why an earlier attempt may have stored the task.
    uncertain: Vec<Option<String>>,
    deadline: Instant,
}

impl Batch {
    fn open(&self) -> Vec<usize> {
        (0..self.tasks.len()).filter(|index| self.published[*index].is_none()).collect()
    }

    fn refuse(&mut self, index: usize, reason: String) {
        self.published[index] = Some(match self.uncertain[index].take() {
            None => Published::Refused { reason },
            Some(reason) => Published::Unknown { reason },
        });
    }
}

impl Core {
    fn key(&self, envelope: &Envelope, unique: &Unique) -> Key {
        Key::new(unique, self.kind(&envelope.queue))
    }

    /// Lets go of a task's unique key, unless it outlives the task.
    pub(super) async fn release(&self, envelope: &Envelope) -> Result<(), BrokerError> {
        match &envelope.unique {
            Some(unique) if !unique.past_settle => {
                let is_ours = |holder: &Holder| holder.is_of(envelope.id.as_str());
                self.keys.free(&self.key(envelope, unique), is_ours).await?;
                self.keys.free_old(unique, &envelope.id).await
            }
            _ => Ok(()),
        }
    }

    /// Publishes tasks that have unique keys.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(super) async fn publish_unique(&self, tasks: Vec<Stored>) -> Result<Vec<Published>, BrokerError> {
        let count = tasks.len();
        let deadline = now() + self.options.publish_patience;
        let mut batch = Batch { tasks, published: vec![None; count], uncertain: vec![None; count], deadline };
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
        loop {
            let error = match self.publish_round(&mut batch).await {
                Ok(()) => BrokerError::Retry { message: format!("the connection to {} was lost", self.uri) },
                Err(error) => error,
            };
            let open = batch.open();
            if open.is_empty() {
                break;
            }
            let late = now() >= deadline || !matches!(error, BrokerError::Retry { .. });
            if late && open.len() == count && batch.uncertain.iter().all(Option::is_none) {
                return Err(error);
            }
            if late {
                open.into_iter().for_each(|index| batch.refuse(index, error.to_string()));
                break;
            }
            sleep(backoff.next()).await;
        }
        Ok(batch.published.into_iter().map(|published| published.expect("none is open")).collect())
    }

    /// Takes the keys and publishes, over one channel: once that is gone, none of these tasks can follow. What it left open may be
    /// tried again; its keys are orphans then.
    async fn publish_round(&self, batch: &mut Batch) -> Result<(), BrokerError> {
        let open = batch.open();
        let (mut quorum, mut hold) = (false, Duration::ZERO);
        for index in &open {
            let envelope = &batch.tasks[*index].envelope;
            // What may be refused or take long comes before the keys.
            self.ensure(&envelope.queue).await?;
            quorum |= self.kind(&envelope.queue) == QueueKind::Quorum;
            hold = envelope.unique.as_ref().map_or(hold, |unique| hold.max(unique.hold));
        }
        let mut pending = Pending::new(self.publisher(), quorum, hold);
        let mut taken: Vec<(usize, Key)> = Vec::new();
        // Within a batch the first task of a key has it, whatever their ids.
        let mut first: HashMap<String, usize> = HashMap::new();
        let mut repeated: Vec<(usize, usize)> = Vec::new();
        for index in open {
            let envelope = &batch.tasks[index].envelope;
            let Some(unique) = &envelope.unique else { continue };
            if let Some(first) = first.get(&unique.key) {
                repeated.push((index, *first));
                continue;
            }
            let key = self.key(envelope, unique);
            let clock = || u64::try_from(self.now().as_millisecond()).unwrap_or(0);
            let patience = batch.deadline.saturating_duration_since(now());
            match self.keys.take(&key, &envelope.id, &mut pending, patience, clock).await? {
                Outcome::Taken => {
                    first.insert(unique.key.clone(), index);
                    taken.push((index, key));
                }
                Outcome::Duplicate(holder) if holder.is_of(envelope.id.as_str()) => {
                    batch.published[index] = Some(Published::Duplicate(envelope.id.clone()));
                }
                Outcome::Duplicate(holder) => {
                    batch.published[index] = Some(Published::Duplicate(TaskId::from(holder.id.as_str())));
                }
                Outcome::Busy => batch.refuse(index, "its unique key is being published by another process".to_owned()),
                Outcome::Unshown => {
                    let message = format!("{} is too slow to publish under a unique key", self.uri);
                    return Err(BrokerError::Retry { message });
                }
            }
        }
        let writes: Vec<(Stored, Place)> =
            taken.iter().map(|(index, _)| (batch.tasks[*index].clone(), Place::Queue)).collect();
        let patience = batch.deadline.saturating_duration_since(now());
        // One that may be stored is waited for while the channel lives: given up, it would be published again under its key.
        let terms = Terms { again_after_loss: false, until_known: true, ..Terms::within(patience) };
        let pinned = pending.channel.clone();
        let fates = if writes.is_empty() { Vec::new() } else { self.write_over(pinned, &writes, terms).await? };
        let mut known = true;
        let mut refused = Vec::new();
        for ((index, key), fate) in taken.into_iter().zip(fates) {
            match fate {
                Fate::Stored => batch.published[index] = Some(Published::Stored),
                Fate::Refused { .. } | Fate::Returned { .. } if pending.is_lost() => known = false,
                Fate::Refused { reason } | Fate::Returned { reason } => {
                    batch.refuse(index, reason);
                    refused.push((index, key));
                }
                Fate::Unknown { reason } => {
                    batch.uncertain[index] = Some(reason.clone());
                    known = false;
                    if !pending.is_lost() {
                        batch.refuse(index, reason);
                    }
                }
            }
        }
        for (index, first) in repeated {
            batch.published[index] = match &batch.published[first] {
                Some(Published::Stored) => Some(Published::Duplicate(batch.tasks[first].envelope.id.clone())),
                other => other.clone(),
            };
        }
        for (index, key) in refused {
            let id = batch.tasks[index].envelope.id.as_str();
            let freed = self.keys.free(&key, |holder| holder.is_from(&pending.nonce, id)).await;
            // It is an orphan, then.
            known &= freed.is_ok();
        }
        // Left as it is, its keys are orphans once this one is dropped.
        if known {
            let deleted = self.keys.delete(&pending_name(&pending.nonce)).await;
            if let Err(error) = deleted {
                tracing::warn!(%error, "a pending queue could not be deleted; its unique tasks may be stored twice");
            }
        }
        Ok(())
    }
}

fn now() -> Instant {
    LoopHandle::current().time()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_have_names_of_their_own() {
        let long = "k".repeat(10_000);
        let names: std::collections::HashSet<String> = ["", "a", "b", "ab", &long].map(name).into();
        assert_eq!(names.len(), 5);
        assert!(names.iter().all(|name| name.len() == 45));
    }

    #[test]
    fn a_refusal_names_the_holder_as_far_as_it_has_room() {
        let refusal = |received: &str, current: &str| {
            let text = format!(
                "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-routing-key' for queue '{}' in vhost '/': \
                 received '{received}' but current is '{current}'",
                name("k")
            );
            let cut = if text.len() > 255 { format!("{}...", &text[..252]) } else { text };
            Refusal::new(406, cut)
        };
        assert_eq!(holder_in(&refusal("?", "n0:0:an id")), Some(Holder::new("n0", "an id", 0)));
        // Wherever the cut is, it is no complete name.
        for length in 0..250 {
            let holder = holder_in(&refusal(&"x".repeat(length), "n0:0:an-id")).unwrap();
            assert!(holder.cut || holder == Holder::new("n0", "an-id", 0), "{length}: {holder:?}");
            assert!(holder.is_of("an-id"), "{length}: {holder:?}");
        }
        let long = "x".repeat(60);
        let holder = holder_in(&refusal(&long, "n0:0:an-id-that-goes-on-and-on")).unwrap();
        assert!(holder.cut && holder.nonce == "n0" && holder.is_of("an-id-that-goes-on-and-on"), "{holder:?}");
        let holder = holder_in(&refusal(&"x".repeat(200), "n0:0:id")).unwrap();
        assert!(holder.cut && holder.nonce.is_empty(), "{holder:?}");
        let expires = "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': received the value \
                       '1' of type 'signedint' but current is the value '90000' of type 'signedint'";
        let refusal = Refusal::new(406, expires);
        assert_eq!(holder_in(&refusal), None);
        let mut key = Key { name: "q".into(), expires_ms: 1, quorum: false };
        assert!(key.adapt(&refusal) && key.expires_ms == 90_000);
    }
}
