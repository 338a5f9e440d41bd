//! The tables, their version, and the way from one version to the next. `docs/sqlite-queue.md` explains them to those who
//! write to the file from elsewhere.

use rusqlite::{Connection, TransactionBehavior};

use crate::broker::BrokerError;
use crate::clock;

use super::error::Place;
use super::quarantine::Times;
use super::repair;

/// `Tdgq`: says whose database this is.
const APPLICATION_ID: i32 = 0x5464_6771;

/// Step `n` leads from version `n` to `n + 1`. Steps are never changed once released; a new layout is a new step.
pub(super) const STEPS: &[Step] = &[Step::Sql(VERSION_1), Step::Run(constrain)];

/// How long it is kept that a task could not be migrated.
const RESULT_TTL_MS: i64 = 86_400_000;

/// How one version becomes the next.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Sql(&'static str),
    Run(fn(&Connection) -> rusqlite::Result<()>),
}

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

/// The tables of version 2: those of version 1, with a CHECK constraint for each column. Other programs write to this file; what
/// cannot be read is refused when it is written. INTEGER PRIMARY KEY is always an integer.
pub(super) const TABLES_2: &[(&str, &str)] = &[
    (
        "queue",
        "CREATE TABLE queue (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text')
)",
    ),
    (
        "task",
        "CREATE TABLE task (
    seq       INTEGER PRIMARY KEY CHECK (seq BETWEEN 1 AND 9007199254740991),
    id        TEXT NOT NULL UNIQUE CHECK (typeof(id) = 'text'),
    queue     INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    rank      INTEGER NOT NULL CHECK (typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9),
    published INTEGER NOT NULL CHECK (typeof(published) = 'integer'),
    eta       INTEGER CHECK (typeof(eta) IN ('integer', 'null')),
    expires   INTEGER CHECK (typeof(expires) IN ('integer', 'null')),
    ukey      TEXT CHECK (typeof(ukey) IN ('text', 'null')),
    hold      INTEGER CHECK (typeof(hold) IN ('integer', 'null')),
    headers   TEXT CHECK (typeof(headers) IN ('text', 'null')),
    body      BLOB NOT NULL CHECK (typeof(body) IN ('blob', 'text'))
)",
    ),
    (
        "ready",
        "CREATE TABLE ready (
    queue   INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    rank    INTEGER NOT NULL CHECK (typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9),
    seq     INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries INTEGER NOT NULL DEFAULT 0 CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (queue, rank, seq)
) WITHOUT ROWID",
    ),
    (
        "delayed",
        "CREATE TABLE delayed (
    at      INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    seq     INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries INTEGER NOT NULL DEFAULT 0 CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (at, seq)
) WITHOUT ROWID",
    ),
    (
        "consumer",
        "CREATE TABLE consumer (
    id    INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id BETWEEN 1 AND 9007199254740991),
    name  TEXT NOT NULL CHECK (typeof(name) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    lease INTEGER NOT NULL CHECK (typeof(lease) = 'integer' AND lease BETWEEN 0 AND 4611686018427387903)
)",
    ),
    (
        "subscription",
        "CREATE TABLE subscription (
    consumer INTEGER NOT NULL CHECK (typeof(consumer) = 'integer'),
    queue    INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    PRIMARY KEY (consumer, queue)
) WITHOUT ROWID",
    ),
    (
        "running",
        "CREATE TABLE running (
    consumer INTEGER NOT NULL CHECK (typeof(consumer) = 'integer'),
    seq      INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries  INTEGER NOT NULL CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes  INTEGER NOT NULL CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID",
    ),
    (
        "dead",
        "CREATE TABLE dead (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    retries   INTEGER NOT NULL CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    reason    TEXT NOT NULL CHECK (typeof(reason) = 'text'),
    traceback TEXT CHECK (typeof(traceback) IN ('text', 'null'))
)",
    ),
    (
        "uniq",
        "CREATE TABLE uniq (
    key         TEXT PRIMARY KEY CHECK (typeof(key) = 'text'),
    id          TEXT NOT NULL CHECK (typeof(id) = 'text'),
    until       INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    past_settle INTEGER NOT NULL CHECK (typeof(past_settle) = 'integer' AND past_settle BETWEEN 0 AND 1)
) WITHOUT ROWID",
    ),
    (
        "revoked",
        "CREATE TABLE revoked (
    n     INTEGER PRIMARY KEY AUTOINCREMENT CHECK (n BETWEEN 1 AND 9007199254740991),
    id    TEXT NOT NULL UNIQUE CHECK (typeof(id) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer')
)",
    ),
    (
        "result",
        "CREATE TABLE result (
    id    TEXT PRIMARY KEY CHECK (typeof(id) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    state TEXT NOT NULL CHECK (typeof(state) = 'text'),
    value TEXT CHECK (typeof(value) IN ('text', 'null')),
    error TEXT CHECK (typeof(error) IN ('text', 'null'))
)",
    ),
];

