//! Who receives: the rows that say which worker is alive until when, and what happens when one is not.

use rusqlite::{Connection, params};

use super::lease;
use super::quarantine::{self, Times};
use super::rows;

/// Enters a consumer and what it is subscribed to; its id is never used again.
pub(super) fn register(
    connection: &Connection,
    name: &str,
    queues: &[i64],
    lease_ms: i64,
    now: i64,
) -> rusqlite::Result<i64> {
    connection.prepare_cached("INSERT INTO consumer (name, until, lease) VALUES (?1, ?2, ?3)")?.execute(params![
        name,
        now + lease_ms,
        lease_ms
    ])?;
    let id = connection.last_insert_rowid();
    let mut subscribe =
        connection.prepare_cached("INSERT OR IGNORE INTO subscription (consumer, queue) VALUES (?1, ?2)")?;
    for queue in queues {
        subscribe.execute([id, *queue])?;
    }
    Ok(id)
}

/// Whether it was still there to be renewed.
pub(super) fn renew(connection: &Connection, id: i64, lease_ms: i64, now: i64) -> rusqlite::Result<bool> {
    let mut update = connection.prepare_cached("UPDATE consumer SET until = ?2 WHERE id = ?1")?;
    Ok(update.execute([id, now + lease_ms])? > 0)
}

pub(super) fn is_there(connection: &Connection, id: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM consumer WHERE id = ?1)")?.query_row([id], |row| row.get(0))
}

/// What it has returns to the queues, each counted as a crash or not; the consumer is no more. What cannot be read becomes a
/// dead letter.
pub(super) fn remove(connection: &Connection, id: i64, crashed: bool, times: Times) -> rusqlite::Result<usize> {
    let held: i64 = connection
        .prepare_cached("SELECT count(*) FROM running WHERE consumer = ?1")?
        .query_row([id], |row| row.get(0))?;
    let returned = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO ready (queue, rank, seq, retries, crashes) \
             SELECT t.queue, t.rank, r.seq, r.retries, min(r.crashes + ?2, ?3) \
             FROM running r CROSS JOIN task t ON t.seq = r.seq CROSS JOIN queue q ON q.id = t.queue WHERE r.consumer = ?1",
        )?
        .execute(params![id, crashed, rows::COUNT_MAX])?;
    if returned as i64 != held {
        let mut select = connection.prepare_cached("SELECT seq, retries, crashes FROM running WHERE consumer = ?1")?;
        let mut found = select.query([id])?;
        while let Some(row) = found.next()? {
            quarantine::put_back(connection, &row.get(0)?, (row.get_ref(1)?, row.get_ref(2)?), crashed, times)?;
        }
    }
    for sql in [
        "DELETE FROM running WHERE consumer = ?1",
        "DELETE FROM subscription WHERE consumer = ?1",
        "DELETE FROM consumer WHERE id = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([id])?;
    }
    Ok(returned)
}

pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<i64>> {
    ids(connection, "SELECT id FROM consumer WHERE ?1 = ?1", 0)
}

fn ids(connection: &Connection, sql: &str, argument: i64) -> rusqlite::Result<Vec<i64>> {
    connection.prepare_cached(sql)?.query_map([argument], |row| row.get(0))?.collect()
}

/// Whether `sweep` would find something.
pub(super) fn sweep_is_due(connection: &Connection, now: i64, may_expire: bool) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT (?3 AND EXISTS (SELECT 1 FROM consumer WHERE until <= ?1)) \
             OR EXISTS (SELECT 1 FROM consumer WHERE until > ?1 + lease + ?2) \
             OR EXISTS (SELECT 1 FROM result WHERE until <= ?1) \
             OR EXISTS (SELECT 1 FROM uniq WHERE until <= ?1) \
             OR EXISTS (SELECT 1 FROM revoked WHERE until <= ?1)",
        )?
        .query_row(params![now, lease::slack_ms(), may_expire], |row| row.get(0))
}

/// Forgets what is over: leases (if they may be expired), results, keys, revokes. Says how many tasks returned.
pub(super) fn sweep(connection: &Connection, may_expire: bool, times: Times) -> rusqlite::Result<usize> {
    let now = times.now;
    connection
        .prepare_cached("UPDATE consumer SET until = ?1 + lease WHERE until > ?1 + lease + ?2")?
        .execute([now, lease::slack_ms()])?;
    for sql in [
        "DELETE FROM result WHERE rowid IN (SELECT rowid FROM result WHERE until <= ?1 ORDER BY until LIMIT 1000)",
        "DELETE FROM uniq WHERE key IN (SELECT key FROM uniq WHERE until <= ?1 ORDER BY until LIMIT 1000)",
        "DELETE FROM revoked WHERE until <= ?1",
    ] {
        connection.prepare_cached(sql)?.execute([now])?;
    }
    let mut returned = 0;
    if may_expire {
        for id in ids(connection, "SELECT id FROM consumer WHERE until <= ?1", now)? {
            let tasks = remove(connection, id, true, times)?;
            tracing::warn!(consumer = id, tasks, "a worker's lease ran out; its tasks return to their queues");
            returned += tasks;
        }
    }
    Ok(returned)
}
