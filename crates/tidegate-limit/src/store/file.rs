//! The state file: SQLite, synced, shared by processes. No threads here; `mod.rs` has them.
//!
//! ```sql
//! reservation(limit_name, run, serial, amount, until_ns, period_ns, counts_until_ns)
//! ```
//! A row means "at most `amount` was booked under this limit before `until`". It is written with the whole reservation
//! before any of that is booked. When the reservation has ended, `amount` becomes what was used, and `until` when it ended.
//! At whatever instant the process dies, the sum of the rows is at least what was granted.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use tidegate_files::Draft;

use super::error::StoreError;
use crate::journal::{Reservation, Restored};
use crate::ledger::LATE_SHARE;
use crate::moment::{WallNanos, wall_nanos, wall_time};
use crate::others::Taken;

/// `tglt`, in the file's header: marks a state file of tidegate.
const APPLICATION_ID: i64 = 0x7467_6c74;
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE reservation (
        limit_name TEXT NOT NULL,
        run INTEGER NOT NULL,
        serial INTEGER NOT NULL,
        amount INTEGER NOT NULL CHECK (amount >= 0),
        until_ns INTEGER NOT NULL,
        period_ns INTEGER,
        counts_until_ns INTEGER NOT NULL,
        PRIMARY KEY (limit_name, run, serial)
    ) WITHOUT ROWID;
    CREATE TABLE state (runs INTEGER NOT NULL);
    INSERT INTO state VALUES (0);
";

/// Rows of calendar periods are kept this much longer than they count, because a clock may be set back.
const KEPT_LONGER: Duration = Duration::from_secs(48 * 3600);
/// Rows of sliding windows, which are many, are kept at least this much longer than they count.
const SLIDING_KEPT_LONGER: Duration = Duration::from_secs(3600);
/// The latest rows of each limit that are always kept, so that a clock that is wrong for a while deletes nothing needed.
const ROWS_KEPT: i64 = 256;
/// Writes between two deletions of old rows.
const WRITES_BETWEEN_PRUNES: u32 = 1_024;
/// A row that is further than this in the future was written by a clock that has been set back since. A row of another
/// process may be a little in the future if its write was faster.
const AHEAD: Duration = Duration::from_secs(600);
/// How long to wait for another process's write.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a crash may lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Loses nothing, even if the power fails: each write is synced, which takes a few milliseconds.
    #[default]
    PowerLoss,
    /// Loses nothing if the process dies (`kill -9`). If the machine does, loses about the last second. A write takes
    /// microseconds.
    Crash,
}

#[derive(Debug)]
pub(super) struct StateFile {
    connection: Connection,
    path: PathBuf,
    /// Device and inode, to notice that the file was replaced.
    identity: (u64, u64),
    created: bool,
    writes_until_prune: u32,
}

impl StateFile {
    pub(super) fn open(path: &Path, create: bool, durability: Durability) -> Result<StateFile, StoreError> {
        let created = match std::fs::metadata(path) {
            Ok(metadata) if metadata.len() == 0 => {
                // `create` never leaves an empty file, so this one has lost its content.
                return Err(StoreError::Corrupt { path: path.into(), detail: "it is empty".into() });
            }
            Ok(_) => false,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                StateFile::create(path, create)?;
                true
            }
            Err(error) => return Err(StoreError::of_io(path, &error)),
        };
        let wrap = |error: rusqlite::Error| StoreError::of(path, &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(wrap)?;
        connection.busy_timeout(PATIENCE).map_err(wrap)?;
        check_version(path, &connection)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(wrap)?;
        let synchronous = match durability {
            Durability::PowerLoss => "FULL",
            Durability::Crash => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous).map_err(wrap)?;
        let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(wrap)?;
        if check != "ok" {
            return Err(StoreError::Corrupt { path: path.into(), detail: check });
        }
        let identity = identity(path).map_err(|error| StoreError::of_io(path, &error))?;
        let mut file = StateFile { connection, path: path.into(), identity, created, writes_until_prune: 0 };
        // Writes to the file, so that one that cannot be written is an error now.
        file.begin_run()?;
        Ok(file)
    }

