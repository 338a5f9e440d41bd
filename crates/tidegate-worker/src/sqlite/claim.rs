//! Tasks go out, and what waits for a time comes due.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, params};

use crate::broker::{Delivery, Incoming, Tag, TaskResult, TaskState};
use crate::task::{Envelope, TaskId};

use super::quarantine::{self, Times};
use super::reader::Reader;
use super::rows::{self, Columns};

/// A claim is cut off behind this many bytes of bodies: a thousand large ones would not fit into memory.
const CLAIM_BYTES_MAX: usize = 8 << 20;

/// At most this many become due in one transaction, so that many due tasks do not delay other operations.
const DUE_MAX: i64 = 2_000;

/// At most about this many rows are quarantined in one claim, for the same reason.
const QUARANTINED_MAX: usize = 1_000;

/// What a consumer must know of a delivery to settle it without reading it again.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) seq: i64,
    pub(super) id: TaskId,
    pub(super) queue: i64,
    pub(super) rank: u8,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) ukey: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Claimed {
    pub(super) incoming: Vec<Incoming>,
    /// By the numbers of their deliveries.
    pub(super) held: Vec<(u64, Held)>,
    /// Results were stored: of expired and of revoked tasks.
    pub(super) ended: bool,
    /// Rows that could not be read and have left the queue.
    pub(super) quarantined: usize,
}

/// Up to `room` tasks for one consumer, in equal parts from its queues, beginning with another queue each turn.
pub(super) fn claim(connection: &Connection, reader: &Reader, room: usize, times: Times) -> rusqlite::Result<Claimed> {
    let mut claimed = Claimed::default();
    let Reader { owner, queues, turn, next_delivery, .. } = reader;
    let (owner, mut number) = (*owner, *next_delivery);
    let mut open: Vec<i64> = (0..queues.len()).map(|at| queues[(at + turn) % queues.len()]).collect();
    let mut left = room;
    let any_revoked = exists(connection, "SELECT EXISTS (SELECT 1 FROM revoked)")?;
    let mut bytes = 0;
    while left > 0 && !open.is_empty() && bytes < CLAIM_BYTES_MAX && claimed.quarantined < QUARANTINED_MAX {
        let each = (left / open.len()).max(1);
        let mut still_open = Vec::with_capacity(open.len());
        for queue in open {
            let want = each.min(left);
            if want == 0 || bytes >= CLAIM_BYTES_MAX {
                break;
            }
            let mut taken = take(connection, owner, queue, want, &mut bytes, times)?;
            if taken.doubled {
                taken.drop_doubles(reader, &claimed);
            }
            claimed.quarantined += taken.quarantined;
            let full = taken.seen == want;
            for (held, envelope, published) in taken.tasks {
                if any_revoked && is_revoked(connection, &held.id)? {
                    end(connection, owner, &held, TaskState::Revoked, times)?;
                    claimed.ended = true;
                } else if envelope.expires.is_some_and(|at| at.as_millisecond() <= times.now) {
                    end(connection, owner, &held, TaskState::Expired, times)?;
                    claimed.ended = true;
                    claimed.incoming.push(Incoming::Expired(held.id));
                } else {
                    left -= 1;
                    let Held { retries, crashes, .. } = held;
                    let delivery =
                        Delivery { tag: tag(owner, number), envelope: Arc::new(envelope), retries, crashes, published };
                    claimed.held.push((number, held));
                    claimed.incoming.push(Incoming::Delivery(delivery));
                    number += 1;
                }
            }
            if full {
                still_open.push(queue);
            }
        }
        open = still_open;
    }
    Ok(claimed)
}

/// What was taken from one queue.
#[derive(Default)]
struct Taken {
    tasks: Vec<(Held, Envelope, Timestamp)>,
    /// Rows that were looked at, unreadable ones too.
    seen: usize,
    quarantined: usize,
    /// A task was in the queue twice, or was there although this consumer has it.
    doubled: bool,
}

