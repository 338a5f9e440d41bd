//! Looking into queues, and what can be done about what is found there. AMQP has no way to look without taking, so what is
//! looked at is taken and put back.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_amqp::{Connection, Error, Settle, Tag};

use super::core::{Core, Listing, Place};
use super::delay;
use super::link::of_request;
use super::message::Stored;
use super::topology::QUEUES;
use crate::broker::{BrokerError, DeadLetter, QueueStats, Selection};
use crate::task::Envelope;

/// Far less than the log of queues can hold.
const LISTED_AGAIN_BEHIND: i64 = 5_000;

/// The names of rungs: of our own ladders, and of those that version 0.1.0 made and that drain.
const LADDERS: [fn(&str, u32) -> String; 2] = [delay::rung_name, delay::old_rung_name];

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
        for rung_name in LADDERS {
            for level in 0..delay::LEVELS {
                match self.look(&rung_name(queue, level)).await? {
                    Some(declared) => delayed += u64::from(declared.messages),
                    // A ladder is made from the top, so without the lowest rung there is none.
                    None => break,
                }
            }
        }
        Ok(delayed)
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

    /// The first messages of a queue, taken.
    async fn take(
        &self,
        control: &Connection,
        from: &str,
        queue: &str,
        limit: usize,
    ) -> Result<Vec<(Tag, Stored)>, BrokerError> {
        let mut taken = Vec::new();
        while taken.len() < limit {
            match control.get(from).await {
                Ok(Some(mut delivery)) => {
                    let redelivered = delivery.redelivered;
                    let Some(mut stored) = Core::read(queue, self.kind(queue), &mut delivery, self.now(), None) else {
                        continue;
                    };
                    stored.crashes += u32::from(redelivered && self.kind(queue) != super::QueueKind::Quorum);
                    taken.push((delivery.tag, stored));
                }
                Ok(None) => break,
                Err(Error::Refused { refusal, .. }) if refusal.code == 404 => break,
                Err(error) => return Err(of_request(&error)),
            }
        }
        Ok(taken)
    }

    pub(super) async fn peek(&self, queue: &str, limit: usize) -> Result<Vec<Envelope>, BrokerError> {
        if !self.queues().await?.contains(queue) && self.look(queue).await?.is_none() {
            return Ok(Vec::new());
        }
        // It must be possible to put back what is taken.
        self.ensure(queue).await?;
        let control = self.control.connection().await?;
        let due = match self.kind(queue).due_name(queue) {
            Some(due) => self.take(&control, &due, queue, limit).await?,
            None => Vec::new(),
        };
        let ready = self.take(&control, queue, queue, limit - due.len()).await?;
        // A message that was merely put back would look as if a worker had died with it.
        let places =
            due.into_iter().map(|one| (one, Place::Due)).chain(ready.into_iter().map(|one| (one, Place::Head)));
        let (tags, copies): (Vec<Tag>, Vec<(Stored, Place)>) =
            places.map(|((tag, stored), place)| (tag, (stored, place))).unzip();
        if !copies.is_empty() {
            self.write(&copies).await?;
        }
        tags.into_iter().for_each(|tag| _ = control.settle(tag, Settle::Ack));
        Ok(copies.into_iter().map(|(stored, _)| Arc::unwrap_or_clone(stored.envelope)).collect())
    }

    pub(super) async fn purge(&self, queue: &str) -> Result<u64, BrokerError> {
        let control = self.control.connection().await?;
        let kind = self.kind(queue);
        let own = [Some(queue.to_owned()), kind.due_name(queue), kind.delayed_name(queue)];
        let own = own.into_iter().flatten().map(|name| vec![name]);
        let ladders = LADDERS.iter().map(|rung| (0..delay::LEVELS).map(|level| rung(queue, level)).collect());
        let mut dropped = 0;
        // A ladder is made from the top, so without the lowest rung there is none.
        for names in own.chain(ladders) {
            for name in names {
                match control.purge(&name).await {
                    Ok(count) => dropped += u64::from(count),
                    Err(Error::Refused { refusal, .. }) if refusal.code == 404 => break,
                    Err(error) => return Err(of_request(&error)),
                }
            }
        }
        control.try_recv_all();
        Ok(dropped)
    }

    /// Dead letters of a queue, taken: of those there were when it began.
    async fn take_dead(
        &self,
        control: &Connection,
        queue: &str,
        limit: usize,
    ) -> Result<Vec<(Tag, Stored)>, BrokerError> {
        let from = self.kind(queue).dead_name(queue);
        let there = self.look(&from).await?.map_or(0, |declared| declared.messages as usize);
        self.take(control, &from, queue, limit.min(there)).await
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
        for queue in queues {
            let control = self.control.connection().await?;
            for (tag, stored) in self.take_dead(&control, &queue, limit).await? {
                control.settle(tag, Settle::Requeue);
                letters.push(letter(stored));
            }
        }
        letters.sort_by_key(|letter| letter.at);
        letters.truncate(limit);
        Ok(letters)
    }

    /// Takes the dead letters meant; gives them back to their queues or forgets them.
    async fn dead_each(&self, which: &Selection, retry: bool) -> Result<u64, BrokerError> {
        let mut count = 0;
        for queue in self.of_selection(which).await? {
            let control = self.control.connection().await?;
            let (meant, others): (Vec<_>, Vec<_>) =
                self.take_dead(&control, &queue, usize::MAX).await?.into_iter().partition(
                    |(_, stored)| !matches!(which, Selection::Ids(ids) if !ids.contains(&stored.envelope.id)),
                );
            others.into_iter().for_each(|(tag, _)| _ = control.settle(tag, Settle::Requeue));
            if retry && !meant.is_empty() {
                let copies: Vec<(Stored, Place)> =
                    meant.iter().map(|(_, stored)| (revived(stored.clone()), Place::Queue)).collect();
                self.write(&copies).await?;
            }
            count += meant.len() as u64;
            meant.into_iter().for_each(|(tag, _)| _ = control.settle(tag, Settle::Ack));
        }
        Ok(count)
    }

    pub(super) async fn dead_retry(&self, which: &Selection) -> Result<u64, BrokerError> {
        self.dead_each(which, true).await
    }

    pub(super) async fn dead_drop(&self, which: &Selection) -> Result<u64, BrokerError> {
        self.dead_each(which, false).await
    }
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
