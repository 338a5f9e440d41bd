//! Looking into queues, and what can be done about what is found there. AMQP has no way to look without taking: what is looked
//! at is taken over a connection of its own and put back in its place, never copied.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_amqp::{Connection, Delivery, Error, Settle, Tag};

use super::core::{Core, Listing, Place, dying};
use super::delay;
use super::engine::held::{Attempt, DELIVERED_MAX};
use super::engine::publisher::Fate;
use super::link::{of_connect, of_request};
use super::message::{self, Stored};
use super::topology::{QUEUES, QueueKind};
use crate::broker::{BrokerError, DeadLetter, QueueStats, Selection};
use crate::task::{Envelope, TaskId};

/// Dead letters that are given back at a time.
const WINDOW: usize = 64;

/// Far less than the log of queues can hold.
const LISTED_AGAIN_BEHIND: i64 = 5_000;

impl Core {
    /// Every queue that was ever made, as far as it is still there.
    async fn queues(&self) -> Result<BTreeSet<String>, BrokerError> {
        let behind = self.listing.borrow().read;
        let scanned = self.scan(QUEUES, behind, |entry, place| {
            let mut listing = self.listing.borrow_mut();
            listing.read = place.or(listing.read);
            if let (Some(queue), Some(place)) = (self.list(&entry), place) {
                listing.queues.insert(queue, place);
            }
        });
        if let Err(error) = scanned.await {
            // Somebody may have made the log anew, and its places with it.
            *self.listing.borrow_mut() = Listing::default();
            return Err(error);
        }
        Ok(self.listing.borrow().queues.keys().cloned().collect())
    }

    /// The log drops its oldest entries; what is still there is written again in time.
    async fn list_again(&self, queue: &str) -> Result<(), BrokerError> {
        let old = {
            let listing = self.listing.borrow();
            let place = listing.queues.get(queue).copied().unwrap_or_default();
            listing.read.is_some_and(|read| read - place > LISTED_AGAIN_BEHIND)
        };
        if old { self.enlist(queue).await } else { Ok(()) }
    }

    async fn delayed(&self, queue: &str) -> Result<u64, BrokerError> {
        let mut delayed = 0;
        if let Some(name) = self.kind(queue).delayed_name(queue) {
            delayed += self.look(&name).await?.map_or(0, |declared| declared.messages.into());
        }
        for (rungs, gaps) in self.rungs(queue).await? {
            for rung in rungs {
                match self.look(&rung).await? {
                    Some(declared) => delayed += u64::from(declared.messages),
                    None if gaps => {}
                    None => break,
                }
            }
        }
        Ok(delayed)
    }

    /// The rungs of a queue's ladders, and whether some of them may be missing: of its own one, and of that which version 0.1.0
    /// made and that drains. The latter was made from the top and is deleted from there, so it is over at the first that is not
    /// there.
    async fn rungs(&self, queue: &str) -> Result<Vec<(Vec<String>, bool)>, BrokerError> {
        let names = |name: fn(&str, u32) -> String| (0..delay::LEVELS).map(|level| name(queue, level)).collect();
        let mut ladders = vec![(names(delay::old_rung_name), false)];
        if self.has_ladder(queue).await? {
            ladders.push((names(delay::rung_name), true));
        }
        Ok(ladders)
    }

    pub(super) async fn inspect(&self) -> Result<Vec<QueueStats>, BrokerError> {
        let mut all = Vec::new();
        for queue in self.queues().await? {
            let Some(declared) = self.look(&queue).await? else { continue };
            self.list_again(&queue).await?;
            let dead =
                self.look(&self.kind(&queue).dead_name(&queue)).await?.map_or(0, |declared| declared.messages.into());
            let due = match self.kind(&queue).due_name(&queue) {
                Some(due) => self.look(&due).await?.map_or(0, |declared| declared.messages.into()),
                None => 0,
            };
            all.push(QueueStats {
                ready: u64::from(declared.messages) + due,
                delayed: self.delayed(&queue).await?,
                running: 0,
                dead,
                consumers: declared.consumers.into(),
                oldest_ms: 0,
                queue,
            });
        }
        Ok(all)
    }

    /// A connection of its own for what is taken: whatever happens, all of it returns when the connection ends.
    async fn taking(&self) -> Result<Connection, BrokerError> {
        let mut options = tidegate_amqp::Options::default();
        options.name = format!("{} looking", self.options.name);
        Connection::open(&self.uri, &options).await.map_err(|error| of_connect(&error))
    }

