//! One transaction. What it changes in memory is changed after the commit, so that a transaction that fails has changed
//! nothing at all.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::broker::{Published, Settled, Settlement, Subscription};

use super::admin;
use super::claim::{self, Claimed};
use super::consumers;
use super::engine::{Engine, Now};
use super::error::is_about_rows;
use super::op::{Admin, ReaderKey, Write};
use super::publish::publish;
use super::quarantine::Times;
use super::reader::Reader;
use super::repair;
use super::rows::span_ms;
use super::settle::settle;

/// What followed from a commit.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Others may want to look.
    pub(super) ring: bool,
    /// A caller may be waiting for one of the written results.
    pub(super) results: bool,
    /// There is more to do at once.
    pub(super) again: bool,
    /// Something could not be done because of a row that could not be used.
    pub(super) bad_rows: bool,
}

/// One a write, in order.
enum Done {
    Published(Vec<Published>),
    Subscribed { owner: i64, queues: Vec<i64> },
    Settled(Vec<Settled>),
    Closed,
    Count(u64),
}

/// What the commit means for memory.
#[derive(Default)]
pub(super) struct Answers {
    done: Vec<Done>,
    renewed: Vec<ReaderKey>,
    /// Readers whose lease is gone, with their new ids.
    lost: Vec<(ReaderKey, i64)>,
    claimed: Vec<(ReaderKey, Claimed)>,
    /// Number of settlements per reader: room for its next claim.
    freed: HashMap<ReaderKey, usize>,
    /// Readers that had something settled that was no longer theirs.
    suspects: Vec<ReaderKey>,
}

/// A transaction that failed: everything is to be rolled back.
pub(super) struct Failed {
    pub(super) error: rusqlite::Error,
    /// The write that failed, if it was one: the others can go on without it.
    pub(super) write: Option<usize>,
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Failed {
        Failed { error, write: None }
    }
}

/// Runs all of it up to the commit; on an error the caller rolls back. `sweep`: what is over is forgotten, leases too if it says
/// so. What was asked for (renewals, settlements, publishes) comes first; the sweep and the claims read rows that any program
/// may have written, so each is in a savepoint of its own: when it fails, it alone is undone.
pub(super) fn run(
    engine: &mut Engine,
    writes: &[Write],
    now: Now,
    sweep: Option<bool>,
) -> Result<(Outcome, Answers), Failed> {
    let synced = engine.options.sync_publishes && writes.iter().any(Write::must_last);
    let waited = engine.file.begin(synced)?;
    let began = now.mono + waited;
    engine.guard.waited_for_lock(waited, began, engine.options.lease);
    let sweep = sweep.map(|may_expire| may_expire && !engine.guard.is_quiet(began));
    let (mut outcome, mut answers) = (Outcome::default(), Answers::default());
    renew(engine, now, &mut answers)?;
    for (at, write) in writes.iter().enumerate() {
        let done =
            one(engine, write, now, &mut outcome, &mut answers).map_err(|error| Failed { error, write: Some(at) })?;
        answers.done.push(done);
    }
    let times = engine.times(now);
    if let Some(may_expire) = sweep
        && !engine.readers.is_empty()
    {
        let returned =
            contained(engine, "sweep", &mut outcome, |connection| consumers::sweep(connection, may_expire, times))?;
        outcome.ring |= returned.is_some_and(|tasks| tasks > 0);
    }
    claim_all(engine, writes, times, &mut outcome, &mut answers)?;
    engine.file.commit()?;
    Ok((outcome, answers))
}

