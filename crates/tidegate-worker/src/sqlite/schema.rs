//! The tables, their version, and the way from one version to the next. `docs/sqlite-queue.md` explains them to those who
//! write to the file from elsewhere.

use rusqlite::{Connection, TransactionBehavior};

use crate::broker::BrokerError;

use super::error::Place;

/// `Tdgq`: says whose database this is.
const APPLICATION_ID: i32 = 0x5464_6771;

/// Step `n` leads from version `n` to `n + 1`. Steps are never changed once released; a new layout is a new step.
pub(super) const STEPS: &[&str] = &[VERSION_1];

const VERSION_1: &str = "
CREATE TABLE queue (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL UNIQUE
);
CREATE TABLE task (
    seq       INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    queue     INTEGER NOT NULL,
    rank      INTEGER NOT NULL,
    published INTEGER NOT NULL,
    eta       INTEGER,
    expires   INTEGER,
    ukey      TEXT,
    hold      INTEGER,
    headers   TEXT,
    body      BLOB NOT NULL
);
CREATE TABLE ready (
    queue INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, rank, seq)
) WITHOUT ROWID;
CREATE TABLE delayed (
    at INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (at, seq)
) WITHOUT ROWID;
CREATE TABLE consumer (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    name  TEXT NOT NULL,
    until INTEGER NOT NULL,
    lease INTEGER NOT NULL
);
CREATE TABLE subscription (
    consumer INTEGER NOT NULL, queue INTEGER NOT NULL, PRIMARY KEY (consumer, queue)
) WITHOUT ROWID;
CREATE TABLE running (
    consumer INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL, crashes INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE TABLE dead (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, retries INTEGER NOT NULL,
    reason TEXT NOT NULL, traceback TEXT
);
CREATE TABLE uniq (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, until INTEGER NOT NULL,
    past_settle INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE revoked (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, until INTEGER NOT NULL
);
CREATE TABLE result (
    id TEXT PRIMARY KEY, until INTEGER NOT NULL,
    state TEXT NOT NULL, value TEXT, error TEXT
);
CREATE INDEX result_until ON result (until);
CREATE INDEX uniq_until ON uniq (until);
";

/// Brings the database to the newest version; refuses what is not ours, or newer than we are. Each step is one transaction:
/// whoever is interrupted finds the old version, whole.
pub(super) fn migrate(connection: &mut Connection, place: &Place, steps: &[&str]) -> Result<(), BrokerError> {
    let newest = steps.len() as i64;
    loop {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| place.sqlite(&error))?;
        let version: i64 =
            transaction.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|error| place.sqlite(&error))?;
        check_owner(&transaction, place, version)?;
        if version == newest {
            return Ok(());
        }
        if version > newest {
            return Err(place.refused(format!(
                "has layout {version}, and this tidegate knows layouts up to {newest}: use the newer tidegate that wrote it"
            )));
        }
        let step = usize::try_from(version).ok().and_then(|version| steps.get(version));
        let Some(step) = step else {
            return Err(place.damaged(format!("says it has layout {version}, which there never was")));
        };
        let stepped = transaction.execute_batch(step).and_then(|()| {
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", version + 1)?;
            transaction.commit()
        });
        stepped.map_err(|error| place.sqlite(&error))?;
    }
}

/// An empty database is anybody's; any other must carry our mark.
fn check_owner(connection: &Connection, place: &Place, version: i64) -> Result<(), BrokerError> {
    let read = |sql: &str| -> Result<i64, BrokerError> {
        connection.query_row(sql, [], |row| row.get(0)).map_err(|error| place.sqlite(&error))
    };
    let owner = read("PRAGMA application_id")?;
    let is_empty = owner == 0 && version == 0 && read("SELECT count(*) FROM sqlite_schema")? == 0;
    if owner == i64::from(APPLICATION_ID) || is_empty {
        return Ok(());
    }
    Err(place.refused("is a SQLite database of another program: choose another path for the queue".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::of(std::path::Path::new("test.db"))
    }

    fn version(connection: &Connection) -> i64 {
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn an_empty_file_becomes_the_newest_layout_and_an_older_one_keeps_what_it_has() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &place(), STEPS).unwrap();
        assert_eq!(version(&connection), STEPS.len() as i64);
        connection.execute("INSERT INTO queue (name) VALUES ('kept')", []).unwrap();
        let more = [STEPS, &["ALTER TABLE queue ADD COLUMN paused INTEGER NOT NULL DEFAULT 0"]].concat();
        migrate(&mut connection, &place(), &more).unwrap();
        assert_eq!(version(&connection), more.len() as i64);
        let row: (String, i64) =
            connection.query_row("SELECT name, paused FROM queue", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(row, ("kept".to_owned(), 0));
    }

    #[test]
    fn a_step_that_fails_leaves_the_version_before_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &place(), STEPS).unwrap();
        let broken = [STEPS, &["CREATE TABLE extra (x); CREATE TABLE queue (y)"]].concat();
        migrate(&mut connection, &place(), &broken).unwrap_err();
        assert_eq!(version(&connection), STEPS.len() as i64);
        let extra: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'extra'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(extra, 0);
    }

    #[test]
    fn a_newer_layout_and_a_foreign_database_are_refused_by_name() {
        let mut connection = Connection::open_in_memory().unwrap();
        let more = [STEPS, &["CREATE TABLE later (x)"]].concat();
        migrate(&mut connection, &place(), &more).unwrap();
        let error = migrate(&mut connection, &place(), STEPS).unwrap_err().to_string();
        assert!(error.contains("test.db") && error.contains("newer tidegate"), "{error}");

        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE cookies (x)").unwrap();
        let error = migrate(&mut connection, &place(), STEPS).unwrap_err().to_string();
        assert!(error.contains("another program"), "{error}");
    }
}
