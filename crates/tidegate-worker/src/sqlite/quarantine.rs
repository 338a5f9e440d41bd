//! Tasks whose rows cannot be used: another program wrote a value of the wrong type or range. Such a task becomes a dead
//! letter: the reason names its `seq` and what is wrong, the traceback holds the original values, and the row is made readable,
//! so that the dead letter can be listed, retried and dropped like any other.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::broker::{TaskResult, TaskState};
use crate::envelope_check::PRIORITY_MAX;
use crate::task::TaskId;

use super::claim;
use super::publish::QueueIds;
use super::rows::{self, Columns};

/// The queue of tasks whose own queue does not exist.
pub(super) const LOST_QUEUE: &str = "unreadable";

/// The most that is kept of one original value.
const RAW_BYTES_MAX: usize = 64 << 10;

/// When, and for how long the task's failure is kept as its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) now: i64,
    pub(super) result_ttl_ms: i64,
}

/// What is wrong with a task; `None` if there is no such task. Nothing is wrong if the list is empty.
pub(super) fn problems(connection: &Connection, seq: &Value) -> rusqlite::Result<Option<Vec<String>>> {
    let sql = format!(
        "SELECT {}, t.published FROM task t LEFT JOIN queue q ON q.id = t.queue WHERE t.seq = ?1",
        rows::ENVELOPE
    );
    connection
        .prepare_cached(&sql)?
        .query_row([seq], |row| {
            let mut columns = Columns::of(row);
            columns.envelope(0);
            columns.integer(9, "published");
            Ok(columns.problems)
        })
        .optional()
}

/// Makes a task a dead letter. Its place (the row in `ready`, `delayed` or `running`) is the caller's to remove.
pub(super) fn quarantine(connection: &Connection, seq: i64, problems: &[String], times: Times) -> rusqlite::Result<()> {
    let reason = format!("{}: seq {seq}: {}", rows::UNREADABLE, problems.join("; "));
    tracing::warn!(seq, problems = problems.join("; "), "a task's row cannot be read; it is a dead letter now");
    let replaced = make_readable(connection, seq, times.now)?;
    let traceback = (!replaced.is_empty()).then(|| format!("original values:\n{}", replaced.join("\n")));
    connection
        .prepare_cached("INSERT OR REPLACE INTO dead (seq, at, retries, reason, traceback) VALUES (?1, ?2, 0, ?3, ?4)")?
        .execute(params![seq, times.now, reason, traceback])?;
    let known: Option<(String, Option<String>)> = connection
        .prepare_cached("SELECT id, ukey FROM task WHERE seq = ?1")?
        .query_row([seq], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, ukey)) = known else { return Ok(()) };
    let id = TaskId::from(&*id);
    claim::release_key(connection, &id, ukey.as_deref())?;
    let result = TaskResult {
        id,
        state: TaskState::Failed,
        value: serde_json::Value::Null,
        error: Some(rows::unreadable(problems)),
        ttl: std::time::Duration::from_millis(times.result_ttl_ms.max(0) as u64),
    };
    rows::store_result(connection, &result, times.now)
}

/// Replaces what cannot be read in the row of a task. Returns the original values, one `column = value` each.
fn make_readable(connection: &Connection, seq: i64, now: i64) -> rusqlite::Result<Vec<String>> {
    const COLUMNS: [&str; 10] =
        ["id", "queue", "rank", "published", "eta", "expires", "ukey", "hold", "headers", "body"];
    let mut select = connection.prepare_cached(
        "SELECT id, queue, rank, published, eta, expires, ukey, hold, headers, body, \
         EXISTS (SELECT 1 FROM queue WHERE queue.id = task.queue) FROM task WHERE seq = ?1",
    )?;
    let mut rows = select.query([seq])?;
    let Some(row) = rows.next()? else { return Ok(Vec::new()) };
    let has_queue: bool = row.get(10)?;
    let mut changes = Vec::new();
    for (at, column) in COLUMNS.into_iter().enumerate() {
        let value = row.get_ref(at)?;
        if let Some(replacement) = replacement(connection, column, value, seq, now, has_queue)? {
            changes.push((column, literal(value), replacement));
        }
    }
    drop(rows);
    for (column, _, replacement) in &changes {
        let sql = format!("UPDATE task SET {column} = ?2 WHERE seq = ?1");
        connection.prepare_cached(&sql)?.execute(params![seq, replacement])?;
    }
    Ok(changes.into_iter().map(|(column, original, _)| format!("{column} = {original}")).collect())
}