    /// The first messages of a queue, taken.
    async fn take(
        &self,
        connection: &Connection,
        from: &str,
        queue: &str,
        limit: usize,
    ) -> Result<Vec<Taken>, BrokerError> {
        let mut taken = Vec::new();
        while taken.len() < limit {
            match connection.get(from).await {
                Ok(Some(delivery)) => taken.push(self.taken(queue, delivery)),
                Ok(None) => break,
                Err(Error::Refused { refusal, .. }) if refusal.code == 404 => break,
                Err(error) => return Err(of_request(&error)),
            }
        }
        Ok(taken)
    }

    fn taken(&self, queue: &str, mut delivery: Delivery) -> Taken {
        let (kind, now) = (self.kind(queue), self.now());
        let delivered = if kind == QueueKind::Quorum { message::delivery_count(&delivery) } else { 0 };
        let tag = delivery.tag;
        let read = Core::read(queue, kind, &mut delivery, now, None);
        let readable = read.is_some();
        let stored = read.unwrap_or_else(|| unreadable(queue, delivery.body, now));
        Taken { tag, stored, delivered, readable }
    }

    pub(super) async fn peek(&self, queue: &str, limit: usize) -> Result<Vec<Envelope>, BrokerError> {
        let connection = self.taking().await?;
        let mut taken = match self.kind(queue).due_name(queue) {
            Some(due) => self.take(&connection, &due, queue, limit).await?,
            None => Vec::new(),
        };
        taken.extend(self.take(&connection, queue, queue, limit - taken.len()).await?);
        // A quorum queue counts every look, and gives up a message that was delivered too often.
        let worn = taken.iter().position(|taken| taken.delivered >= DELIVERED_MAX);
        let attempts: Vec<Attempt> = taken.iter().filter(|taken| taken.readable).map(Taken::attempt).collect();
        if !attempts.is_empty()
            && let Err(error) = self.note(&attempts).await
        {
            tracing::warn!(%error, tasks = attempts.len(), "tasks that were looked at may be counted as crashed once");
        }
        taken.iter().for_each(|taken| _ = connection.settle(taken.tag, Settle::Requeue));
        connection.close().await;
        if worn == Some(0) {
            let message = format!(
                "the first task of queue {queue:?} was delivered or looked at {DELIVERED_MAX} times; it is not looked at \
                 again, because the queue gives up a task that was delivered 50 times"
            );
            return Err(BrokerError::Refused { message });
        }
        taken.truncate(worn.unwrap_or(usize::MAX));
        let envelopes = taken.into_iter().filter(|taken| taken.readable);
        Ok(envelopes.map(|taken| Arc::unwrap_or_clone(taken.stored.envelope)).collect())
    }

    pub(super) async fn purge(&self, queue: &str) -> Result<u64, BrokerError> {
        let control = self.control.connection().await?;
        let kind = self.kind(queue);
        let own = [Some(queue.to_owned()), kind.due_name(queue), kind.delayed_name(queue)];
        let own = own.into_iter().flatten().map(|name| (vec![name], false));
        let mut dropped = 0;
        for (names, gaps) in own.chain(self.rungs(queue).await?) {
            for name in names {
                match control.purge(&name).await {
                    Ok(count) => dropped += u64::from(count),
                    Err(Error::Refused { refusal, .. }) if refusal.code == 404 && gaps => {}
                    Err(Error::Refused { refusal, .. }) if refusal.code == 404 => break,
                    Err(error) => return Err(of_request(&error)),
                }
            }
        }
        control.try_recv_all();
        Ok(dropped)
    }

    /// Dead letters of a queue, taken: of those there were when it began.
    async fn take_dead(&self, connection: &Connection, queue: &str, limit: usize) -> Result<Vec<Taken>, BrokerError> {
        let from = self.kind(queue).dead_name(queue);
        let there = self.look(&from).await?.map_or(0, |declared| declared.messages as usize);
        self.take(connection, &from, queue, limit.min(there)).await
    }

    async fn of_selection(&self, which: &Selection) -> Result<BTreeSet<String>, BrokerError> {
        let all = self.queues().await?;
        Ok(match which {
            Selection::Queue(queue) => BTreeSet::from([queue.clone()]),
            Selection::Ids(_) | Selection::All => all,
        })
    }

