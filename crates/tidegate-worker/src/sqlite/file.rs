//! The database file as one process has it open: how it is opened, how it behaves towards other writers, what is done
//! about a full disk and a file that goes away.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use rustix::fs::statvfs;

use crate::broker::BrokerError;

use super::Options;
use super::bell::{Bell, beside};
use super::error::{Place, directory};
use super::schema;

/// At this many frames the write-ahead log is begun anew; below, the restart would cost more than it saves.
const FRAMES_BEFORE_RESTART: i32 = 2_000;

/// What a log that is about to be begun anew may need in the database, and some more.
pub(super) const BALLAST_BYTES: u64 = 12 << 20;

const _: () = assert!(BALLAST_BYTES > FRAMES_BEFORE_RESTART as u64 * 4_096);

/// Longer than most transactions of other processes, and short enough to be fair: all waiting processes retry equally often.
const BUSY_SLEEP_US_MIN: u64 = 100;
const BUSY_SLEEP_US_MAX: u64 = 500;

/// How long a restart of the log waits for readers before it is left for later.
const RESTART_WAIT: Duration = Duration::from_millis(20);

/// The log keeps this much of the disk while it is in use.
const LOG_BYTES_KEPT: u32 = 16 << 20;

pub(super) struct QueueFile {
    pub(super) connection: Connection,
    pub(super) place: Place,
    pub(super) bell: Bell,
    /// Which file it was when it was opened.
    identity: (u64, u64),
    /// Frames in the log after the last commit, as its hook tells.
    frames: Arc<AtomicI32>,
    /// Milliseconds a lock is waited for.
    patience_ms: Arc<AtomicI32>,
    busy_ms: i32,
    /// Whether commits are synced at the moment; `None`: not known.
    synced: Option<bool>,
    /// Since when the lock is waited for; `None` while it is not.
    waits_since: Option<Instant>,
    data_version: i64,
    ballast_bytes: u64,
}

impl QueueFile {
    pub(super) fn open(options: &Options) -> Result<QueueFile, BrokerError> {
        let place = Place::of(&options.path);
        let had_bell = beside(&options.path, "-bell").symlink_metadata().is_ok();
        let bell = Bell::open(&options.path).map_err(|error| place.io(&error))?;
        // One at a time: the change to WAL and the making of the tables do not mix with others doing the same.
        let opened = bell.locked(|| QueueFile::connect(options, &place)).map_err(|error| place.io(&error))?;
        // Another program's file is left as it was found, with nothing beside it.
        if !had_bell && matches!(opened, Err(BrokerError::Refused { .. } | BrokerError::Damaged { .. })) {
            bell.remove();
        }
        let (connection, frames, patience_ms) = opened?;
        let identity = identity(&options.path).map_err(|error| place.io(&error))?;
        let mut file = QueueFile {
            connection,
            place,
            bell,
            identity,
            frames,
            busy_ms: patience_ms.load(Ordering::Relaxed),
            patience_ms,
            synced: None,
            waits_since: None,
            data_version: 0,
            ballast_bytes: options.ballast_bytes,
        };
        file.data_version = file.read_data_version()?;
        file.mend_ballast();
        Ok(file)
    }

