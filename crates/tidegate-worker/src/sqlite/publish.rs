//! Tasks come in.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::broker::Published;
use crate::task::{Envelope, TaskId};

use super::rows::{self, Columns};

/// Ids of queues that are known to be there. Forgotten when a transaction is rolled back, which may have made some.
#[derive(Debug, Default)]
pub(super) struct QueueIds {
    known: HashMap<String, i64>,
}

impl QueueIds {
    /// The queue's id; it is made if it is not there.
    pub(super) fn of(&mut self, connection: &Connection, name: &str) -> rusqlite::Result<i64> {
        if let Some(&id) = self.known.get(name) {
            return Ok(id);
        }
        connection.prepare_cached("INSERT OR IGNORE INTO queue (name) VALUES (?1)")?.execute([name])?;
        let id = find_queue(connection, name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.known.insert(name.to_owned(), id);
        Ok(id)
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

pub(super) fn find_queue(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached("SELECT id FROM queue WHERE name = ?1")?.query_row([name], |row| row.get(0)).optional()
}

pub(super) fn publish(
    connection: &Connection,
    queues: &mut QueueIds,
    batch: &[Envelope],
    now: i64,
) -> rusqlite::Result<Vec<Published>> {
    let mut insert = connection.prepare_cached(rows::INSERT_TASK)?;
    let mut ready = connection.prepare_cached("INSERT OR REPLACE INTO ready (queue, rank, seq) VALUES (?1, ?2, ?3)")?;
    let mut published = Vec::with_capacity(batch.len());
    for envelope in batch {
        if let Some(owner) = duplicate(connection, envelope, now)? {
            published.push(Published::Duplicate(owner));
            continue;
        }
        let queue = queues.of(connection, &envelope.queue)?;
        match rows::insert_task(&mut insert, envelope, queue, now) {
            Ok(()) => {}
            Err(error) if is_taken(&error) => {
                published.push(Published::Duplicate(envelope.id.clone()));
                continue;
            }
            Err(error) => return Err(error),
        }
        let seq = connection.last_insert_rowid();
        match envelope.eta.map(rows::ms_up).filter(|&eta| eta > now) {
            Some(eta) => {
                connection
                    .prepare_cached("INSERT OR REPLACE INTO delayed (at, seq) VALUES (?1, ?2)")?
                    .execute([eta, seq])?;
            }
            None => {
                ready.execute(params![queue, rows::rank(envelope), seq])?;
            }
        }
        take_key(connection, envelope, now)?;
        published.push(Published::Stored);
    }
    Ok(published)
}

/// Returns the task that holds the envelope's unique key, if there is one.
fn duplicate(connection: &Connection, envelope: &Envelope, now: i64) -> rusqlite::Result<Option<TaskId>> {
    let Some(unique) = &envelope.unique else { return Ok(None) };
    connection
        .prepare_cached("SELECT id FROM uniq WHERE key = ?1 AND until > ?2")?
        .query_row(params![unique.key, now], |row| Ok(TaskId::from(&*Columns::of(row).text(0, "id"))))
        .optional()
}

fn take_key(connection: &Connection, envelope: &Envelope, now: i64) -> rusqlite::Result<()> {
    let Some(unique) = &envelope.unique else { return Ok(()) };
    connection
        .prepare_cached("INSERT OR REPLACE INTO uniq (key, id, until, past_settle) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![unique.key, envelope.id.as_str(), now + rows::span_ms(unique.hold), unique.past_settle])
        .map(drop)
}

/// The id is there already. Only that column can collide: `seq` is SQLite's own choice.
fn is_taken(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE)
}
