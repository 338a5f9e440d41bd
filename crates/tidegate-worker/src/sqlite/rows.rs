//! Envelopes as rows, and back. Times are milliseconds: what must not begin early is rounded up, what must end is rounded
//! down.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{CachedStatement, Connection, Row, params};

use crate::broker::{TaskError, TaskResult, TaskState};
use crate::envelope_check::PRIORITY_MAX;
use crate::task::{Envelope, TaskId, Unique};

/// What every read of a task selects, in this order, after `task` was joined as `t` and `queue` as `q`.
pub(super) const ENVELOPE: &str = "t.id, q.name, t.rank, t.eta, t.expires, t.ukey, t.hold, t.headers, t.body";

/// The envelope in the columns of [`ENVELOPE`], which begin at `from`.
pub(super) fn envelope(row: &Row<'_>, from: usize) -> rusqlite::Result<Envelope> {
    let headers: Option<String> = row.get(from + 7)?;
    let ukey: Option<String> = row.get(from + 5)?;
    let hold: Option<i64> = row.get(from + 6)?;
    Ok(Envelope {
        id: TaskId::from(row.get_ref(from)?.as_str()?),
        queue: row.get(from + 1)?,
        priority: PRIORITY_MAX.saturating_sub(row.get(from + 2)?),
        eta: row.get::<_, Option<i64>>(from + 3)?.map(time),
        expires: row.get::<_, Option<i64>>(from + 4)?.map(time),
        unique: ukey.map(|key| {
            let hold = hold.unwrap_or(0);
            Unique { key, hold: Duration::from_millis(hold.unsigned_abs()), past_settle: hold < 0 }
        }),
        headers: headers.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        body: row.get_ref(from + 8)?.as_bytes()?.to_vec(),
    })
}

pub(super) fn insert_task(
    statement: &mut CachedStatement<'_>,
    envelope: &Envelope,
    queue: i64,
    now: i64,
) -> rusqlite::Result<()> {
    let headers =
        (!envelope.headers.is_empty()).then(|| serde_json::to_string(&envelope.headers).expect("JSON values are JSON"));
    let hold = envelope.unique.as_ref().map(|unique| {
        let hold = i64::try_from(unique.hold.as_millis()).unwrap_or(i64::MAX).max(1);
        if unique.past_settle { -hold } else { hold }
    });
    statement
        .execute(params![
            envelope.id.as_str(),
            queue,
            rank(envelope),
            now,
            envelope.eta.map(ms_up),
            envelope.expires.map(Timestamp::as_millisecond),
            envelope.unique.as_ref().map(|unique| unique.key.as_str()),
            hold,
            headers,
            envelope.body,
        ])
        .map(drop)
}

pub(super) const INSERT_TASK: &str = "INSERT INTO task (id, queue, rank, published, eta, expires, ukey, hold, headers, body) \
                                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

pub(super) fn rank(envelope: &Envelope) -> u8 {
    PRIORITY_MAX - envelope.priority
}

pub(super) fn time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Not before this instant.
pub(super) fn ms_up(at: Timestamp) -> i64 {
    let ms = at.as_millisecond();
    if time(ms) < at { ms + 1 } else { ms }
}

pub(super) fn span_ms(span: Duration) -> i64 {
    // Half of the range, so that adding it to any date does not overflow.
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)
}

pub(super) fn store_result(connection: &Connection, result: &TaskResult, now: i64) -> rusqlite::Result<()> {
    let value = (!result.value.is_null()).then(|| result.value.to_string());
    let error = result.error.as_ref().map(|error| serde_json::to_string(error).expect("strings are JSON"));
    connection
        .prepare_cached("INSERT OR REPLACE INTO result (id, until, state, value, error) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![result.id.as_str(), now + span_ms(result.ttl), result.state.as_str(), value, error])
        .map(drop)
}

pub(super) fn read_result(connection: &Connection, id: &TaskId, now: i64) -> rusqlite::Result<Option<TaskResult>> {
    let mut statement =
        connection.prepare_cached("SELECT state, value, error, until FROM result WHERE id = ?1 AND until > ?2")?;
    let mut rows = statement.query(params![id.as_str(), now])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let value: Option<String> = row.get(1)?;
    let error: Option<String> = row.get(2)?;
    Ok(Some(TaskResult {
        id: id.clone(),
        state: state(row.get_ref(0)?.as_str()?),
        value: value.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        error: error.and_then(|text| serde_json::from_str::<TaskError>(&text).ok()),
        ttl: Duration::from_millis(row.get::<_, i64>(3)?.saturating_sub(now).max(0) as u64),
    }))
}

/// A state that we don't know is of a newer writer; whatever it is, the task has ended.
fn state(text: &str) -> TaskState {
    match text {
        "retrying" => TaskState::Retrying,
        "succeeded" => TaskState::Succeeded,
        "revoked" => TaskState::Revoked,
        "expired" => TaskState::Expired,
        _ => TaskState::Failed,
    }
}
