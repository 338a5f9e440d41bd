//! Envelopes as rows, and back. Times are milliseconds: what must not begin early is rounded up, what must end is rounded
//! down.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, Row, params};
use serde::de::DeserializeOwned;

use crate::broker::{TaskError, TaskResult, TaskState};
use crate::envelope_check::PRIORITY_MAX;
use crate::json;
use crate::task::{Envelope, TaskId, Unique};

/// What every read of a task selects, in this order, after `task` was joined as `t` and `queue` as `q`.
pub(super) const ENVELOPE: &str = "t.id, q.name, t.rank, t.eta, t.expires, t.ukey, t.hold, t.headers, t.body";

/// The highest value of the columns `retries` and `crashes`.
pub(super) const COUNT_MAX: u32 = i32::MAX as u32;

/// Reads the columns of a row that another program may have written. A value of the wrong type or range is replaced, and noted
/// in `problems`: one row must not fail the statement that reads many.
pub(super) struct Columns<'r, 's> {
    row: &'r Row<'s>,
    pub(super) problems: Vec<String>,
}

impl<'r, 's> Columns<'r, 's> {
    pub(super) fn of(row: &'r Row<'s>) -> Columns<'r, 's> {
        Columns { row, problems: Vec::new() }
    }

    /// The value as it is. An index that the statement does not have reads as NULL.
    pub(super) fn raw(&self, at: usize) -> ValueRef<'r> {
        self.row.get_ref(at).unwrap_or(ValueRef::Null)
    }

    fn note(&mut self, column: &str, at: usize, expected: &str) {
        self.problems.push(format!("{column} is {}, expected {expected}", shown(self.raw(at))));
    }

    pub(super) fn integer(&mut self, at: usize, column: &str) -> i64 {
        if let ValueRef::Integer(value) = self.raw(at) {
            return value;
        }
        self.note(column, at, "an integer");
        0
    }

    pub(super) fn optional_integer(&mut self, at: usize, column: &str) -> Option<i64> {
        match self.raw(at) {
            ValueRef::Integer(value) => Some(value),
            ValueRef::Null => None,
            _ => {
                self.note(column, at, "an integer or NULL");
                None
            }
        }
    }

    /// How often something happened.
    pub(super) fn count(&mut self, at: usize, column: &str) -> u32 {
        if let ValueRef::Integer(value) = self.raw(at)
            && let Some(count) = u32::try_from(value).ok().filter(|count| *count <= COUNT_MAX)
        {
            return count;
        }
        self.note(column, at, &format!("an integer from 0 to {COUNT_MAX}"));
        0
    }

    pub(super) fn rank(&mut self, at: usize) -> u8 {
        if let ValueRef::Integer(value) = self.raw(at)
            && let Some(rank) = u8::try_from(value).ok().filter(|rank| *rank <= PRIORITY_MAX)
        {
            return rank;
        }
        self.note("rank", at, &format!("an integer from 0 to {PRIORITY_MAX} (9 - priority)"));
        PRIORITY_MAX
    }

    /// The text, with replacement characters where it is not UTF-8.
    pub(super) fn text(&mut self, at: usize, column: &str) -> Cow<'r, str> {
        if let ValueRef::Text(bytes) = self.raw(at) {
            let text = String::from_utf8_lossy(bytes);
            if matches!(text, Cow::Owned(_)) {
                self.note(column, at, "text in UTF-8");
            }
            return text;
        }
        self.note(column, at, "text");
        Cow::Borrowed("")
    }

    pub(super) fn optional_text(&mut self, at: usize, column: &str) -> Option<Cow<'r, str>> {
        (!matches!(self.raw(at), ValueRef::Null)).then(|| self.text(at, column))
    }

    fn json<T: DeserializeOwned>(&mut self, at: usize, column: &str) -> Option<T> {
        let text = self.optional_text(at, column)?;
        let value = json::from_slice(text.as_bytes());
        if value.is_err() {
            self.note(column, at, "JSON or NULL");
        }
        value.ok()
    }

    fn headers(&mut self, at: usize) -> BTreeMap<String, serde_json::Value> {
        let Some(text) = self.optional_text(at, "headers") else { return BTreeMap::new() };
        serde_json::from_str(&text).unwrap_or_else(|_| {
            self.note("headers", at, "a JSON object or NULL");
            BTreeMap::new()
        })
    }

    fn body(&mut self, at: usize) -> Vec<u8> {
        if let ValueRef::Blob(bytes) | ValueRef::Text(bytes) = self.raw(at) {
            return bytes.to_vec();
        }
        self.note("body", at, "a BLOB or text");
        as_bytes(self.raw(at))
    }

    /// The envelope in the columns of [`ENVELOPE`], which begin at `from`.
    pub(super) fn envelope(&mut self, from: usize) -> Envelope {
        let ukey = self.optional_text(from + 5, "ukey");
        let hold = self.optional_integer(from + 6, "hold").unwrap_or(0);
        let queue = if matches!(self.raw(from + 1), ValueRef::Null) {
            self.problems.push("its queue does not exist".into());
            String::new()
        } else {
            self.text(from + 1, "the name of its queue").into_owned()
        };
        Envelope {
            id: TaskId::from(&*self.text(from, "id")),
            queue,
            priority: PRIORITY_MAX - self.rank(from + 2),
            eta: self.optional_integer(from + 3, "eta").map(time),
            expires: self.optional_integer(from + 4, "expires").map(time),
            unique: ukey.map(|key| Unique {
                key: key.into_owned(),
                hold: Duration::from_millis(hold.unsigned_abs()),
                past_settle: hold < 0,
            }),
            headers: self.headers(from + 7),
            body: self.body(from + 8),
        }
    }
}

/// The bytes of any value: text as it is, numbers in decimal, nothing for NULL.
pub(super) fn as_bytes(value: ValueRef<'_>) -> Vec<u8> {
    match value {
        ValueRef::Null => Vec::new(),
        ValueRef::Integer(value) => value.to_string().into_bytes(),
        ValueRef::Real(value) => value.to_string().into_bytes(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
    }
}

/// A value in one line, for messages.
pub(super) fn shown(value: ValueRef<'_>) -> String {
    const SHOWN_CHARS: usize = 60;
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(value) => value.to_string(),
        ValueRef::Real(value) => format!("the REAL {value:?}"),
        ValueRef::Text(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let cut: String = text.chars().take(SHOWN_CHARS).collect();
            if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
        }
        ValueRef::Blob(bytes) => format!("a BLOB of {} bytes", bytes.len()),
    }
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
    let value = (!result.value.is_null()).then(|| json::to_string(&result.value));
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
    let mut columns = Columns::of(row);
    let state = state(&columns.text(0, "state"));
    let value = columns.json(1, "value").unwrap_or_default();
    let error = columns.json(2, "error");
    let ttl = Duration::from_millis(columns.integer(3, "until").saturating_sub(now).max(0) as u64);
    let id = id.clone();
    if columns.problems.is_empty() {
        return Ok(Some(TaskResult { id, state, value, error, ttl }));
    }
    // Whatever it said, the task has ended: a caller that waits must not wait for ever.
    Ok(Some(TaskResult {
        id,
        state: TaskState::Failed,
        value: serde_json::Value::Null,
        error: Some(unreadable(&columns.problems)),
        ttl,
    }))
}

/// The error of a task or result whose row cannot be read.
pub(super) fn unreadable(problems: &[String]) -> TaskError {
    TaskError { kind: UNREADABLE.into(), message: problems.join("; "), traceback: None }
}

/// The kind of that error.
pub(super) const UNREADABLE: &str = "unreadable row";

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