    /// Returns a new run number for a gate. Serial numbers are unique within a run.
    pub(super) fn begin_run(&mut self) -> Result<i64, StoreError> {
        self.connection.query_row("UPDATE state SET runs = runs + 1 RETURNING runs", [], |row| row.get(0)).map_err(
            |error| match error {
                rusqlite::Error::QueryReturnedNoRows => {
                    StoreError::Corrupt { path: self.path.clone(), detail: "it has lost its state".into() }
                }
                error => StoreError::of(&self.path, &error),
            },
        )
    }

    /// Creates the file under another name and links it when it is complete, so that a crash leaves none or all of it.
    fn create(path: &Path, create: bool) -> Result<(), StoreError> {
        let sidecar = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        if sidecar("-wal").exists() {
            let detail = "its -wal is there, but the file itself is not".into();
            return Err(StoreError::Corrupt { path: path.into(), detail });
        }
        if !create {
            return Err(StoreError::Missing { path: path.into() });
        }
        let wrap = |error: std::io::Error| StoreError::of_io(path, &error);
        // Created here, because SQLite would not state why it cannot create it.
        let draft = Draft::new(path).map_err(wrap)?;
        StateFile::fill(draft.path()).map_err(|error| StoreError::of(path, &error))?;
        // A link, unlike a move, does not replace a file that another process has created meanwhile.
        match std::fs::hard_link(draft.path(), path) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => draft.commit().map(drop).map_err(wrap),
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(wrap(error)),
            _ => {
                drop(draft);
                tidegate_files::sync_parent(path).map_err(wrap)
            }
        }
    }

    fn fill(draft: &Path) -> rusqlite::Result<()> {
        let connection = Connection::open(draft)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        connection.execute_batch(&format!("BEGIN; {SCHEMA} COMMIT;"))?;
        // Set here, because processes that open a new file at the same time would block each other.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.close().map_err(|(_, error)| error)
    }

    pub(super) fn created(&self) -> bool {
        self.created
    }

    /// Writes all of `batch` or nothing: reservations, each with its run. `grant` is called with the index of each and what
    /// other runs have in the file, and returns how much to write, or `None` for all of it.
    pub(super) fn write<'r>(
        &mut self,
        batch: impl Iterator<Item = (i64, &'r Reservation)>,
        grant: impl FnMut(usize, &[Taken]) -> Option<u64>,
    ) -> Result<(), StoreError> {
        if identity(&self.path).ok() != Some(self.identity) {
            return Err(StoreError::Replaced { path: self.path.clone() });
        }
        let newest = self.write_rows(batch, grant).map_err(|error| StoreError::of(&self.path, &error))?;
        match self.writes_until_prune.checked_sub(1) {
            Some(left) => self.writes_until_prune = left,
            None => {
                self.writes_until_prune = WRITES_BETWEEN_PRUNES;
                // The batch is written, so a failed deletion is ignored. If the file is broken, the next write fails.
                let _ = self.prune(newest);
            }
        }
        Ok(())
    }

    /// Returns the latest beginning of a written reservation.
    fn write_rows<'r>(
        &mut self,
        batch: impl Iterator<Item = (i64, &'r Reservation)>,
        mut grant: impl FnMut(usize, &[Taken]) -> Option<u64>,
    ) -> rusqlite::Result<WallNanos> {
        // Keeps other processes from writing between the reading of their rows and this write.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut newest = WallNanos::MIN;
        for (index, (run, reservation)) in batch.enumerate() {
            let (name, from) = (&*reservation.limit, wall_nanos(reservation.from));
            newest = newest.max(from);
            if let Some(settled) = reservation.settles {
                // Later than the last booking, even if that was at this instant; some requests may be sent a little later.
                let over = from.saturating_add(1);
                transaction
                    .prepare(
                        "UPDATE reservation SET amount = ?4, until_ns = min(until_ns, ?5
                                + CASE WHEN period_ns IS NULL THEN (counts_until_ns - until_ns) / ?6 ELSE 0 END)
                            WHERE limit_name = ?1 AND run = ?2 AND serial = ?3",
                    )?
                    .execute(params![
                        name,
                        run,
                        integer(settled.serial),
                        integer(settled.spent),
                        over,
                        integer(LATE_SHARE)
                    ])?;
            }
            move_back(&transaction, reservation)?;
            let amount = grant(index, &taken_by_others(&transaction, run, reservation)?).unwrap_or(reservation.amount);
            if amount > 0 {
                let (until, period) = (wall_nanos(reservation.until), reservation.period.map(wall_nanos));
                // The same serial again is a repeated write: the larger amount counts.
                transaction
                    .prepare(
                        "INSERT INTO reservation VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET
                            amount = max(amount, excluded.amount), until_ns = max(until_ns, excluded.until_ns),
                            counts_until_ns = max(counts_until_ns, excluded.counts_until_ns)",
                    )?
                    .execute(params![
                        name,
                        run,
                        integer(reservation.serial),
                        integer(amount),
                        until,
                        period,
                        wall_nanos(reservation.counts_until),
                    ])?;
            }
        }
        transaction.commit()?;
        Ok(newest)
    }

    /// Moves the rows of another state file to this one. They are committed here before they are deleted there, and their
    /// keys are derived from that file, so rows that are moved again replace themselves.
    pub(super) fn take_over(&mut self, other: &Path) -> Result<u64, StoreError> {
        let mut from = StateFile::open(other, false, Durability::PowerLoss)?;
        if from.identity == self.identity {
            return Ok(0);
        }
        let (device, inode) = from.identity;
        let there = |error: rusqlite::Error| StoreError::of(other, &error);
        let here = |error: rusqlite::Error| StoreError::of(&self.path, &error);
        // Keeps other processes from writing to the other file until the end.
        let reading = from.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(there)?;
        let writing = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(here)?;
        let mut moved = 0;
        {
            let mut rows = reading
                .prepare(
                    "SELECT limit_name, run, serial, amount, until_ns, period_ns, counts_until_ns FROM reservation
                        WHERE amount > 0",
                )
                .map_err(there)?;
            let mut insert = writing
                .prepare("INSERT OR REPLACE INTO reservation VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")
                .map_err(here)?;
            let mut rows = rows.query([]).map_err(there)?;
            while let Some(row) = rows.next().map_err(there)? {
                let read = || -> rusqlite::Result<_> {
                    let key: (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    let instants: (i64, Option<i64>, i64) = (row.get(4)?, row.get(5)?, row.get(6)?);
                    Ok((key, row.get::<_, i64>(3)?, instants))
                };
                let ((name, run, serial), amount, (until, period, counts_until)) = read().map_err(there)?;
                let run = run_of_other(device, inode, run);
                insert.execute(params![name, run, serial, amount, until, period, counts_until]).map_err(here)?;
                moved += 1;
            }
        }
        writing.commit().map_err(here)?;
        reading.execute("DELETE FROM reservation", []).map_err(there)?;
        reading.commit().map_err(there)?;
        Ok(moved)
    }

    /// Deletes rows that stopped counting long ago, but keeps the latest ones of each limit: the clock of `newest`, the
    /// instant of the last booking, may be wrong.
    fn prune(&mut self, newest: WallNanos) -> rusqlite::Result<()> {
        let before = newest.saturating_sub(KEPT_LONGER.as_nanos() as i64);
        let sliding_before = newest.saturating_sub(SLIDING_KEPT_LONGER.as_nanos() as i64);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let names: Vec<String> = transaction
            .prepare("SELECT DISTINCT limit_name FROM reservation")?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for name in names {
            transaction.execute(
                "DELETE FROM reservation WHERE limit_name = ?4
                    AND counts_until_ns < CASE WHEN period_ns IS NULL
                        THEN min(?2, ?3 - (counts_until_ns - until_ns)) ELSE ?1 END
                    AND until_ns < (SELECT until_ns FROM reservation WHERE limit_name = ?4
                        ORDER BY until_ns DESC LIMIT 1 OFFSET ?5)",
                params![before, sliding_before, newest, name, ROWS_KEPT - 1],
            )?;
        }
        transaction.commit()
    }

    /// Returns all reservations, with the names of their limits.
    pub(super) fn taken(&self) -> Result<Vec<(String, Taken)>, StoreError> {
        let read = || -> rusqlite::Result<Vec<_>> {
            let select = "SELECT limit_name, run, serial, amount, until_ns FROM reservation WHERE amount > 0
                ORDER BY until_ns";
            let mut statement = self.connection.prepare(select)?;
            let rows = statement.query_map([], |row| {
                let amount = row.get::<_, i64>(3)?.unsigned_abs();
                Ok((row.get(0)?, Taken { id: (row.get(1)?, row.get(2)?), amount, until: row.get(4)? }))
            })?;
            rows.collect()
        };
        read().map_err(|error| StoreError::of(&self.path, &error))
    }

    /// Returns upper bounds of what was booked.
    pub(super) fn load(&self) -> Result<Vec<Restored>, StoreError> {
        self.rows().map_err(|error| StoreError::of(&self.path, &error))
    }

    fn rows(&self) -> rusqlite::Result<Vec<Restored>> {
        let mut statement = self
            .connection
            .prepare("SELECT limit_name, coalesce(period_ns, until_ns), amount FROM reservation WHERE amount > 0")?;
        let mut rows = statement.query([])?;
        let mut sums: BTreeMap<(WallNanos, String), u64> = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (name, at, amount) = (row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?);
            let sum = sums.entry((at, name)).or_default();
            *sum = sum.saturating_add(amount.unsigned_abs());
        }
        Ok(sums.into_iter().map(|((at, name), sum)| Restored::new(name, sum, wall_time(at))).collect())
    }
}