/// Version 1 to version 2. The rows are put in order first; then the text of the tables is exchanged in SQLite's own catalogue,
/// its documented way to change a table whose stored rows stay the same (columns, types and keys do) without copying it.
fn constrain(connection: &Connection) -> rusqlite::Result<()> {
    let times = Times { now: clock::machine().0.as_millisecond(), result_ttl_ms: RESULT_TTL_MS };
    let changed = repair::repair(connection, times)?;
    if changed > 0 {
        tracing::warn!(rows = changed, "rows that could not be read were quarantined; see `tidegate queue dead ls`");
    }
    let version: i64 = connection.query_row("PRAGMA schema_version", [], |row| row.get(0))?;
    connection.pragma_update(None, "writable_schema", true)?;
    let exchanged = TABLES_2.iter().try_for_each(|(name, sql)| {
        connection
            .execute("UPDATE sqlite_schema SET sql = ?2 WHERE type = 'table' AND name = ?1", [name, sql])
            .and_then(|rows| if rows == 1 { Ok(()) } else { Err(rusqlite::Error::QueryReturnedNoRows) })
    });
    // Other connections read the catalogue again when this number changes; `RESET` makes this one do so.
    let exchanged = exchanged.and_then(|()| connection.pragma_update(None, "schema_version", version + 1));
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    exchanged
}

/// Brings the database to the newest version. Refuses a file of another program or of a newer version. Each step is one
/// transaction, so an interrupted migration leaves the old version intact.
pub(super) fn migrate(connection: &mut Connection, place: &Place, steps: &[Step]) -> Result<(), BrokerError> {
    let newest = steps.len() as i64;
    loop {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| place.sqlite(&error))?;
        let version: i64 =
            transaction.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|error| place.sqlite(&error))?;
        check_owner(&transaction, place)?;
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
        let taken = match step {
            Step::Sql(sql) => transaction.execute_batch(sql),
            Step::Run(run) => run(&transaction),
        };
        let stepped = taken.and_then(|()| {
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", version + 1)?;
            transaction.commit()
        });
        stepped.map_err(|error| place.sqlite(&error))?;
    }
}

/// Refuses a database of another program: unless it is empty, it must carry tidegate's application id.
pub(super) fn check_owner(connection: &Connection, place: &Place) -> Result<(), BrokerError> {
    let read = |sql: &str| -> Result<i64, BrokerError> {
        connection.query_row(sql, [], |row| row.get(0)).map_err(|error| place.sqlite(&error))
    };
    let owner = read("PRAGMA application_id")?;
    let is_empty = owner == 0 && read("PRAGMA user_version")? == 0 && read("SELECT count(*) FROM sqlite_schema")? == 0;
    if owner == i64::from(APPLICATION_ID) || is_empty {
        return Ok(());
    }
    Err(place.refused("is a SQLite database of another program: choose another path for the queue".into()))
}

#[cfg(test)]
mod tests {
    use super::super::rules;
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
        let more = [STEPS, &[Step::Sql("ALTER TABLE queue ADD COLUMN paused INTEGER NOT NULL DEFAULT 0")]].concat();
        migrate(&mut connection, &place(), &more).unwrap();
        assert_eq!(version(&connection), more.len() as i64);
        let row: (String, i64) =
            connection.query_row("SELECT name, paused FROM queue", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(row, ("kept".to_owned(), 0));
    }

    /// What is said in four places is the same: the constraints, the rules, the page, the Python client.
    #[test]
    fn rules_page_and_python_client_say_what_the_tables_say() {
        let page = include_str!("../../../../docs/sqlite-queue.md");
        let python = include_str!("../../../../clients/python/tidegate/_queue_file.py");
        for (table, sql) in TABLES_2 {
            assert!(page.contains(&format!("{sql};")), "docs/sqlite-queue.md: {table}");
            assert!(python.contains(&format!("{sql};")), "_queue_file.py: {table}");
            for rule in rules::of(table) {
                assert!(sql.contains(&format!("CHECK ({})", rule.holds)), "{table}.{}", rule.column);
            }
            assert_eq!(sql.matches("CHECK (").count(), rules::of(table).count(), "{table}");
        }
        assert!(python.contains(&format!("VERSION = {}", STEPS.len())));
    }

    #[test]
    fn constraints_hold_on_the_connection_that_added_them() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &place(), STEPS).unwrap();
        for (table, _) in TABLES_2 {
            let sql: String = connection
                .query_row("SELECT sql FROM sqlite_schema WHERE name = ?1", [table], |row| row.get(0))
                .unwrap();
            assert!(sql.contains("CHECK"), "{table}");
        }
        let error = connection.execute("INSERT INTO queue (name) VALUES (x'01')", []).unwrap_err().to_string();
        assert!(error.contains("CHECK"), "{error}");
        let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        connection.execute("CREATE TABLE more (x)", []).expect("the catalogue is closed again");
        let update = "UPDATE sqlite_schema SET sql = sql";
        connection.execute(update, []).expect_err("the catalogue cannot be written any longer");
    }

    #[test]
    fn a_step_that_fails_leaves_the_version_before_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &place(), STEPS).unwrap();
        let broken = [STEPS, &[Step::Sql("CREATE TABLE extra (x); CREATE TABLE queue (y)")]].concat();
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
        let more = [STEPS, &[Step::Sql("CREATE TABLE later (x)")]].concat();
        migrate(&mut connection, &place(), &more).unwrap();
        let error = migrate(&mut connection, &place(), STEPS).unwrap_err().to_string();
        assert!(error.contains("test.db") && error.contains("newer tidegate"), "{error}");

        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE cookies (x)").unwrap();
        let error = migrate(&mut connection, &place(), STEPS).unwrap_err().to_string();
        assert!(error.contains("another program"), "{error}");
    }
}