/// Runs `act` in a savepoint. An error that is about rows undoes `act` alone, and is logged; `None` then. Errors of the disk, of
/// memory and of locks fail the transaction.
fn contained<T>(
    engine: &Engine,
    doing: &str,
    outcome: &mut Outcome,
    act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    let connection = &engine.file.connection;
    connection.prepare_cached("SAVEPOINT contained")?.execute([])?;
    let done = match act(connection) {
        Ok(done) => Some(done),
        Err(error) if is_about_rows(&error) && !connection.is_autocommit() => {
            connection.prepare_cached("ROLLBACK TO contained")?.execute([])?;
            tracing::warn!(%error, doing, "a row of the queue's file could not be used");
            outcome.bad_rows = true;
            None
        }
        Err(error) => return Err(error),
    };
    connection.prepare_cached("RELEASE contained")?.execute([])?;
    Ok(done)
}

/// Renews the leases that are due, and finds those that are gone. That is asked in the transaction, of every reader: another
/// process may have let a lease run out since the last look, and a task claimed for a consumer without a row would be lost.
fn renew(engine: &Engine, now: Now, answers: &mut Answers) -> rusqlite::Result<()> {
    let lease_ms = span_ms(engine.options.lease);
    let connection = &engine.file.connection;
    for (&key, reader) in &engine.readers {
        let due = reader.renew_at <= now.mono;
        let lives = if due {
            consumers::renew(connection, reader.owner, lease_ms, now.ms())?
        } else {
            consumers::is_there(connection, reader.owner)?
        };
        if !lives {
            let owner = consumers::register(connection, &reader.what.consumer, &reader.queues, lease_ms, now.ms())?;
            answers.lost.push((key, owner));
        } else if due {
            answers.renewed.push(key);
        }
    }
    Ok(())
}

fn one(
    engine: &mut Engine,
    write: &Write,
    now: Now,
    outcome: &mut Outcome,
    answers: &mut Answers,
) -> rusqlite::Result<Done> {
    let connection = &engine.file.connection;
    Ok(match write {
        Write::Publish { batch, .. } => {
            outcome.ring = true;
            Done::Published(publish(connection, &mut engine.queues, batch, now.ms())?)
        }
        Write::Subscribe { what, .. } => {
            outcome.again = true;
            let queues: Vec<i64> =
                what.queues.iter().map(|name| engine.queues.of(connection, name)).collect::<rusqlite::Result<_>>()?;
            let lease_ms = span_ms(engine.options.lease);
            Done::Subscribed {
                owner: consumers::register(connection, &what.consumer, &queues, lease_ms, now.ms())?,
                queues,
            }
        }
        Write::Settle { reader, batch, .. } => {
            Done::Settled(settle_all(engine, *reader, batch, now, outcome, answers)?)
        }
        Write::CloseReader { reader, .. } => {
            if let Some(reader) = engine.readers.get(reader) {
                outcome.ring |= consumers::remove(connection, reader.owner, false, engine.times(now))? > 0;
            }
            Done::Closed
        }
        Write::Admin { what, .. } => {
            outcome.ring = true;
            outcome.results = true;
            Done::Count(administer(engine, what, now)?)
        }
    })
}

fn settle_all(
    engine: &Engine,
    key: ReaderKey,
    batch: &[Settlement],
    now: Now,
    outcome: &mut Outcome,
    answers: &mut Answers,
) -> rusqlite::Result<Vec<Settled>> {
    let Some(reader) = engine.readers.get(&key) else { return Ok(vec![Settled::Lost; batch.len()]) };
    let lost = answers.lost.iter().any(|(lost, _)| *lost == key);
    let result_ttl_ms = span_ms(engine.options.result_ttl);
    let mut settled = Vec::with_capacity(batch.len());
    for settlement in batch {
        let ours = !lost && settlement.tag.epoch == reader.owner as u32;
        let held = reader.held.get(&settlement.tag.number).filter(|_| ours);
        let Some(held) = held else {
            settled.push(Settled::Lost);
            continue;
        };
        let done = settle(&engine.file.connection, reader.owner, held, settlement, now.ms(), result_ttl_ms)?;
        match done {
            Settled::Done => *answers.freed.entry(key).or_default() += 1,
            Settled::Lost => answers.suspects.push(key),
            Settled::Pending => {}
        }
        outcome.results |= settlement.result.is_some();
        outcome.ring |= settlement.result.is_some() || !matches!(settlement.verdict, crate::broker::Verdict::Ack);
        settled.push(done);
    }
    Ok(settled)
}