    fn connect(options: &Options, place: &Place) -> Result<(Connection, Arc<AtomicI32>, Arc<AtomicI32>), BrokerError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let busy_ms = i32::try_from(options.busy_timeout.as_millis()).unwrap_or(i32::MAX);
        let patience_ms = Arc::new(AtomicI32::new(busy_ms));
        let connect = || -> rusqlite::Result<Connection> {
            let mut connection = Connection::open_with_flags(&options.path, flags)?;
            let patience = Arc::clone(&patience_ms);
            let mut since = Instant::now();
            connection.busy_handler(Some(move |count| be_patient(count, &mut since, &patience)))?;
            Ok(connection)
        };
        let set_up = |connection: &mut Connection| -> rusqlite::Result<Arc<AtomicI32>> {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "wal_autocheckpoint", 0)?;
            connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
            connection.set_prepared_statement_cache_capacity(64);
            let frames = Arc::new(AtomicI32::new(0));
            let told = Arc::clone(&frames);
            connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
                told.store(pages, Ordering::Relaxed);
                Ok(())
            }))?;
            Ok(frames)
        };
        tidegate_files::prepare_database(&options.path).map_err(|error| place.io(&error))?;
        let mut connection = connect().map_err(|error| place.sqlite(&error))?;
        // Before anything is changed: the journal mode is written into the file.
        schema::check_owner(&connection, place)?;
        let frames = set_up(&mut connection).map_err(|error| place.sqlite(&error))?;
        schema::migrate(&mut connection, place, schema::STEPS)?;
        Ok((connection, frames, patience_ms))
    }

    /// Begins to write. Synced or not is decided here, because it cannot be changed on the way. Returns how long the lock was
    /// waited for, failed attempts included.
    pub(super) fn begin(&mut self, synced: bool) -> rusqlite::Result<Duration> {
        if self.synced != Some(synced) {
            let level = if synced { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.synced = Some(synced);
        }
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.waits_since = None;
        Ok(since.elapsed())
    }

    pub(super) fn commit(&mut self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// SQLite may have rolled back by itself.
    pub(super) fn roll_back(&mut self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(queue = %self.place.path().display(), %error, "a transaction could not be rolled back");
        }
    }

    /// Returns `true` if another process has committed since the last call.
    pub(super) fn others_wrote(&mut self) -> Result<bool, BrokerError> {
        let version = self.read_data_version()?;
        Ok(std::mem::replace(&mut self.data_version, version) != version)
    }

    fn read_data_version(&self) -> Result<i64, BrokerError> {
        self.connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(|error| self.place.sqlite(&error))
    }

    /// Begins the log anew when it has become long. One process at a time; the others go on.
    pub(super) fn restart_long_log(&mut self) {
        if self.frames.load(Ordering::Relaxed) >= FRAMES_BEFORE_RESTART {
            self.checkpoint("RESTART");
        }
    }

    /// Gives the log's room back to the disk; for when nothing has happened for a while.
    pub(super) fn truncate_log(&mut self) {
        if self.frames.load(Ordering::Relaxed) > 0 {
            self.checkpoint("TRUNCATE");
        }
    }

    fn checkpoint(&mut self, kind: &str) {
        let wait = i32::try_from(RESTART_WAIT.as_millis()).unwrap_or(i32::MAX);
        self.patience_ms.store(wait, Ordering::Relaxed);
        let connection = &self.connection;
        let done = self.bell.try_locked(|| {
            connection.query_row(&format!("PRAGMA wal_checkpoint({kind})"), [], |row| row.get::<_, i64>(0))
        });
        self.patience_ms.store(self.busy_ms, Ordering::Relaxed);
        match done {
            // Another process does it, or a reader was in the way: the next commit tries again.
            None | Some(Ok(1)) => {}
            Some(Ok(_)) => self.frames.store(0, Ordering::Relaxed),
            Some(Err(error)) => {
                tracing::debug!(queue = %self.place.path().display(), %error, "the log could not be begun anew yet");
            }
        }
    }

    /// An open file that was deleted or replaced takes writes into nothing.
    pub(super) fn check_still_there(&self) -> Result<(), BrokerError> {
        match identity(self.place.path()) {
            Ok(there) if there == self.identity => Ok(()),
            _ => Err(self.place.damaged(
                "was deleted or replaced while in use: what is written now would be lost. Restart whatever uses it"
                    .into(),
            )),
        }
    }

    fn ballast(&self) -> PathBuf {
        beside(self.place.path(), "-ballast")
    }

    /// The disk is full: gives the ballast up, and with its room moves what is in the log to where it belongs, so that the
    /// log begins anew and needs no more.
    pub(super) fn make_room(&mut self) {
        let ballast = self.ballast();
        // Another file of that name is left alone.
        let is_ours =
            ballast.symlink_metadata().is_ok_and(|about| about.is_file() && about.len() == self.ballast_bytes);
        if is_ours && std::fs::remove_file(&ballast).is_ok() {
            tracing::warn!(
                queue = %self.place.path().display(),
                "the disk is full: gave up the ballast so that work can be settled"
            );
        }
        self.checkpoint("RESTART");
    }

    /// Makes it again, if there is room. A queue without ballast works until the disk is full.
    pub(super) fn mend_ballast(&self) {
        let path = self.ballast();
        if self.ballast_bytes == 0 || path.symlink_metadata().is_ok() || !has_room(&path, 2 * self.ballast_bytes) {
            return;
        }
        if let Err(error) = fill(&path, self.ballast_bytes) {
            tracing::debug!(ballast = %path.display(), %error, "no room for ballast");
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Whether the disk has this much left.
fn has_room(path: &Path, bytes: u64) -> bool {
    statvfs(directory(path)).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes)
}

fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = tidegate_files::create_new(path)?;
    let block = vec![0x2e; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(block.len() as u64) as usize;
        file.write_all(&block[..part])?;
        left -= part as u64;
    }
    file.sync_all()
}

fn be_patient(count: i32, since: &mut Instant, patience_ms: &AtomicI32) -> bool {
    if count == 0 {
        *since = Instant::now();
    }
    let patience = Duration::from_millis(patience_ms.load(Ordering::Relaxed).max(0) as u64);
    if since.elapsed() >= patience {
        return false;
    }
    let sleep = (BUSY_SLEEP_US_MIN + 20 * count.max(0) as u64).min(BUSY_SLEEP_US_MAX);
    thread::sleep(Duration::from_micros(sleep));
    true
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_not_a_queue_is_left_as_it_was_with_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let (database, text) = (directory.path().join("cookies.db"), directory.path().join("notes.txt"));
        Connection::open(&database).unwrap().execute_batch("CREATE TABLE cookies (x)").unwrap();
        fs::write(&text, "not a database, but longer than the header of one: ".repeat(20)).unwrap();
        for path in [&database, &text] {
            let before = fs::read(path).unwrap();
            let error = QueueFile::open(&Options::new(path)).err().expect("it is not a queue").to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            assert_eq!(fs::read(path).unwrap(), before);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