/// Moves rows in the future to now: they were written before the clock was set back. They then count as if they had been
/// booked now, which is not earlier than they were.
fn move_back(transaction: &Transaction<'_>, reservation: &Reservation) -> rusqlite::Result<()> {
    let now = wall_nanos(reservation.from);
    let ahead = now.saturating_add(AHEAD.as_nanos() as i64);
    // A reservation of a sliding window ends in the future, by a share of the window.
    transaction
        .prepare(
            "UPDATE reservation SET until_ns = ?2, counts_until_ns = ?2 + (counts_until_ns - until_ns)
                WHERE limit_name = ?1 AND period_ns IS NULL AND until_ns > ?3 + (counts_until_ns - until_ns) / 32",
        )?
        .execute(params![&*reservation.limit, now, ahead])?;
    let (period, until) = match reservation.period {
        Some(period) => (wall_nanos(period), wall_nanos(reservation.until)),
        None => (now, now),
    };
    transaction
        .prepare(
            "UPDATE reservation SET period_ns = ?2, until_ns = min(until_ns, ?3), counts_until_ns = min(counts_until_ns, ?3)
                WHERE limit_name = ?1 AND period_ns > ?4",
        )?
        .execute(params![&*reservation.limit, period, until, ahead])?;
    Ok(())
}

