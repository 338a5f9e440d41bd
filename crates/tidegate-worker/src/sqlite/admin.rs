//! Looking into the queues, and putting them in order by hand.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::types::Value;
use rusqlite::{Connection, params};

use crate::broker::{DeadLetter, QueueStats, Selection, TaskState};
use crate::task::{Envelope, TaskId};

use super::claim;
use super::consumers;
use super::publish::find_queue;
use super::quarantine::Times;
use super::rows::{self, Columns};

pub(super) fn inspect(connection: &Connection, now: i64) -> rusqlite::Result<Vec<QueueStats>> {
    // One snapshot, so that a task on its way is not counted twice.
    let snapshot = connection.unchecked_transaction()?;
    let mut all = BTreeMap::new();
    let mut queues = snapshot.prepare_cached("SELECT id, name FROM queue")?;
    let mut found = queues.query([])?;
    while let Some(row) = found.next()? {
        let stats = QueueStats {
            queue: Columns::of(row).text(1, "name").into_owned(),
            ready: 0,
            delayed: 0,
            running: 0,
            dead: 0,
            consumers: 0,
            oldest_ms: 0,
        };
        all.insert(row.get::<_, i64>(0)?, stats);
    }
    let mut count = |sql: &str, set: fn(&mut QueueStats, u64)| -> rusqlite::Result<()> {
        let mut statement = snapshot.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // A queue that is not a number does not exist.
            if let Ok(queue) = row.get_ref(0)?.as_i64()
                && let Some(stats) = all.get_mut(&queue)
            {
                set(stats, row.get::<_, i64>(1)?.max(0) as u64);
            }
        }
        Ok(())
    };
    count("SELECT queue, count(*) FROM ready GROUP BY queue", |stats, n| stats.ready = n)?;
    count(
        "SELECT t.queue, count(*) FROM delayed d CROSS JOIN task t ON t.seq = d.seq GROUP BY t.queue",
        |stats, n| stats.delayed = n,
    )?;
    count(
        "SELECT t.queue, count(*) FROM running r CROSS JOIN task t ON t.seq = r.seq GROUP BY t.queue",
        |stats, n| stats.running = n,
    )?;
    count("SELECT t.queue, count(*) FROM dead d CROSS JOIN task t ON t.seq = d.seq GROUP BY t.queue", |stats, n| {
        stats.dead = n;
    })?;
    count("SELECT queue, count(*) FROM subscription GROUP BY queue", |stats, n| stats.consumers = n)?;
    for (queue, stats) in all.iter_mut().filter(|(_, stats)| stats.ready > 0) {
        stats.oldest_ms = now.saturating_sub(oldest(&snapshot, *queue)?.unwrap_or(now)).max(0) as u64;
    }
    let mut all: Vec<QueueStats> = all.into_values().collect();
    all.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(all)
}

/// When the oldest ready task was published: the first of each priority is the oldest of it.
fn oldest(connection: &Connection, queue: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT t.published FROM ready r CROSS JOIN task t ON t.seq = r.seq \
         WHERE r.queue = ?1 AND r.rank = ?2 ORDER BY r.seq LIMIT 1",
    )?;
    let mut oldest: Option<i64> = None;
    for rank in 0..=9 {
        let mut rows = statement.query([queue, rank])?;
        if let Some(row) = rows.next()?
            && let Ok(published) = row.get_ref(0)?.as_i64()
        {
            oldest = Some(oldest.map_or(published, |known| known.min(published)));
        }
    }
    Ok(oldest)
}

pub(super) fn peek(connection: &Connection, queue: &str, limit: usize) -> rusqlite::Result<Vec<Envelope>> {
    let Some(id) = find_queue(connection, queue)? else { return Ok(Vec::new()) };
    let mut envelopes = Vec::new();
    for sql in [
        "SELECT {} FROM ready r CROSS JOIN task t ON t.seq = r.seq LEFT JOIN queue q ON q.id = t.queue \
         WHERE r.queue = ?1 ORDER BY r.rank, r.seq LIMIT ?2",
        "SELECT {} FROM delayed d CROSS JOIN task t ON t.seq = d.seq CROSS JOIN queue q ON q.id = t.queue \
         WHERE t.queue = ?1 ORDER BY d.at, d.seq LIMIT ?2",
    ] {
        let left = i64::try_from(limit - envelopes.len()).unwrap_or(i64::MAX);
        let mut statement = connection.prepare_cached(&sql.replace("{}", rows::ENVELOPE))?;
        let found = statement.query_map([id, left], |row| Ok(Columns::of(row).envelope(0)))?;
        for envelope in found {
            envelopes.push(envelope?);
        }
    }
    Ok(envelopes)
}