/// What to write into a column instead; `None` if its value can be read.
fn replacement(
    connection: &Connection,
    column: &str,
    value: ValueRef<'_>,
    seq: i64,
    now: i64,
    has_queue: bool,
) -> rusqlite::Result<Option<Value>> {
    let is_text = matches!(value, ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_ok());
    let is_integer = matches!(value, ValueRef::Integer(_));
    let is_null = matches!(value, ValueRef::Null);
    // Times from a language whose only number is a float are whole enough.
    let whole = match value {
        ValueRef::Real(value) if value.abs() < i64::MAX as f64 => Some(value as i64),
        _ => None,
    };
    let highest = i64::from(PRIORITY_MAX);
    Ok(match (column, value) {
        ("id", _) if !is_text => Some(Value::Text(free_id(connection, seq)?)),
        ("queue", _) if !is_integer || !has_queue => {
            Some(Value::Integer(QueueIds::default().of(connection, LOST_QUEUE)?))
        }
        ("rank", ValueRef::Integer(rank)) => (!(0..=highest).contains(&rank)).then(|| rank.clamp(0, highest).into()),
        ("rank", _) => Some(Value::Integer(highest)),
        ("published", _) if !is_integer => Some(Value::Integer(whole.unwrap_or(now))),
        ("eta" | "expires" | "hold", _) if !is_integer && !is_null => Some(whole.map_or(Value::Null, Value::Integer)),
        ("ukey", _) if !is_text && !is_null => Some(Value::Null),
        ("headers", ValueRef::Text(bytes)) => {
            let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(bytes);
            object.is_err().then_some(Value::Null)
        }
        ("headers", _) if !is_null => Some(Value::Null),
        ("body", ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_)) => Some(Value::Blob(rows::as_bytes(value))),
        _ => None,
    })
}

/// An id that no task has.
fn free_id(connection: &Connection, seq: i64) -> rusqlite::Result<String> {
    let mut taken = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM task WHERE id = ?1)")?;
    let mut id = format!("unreadable-{seq}");
    while taken.query_row([&id], |row| row.get(0))? {
        id.push('-');
    }
    Ok(id)
}

/// The value as SQL would write it.
pub(super) fn literal(value: ValueRef<'_>) -> String {
    let hex = |bytes: &[u8]| {
        let shown: String = bytes[..bytes.len().min(RAW_BYTES_MAX)].iter().map(|byte| format!("{byte:02x}")).collect();
        let cut =
            if bytes.len() > RAW_BYTES_MAX { format!(" -- the first of {} bytes", bytes.len()) } else { String::new() };
        format!("x'{shown}'{cut}")
    };
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(value) => value.to_string(),
        ValueRef::Real(value) => format!("{value:?}"),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() <= RAW_BYTES_MAX && !text.contains('\0') => {
                format!("'{}'", text.replace('\'', "''"))
            }
            _ => format!("CAST({} AS TEXT)", hex(bytes)),
        },
        ValueRef::Blob(bytes) => hex(bytes),
    }
}

/// What to do with a task that leaves a place it should not have been in, or that could not be moved with the others: ready if
/// its row can be read, a dead letter otherwise, nothing if there is no such task.
pub(super) fn put_back(
    connection: &Connection,
    seq: &Value,
    counts: (ValueRef<'_>, ValueRef<'_>),
    crashed: bool,
    times: Times,
) -> rusqlite::Result<()> {
    let (Value::Integer(number), Some(mut problems)) = (seq, problems(connection, seq)?) else {
        tracing::warn!(seq = rows::shown(seq.into()), "dropped a place in the queue that has no task");
        return Ok(());
    };
    let mut count = |column: &str, value: ValueRef<'_>| match value {
        ValueRef::Integer(value) if (0..=i64::from(rows::COUNT_MAX)).contains(&value) => value,
        other => {
            problems.push(format!(
                "{column} is {}, expected an integer from 0 to {}",
                rows::shown(other),
                rows::COUNT_MAX
            ));
            0
        }
    };
    let (retries, crashes) = (count("retries", counts.0), count("crashes", counts.1));
    if !problems.is_empty() {
        return quarantine(connection, *number, &problems, times);
    }
    let crashes = (crashes + i64::from(crashed)).min(i64::from(rows::COUNT_MAX));
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO ready (queue, rank, seq, retries, crashes) \
             SELECT queue, rank, seq, ?2, ?3 FROM task WHERE seq = ?1",
        )?
        .execute([*number, retries, crashes])
        .map(drop)
}
