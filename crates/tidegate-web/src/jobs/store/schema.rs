//! Opening the file: whose it is, its lock, its tables. Blocking.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::error::StoreError;

/// "tgjb", so that another program's database is not taken for jobs.
const APPLICATION: i32 = 0x7467_6a62;

/// Counts up when the tables change.
///
/// | version | new |
/// |---|---|
/// | 2 | `pages.line`: the result line of a request that was asked again |
const VERSION: i64 = 2;

pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let failed = |error: rusqlite::Error| StoreError::of(path, &error);
    tidegate_files::prepare_database(path).map_err(|error| StoreError::of_io(path, &error))?;
    let connection = Connection::open(path).map_err(failed)?;
    // The lock is held until the process ends, however it ends: a second server fails at once.
    connection.busy_timeout(Duration::from_millis(250)).map_err(failed)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
    let application: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(failed)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if application != APPLICATION && (application != 0 || tables > 0) {
        return Err(StoreError::Foreign { path: path.into() });
    }
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    if version > VERSION {
        return Err(StoreError::TooNew { path: path.into(), version });
    }
    connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))
        .and_then(|_| connection.pragma_update(None, "synchronous", "FULL"))
        .and_then(|()| connection.pragma_update(None, "foreign_keys", "ON"))
        .map_err(failed)?;
    let upgrade = if tables > 0 && version == 1 { "ALTER TABLE pages ADD COLUMN line BLOB;" } else { "" };
    connection
        .execute_batch(&format!(
            "BEGIN IMMEDIATE;
             {upgrade}
             PRAGMA application_id = {APPLICATION};
             PRAGMA user_version = {VERSION};
             CREATE TABLE IF NOT EXISTS jobs (
                 id INTEGER PRIMARY KEY AUTOINCREMENT,
                 name TEXT NOT NULL,
                 kind TEXT NOT NULL,
                 upstream TEXT NOT NULL,
                 model TEXT NOT NULL,
                 options TEXT NOT NULL,
                 state TEXT NOT NULL,
                 reason TEXT NOT NULL,
                 created TEXT NOT NULL,
                 started TEXT,
                 changed TEXT NOT NULL,
                 tokens_in INTEGER NOT NULL,
                 tokens_out INTEGER NOT NULL
             );
             CREATE TABLE IF NOT EXISTS files (
                 job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
                 number INTEGER NOT NULL,
                 name TEXT NOT NULL,
                 kind TEXT NOT NULL,
                 stored TEXT NOT NULL,
                 bytes INTEGER NOT NULL,
                 status TEXT NOT NULL,
                 detail TEXT NOT NULL,
                 encrypted INTEGER NOT NULL,
                 page_count INTEGER NOT NULL,
                 title TEXT,
                 page_tokens TEXT NOT NULL,
                 numbers TEXT NOT NULL,
                 PRIMARY KEY (job, number)
             ) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS pages (
                 job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
                 file INTEGER NOT NULL,
                 page INTEGER NOT NULL,
                 version INTEGER NOT NULL,
                 shown INTEGER NOT NULL,
                 state TEXT NOT NULL,
                 upstream TEXT NOT NULL,
                 model TEXT NOT NULL,
                 prompt TEXT,
                 at TEXT NOT NULL,
                 entry TEXT NOT NULL,
                 line BLOB,
                 PRIMARY KEY (job, file, page, version)
             );
             CREATE INDEX IF NOT EXISTS page_states ON pages (shown, job, file, page, state);
             COMMIT;"
        ))
        .map_err(failed)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_older_server_gets_what_is_new() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let connection = open(&path).unwrap();
        connection.execute_batch("ALTER TABLE pages DROP COLUMN line; PRAGMA user_version = 1;").unwrap();
        drop(connection);
        for _ in 0..2 {
            let connection = open(&path).unwrap();
            let lines: i64 = connection.query_row("SELECT count(line) FROM pages", [], |row| row.get(0)).unwrap();
            let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
            assert_eq!((lines, version), (0, VERSION));
        }
    }
}