    pub(super) async fn dead(&self, queue: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>, BrokerError> {
        let all = self.queues().await?;
        let queues = queue.map_or(all, |queue| BTreeSet::from([queue.to_owned()]));
        let mut letters = Vec::new();
        let connection = self.taking().await?;
        for queue in queues {
            for taken in self.take_dead(&connection, &queue, limit).await? {
                connection.settle(taken.tag, Settle::Requeue);
                letters.push(letter(taken.stored));
            }
        }
        connection.close().await;
        letters.sort_by_key(|letter| letter.at);
        letters.truncate(limit);
        Ok(letters)
    }

    /// Takes the dead letters meant; gives them back to their queues or forgets them. What cannot be given back stays.
    async fn dead_each(&self, which: &Selection, retry: bool) -> Result<u64, BrokerError> {
        let (mut count, mut left) = (0, None);
        let connection = self.taking().await?;
        for queue in self.of_selection(which).await? {
            let is_meant =
                |taken: &Taken| !matches!(which, Selection::Ids(ids) if !ids.contains(&taken.stored.envelope.id));
            // A message that cannot be read cannot be given back either.
            let (meant, others): (Vec<Taken>, Vec<Taken>) = self
                .take_dead(&connection, &queue, usize::MAX)
                .await?
                .into_iter()
                .partition(|taken| is_meant(taken) && (taken.readable || !retry));
            others.iter().for_each(|taken| _ = connection.settle(taken.tag, Settle::Requeue));
            for window in meant.chunks(WINDOW) {
                let fates = if retry {
                    let revived = |taken: &Taken| (revived(taken.stored.clone()), Place::Queue);
                    let copies: Vec<(Stored, Place)> = window.iter().map(revived).collect();
                    self.write_each(&copies, self.terms()).await?
                } else {
                    vec![Fate::Stored; window.len()]
                };
                for (taken, fate) in window.iter().zip(fates) {
                    let stored = fate == Fate::Stored;
                    connection.settle(taken.tag, if stored { Settle::Ack } else { Settle::Requeue });
                    count += u64::from(stored);
                    if let Fate::Returned { reason } | Fate::Refused { reason } | Fate::Unknown { reason } = fate {
                        left = Some(reason);
                    }
                }
            }
        }
        connection.close().await;
        match left {
            None => Ok(count),
            Some(reason) => Err(BrokerError::Retry {
                message: format!(
                    "{count} dead letters went back to their queues, others stay where they are: {reason}"
                ),
            }),
        }
    }

    pub(super) async fn dead_retry(&self, which: &Selection) -> Result<u64, BrokerError> {
        self.dead_each(which, true).await
    }

    pub(super) async fn dead_drop(&self, which: &Selection) -> Result<u64, BrokerError> {
        self.dead_each(which, false).await
    }
}

/// A message that was taken to be looked at, and goes back.
struct Taken {
    tag: Tag,
    stored: Stored,
    /// How often a quorum queue has delivered it before.
    delivered: u32,
    readable: bool,
}

impl Taken {
    fn attempt(&self) -> Attempt {
        let Stored { envelope, retries, crashes, .. } = &self.stored;
        Attempt { id: envelope.id.clone(), retries: *retries, crashes: crashes.saturating_sub(self.delivered) }
    }
}

/// A message whose properties cannot be read, as a dead letter of which only the bytes are known.
fn unreadable(queue: &str, body: Vec<u8>, found: Timestamp) -> Stored {
    let hash = body
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut envelope = Envelope::new(queue, body);
    envelope.id = TaskId::from(format!("unreadable-{hash:016x}").as_str());
    let reason = "its properties cannot be read".to_owned();
    let stored = Stored { envelope: Arc::new(envelope), retries: 0, crashes: 0, published: found, dead: None };
    dying(stored, found, reason, None)
}

fn letter(stored: Stored) -> DeadLetter {
    let Stored { envelope, retries, dead, published, .. } = stored;
    let (at, reason, traceback) =
        dead.map_or((published, String::new(), None), |death| (death.at, death.reason, death.traceback));
    DeadLetter { envelope: Arc::unwrap_or_clone(envelope), reason, traceback, at, retries }
}

fn revived(mut stored: Stored) -> Stored {
    (stored.retries, stored.crashes, stored.dead) = (0, 0, None);
    Arc::make_mut(&mut stored.envelope).eta = None;
    stored
}