/// Returns the rows of other runs for the limit of `reservation` that its window may still count.
fn taken_by_others(transaction: &Transaction<'_>, run: i64, reservation: &Reservation) -> rusqlite::Result<Vec<Taken>> {
    let (until, counts_until) = (wall_nanos(reservation.until), wall_nanos(reservation.counts_until));
    let since = match reservation.period {
        Some(period) => wall_nanos(period),
        None => wall_nanos(reservation.from).saturating_sub(counts_until.saturating_sub(until)),
    };
    let mut statement = transaction.prepare(
        "SELECT run, serial, amount, until_ns FROM reservation
            WHERE limit_name = ?1 AND run <> ?2 AND until_ns > ?3",
    )?;
    let rows = statement.query_map(params![&*reservation.limit, run, since], |row| {
        let amount = row.get::<_, i64>(2)?.unsigned_abs();
        Ok(Taken { id: (row.get(0)?, row.get(1)?), amount, until: row.get(3)? })
    })?;
    rows.collect()
}

/// Returns the number of a run of another file in this one. It is negative, unlike those of this file's runs.
fn run_of_other(device: u64, inode: u64, run: i64) -> i64 {
    // FNV-1a, because it is the same in every version of the program.
    let bytes = [device, inode, run.cast_unsigned()].map(u64::to_le_bytes);
    let hash = bytes
        .iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    -(hash >> 1).cast_signed() - 1
}