pub(super) fn purge(connection: &Connection, queue: &str) -> rusqlite::Result<u64> {
    let Some(id) = find_queue(connection, queue)? else { return Ok(0) };
    let waiting = "SELECT seq FROM ready WHERE queue = ?1 \
                   UNION ALL SELECT d.seq FROM delayed d CROSS JOIN task t ON t.seq = d.seq WHERE t.queue = ?1";
    connection.execute(
        &format!(
            "DELETE FROM uniq WHERE past_settle = 0 AND (key, id) IN \
             (SELECT ukey, id FROM task WHERE ukey IS NOT NULL AND seq IN ({waiting}))"
        ),
        [id],
    )?;
    let dropped = connection.execute(&format!("DELETE FROM task WHERE seq IN ({waiting})"), [id])?;
    connection.execute("DELETE FROM ready WHERE queue = ?1", [id])?;
    connection.execute("DELETE FROM delayed WHERE seq NOT IN (SELECT seq FROM task)", [])?;
    Ok(dropped as u64)
}

pub(super) fn dead(connection: &Connection, queue: Option<&str>, limit: usize) -> rusqlite::Result<Vec<DeadLetter>> {
    let sql = format!(
        "SELECT d.reason, d.traceback, d.at, d.retries, {} \
         FROM dead d CROSS JOIN task t ON t.seq = d.seq LEFT JOIN queue q ON q.id = t.queue \
         WHERE ?1 IS NULL OR q.name = ?1 ORDER BY d.at, d.seq LIMIT ?2",
        rows::ENVELOPE
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection
        .prepare_cached(&sql)?
        .query_map(params![queue, limit], |row| {
            let mut columns = Columns::of(row);
            Ok(DeadLetter {
                reason: columns.text(0, "reason").into_owned(),
                traceback: columns.optional_text(1, "traceback").map(Cow::into_owned),
                at: rows::time(columns.integer(2, "at")),
                retries: columns.count(3, "retries"),
                envelope: columns.envelope(4),
            })
        })?
        .collect()
}

fn selected(connection: &Connection, which: &Selection) -> rusqlite::Result<Vec<i64>> {
    let all = |sql: &str, argument: &str| -> rusqlite::Result<Vec<i64>> {
        connection.prepare_cached(sql)?.query_map([argument], |row| row.get(0))?.collect()
    };
    match which {
        Selection::All => all("SELECT seq FROM dead WHERE ?1 = ?1", ""),
        Selection::Queue(queue) => all(
            "SELECT d.seq FROM dead d CROSS JOIN task t ON t.seq = d.seq JOIN queue q ON q.id = t.queue WHERE q.name = ?1",
            queue,
        ),
        Selection::Ids(ids) => {
            let mut found = Vec::new();
            for id in ids {
                found.extend(all("SELECT seq FROM task JOIN dead USING (seq) WHERE id = ?1", id.as_str())?);
            }
            Ok(found)
        }
    }
}

pub(super) fn dead_retry(connection: &Connection, which: &Selection) -> rusqlite::Result<u64> {
    let mut count = 0;
    for seq in selected(connection, which)? {
        // An id that was named twice is there once.
        if connection.prepare_cached("DELETE FROM dead WHERE seq = ?1")?.execute([seq])? == 0 {
            continue;
        }
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO ready (queue, rank, seq) SELECT queue, rank, seq FROM task WHERE seq = ?1",
            )?
            .execute([seq])?;
        count += 1;
    }
    Ok(count)
}

pub(super) fn dead_drop(connection: &Connection, which: &Selection) -> rusqlite::Result<u64> {
    let mut count = 0;
    for seq in selected(connection, which)? {
        if connection.prepare_cached("DELETE FROM dead WHERE seq = ?1")?.execute([seq])? > 0 {
            connection.prepare_cached("DELETE FROM task WHERE seq = ?1")?.execute([seq])?;
            count += 1;
        }
    }
    Ok(count)
}

/// A waiting task is dropped at once. A running one's worker is notified; one that is published later is dropped then.
pub(super) fn revoke(
    connection: &Connection,
    id: &TaskId,
    until: i64,
    now: i64,
    result_ttl_ms: i64,
) -> rusqlite::Result<()> {
    // A new row even if there was one: workers look for numbers they have not seen.
    connection
        .prepare_cached("INSERT OR REPLACE INTO revoked (id, until) VALUES (?1, ?2)")?
        .execute(params![id.as_str(), until])?;
    let mut find = connection.prepare_cached("SELECT seq, queue, rank, ukey FROM task WHERE id = ?1")?;
    let mut rows = find.query([id.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(()) };
    let seq: i64 = row.get(0)?;
    let (queue, rank): (Value, Value) = (row.get(1)?, row.get(2)?);
    let ukey = Columns::of(row).optional_text(3, "ukey").map(Cow::into_owned);
    drop(rows);
    let waited = connection
        .prepare_cached("DELETE FROM ready WHERE queue = ?1 AND rank = ?2 AND seq = ?3")?
        .execute(params![queue, rank, seq])?
        + connection.prepare_cached("DELETE FROM delayed WHERE seq = ?1")?.execute([seq])?;
    if waited > 0 {
        claim::drop_task(connection, seq, id, ukey.as_deref())?;
        claim::store_end(connection, id, TaskState::Revoked, now, result_ttl_ms)?;
    }
    Ok(())
}

/// As if every worker's lease had run out at once.
pub(super) fn expire_leases(connection: &Connection, times: Times) -> rusqlite::Result<u64> {
    let mut returned = 0;
    for id in consumers::all(connection)? {
        returned += consumers::remove(connection, id, true, times)?;
    }
    Ok(returned as u64)
}