fn administer(engine: &Engine, what: &Admin, now: Now) -> rusqlite::Result<u64> {
    let connection = &engine.file.connection;
    match what {
        Admin::Purge(queue) => admin::purge(connection, queue),
        Admin::DeadRetry(which) => admin::dead_retry(connection, which),
        Admin::DeadDrop(which) => admin::dead_drop(connection, which),
        Admin::ExpireLeases => admin::expire_leases(connection, engine.times(now)),
        Admin::Repair => repair::repair(connection, engine.times(now)),
        Admin::Revoke(id) => {
            let until = now.ms() + span_ms(engine.options.revoke_memory);
            admin::revoke(connection, id, until, now.ms(), span_ms(engine.options.result_ttl)).map(|()| 1)
        }
    }
}

fn claim_all(
    engine: &Engine,
    writes: &[Write],
    times: Times,
    outcome: &mut Outcome,
    answers: &mut Answers,
) -> rusqlite::Result<()> {
    if engine.readers.is_empty() {
        return Ok(());
    }
    contained(engine, "promote", outcome, |connection| claim::promote(connection, times))?;
    let leaves =
        |key: ReaderKey| writes.iter().any(|it| matches!(it, Write::CloseReader { reader, .. } if *reader == key));
    let expelled = writes.iter().any(|it| matches!(it, Write::Admin { what: Admin::ExpireLeases, .. }));
    for (&key, reader) in &engine.readers {
        let lost = expelled || answers.lost.iter().any(|(lost, _)| *lost == key) || answers.suspects.contains(&key);
        if reader.stopped || lost || leaves(key) {
            continue;
        }
        let freed = answers.freed.get(&key).copied().unwrap_or(0);
        let room = (reader.what.prefetch + freed).saturating_sub(reader.held.len());
        if room == 0 {
            continue;
        }
        let claimed = contained(engine, "claim", outcome, |connection| claim::claim(connection, reader, room, times))?;
        let Some(claimed) = claimed else { continue };
        outcome.results |= claimed.ended || claimed.quarantined > 0;
        outcome.ring |= claimed.ended || claimed.quarantined > 0;
        outcome.again |= claimed.quarantined > 0;
        answers.claimed.push((key, claimed));
    }
    Ok(())
}

/// After the commit: updates the state in memory, then answers all callers.
pub(super) fn answer(engine: &mut Engine, writes: Vec<Write>, answers: Answers, now: Now) {
    let lease = engine.options.lease;
    for key in answers.renewed {
        if let Some(reader) = engine.readers.get_mut(&key) {
            reader.renewed(now.mono, lease);
        }
    }
    for (key, owner) in answers.lost {
        if let Some(reader) = engine.readers.get_mut(&key) {
            reader.lost(owner);
            reader.renewed(now.mono, lease);
        }
    }
    for key in answers.suspects {
        if let Some(reader) = engine.readers.get_mut(&key) {
            reader.renew_at = now.mono;
        }
    }
    let mut revoked = false;
    for (write, done) in writes.into_iter().zip(answers.done) {
        match (write, done) {
            (Write::Publish { answer, .. }, Done::Published(published)) => answer.send(Ok(published)),
            (Write::Subscribe { what, feed, answer }, Done::Subscribed { owner, queues }) => {
                let key = subscribed(engine, what, owner, queues, feed, now);
                answer.send(Ok(key));
            }
            (Write::Settle { reader, batch, answer }, Done::Settled(settled)) => {
                if let Some(reader) = engine.readers.get_mut(&reader) {
                    forget_settled(reader, &batch, &settled);
                }
                answer.send(Ok(settled));
            }
            (Write::CloseReader { reader, answer }, Done::Closed) => {
                if let Some(reader) = engine.readers.remove(&reader) {
                    reader.feed.close();
                }
                answer.send(Ok(()));
            }
            (Write::Admin { what, answer }, Done::Count(count)) => {
                match what {
                    Admin::Revoke(_) => revoked = true,
                    Admin::ExpireLeases => engine.readers.values_mut().for_each(|reader| reader.renew_at = now.mono),
                    _ => {}
                }
                answer.send(Ok(count));
            }
            _ => unreachable!("every write is answered in kind"),
        }
    }
    for (key, claimed) in answers.claimed {
        if let Some(reader) = engine.readers.get_mut(&key) {
            reader.claimed(claimed);
        }
    }
    // After the claims: a task that was revoked while it was handed out must end too.
    if revoked && let Err(error) = engine.look_around_file(now) {
        tracing::warn!(%error, "a revoke will be told a moment later");
    }
}

