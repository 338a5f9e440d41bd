//! Keeps what was used of a quota in a file, so that the next run continues to count where the last one stopped.
//!
//! ```
//! use tidegate_limit::store::Store;
//! use tidegate_limit::{Cost, Gate, Limit};
//!
//! # let directory = std::env::temp_dir().join(format!("tidegate-doc-store-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory).unwrap();
//! # let file = directory.join("limits.db");
//! // The day's count is written 50 requests ahead: after a crash, up to 50 too many are counted, never too few.
//! let limit = || Limit::rpd(10_000, "America/Los_Angeles").journaled(50);
//!
//! # tidegate_loop::run(async move {
//! let store = Store::open(&file)?;
//! let gate = Gate::builder().limit(limit()).store(&store)?.build().unwrap();
//! for _ in 0..60 {
//!     gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
//! }
//! gate.close();
//! store.close();
//!
//! let store = Store::open(&file)?;
//! let gate = Gate::builder().limit(limit()).store(&store)?.build().unwrap();
//! assert_eq!(gate.stats().limit("rpd").unwrap().used, 60);
//! # std::fs::remove_dir_all(&directory).unwrap();
//! # Ok::<_, tidegate_limit::store::StoreError>(())
//! # }).unwrap().unwrap();
//! ```
//!
//! # Several processes
//! Processes on one machine that open the same file share its limits. Each reservation is granted in a transaction that
//! sees the reservations of all others, so together they never book more than one alone could. What a process has reserved
//! and not used becomes free for the others when its gate is closed or reserves again. While only other processes leave no
//! room, the file is read again every sixtieth of the window, within 250 ms and 10 s. All processes should state the same
//! limits; otherwise each keeps its own.
//!
//! # Clocks that are set
//! Instants in the file are of the wall clock. A row in the future was written before the clock was set back; it counts as
//! if it had just been booked, so nothing is lost. If the clock was set ahead, the new time is used: for a new process, rows
//! may have left their window; a process that has read them before counts them for their full time.
//!
//! # Errors
//! Each failure is a [`StoreError`] that names the file and what to do; none leads to counting from zero. A failure while
//! the gate is in use (a full disk, a deleted file) is returned to entries as
//! [`EnterError::Journal`](crate::EnterError::Journal), and the next entry tries again.

mod error;
mod file;

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::journal::{Journal, Receipt, Reservation, Restored};

pub use error::StoreError;
pub use file::Durability;

use file::StateFile;

/// An open state file. Clones are the same.
///
/// A thread of the store writes the reservations, all that have come meanwhile in one transaction. When the last clone is
/// dropped, the rest is written and the file is closed; [`close`](Self::close) waits for that.
#[derive(Clone)]
pub struct Store {
    handle: Arc<StoreHandle>,
}

/// Closes the store with its last user. The thread has no handle.
struct StoreHandle {
    shared: Arc<StoreShared>,
}

struct StoreShared {
    path: PathBuf,
    created: bool,
    state: Mutex<StoreState>,
    /// Notified when a request has come, when a write has ended, and when the store is closed.
    changed: Condvar,
}

struct StoreState {
    file: FileState,
    waiting: VecDeque<StoreRequest>,
    writer: StoreWriter,
    /// No further requests are accepted. The thread that has the file, or finds it idle, writes the rest and closes it.
    closed: bool,
}

enum FileState {
    Idle(Box<StateFile>),
    /// In use by a thread that writes or closes it without the lock.
    Taken,
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreWriter {
    Inline,
    /// The thread is started with the first request.
    NoThreadYet,
    Thread,
}

/// A reservation to write, with its run.
type StoreRequest = (i64, Reservation, Receipt);

impl Store {
    /// Opens the state file, or creates it (see [`created`](Self::created)). Its directory must exist. Each write is synced.
    ///
    /// # Errors
    /// [`StoreError`] if an existing file cannot be used, or a new one cannot be created.
    ///
    /// ```
    /// use tidegate_limit::store::Store;
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-open-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file).unwrap();
    /// assert!(store.created());
    /// assert!(!Store::open(&file).unwrap().created());
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Store, StoreError> {
        Store::open_with(path, Durability::PowerLoss)
    }