impl Taken {
    /// Keeps one delivery of each task.
    fn drop_doubles(&mut self, reader: &Reader, claimed: &Claimed) {
        let held = reader.held.values().chain(claimed.held.iter().map(|(_, held)| held));
        let mut known: HashSet<i64> = held.map(|held| held.seq).collect();
        self.tasks.retain(|(held, ..)| known.insert(held.seq));
    }
}

/// Reads the first ones, then moves everything up to the last of them in one go: a range costs less than its keys one by one.
/// Rows that cannot be read leave the queue before that.
fn take(
    connection: &Connection,
    owner: i64,
    queue: i64,
    want: usize,
    bytes: &mut usize,
    times: Times,
) -> rusqlite::Result<Taken> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT r.seq, r.rank, r.retries, r.crashes, t.published, t.seq, {} \
         FROM ready r LEFT JOIN task t ON t.seq = r.seq LEFT JOIN queue q ON q.id = t.queue \
         WHERE r.queue = ?1 ORDER BY r.rank, r.seq LIMIT ?2",
        rows::ENVELOPE
    ))?;
    let mut found = select.query(params![queue, want as i64])?;
    let mut taken = Taken::default();
    let mut unreadable = Vec::new();
    let mut last = None;
    while let Some(row) = found.next()? {
        taken.seen += 1;
        let key = (row.get::<_, Value>(1)?, row.get::<_, Value>(0)?);
        let mut columns = Columns::of(row);
        if matches!(columns.raw(5), ValueRef::Null) {
            unreadable.push((key, Vec::new()));
            continue;
        }
        let envelope = columns.envelope(6);
        let held = Held {
            seq: columns.integer(0, "seq"),
            id: envelope.id.clone(),
            queue,
            rank: columns.rank(1),
            retries: columns.count(2, "retries"),
            crashes: columns.count(3, "crashes"),
            ukey: envelope.unique.as_ref().map(|unique| unique.key.clone()),
        };
        let published = rows::time(columns.integer(4, "published"));
        if !columns.problems.is_empty() {
            unreadable.push((key, columns.problems));
            continue;
        }
        *bytes += envelope.body.len();
        taken.tasks.push((held, envelope, published));
        last = Some(key);
        if *bytes >= CLAIM_BYTES_MAX {
            break;
        }
    }
    drop(found);
    taken.quarantined = unreadable.len();
    for ((rank, seq), problems) in unreadable {
        connection
            .prepare_cached("DELETE FROM ready WHERE queue = ?1 AND rank = ?2 AND seq = ?3")?
            .execute(params![queue, rank, seq])?;
        match seq {
            Value::Integer(seq) if !problems.is_empty() => quarantine::quarantine(connection, seq, &problems, times)?,
            _ => tracing::warn!(seq = rows::shown((&seq).into()), "dropped a row of `ready` that has no task"),
        }
    }
    let Some((rank, seq)) = last else { return Ok(taken) };
    let moved = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO running (consumer, seq, retries, crashes) \
             SELECT ?1, seq, retries, crashes FROM ready WHERE queue = ?2 AND (rank, seq) <= (?3, ?4)",
        )?
        .execute(params![owner, queue, rank, seq])?;
    taken.doubled = moved < taken.tasks.len();
    connection
        .prepare_cached("DELETE FROM ready WHERE queue = ?1 AND (rank, seq) <= (?2, ?3)")?
        .execute(params![queue, rank, seq])?;
    Ok(taken)
}

/// Deliveries are numbered, not tasks: one that comes back to the same consumer has another number, so that what was said of it
/// before, and arrives late or twice, settles nothing.
pub(super) fn tag(owner: i64, number: u64) -> Tag {
    Tag { epoch: owner as u32, number }
}

/// A claimed task that must not run leaves at once.
fn end(connection: &Connection, owner: i64, held: &Held, state: TaskState, times: Times) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM running WHERE consumer = ?1 AND seq = ?2")?;
    delete.execute(params![owner, held.seq])?;
    drop_task(connection, held.seq, &held.id, held.ukey.as_deref())?;
    store_end(connection, &held.id, state, times.now, times.result_ttl_ms)
}

