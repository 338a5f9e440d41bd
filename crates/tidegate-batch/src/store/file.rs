//! The SQLite file: its tables, its locks, its transactions. Blocking; called by the store's thread.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::error::StoreError;
use super::space::LogSpace;
use super::{Kept, Key, Record};

/// "tgrs", so that another program's database is not taken for ours.
const APPLICATION: i32 = 0x7467_7273;

/// Counts up when the tables change.
const VERSION: i64 = 1;

pub(super) struct ResultFile {
    path: PathBuf,
    /// Dropped before the connection. `None` where there is no log.
    space: Option<LogSpace>,
    connection: Connection,
}

impl ResultFile {
    pub(super) fn open(path: &Path) -> Result<ResultFile, StoreError> {
        let failed = |error: rusqlite::Error| StoreError::of(path, &error);
        tidegate_files::prepare_database(path).map_err(|error| StoreError::of_io(path, &error))?;
        let connection = Connection::open(path).map_err(failed)?;
        // The lock is held until the process ends, however it ends: whoever comes second is told at once.
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
            .map_err(failed)?;
        connection
            .execute_batch(&format!(
                "BEGIN IMMEDIATE;
                 PRAGMA application_id = {APPLICATION};
                 PRAGMA user_version = {VERSION};
                 CREATE TABLE IF NOT EXISTS results (
                     key BLOB PRIMARY KEY,
                     answered INTEGER NOT NULL,
                     kept TEXT NOT NULL,
                     source TEXT NOT NULL,
                     number INTEGER NOT NULL,
                     attempts INTEGER NOT NULL,
                     at TEXT NOT NULL
                 ) WITHOUT ROWID;
                 COMMIT;"
            ))
            .map_err(failed)?;
        Ok(ResultFile { path: path.into(), space: LogSpace::open(path).ok(), connection })
    }

    /// Reserves space for `answers` more answers.
    pub(super) fn reserve(&mut self, answers: usize) -> Result<(), StoreError> {
        let Some(space) = &mut self.space else { return Ok(()) };
        space.reserve(answers).map_err(|error| StoreError::of_io(&self.path, &error))
    }

    /// Which results there are, and whether they are answers.
    pub(super) fn keys(&self) -> Result<HashMap<Key, bool>, StoreError> {
        self.try_keys().map_err(|error| StoreError::of(&self.path, &error))
    }

    fn try_keys(&self) -> rusqlite::Result<HashMap<Key, bool>> {
        let mut statement = self.connection.prepare("SELECT key, answered FROM results")?;
        let rows = statement.query_map([], |row| Ok((Key(row.get(0)?), row.get(1)?)))?;
        rows.collect()
    }

    pub(super) fn read(&self, key: &Key) -> Result<Option<Kept>, StoreError> {
        let kept: Option<String> = self
            .connection
            .prepare("SELECT kept FROM results WHERE key = ?1")
            .and_then(|mut statement| statement.query_row([key.0], |row| row.get(0)).optional())
            .map_err(|error| StoreError::of(&self.path, &error))?;
        kept.map(|json| serde_json::from_str(&json))
            .transpose()
            .map_err(|error| StoreError::Corrupt { path: self.path.clone(), detail: error.to_string() })
    }

    /// All of them, or none: synced when this returns.
    pub(super) fn write<'a>(&mut self, records: impl Iterator<Item = (&'a Key, &'a Record)>) -> Result<(), StoreError> {
        self.try_write(records).map_err(|error| StoreError::of(&self.path, &error))
    }

    fn try_write<'a>(&mut self, records: impl Iterator<Item = (&'a Key, &'a Record)>) -> rusqlite::Result<()> {
        let at = jiff::Timestamp::now().to_string();
        let transaction = self.connection.transaction()?;
        {
            let mut statement = transaction.prepare(
                "INSERT OR REPLACE INTO results (key, answered, kept, source, number, attempts, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            for (key, record) in records {
                let answered = matches!(record.kept, Kept::Answered(_));
                let kept = serde_json::to_string(&record.kept).expect("texts and numbers");
                if let Some(space) = &mut self.space {
                    space.add(kept.len());
                }
                let number = i64::try_from(record.number).unwrap_or(i64::MAX);
                statement.execute(params![key.0, answered, kept, record.source, number, record.attempts, at])?;
            }
        }
        transaction.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Record {
        let kept = Kept::Failed { code: "declined".into(), reason: text.into() };
        Record { kept, source: "a.pdf".into(), number: 1, attempts: 2 }
    }

    #[test]
    fn what_is_written_is_there_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.db");
        let (one, other) = (Key::of([b"1".as_slice()]), Key::of([b"2".as_slice()]));
        let mut file = ResultFile::open(&path).unwrap();
        file.write([(&one, &record("x")), (&one, &record("y"))].into_iter()).unwrap();
        assert_eq!(file.read(&one).unwrap(), Some(record("y").kept));
        assert_eq!(file.read(&other).unwrap(), None);
        drop(file);
        assert_eq!(ResultFile::open(&path).unwrap().keys().unwrap(), HashMap::from([(one, false)]));
    }

    #[test]
    fn a_second_one_is_told_that_it_is_second() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.db");
        let first = ResultFile::open(&path).unwrap();
        let error = ResultFile::open(&path).map(|_| ()).unwrap_err();
        assert_eq!(error, StoreError::Locked { path: path.clone() });
        drop(first);
        assert!(ResultFile::open(&path).is_ok());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("notes.db");
        std::fs::write(&text, "these are notes, and not a database at all, whatever they are called").unwrap();
        assert_eq!(ResultFile::open(&text).map(|_| ()).unwrap_err(), StoreError::Foreign { path: text.clone() });
        assert!(std::fs::read_to_string(&text).unwrap().starts_with("these are notes"));

        let other = directory.path().join("other.db");
        Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        assert_eq!(ResultFile::open(&other).map(|_| ()).unwrap_err(), StoreError::Foreign { path: other });

        let newer = directory.path().join("newer.db");
        drop(ResultFile::open(&newer).unwrap());
        Connection::open(&newer).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
        assert!(matches!(ResultFile::open(&newer).map(|_| ()).unwrap_err(), StoreError::TooNew { .. }));

        let nowhere = directory.path().join("no/such/folder/results.db");
        assert!(matches!(ResultFile::open(&nowhere).map(|_| ()).unwrap_err(), StoreError::ReadOnly { .. }));
    }

    #[test]
    fn a_full_disk_is_told_and_nothing_written_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.db");
        let mut file = ResultFile::open(&path).unwrap();
        let key = Key::of([b"kept".as_slice()]);
        file.write([(&key, &record("kept"))].into_iter()).unwrap();
        // A database that may not grow fails as one on a full disk does.
        let pages: i64 = file.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        file.connection.pragma_update(None, "max_page_count", pages).unwrap();
        let large = record(&"x".repeat(1 << 20));
        let error = file.write([(&Key::of([b"lost".as_slice()]), &large)].into_iter()).unwrap_err();
        assert_eq!(error, StoreError::Full { path: path.clone() });
        assert_eq!(file.read(&key).unwrap(), Some(record("kept").kept));
        file.connection.pragma_update(None, "max_page_count", 1_000_000).unwrap();
        file.write([(&Key::of([b"lost".as_slice()]), &large)].into_iter()).unwrap();
    }
}