fn subscribed(
    engine: &mut Engine,
    what: Subscription,
    owner: i64,
    queues: Vec<i64>,
    feed: std::sync::Arc<super::op::Feed>,
    now: Now,
) -> ReaderKey {
    let key = engine.new_reader_key();
    let mut reader = Reader {
        owner,
        what,
        queues,
        feed,
        held: HashMap::new(),
        next_delivery: 0,
        stopped: false,
        renew_at: now.mono,
        turn: 0,
    };
    reader.renewed(now.mono, engine.options.lease);
    engine.readers.insert(key, reader);
    key
}

/// A tag of an earlier lease must not touch a later delivery that happens to have its number.
fn forget_settled(reader: &mut Reader, batch: &[Settlement], settled: &[Settled]) {
    for (settlement, settled) in batch.iter().zip(settled) {
        if *settled == Settled::Done && settlement.tag.epoch == reader.owner as u32 {
            reader.held.remove(&settlement.tag.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use jiff::Timestamp;

    use super::*;
    use crate::broker::Incoming;
    use crate::sqlite::Options;
    use crate::sqlite::check;
    use crate::sqlite::oneshot::oneshot;
    use crate::sqlite::op::{Feed, Op};
    use crate::task::Envelope;

    fn publish_one() -> Write {
        Write::Publish { batch: vec![Envelope::new("q", b"body".to_vec())], answer: oneshot().0 }
    }

    /// Between the look around and the lock another process may have the last word.
    #[test]
    fn nothing_is_claimed_for_a_consumer_that_was_expelled_before_the_lock_was_ours() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("queue.db"));
        options.ballast_bytes = 0;
        let mut engine = Engine::open(options, Arc::new(Mutex::new(None))).unwrap();
        let now = Now { wall: Timestamp::from_second(1_000_000_000).unwrap(), mono: std::time::Instant::now() };
        let feed = Arc::new(Feed::unbounded());
        let what = Subscription { queues: vec!["q".into()], prefetch: 10, consumer: "test".into() };
        let subscribe = Write::Subscribe { what, feed: Arc::clone(&feed), answer: oneshot().0 };
        engine.turn(vec![Op::Write(subscribe)], now);
        engine.turn(vec![Op::Write(publish_one())], now);
        let first = feed.try_recv().unwrap();
        assert!(matches!(&first[..], [Incoming::Delivery(_)]), "{first:?}");

        consumers::remove(&engine.file.connection, 1, true, engine.times(now)).unwrap();
        let writes = vec![publish_one()];
        let (_, answers) = run(&mut engine, &writes, now, None).map_err(|failed| failed.error).unwrap();
        answer(&mut engine, writes, answers, now);
        let lost = feed.try_recv().unwrap();
        assert!(matches!(&lost[..], [Incoming::Lost(_)]), "{lost:?}");
        assert_eq!(check::check(&engine.file.connection).unwrap(), Vec::<String>::new());
        engine.turn(vec![Op::Write(publish_one())], now);
        let again = feed.try_recv().unwrap();
        assert_eq!(again.len(), 3, "{again:?}");
        assert_eq!(check::check(&engine.file.connection).unwrap(), Vec::<String>::new());
    }
}