/// The task and its key, wherever its place was.
pub(super) fn drop_task(connection: &Connection, seq: i64, id: &TaskId, ukey: Option<&str>) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM task WHERE seq = ?1")?.execute([seq])?;
    release_key(connection, id, ukey)
}

pub(super) fn release_key(connection: &Connection, id: &TaskId, ukey: Option<&str>) -> rusqlite::Result<()> {
    let Some(key) = ukey else { return Ok(()) };
    connection
        .prepare_cached("DELETE FROM uniq WHERE key = ?1 AND id = ?2 AND past_settle = 0")?
        .execute(params![key, id.as_str()])
        .map(drop)
}

pub(super) fn store_end(
    connection: &Connection,
    id: &TaskId,
    state: TaskState,
    now: i64,
    ttl_ms: i64,
) -> rusqlite::Result<()> {
    let ttl = std::time::Duration::from_millis(ttl_ms.max(0) as u64);
    let result = TaskResult { id: id.clone(), state, value: serde_json::Value::Null, error: None, ttl };
    rows::store_result(connection, &result, now)
}

pub(super) fn is_revoked(connection: &Connection, id: &TaskId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM revoked WHERE id = ?1)")?
        .query_row([id.as_str()], |row| row.get(0))
}

pub(super) fn exists(connection: &Connection, sql: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// When the next delayed task is due. A time that is not a number is never due.
pub(super) fn next_due(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached("SELECT min(at) FROM delayed")?.query_row([], |row| {
        Ok(match row.get_ref(0)? {
            ValueRef::Integer(at) => Some(at),
            ValueRef::Real(at) => Some(at as i64),
            _ => None,
        })
    })
}

/// Delayed tasks whose time has come are ready.
pub(super) fn promote(connection: &Connection, times: Times) -> rusqlite::Result<()> {
    if next_due(connection)?.is_none_or(|at| at > times.now) {
        return Ok(());
    }
    let mut bound =
        connection.prepare_cached("SELECT at, seq FROM delayed WHERE at <= ?1 ORDER BY at, seq LIMIT 1 OFFSET ?2")?;
    let mut found = bound.query([times.now, DUE_MAX - 1])?;
    let (at, seq) = match found.next()? {
        Some(row) => (row.get::<_, Value>(0)?, row.get::<_, Value>(1)?),
        None => (Value::Integer(times.now), Value::Integer(i64::MAX)),
    };
    drop(found);
    let moved = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO ready (queue, rank, seq, retries, crashes) \
             SELECT t.queue, t.rank, d.seq, d.retries, d.crashes \
             FROM delayed d CROSS JOIN task t ON t.seq = d.seq CROSS JOIN queue q ON q.id = t.queue \
             WHERE (d.at, d.seq) <= (?1, ?2)",
        )?
        .execute(params![at, seq])?;
    let due: i64 = connection
        .prepare_cached("SELECT count(*) FROM delayed WHERE (at, seq) <= (?1, ?2)")?
        .query_row(params![at, seq], |row| row.get(0))?;
    if moved as i64 != due {
        promote_each(connection, &at, &seq, times)?;
    }
    connection.prepare_cached("DELETE FROM delayed WHERE (at, seq) <= (?1, ?2)")?.execute(params![at, seq])?;
    Ok(())
}

/// Some could not be made ready with the others: each is looked at by itself.
fn promote_each(connection: &Connection, at: &Value, seq: &Value, times: Times) -> rusqlite::Result<()> {
    let mut select =
        connection.prepare_cached("SELECT seq, retries, crashes FROM delayed WHERE (at, seq) <= (?1, ?2)")?;
    let mut found = select.query(params![at, seq])?;
    while let Some(row) = found.next()? {
        quarantine::put_back(connection, &row.get(0)?, (row.get_ref(1)?, row.get_ref(2)?), false, times)?;
    }
    Ok(())
}