fn check_version(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|error| StoreError::of(path, &error))
    };
    if pragma("application_id")? != APPLICATION_ID {
        return Err(StoreError::Foreign { path: path.into() });
    }
    match pragma("user_version")? {
        SCHEMA_VERSION => Ok(()),
        version => Err(StoreError::TooNew { path: path.into(), version }),
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Converts to SQLite's signed integers. Saturates; real values are smaller.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::journal::Settled;

    /// A directory that goes away with its test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("tidegate-store-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("limits.db")
        }

        fn open(&self) -> Result<StateFile, StoreError> {
            StateFile::open(&self.file(), true, Durability::Crash)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn at(secs: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + secs)
    }

    /// A minute's reservation from second `from` on, counted for another minute.
    fn sliding(serial: u64, amount: u64, from: u64) -> Reservation {
        Reservation {
            limit: "rpm".into(),
            serial,
            amount,
            from: at(from),
            until: at(from + 1),
            counts_until: at(from + 61),
            period: None,
            settles: None,
        }
    }

    fn daily(serial: u64, amount: u64, day: u64) -> Reservation {
        let day = day * 86_400;
        Reservation {
            limit: "rpd".into(),
            until: at(day + 86_400),
            counts_until: at(day + 86_400),
            period: Some(at(day)),
            ..sliding(serial, amount, day)
        }
    }

    fn settling(mut reservation: Reservation, serial: u64, spent: u64) -> Reservation {
        reservation.settles = Some(Settled { serial, spent });
        reservation
    }

    fn try_write(file: &mut StateFile, batch: &[Reservation]) -> Result<(), StoreError> {
        file.write(batch.iter().map(|reservation| (1, reservation)), |_, _| None)
    }

    fn write(file: &mut StateFile, batch: &[Reservation]) {
        try_write(file, batch).unwrap();
    }

    #[test]
    fn what_is_open_counts_in_full_and_what_is_settled_as_it_was() {
        let scratch = Scratch::new("open");
        let mut file = scratch.open().unwrap();
        assert!(file.created());
        write(&mut file, &[daily(1, 50, 0)]);
        write(&mut file, &[settling(daily(2, 50, 0), 1, 37), sliding(1, 10, 5)]);
        drop(file);

        let mut file = scratch.open().unwrap();
        assert!(!file.created());
        assert_eq!(file.load().unwrap(), [Restored::new("rpd", 87, at(0)), Restored::new("rpm", 10, at(6))]);
        // Serials begin again, and do not touch those of an earlier run.
        let run = file.begin_run().unwrap();
        for reservation in [daily(1, 50, 0), settling(daily(2, 0, 0), 1, 3)] {
            file.write(std::iter::once((run, &reservation)), |_, _| None).unwrap();
        }
        drop(file);
        let file = scratch.open().unwrap();
        assert_eq!(file.load().unwrap()[0], Restored::new("rpd", 90, at(0)));
    }

    #[test]
    fn a_batch_is_written_whole() {
        let scratch = Scratch::new("batch");
        let mut file = scratch.open().unwrap();
        let batch: Vec<_> = (1..=100).map(|serial| sliding(serial, 1, serial)).collect();
        write(&mut file, &batch);
        drop(file);
        assert_eq!(scratch.open().unwrap().load().unwrap().len(), 100);
    }

    #[test]
    fn a_write_that_is_repeated_counts_once_and_the_larger_claim_stands() {
        let scratch = Scratch::new("repeated");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[daily(1, 50, 0)]);
        write(&mut file, &[daily(1, 60, 0)]);
        write(&mut file, &[daily(1, 40, 0)]);
        drop(file);
        assert_eq!(scratch.open().unwrap().load().unwrap(), [Restored::new("rpd", 60, at(0))]);
    }

    fn count_rows(file: &StateFile, limit: &str) -> i64 {
        let count = "SELECT count(*) FROM reservation WHERE limit_name = ?1";
        file.connection.query_row(count, [limit], |row| row.get(0)).unwrap()
    }

    #[test]
    fn rows_that_no_longer_count_go_when_there_are_many() {
        let scratch = Scratch::new("prune");
        let mut file = scratch.open().unwrap();
        let minutes: Vec<_> = (0..1_000).map(|serial| sliding(serial, 1, serial)).collect();
        write(&mut file, &minutes);
        write(&mut file, &[daily(1, 50, 0)]);
        file.writes_until_prune = 0;
        write(&mut file, &[sliding(1_000, 1, 3_000)]);
        assert_eq!(count_rows(&file, "rpm"), 1_001, "within the hour they may still be asked for");
        file.writes_until_prune = 0;
        write(&mut file, &[sliding(1_001, 1, 86_400)]);
        assert_eq!(count_rows(&file, "rpm"), ROWS_KEPT);
        assert_eq!(count_rows(&file, "rpd"), 1);
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_while_does_not_delete_the_day() {
        let scratch = Scratch::new("wrong");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[daily(1, 50, 0)]);
        file.writes_until_prune = 0;
        write(&mut file, &[daily(2, 7, 1_000)]);
        // Set back: what was booked meanwhile counts as of now.
        write(&mut file, &[daily(3, 1, 0)]);
        assert_eq!(file.load().unwrap(), [Restored::new("rpd", 58, at(0))]);
    }

    #[test]
    fn rows_ahead_of_a_clock_that_was_set_back_are_moved_to_now() {
        let scratch = Scratch::new("ahead");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[sliding(2, 10, 100), sliding(1, 10, 3_600)]);
        write(&mut file, &[sliding(3, 10, 0)]);
        let moved = [Restored::new("rpm", 10, at(0)), Restored::new("rpm", 10, at(1))];
        assert_eq!(file.load().unwrap()[..2], moved);
        assert_eq!(file.load().unwrap()[2], Restored::new("rpm", 10, at(101)), "as a slow write may be ahead");
    }

    #[test]
    fn a_grant_sees_what_other_runs_have_and_decides_what_is_written() {
        let scratch = Scratch::new("grant");
        let (mut first, mut second) = (scratch.open().unwrap(), scratch.open().unwrap());
        let (one, two) = (first.begin_run().unwrap(), second.begin_run().unwrap());
        let write = |file: &mut StateFile, run, reservation: &Reservation, granted: Option<u64>| {
            let mut seen = Vec::new();
            let grant = |_: usize, taken: &[Taken]| {
                seen.extend(taken.iter().map(|taken| taken.amount));
                granted
            };
            file.write(std::iter::once((run, reservation)), grant).unwrap();
            seen
        };
        assert_eq!(write(&mut first, one, &daily(1, 20, 0), Some(15)), [0_u64; 0]);
        assert_eq!(write(&mut second, two, &daily(1, 20, 0), None), [15]);
        assert_eq!(write(&mut first, one, &settling(daily(2, 20, 0), 1, 12), Some(0)), [20]);
        assert_eq!(write(&mut second, two, &daily(2, 1, 0), Some(0)), [12]);
        assert_eq!(write(&mut second, two, &daily(3, 1, 1), Some(0)), [0_u64; 0], "another day");
    }

    #[test]
    fn what_another_file_counted_is_moved_once() {
        let scratch = Scratch::new("moved");
        let earlier = scratch.0.join("earlier.db");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[daily(1, 7, 0)]);
        {
            let mut other = StateFile::open(&earlier, true, Durability::Crash).unwrap();
            write(&mut other, &[daily(1, 50, 0), sliding(1, 10, 5)]);
            let run = other.begin_run().unwrap();
            other.write(std::iter::once((run, &daily(1, 3, 0))), |_, _| None).unwrap();
        }
        // As after a crash before the rows were deleted there.
        let copy = scratch.0.join("copy.db");
        std::fs::copy(&earlier, &copy).unwrap();
        assert_eq!(file.take_over(&earlier).unwrap(), 3);
        let restore = |path: &Path| std::fs::write(path, std::fs::read(&copy).unwrap()).unwrap();
        let all = [Restored::new("rpd", 60, at(0)), Restored::new("rpm", 10, at(6))];
        assert_eq!(file.load().unwrap(), all);
        restore(&earlier);
        assert_eq!(file.take_over(&earlier).unwrap(), 3);
        assert_eq!(file.load().unwrap(), all, "the same rows");
        assert_eq!(file.take_over(&earlier).unwrap(), 0, "nothing is left there");

        // What is counted there afterwards is new.
        let mut other = StateFile::open(&earlier, false, Durability::Crash).unwrap();
        let run = other.begin_run().unwrap();
        other.write(std::iter::once((run, &daily(1, 2, 0))), |_, _| None).unwrap();
        drop(other);
        assert_eq!(file.take_over(&earlier).unwrap(), 1);
        assert_eq!(file.load().unwrap()[0], Restored::new("rpd", 62, at(0)));
    }

    #[test]
    fn a_file_that_cannot_be_moved_is_left_alone_and_named() {
        let scratch = Scratch::new("not-moved");
        let mut file = scratch.open().unwrap();
        let other = scratch.0.join("other.db");
        assert_eq!(file.take_over(&other).unwrap_err(), StoreError::Missing { path: other.clone() });
        std::fs::write(&other, "half a state fi").unwrap();
        assert!(matches!(file.take_over(&other).unwrap_err(), StoreError::Corrupt { path, .. } if path == other));
        assert_eq!(std::fs::read(&other).unwrap(), b"half a state fi");
        assert_eq!(file.take_over(&scratch.file()), Ok(0), "itself");
        let rows = StateFile::open(&other.with_extension("rows"), true, Durability::Crash).unwrap();
        rows.connection.execute("INSERT INTO reservation VALUES ('rpd', 'x', 'y', 1, 'z', NULL, 0)", []).unwrap();
        drop(rows);
        assert!(file.take_over(&other.with_extension("rows")).is_err(), "rows that make no sense");
        assert_eq!(file.load().unwrap(), []);
    }

    #[test]
    fn a_full_disk_fails_the_write_and_loses_nothing() {
        let scratch = Scratch::new("full");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[daily(1, 50, 0)]);
        let pages: i64 = file.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let page_max = |file: &StateFile, pages: i64| {
            file.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
        };
        page_max(&file, pages);
        let large: Vec<_> = (2..5_000).map(|serial| sliding(serial, 1, serial)).collect();
        assert_eq!(try_write(&mut file, &large).unwrap_err(), StoreError::Full { path: scratch.file() });
        // Room is made, and it goes on.
        page_max(&file, 1_000_000);
        write(&mut file, &large);
        drop(file);
        assert_eq!(scratch.open().unwrap().load().unwrap()[0], Restored::new("rpd", 50, at(0)));
    }

    #[test]
    fn a_file_that_must_not_be_written_is_told_apart() {
        let scratch = Scratch::new("readonly");
        let mut file = scratch.open().unwrap();
        file.connection.pragma_update(None, "query_only", true).unwrap();
        let error = try_write(&mut file, &[daily(1, 1, 0)]).unwrap_err();
        assert_eq!(error, StoreError::ReadOnly { path: scratch.file() });
        assert!(error.to_string().contains("limits.db"));
    }

    #[test]
    fn a_file_that_was_taken_away_is_missed_before_anything_is_granted() {
        let scratch = Scratch::new("replaced");
        let mut file = scratch.open().unwrap();
        let aside = scratch.0.join("aside.db");
        std::fs::rename(scratch.file(), &aside).unwrap();
        let replaced = StoreError::Replaced { path: scratch.file() };
        assert_eq!(try_write(&mut file, &[daily(1, 1, 0)]).unwrap_err(), replaced);
        std::fs::copy(&aside, scratch.file()).unwrap();
        assert_eq!(try_write(&mut file, &[daily(1, 1, 0)]).unwrap_err(), replaced);
        std::fs::rename(&aside, scratch.file()).unwrap();
        write(&mut file, &[daily(1, 1, 0)]);
    }

    #[test]
    fn damage_is_told_and_never_taken_for_a_fresh_start() {
        let scratch = Scratch::new("damage");
        let mut file = scratch.open().unwrap();
        write(&mut file, &(1..2_000).map(|serial| sliding(serial, 1, serial)).collect::<Vec<_>>());
        drop(file);
        let whole = std::fs::read(scratch.file()).unwrap();
        let damaged = |bytes: &[u8]| {
            std::fs::write(scratch.file(), bytes).unwrap();
            match scratch.open() {
                Err(error @ StoreError::Corrupt { .. }) => assert!(error.to_string().contains("limits.db"), "{error}"),
                other => panic!("{other:?}"),
            }
        };
        damaged(b"");
        damaged(b"not a database at all, but longer than its header would be");
        damaged(&whole[..whole.len() / 2]);
        damaged(&whole[..100]);
        let mut torn = whole.clone();
        torn[4096..12_288].fill(0xaa);
        damaged(&torn);
        std::fs::write(scratch.file(), &whole).unwrap();
        assert_eq!(scratch.open().unwrap().load().unwrap().len(), 1_999);
    }

    #[test]
    fn no_flipped_byte_makes_it_panic() {
        let scratch = Scratch::new("flip");
        let mut file = scratch.open().unwrap();
        write(&mut file, &[daily(1, 50, 0), sliding(1, 10, 0)]);
        drop(file);
        let whole = std::fs::read(scratch.file()).unwrap();
        let mut state = 1_u64;
        for _ in 0..300 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = whole.clone();
            // The header and the schema, or anywhere.
            let range = if state & (1 << 40) == 0 { 1_024 } else { bytes.len() };
            let place = (state >> 33) as usize % range;
            bytes[place] ^= 1 << (state >> 20 & 7);
            std::fs::write(scratch.file(), bytes).unwrap();
            if let Ok(mut file) = scratch.open() {
                let _ = file.load();
                let _ = try_write(&mut file, &[daily(2, 1, 0)]);
            }
            for suffix in ["-wal", "-journal"] {
                let _ = std::fs::remove_file(scratch.0.join(format!("limits.db{suffix}")));
            }
        }
    }

    #[test]
    fn a_database_of_another_program_is_left_alone() {
        let scratch = Scratch::new("foreign");
        let connection = Connection::open(scratch.file()).unwrap();
        connection.execute_batch("CREATE TABLE precious (x); INSERT INTO precious VALUES (1);").unwrap();
        drop(connection);
        let before = std::fs::read(scratch.file()).unwrap();
        assert_eq!(scratch.open().unwrap_err(), StoreError::Foreign { path: scratch.file() });
        assert_eq!(std::fs::read(scratch.file()).unwrap(), before);
    }

    #[test]
    fn a_later_version_is_not_touched() {
        let scratch = Scratch::new("newer");
        let file = scratch.open().unwrap();
        file.connection.pragma_update(None, "user_version", 2).unwrap();
        drop(file);
        assert_eq!(scratch.open().unwrap_err(), StoreError::TooNew { path: scratch.file(), version: 2 });
    }

    #[test]
    fn a_log_without_its_file_is_damage() {
        let scratch = Scratch::new("orphan");
        std::fs::write(scratch.0.join("limits.db-wal"), "what was booked last").unwrap();
        assert!(matches!(scratch.open().unwrap_err(), StoreError::Corrupt { .. }));
        assert!(!scratch.file().exists());
    }

    #[test]
    fn where_nothing_can_be_made_the_reason_is_told() {
        let scratch = Scratch::new("nowhere");
        let open = |path: &Path| StateFile::open(path, true, Durability::Crash).unwrap_err();
        let path = scratch.0.join("no such directory/limits.db");
        assert!(matches!(open(&path), StoreError::Failed { .. }));
        assert!(matches!(open(&scratch.0), StoreError::Failed { .. }));
        let path = Path::new("/proc/limits.db");
        assert!(matches!(open(path), StoreError::Failed { .. } | StoreError::ReadOnly { .. }));
        let missing = scratch.0.join("missing.db");
        let error = StateFile::open(&missing, false, Durability::Crash).unwrap_err();
        assert_eq!(error, StoreError::Missing { path: missing });
    }
}
