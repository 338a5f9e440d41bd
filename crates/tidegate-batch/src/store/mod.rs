//! What was paid for, kept: every result under the hash of everything that decides it, synced before it counts. After
//! `kill -9` at most the calls that were under way are paid for again.
//!
//! One thread writes: whatever has come while it synced goes into the next transaction, so a thousand results a second
//! cost a few syncs. Before a question is sent, the store [reserves](Store::expect_answer) space for its answer. Which keys there are is known in memory; a result is read from the file when it is needed.

mod error;
mod file;
mod promise;
mod space;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use error::StoreError;
pub use promise::Promise;

use crate::question::Answer;
use file::ResultFile;
use promise::Resolver;

/// What a result is kept under.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of something that is decided by all of `parts`, in this order.
    ///
    /// ```
    /// use tidegate_batch::Key;
    /// assert_eq!(Key::of([b"model".as_slice(), b"page"]), Key::of([b"model".as_slice(), b"page"]));
    /// assert_ne!(Key::of([b"ab".as_slice(), b"c"]), Key::of([b"a".as_slice(), b"bc"]));
    /// ```
    #[must_use]
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Key {
        let mut hash = Sha256::new();
        for part in parts {
            // With its length, or one part could pass for the end of another.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(hash.finalize().into())
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// A result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kept {
    /// It was answered.
    Answered(Answer),
    /// It failed, and would again: see [`CallError::is_lasting`](crate::CallError::is_lasting).
    Failed {
        /// A name for programs.
        code: String,
        /// For people.
        reason: String,
    },
}

/// A result, and what it is about, for whoever looks into the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The result.
    pub kept: Kept,
    /// The file, or whatever it belongs to.
    pub source: String,
    /// The page, or the line.
    pub number: u64,
    /// Requests that were sent for it.
    pub attempts: u32,
}

/// What a store has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Results in it.
    pub results: u64,
    /// Results written since it was opened.
    pub written: u64,
    /// Transactions that took; each is one sync.
    pub commits: u64,
}

/// Results, in a file. It belongs to one process at a time.
///
/// ```
/// use tidegate_batch::{Kept, Key, Record, Store};
///
/// # let directory = std::env::temp_dir().join(format!("tidegate-doc-results-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory).unwrap();
/// # let file = directory.join("results.db");
/// tidegate_loop::run(async move {
///     let store = Store::open(&file).unwrap();
///     let key = Key::of([b"the model".as_slice(), b"the page"]);
///     assert!(!store.has(&key));
///     let kept = Kept::Failed { code: "declined".into(), reason: "a filter".into() };
///     // When this returns, it is on the disk.
///     store.put(key, Record { kept: kept.clone(), source: "a.pdf".into(), number: 3, attempts: 1 }).await.unwrap();
///     assert_eq!(store.get(key).await.unwrap(), Some(kept));
/// })
/// .unwrap();
/// # std::fs::remove_dir_all(&directory).unwrap();
/// ```
pub struct Store {
    path: PathBuf,
    /// `None` once it is closed.
    sender: Option<Sender<Message>>,
    writer: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Which results are in the file, and whether they are answers.
    known: Mutex<HashMap<Key, bool>>,
    stats: Mutex<StoreStats>,
    expected: Mutex<Expected>,
}

/// Answers to come.
#[derive(Default)]
struct Expected {
    answers: usize,
    /// For how many of them there is space on the disk.
    covered: usize,
}

/// An answer to come, for which there is space on the disk, until this is dropped.
pub(crate) struct ExpectedAnswer(Arc<Shared>);

impl Drop for ExpectedAnswer {
    fn drop(&mut self) {
        lock(&self.0.expected).answers -= 1;
    }
}

/// Space is reserved for this many answers beyond the expected ones, so that not every question waits for it.
const EXPECTED_AHEAD: usize = 32;

enum Message {
    Reserve(ExpectedAnswer, Resolver<Result<ExpectedAnswer, StoreError>>),
    Put(Key, Box<Record>, Resolver<Result<(), StoreError>>),
    Get(Key, Resolver<Result<Option<Kept>, StoreError>>),
}

impl Store {
    /// Opens the file, or creates it; its directory has to be there.
    ///
    /// # Errors
    /// [`StoreError`], with the way out.
    pub fn open(path: impl AsRef<Path>) -> Result<Store, StoreError> {
        let path = path.as_ref();
        let file = ResultFile::open(path)?;
        let known = file.keys()?;
        let stats = StoreStats { results: known.len() as u64, ..StoreStats::default() };
        let shared =
            Arc::new(Shared { known: Mutex::new(known), stats: Mutex::new(stats), expected: Mutex::default() });
        let (sender, receiver) = mpsc::channel();
        let writer = thread::Builder::new()
            .name("tidegate-results".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || write(file, &receiver, &shared)
            })
            .map_err(|error| StoreError::Failed {
                path: path.into(),
                detail: format!("no thread to write it: {error}"),
            })?;
        Ok(Store { path: path.into(), sender: Some(sender), writer: Some(writer), shared })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a result, answer or failure.
    #[must_use]
    pub fn has(&self, key: &Key) -> bool {
        lock(&self.shared.known).contains_key(key)
    }

