//! What was used of a quota, kept in a file: a restart goes on counting where the last run stopped.
//!
//! ```
//! use tidegate_limit::store::Store;
//! use tidegate_limit::{Cost, Gate, Limit};
//!
//! # let directory = std::env::temp_dir().join(format!("tidegate-doc-store-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory).unwrap();
//! # let file = directory.join("limits.db");
//! // The day's count goes to the file 50 requests ahead: after a crash up to 50 too many are counted, never too few.
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
//! Processes on one machine that open the same file share its limits: each reservation is granted in a transaction that sees
//! the reservations of all others, so that together they never book more than one alone could. What a process has reserved
//! and not used is free for the others when its gate is closed, or when it reserves again. While only the others leave no
//! room, the file is read again every 250 ms to 10 s, a sixtieth of the window. All should state the same limits;
//! otherwise each keeps to its own.
//!
//! # Clocks that are set
//! Instants in the file are those of the wall clock. What lies ahead of it was written before it was set back: it is counted
//! as if it had just been booked, so nothing is lost by a clock that is set back. A clock that is set ahead is believed: what
//! a new process finds may have left its window; a process that has seen it before counts it for as long as it should.
//!
//! # What can go wrong
//! Everything is a [`StoreError`] that names the file and the way out; nothing is answered by starting from zero. What
//! happens while the gate is in use (a full disk, a file that was deleted) reaches those who want in as
//! [`EnterError::Journal`](crate::EnterError::Journal), and is tried again with the next who comes.

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
/// What it is given is written by a thread of its own, everything that has come meanwhile in one go. When the last clone
/// is dropped it writes what it was given and lets go of the file; [`close`](Self::close) waits for that.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

/// Those who use the store; the thread is not one of them.
struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    created: bool,
    state: Mutex<State>,
    /// Something has come, or was done, or the store is to be closed.
    changed: Condvar,
}

struct State {
    file: File,
    waiting: VecDeque<Request>,
    writer: Writer,
    /// Nothing more is taken. Who has the file, or finds it idle, writes what is left and closes it.
    closed: bool,
}

enum File {
    Idle(Box<StateFile>),
    /// In the hands of somebody who writes, or closes it, without the lock.
    Taken,
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Inline,
    /// Started with the first that there is to write.
    NoThreadYet,
    Thread,
}

/// With the run it belongs to.
type Request = (i64, Reservation, Receipt);

impl Store {
    /// Opens the state file, or creates it; [`created`](Self::created) tells. Its directory has to be there. Each write
    /// is synced.
    ///
    /// # Errors
    /// [`StoreError`], for anything that is wrong with a file that is there.
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

    /// As [`open`](Self::open), with a choice of what a crash may cost.
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

    /// As [`open`](Self::open), but a file that is not there is [`StoreError::Missing`]: for whom a mistyped path must
    /// not mean a fresh quota.
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
        let file = File::Idle(Box::new(file));
        let state = State { file, waiting: VecDeque::new(), writer: Writer::NoThreadYet, closed: false };
        let shared = Shared { path: path.into(), created, state: Mutex::new(state), changed: Condvar::new() };
        Store { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    /// Writes in the thread that wants in, instead of one of the store's own: nobody is woken by another thread, so it
    /// works in virtual time. Each write then holds up its thread, for as long as a sync takes.
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
        self.shared().lock().writer = Writer::Inline;
        self
    }

    /// Whether the file was not there before: everything counts from zero.
    pub fn created(&self) -> bool {
        self.shared().created
    }

    /// What earlier runs booked, at the most.
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

    /// Moves what another state file has counted to this one, and returns the number of reservations that were moved. The other
    /// file stays, and is empty afterwards. A crash in between loses nothing, and the next call counts nothing twice.
    ///
    /// # Errors
    /// [`StoreError`], of either file; [`StoreError::Missing`] if the other one is not there.
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

    /// The store as the journal of a gate that is about to be made. [`Builder::store`](crate::Builder::store) does this,
    /// and restores.
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
    /// // Counts from zero, whatever the file says.
    /// let gate = Gate::builder().limit(limit).journal(store.journal().unwrap()).build().unwrap();
    /// # drop(gate);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// ```
    pub fn journal(&self) -> Result<StoreJournal, StoreError> {
        let run = self.with_file(StateFile::begin_run)?;
        Ok(StoreJournal { store: self.clone(), run })
    }

    /// Waits for whoever writes.
    fn with_file<R>(&self, f: impl FnOnce(&mut StateFile) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let shared = self.shared();
        let mut state = shared.lock();
        loop {
            match &mut state.file {
                File::Idle(file) => return f(file),
                File::Taken => state = shared.wait(state),
                File::Closed => return Err(shared.closed()),
            }
        }
    }

    /// Writes what it was given and lets go of the file; returns when that is done. What comes later fails. Close the
    /// gate before, so that what it reserved and did not use is not counted.
    ///
    /// Blocks its thread for the time of a write or two. Not to be called by a waker.
    pub fn close(&self) {
        let shared = self.shared();
        let mut state = shared.shut();
        while !matches!(state.file, File::Closed) {
            state = shared.wait(state);
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: "it was closed".into() }
    }

    /// Writes all that waits, unless somebody else is at it: he will see it. Closes the file at the end if that is wanted.
    ///
    /// A receipt lets somebody in, who may need the next reservation at once, from within: that one is left to the loop
    /// further up, or a long line would be as many calls deep.
    fn write_all<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let mut file = match std::mem::replace(&mut state.file, File::Taken) {
            File::Idle(file) => file,
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
            state.file = File::Closed;
        } else {
            state.file = File::Idle(file);
        }
        self.changed.notify_all();
        state
    }

    /// Takes nothing more, writes what is left.
    fn shut(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        self.write_all(state)
    }

    /// The thread's life.
    fn serve(&self) {
        let mut state = self.lock();
        while !matches!(state.file, File::Closed) {
            let nothing = state.waiting.is_empty() && !state.closed;
            state = if nothing || matches!(state.file, File::Taken) { self.wait(state) } else { self.write_all(state) };
        }
    }
}

/// A [`Store`] as the journal of one gate.
#[derive(Debug)]
pub struct StoreJournal {
    store: Store,
    /// Tells this gate's reservations from those of others.
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
        if state.writer == Writer::NoThreadYet {
            let server = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("tidegate-store".into()).spawn(move || server.serve());
            // Without threads it is as good as inline.
            state.writer = if thread.is_ok() { Writer::Thread } else { Writer::Inline };
        }
        match state.writer {
            Writer::Inline => drop(shared.write_all(state)),
            Writer::Thread | Writer::NoThreadYet => shared.changed.notify_all(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Whoever writes at the moment closes it; nobody waits for him here, he may be further up.
        drop(self.shared.shut());
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.shared().path).finish_non_exhaustive()
    }
}

impl crate::Builder {
    /// Counts on from what `store` knows, and keeps it there: restores what earlier runs booked, and writes down what the
    /// limits that are [journaled](crate::Limit::journaled) are about to book. Gates on the same store, or on stores of the
    /// same file in several processes, count what the others have reserved.
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