    /// As [`open`](Self::open), with a choice of what a crash may lose.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// ```
    /// use tidegate_limit::store::{Durability, Store};
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-with-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open_with(&file, Durability::Crash).unwrap();
    /// # drop(store);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn open_with(path: impl AsRef<Path>, durability: Durability) -> Result<Store, StoreError> {
        let path = path.as_ref();
        Ok(Store::new(path, StateFile::open(path, true, durability)?))
    }

    /// As [`open`](Self::open), but fails with [`StoreError::Missing`] if the file does not exist, so that a mistyped path
    /// does not start a new quota.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`StoreError::Missing`].
    ///
    /// ```
    /// use tidegate_limit::store::{Store, StoreError};
    /// let error = Store::open_existing("/nowhere/limits.db").unwrap_err();
    /// assert!(matches!(error, StoreError::Missing { .. }));
    /// ```
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Store, StoreError> {
        let path = path.as_ref();
        Ok(Store::new(path, StateFile::open(path, false, Durability::PowerLoss)?))
    }

    fn new(path: &Path, file: StateFile) -> Store {
        let created = file.created();
        let file = FileState::Idle(Box::new(file));
        let state = StoreState { file, waiting: VecDeque::new(), writer: StoreWriter::NoThreadYet, closed: false };
        let shared = StoreShared { path: path.into(), created, state: Mutex::new(state), changed: Condvar::new() };
        Store { handle: Arc::new(StoreHandle { shared: Arc::new(shared) }) }
    }

    /// Writes in the thread of the entry instead of the store's own. No waker is then called from another thread, so it
    /// works in virtual time. Each write blocks its thread for the time of a sync.
    ///
    /// ```
    /// use tidegate_limit::store::Store;
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-inline-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file).unwrap().inline();
    /// # drop(store);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    #[must_use]
    pub fn inline(self) -> Store {
        self.shared().lock().writer = StoreWriter::Inline;
        self
    }

    /// Whether the file was created, so that all limits count from zero.
    pub fn created(&self) -> bool {
        self.shared().created
    }

    /// Returns upper bounds of what earlier runs booked.
    ///
    /// # Errors
    /// [`StoreError`], if the file cannot be read.
    ///
    /// ```
    /// use tidegate_limit::store::Store;
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-restored-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file).unwrap();
    /// assert_eq!(store.restored().unwrap(), []);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn restored(&self) -> Result<Vec<Restored>, StoreError> {
        self.with_file(|file| file.load())
    }

    /// Moves the counts of another state file to this one, and returns the number of reservations that were moved. The other
    /// file remains, without counts. A crash in between loses nothing, and the next call counts nothing twice.
    ///
    /// # Errors
    /// [`StoreError`], of either file; [`StoreError::Missing`] if the other one does not exist.
    ///
    /// ```
    /// use tidegate_limit::store::{Store, StoreError};
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-take-over-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file).unwrap();
    /// drop(Store::open(directory.join("earlier.db")).unwrap());
    /// assert_eq!(store.take_over(directory.join("earlier.db")), Ok(0));
    /// assert!(matches!(store.take_over(directory.join("none.db")), Err(StoreError::Missing { .. })));
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn take_over(&self, other: impl AsRef<Path>) -> Result<u64, StoreError> {
        self.with_file(|file| file.take_over(other.as_ref()))
    }

    /// Returns the store as the journal of a new gate. [`Builder::store`](crate::Builder::store) does this and restores the
    /// counts.
    ///
    /// # Errors
    /// [`StoreError`], if the file cannot be written.
    ///
    /// ```
    /// use tidegate_limit::store::Store;
    /// use tidegate_limit::{Gate, Limit};
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-journal-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file).unwrap();
    /// let limit = Limit::rpd(10_000, "UTC").journaled(50);
    /// // Counts from zero, whatever the file contains.
    /// let gate = Gate::builder().limit(limit).journal(store.journal().unwrap()).build().unwrap();
    /// # drop(gate);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn journal(&self) -> Result<StoreJournal, StoreError> {
        let run = self.with_file(StateFile::begin_run)?;
        Ok(StoreJournal { store: self.clone(), run })
    }

    /// Calls `f` with the file, after waiting for a thread that uses it.
    fn with_file<R>(&self, f: impl FnOnce(&mut StateFile) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let shared = self.shared();
        let mut state = shared.lock();
        loop {
            match &mut state.file {
                FileState::Idle(file) => return f(file),
                FileState::Taken => state = shared.wait(state),
                FileState::Closed => return Err(shared.closed()),
            }
        }
    }

    /// Writes what is left and closes the file; returns when that is done. Later reservations fail. Close the gate first, so
    /// that what it reserved and did not use is not counted.
    ///
    /// Blocks the thread for the time of a write or two. Must not be called by a waker.
    pub fn close(&self) {
        let shared = self.shared();
        let mut state = shared.shut();
        while !matches!(state.file, FileState::Closed) {
            state = shared.wait(state);
        }
    }

    fn shared(&self) -> &Arc<StoreShared> {
        &self.handle.shared
    }
}