    /// Whether there is an answer.
    #[must_use]
    pub fn has_answer(&self, key: &Key) -> bool {
        lock(&self.shared.known).get(key).copied().unwrap_or(false)
    }

    /// Reads a result.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, key: Key) -> Promise<Result<Option<Kept>, StoreError>> {
        let (promise, resolver) = promise::new(Err(StoreError::Closed { path: self.path.clone() }));
        if let Some(sender) = &self.sender {
            // A writer that is gone leaves the promise with its last word.
            let _ = sender.send(Message::Get(key, resolver));
        }
        promise
    }

    /// Writes a result. It is on its way when this returns, and on the disk when the promise is kept. Dropping the
    /// promise changes nothing.
    ///
    /// # Errors
    /// [`StoreError`], after which nothing of it is in the file.
    pub fn put(&self, key: Key, record: Record) -> Promise<Result<(), StoreError>> {
        let (promise, resolver) = promise::new(Err(StoreError::Closed { path: self.path.clone() }));
        if let Some(sender) = &self.sender {
            let _ = sender.send(Message::Put(key, Box::new(record), resolver));
        }
        promise
    }

    /// Reserves space on the disk for an answer that is about to be asked for: a disk that fills meanwhile takes it all the same.
    /// The answer is stored before what is returned is dropped.
    ///
    /// # Errors
    /// [`StoreError::Full`]: there is no space.
    #[cfg_attr(not(feature = "pdf"), allow(dead_code, reason = "pages are asked for, and they are those of PDFs"))]
    pub(crate) fn expect_answer(&self) -> Promise<Result<ExpectedAnswer, StoreError>> {
        let (promise, resolver) = promise::new(Err(StoreError::Closed { path: self.path.clone() }));
        let is_covered = {
            let mut expected = lock(&self.shared.expected);
            expected.answers += 1;
            expected.answers <= expected.covered
        };
        let answer = ExpectedAnswer(Arc::clone(&self.shared));
        if is_covered {
            resolver.resolve(Ok(answer));
        } else if let Some(sender) = &self.sender {
            let _ = sender.send(Message::Reserve(answer, resolver));
        }
        promise
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        *lock(&self.shared.stats)
    }
}

impl Drop for Store {
    /// Waits until what it was given is written.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writer: takes all there is, writes it in one transaction, tells everybody.
fn write(mut file: ResultFile, receiver: &mpsc::Receiver<Message>, shared: &Shared) {
    while let Ok(first) = receiver.recv() {
        let mut puts = Vec::new();
        let mut gets = Vec::new();
        let mut asked = Vec::new();
        for message in std::iter::once(first).chain(receiver.try_iter()) {
            match message {
                Message::Put(key, record, resolver) => puts.push((key, record, resolver)),
                Message::Get(key, resolver) => gets.push((key, resolver)),
                Message::Reserve(answer, resolver) => asked.push((answer, resolver)),
            }
        }
        if !puts.is_empty() {
            let written = file.write(puts.iter().map(|(key, record, _)| (key, &**record)));
            if written.is_ok() {
                let mut known = lock(&shared.known);
                for (key, record, _) in &puts {
                    known.insert(*key, matches!(record.kept, Kept::Answered(_)));
                }
                let mut stats = lock(&shared.stats);
                stats.results = known.len() as u64;
                stats.written += puts.len() as u64;
                stats.commits += 1;
            }
            // What was reserved for these is used up: again before more are asked for in their place.
            let _ = reserve(&mut file, shared);
            for (_, _, resolver) in puts {
                resolver.resolve(written.clone());
            }
        }
        if !asked.is_empty() {
            let reserved = reserve(&mut file, shared);
            for (answer, resolver) in asked {
                resolver.resolve(reserved.clone().map(|()| answer));
            }
        }
        // After the writes that came before them.
        for (key, resolver) in gets {
            resolver.resolve(file.read(&key));
        }
    }
}

/// Reserves space for all answers that are expected.
fn reserve(file: &mut ResultFile, shared: &Shared) -> Result<(), StoreError> {
    let answers = lock(&shared.expected).answers;
    let reserved = match file.reserve(answers + EXPECTED_AHEAD) {
        Ok(()) => Ok(answers + EXPECTED_AHEAD),
        Err(_) => file.reserve(answers).map(|()| answers),
    };
    // Without space, each question gets the error.
    lock(&shared.expected).covered = *reserved.as_ref().unwrap_or(&0);
    reserved.map(drop)
}
