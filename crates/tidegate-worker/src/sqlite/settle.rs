//! Deliveries end.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::broker::{Settled, Settlement, TaskState, Verdict};

use super::claim::{self, Held};
use super::rows;

/// Settles one delivery of this consumer. The row in `running` decides: without it another consumer has the task, and nothing is
/// changed. Rows that another program put where the task goes now are replaced: a settlement never fails because of them.
pub(super) fn settle(
    connection: &Connection,
    owner: i64,
    held: &Held,
    settlement: &Settlement,
    now: i64,
    result_ttl_ms: i64,
) -> rusqlite::Result<Settled> {
    let seq = held.seq;
    let mut delete = connection.prepare_cached("DELETE FROM running WHERE consumer = ?1 AND seq = ?2")?;
    if delete.execute([owner, seq])? == 0 {
        return Ok(Settled::Lost);
    }
    let comes_back = matches!(settlement.verdict, Verdict::Retry { .. } | Verdict::Crash { .. } | Verdict::Return);
    if comes_back && claim::is_revoked(connection, &held.id)? {
        claim::drop_task(connection, seq, &held.id, held.ukey.as_deref())?;
        claim::store_end(connection, &held.id, TaskState::Revoked, now, result_ttl_ms)?;
        return Ok(Settled::Done);
    }
    match &settlement.verdict {
        Verdict::Ack => claim::drop_task(connection, seq, &held.id, held.ukey.as_deref())?,
        Verdict::Return => make_ready(connection, held, held.retries, held.crashes)?,
        Verdict::Retry { at } => come_back(connection, held, *at, now, one_more(held.retries), held.crashes)?,
        Verdict::Crash { at } => come_back(connection, held, *at, now, held.retries, one_more(held.crashes))?,
        Verdict::Dead { reason, traceback } => {
            claim::release_key(connection, &held.id, held.ukey.as_deref())?;
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO dead (seq, at, retries, reason, traceback) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![seq, now, held.retries, reason, traceback])?;
        }
    }
    if let Some(result) = &settlement.result {
        rows::store_result(connection, result, now)?;
    }
    Ok(Settled::Done)
}

fn one_more(count: u32) -> u32 {
    count.saturating_add(1).min(rows::COUNT_MAX)
}

fn come_back(
    connection: &Connection,
    held: &Held,
    at: Timestamp,
    now: i64,
    retries: u32,
    crashes: u32,
) -> rusqlite::Result<()> {
    let at = rows::ms_up(at);
    if at <= now {
        return make_ready(connection, held, retries, crashes);
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO delayed (at, seq, retries, crashes) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![at, held.seq, retries, crashes])
        .map(drop)
}

fn make_ready(connection: &Connection, held: &Held, retries: u32, crashes: u32) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO ready (queue, rank, seq, retries, crashes) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![held.queue, held.rank, held.seq, retries, crashes])
        .map(drop)
}