impl StoreShared {
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, StoreState>) -> MutexGuard<'s, StoreState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: "it was closed".into() }
    }

    /// Writes all waiting requests, unless another thread is writing, which then writes these too. Closes the file afterwards
    /// if the store is closed.
    ///
    /// A receipt admits entries, which may make the next request from within this call. That request is left to the loop of
    /// the outer call: recursion would become as deep as the line is long.
    fn write_all<'s>(&'s self, mut state: MutexGuard<'s, StoreState>) -> MutexGuard<'s, StoreState> {
        let mut file = match std::mem::replace(&mut state.file, FileState::Taken) {
            FileState::Idle(file) => file,
            other => {
                state.file = other;
                return state;
            }
        };
        while !state.waiting.is_empty() {
            let batch = std::mem::take(&mut state.waiting);
            drop(state);
            let rows = batch.iter().map(|(run, reservation, _)| (*run, reservation));
            let outcome = file.write(rows, |index, taken| batch[index].2.grant(taken));
            for (.., receipt) in batch {
                match &outcome {
                    Ok(()) => receipt.written(),
                    Err(error) => receipt.failed(error),
                }
            }
            state = self.lock();
        }
        if state.closed {
            drop(state);
            drop(file);
            state = self.lock();
            state.file = FileState::Closed;
        } else {
            state.file = FileState::Idle(file);
        }
        self.changed.notify_all();
        state
    }

    /// Closes the store to further requests, and writes the rest.
    fn shut(&self) -> MutexGuard<'_, StoreState> {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        self.write_all(state)
    }

    /// Runs the store's thread.
    fn serve(&self) {
        let mut state = self.lock();
        while !matches!(state.file, FileState::Closed) {
            let nothing = state.waiting.is_empty() && !state.closed;
            state = if nothing || matches!(state.file, FileState::Taken) {
                self.wait(state)
            } else {
                self.write_all(state)
            };
        }
    }
}

/// A [`Store`] as the journal of one gate.
#[derive(Debug)]
pub struct StoreJournal {
    store: Store,
    /// Distinguishes this gate's reservations from those of others.
    run: i64,
}

impl Journal for StoreJournal {
    fn write(&self, reservation: Reservation, receipt: Receipt) {
        let shared = self.store.shared();
        let mut state = shared.lock();
        if state.closed {
            drop(state);
            return receipt.failed(shared.closed());
        }
        state.waiting.push_back((self.run, reservation, receipt));
        if state.writer == StoreWriter::NoThreadYet {
            let server = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("tidegate-store".into()).spawn(move || server.serve());
            // If no thread can be started, it writes inline.
            state.writer = if thread.is_ok() { StoreWriter::Thread } else { StoreWriter::Inline };
        }
        match state.writer {
            StoreWriter::Inline => drop(shared.write_all(state)),
            StoreWriter::Thread | StoreWriter::NoThreadYet => shared.changed.notify_all(),
        }
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // A thread that is writing closes the file. It is not waited for: it may be this thread, in an outer call.
        drop(self.shared.shut());
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.shared().path).finish_non_exhaustive()
    }
}

impl crate::Builder {
    /// Keeps counts in `store`: restores what earlier runs booked, and writes what [journaled](crate::Limit::journaled)
    /// limits are about to book. Gates on the same store, or on stores of the same file in several processes, count each
    /// other's reservations.
    ///
    /// # Errors
    /// [`StoreError`], if the file cannot be read.
    ///
    /// ```
    /// use tidegate_limit::store::Store;
    /// use tidegate_limit::{Gate, Limit};
    /// # let directory = std::env::temp_dir().join(format!("tidegate-doc-builder-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// # let file = directory.join("limits.db");
    /// let store = Store::open(&file)?;
    /// let limit = Limit::rpd(10_000, "America/Los_Angeles").journaled(50);
    /// let gate = Gate::builder().limit(limit).store(&store)?.build().unwrap();
    /// # drop(gate);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// # Ok::<(), tidegate_limit::store::StoreError>(())
    /// ```
    pub fn store(mut self, store: &Store) -> Result<crate::Builder, StoreError> {
        let (taken, restored) = store.with_file(|file| Ok((file.taken()?, file.load()?)))?;
        for (limit, taken) in taken {
            self.stored.entry(limit.into()).or_default().0.push(taken);
        }
        for restored in restored {
            self.stored.entry(std::sync::Arc::clone(&restored.limit)).or_default().1.push(restored);
        }
        Ok(self.journal(store.journal()?))
    }
}
