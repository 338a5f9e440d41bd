//! Queues in one SQLite file: durable, shared by many producers and workers in many processes of one machine, without a
//! server. What the file looks like and what is promised: `docs/sqlite-queue.md`.
//!
//! Read `engine.rs` (the one who owns the file and what a turn is), `transaction.rs` (what goes into one commit), then
//! `publish.rs`, `claim.rs`, `settle.rs`, `consumers.rs`, `admin.rs` (the statements), `schema.rs`; then `rules.rs`,
//! `quarantine.rs`, `check.rs`, `repair.rs` (rows that other programs wrote and that cannot be read); around it `driver.rs`
//! (thread or task), `inbox.rs` and `oneshot.rs` (questions and answers), `bell.rs` (who wakes whom), `file.rs` (manners
//! towards other writers, full disks, files that go away), `lease.rs` (clocks that are set).

mod admin;
mod bell;
mod check;
mod claim;
mod consumer;
mod consumers;
mod driver;
mod engine;
mod error;
mod file;
mod inbox;
mod lease;
mod oneshot;
mod op;
mod publish;
mod quarantine;
mod reader;
mod repair;
mod rows;
mod rules;
mod schema;
mod settle;
mod transaction;
mod waiting;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;

use crate::broker::{
    Broker, BrokerError, Consumer, DeadLetter, Local, Published, QueueStats, Selection, Subscription, TaskResult,
};
use crate::clock::LoopClock;
use crate::envelope_check;
use crate::task::{Envelope, TaskId};

use consumer::SqliteConsumer;
use engine::Failure;
use error::Place;
use inbox::Inbox;
use oneshot::{Answer, oneshot};
use op::{Admin, Feed, Op, Write};

/// How the queue behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The file; it is made if it is not there, its directory is not.
    pub path: PathBuf,
    /// How long a worker keeps its tasks without a renewal. It renews every third of it.
    pub lease: Duration,
    /// Publishes are on the disk before they are answered. Without this a power cut may lose the last of them; `kill -9`
    /// never does.
    pub sync_publishes: bool,
    /// How long a lock of another process is waited for.
    pub busy_timeout: Duration,
    /// For how long it is kept that a task expired or was revoked.
    pub result_ttl: Duration,
    /// For how long a revoke waits for its task.
    pub revoke_memory: Duration,
    /// Larger bodies are refused.
    pub body_bytes_max: usize,
    /// The size of a reserve file that is deleted when the disk is full, so that finished tasks can still be settled; 0: none.
    pub ballast_bytes: u64,
}

impl Options {
    /// The usual ones for a file.
    pub fn new(path: impl Into<PathBuf>) -> Options {
        Options {
            path: path.into(),
            lease: Duration::from_secs(30),
            sync_publishes: true,
            busy_timeout: Duration::from_secs(10),
            result_ttl: Duration::from_secs(3_600),
            revoke_memory: Duration::from_secs(86_400),
            body_bytes_max: envelope_check::BODY_BYTES_MAX,
            ballast_bytes: file::BALLAST_BYTES,
        }
    }
}

/// What a broker and its consumers share.
struct Handle {
    inbox: Arc<Inbox>,
    failure: Failure,
    options: Options,
}

impl Handle {
    async fn ask(&self, op: Op) -> Result<(), BrokerError> {
        self.inbox.push(op).await.map_err(|_| self.why_closed())
    }

    async fn write<T>(&self, make: impl FnOnce(Answer<T>) -> Write) -> Result<T, BrokerError> {
        let (answer, question) = oneshot();
        self.ask(Op::Write(make(answer))).await?;
        question.await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (answer, question) = oneshot();
        let place = Place::of(&self.options.path);
        let read = move |file: Result<(&Connection, i64), BrokerError>| {
            answer.send(file.and_then(|(connection, now)| read(connection, now).map_err(|error| place.sqlite(&error))));
        };
        self.ask(Op::Read(Box::new(read))).await?;
        question.await
    }

    fn why_closed(&self) -> BrokerError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.unwrap_or(BrokerError::Closed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.orphan();
    }
}

/// A broker in a SQLite file.
///
/// ```
/// use tidegate_worker::{Broker, Envelope, SqliteBroker};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("queue.db");
/// tidegate_loop::run(async move {
///     let broker = SqliteBroker::open(&path).await.unwrap();
///     broker.publish(vec![Envelope::new("mail", b"hello".to_vec())]).await.unwrap();
///     assert_eq!(broker.inspect().await.unwrap()[0].ready, 1);
///     assert!(broker.check().await.unwrap().is_empty());
///     broker.close().await.unwrap();
/// })
/// .unwrap();
/// ```
pub struct SqliteBroker {
    handle: Rc<Handle>,
    clock: LoopClock,
    closed: Cell<bool>,
    /// Keeps the owner alive where it is a task of the loop.
    owner: RefCell<Option<tidegate_loop::JoinHandle<()>>>,
}

impl SqliteBroker {
    /// Opens the file with the usual options, or makes it.
    ///
    /// # Cancel safety
    /// Nothing stays behind but, perhaps, an empty file.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteBroker, BrokerError> {
        SqliteBroker::open_with(Options::new(path.as_ref())).await
    }

    /// Opens the file with these options, or makes it. On a loop in virtual time everything happens on the loop, by the loop's
    /// clock; otherwise a thread owns the file.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn open_with(options: Options) -> Result<SqliteBroker, BrokerError> {
        SqliteBroker::open_at(options, LoopClock::new()).await
    }

    async fn open_at(options: Options, clock: LoopClock) -> Result<SqliteBroker, BrokerError> {
        let place = Place::of(&options.path);
        let inbox = Arc::new(Inbox::new().map_err(|error| place.io(&error))?);
        let failure: Failure = Arc::new(Mutex::new(None));
        let handle = Rc::new(Handle { inbox: Arc::clone(&inbox), failure: Arc::clone(&failure), options });
        let mut owner = None;
        if clock.is_virtual() {
            let engine = engine::Engine::open(handle.options.clone(), failure)?;
            owner = Some(tidegate_loop::spawn(driver::run_on_loop(engine, inbox, clock.clone())));
        } else {
            driver::start_thread(handle.options.clone(), inbox, failure).await?;
        }
        Ok(SqliteBroker { handle, clock, closed: Cell::new(false), owner: RefCell::new(owner) })
    }

    /// Another handle to the same file, as another process would have, on the same clock.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn connect(&self) -> Result<SqliteBroker, BrokerError> {
        SqliteBroker::open_at(self.handle.options.clone(), self.clock.clone()).await
    }

    /// Returns the default path: `$XDG_DATA_HOME/tidegate/queue.db`, below `~/.local/share` without that variable. `None`
    /// without a home directory.
    pub fn default_path() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| set("HOME").map(|home| home.join(".local").join("share")))?;
        Some(data.join("tidegate").join("queue.db"))
    }

    /// What is wrong with the file: SQLite's own check, rows that another program has written and that cannot be read, tasks that
    /// are not in exactly one place. Nothing if it is sound.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn check(&self) -> Result<Vec<String>, BrokerError> {
        self.handle.read(|connection, _| check::check(connection)).await
    }

    /// Puts the file in order: tasks whose rows cannot be read, or that are in no place, become dead letters; other rows that
    /// cannot be used are mended or deleted. Returns how many rows were changed.
    ///
    /// # Cancel safety
    /// Dropped, it still happens.
    pub async fn repair(&self) -> Result<u64, BrokerError> {
        self.admin(Admin::Repair).await
    }

    /// Gives free pages back to the disk; says how many bytes. Others wait meanwhile.
    ///
    /// # Cancel safety
    /// Dropped, it still happens.
    pub async fn vacuum(&self) -> Result<u64, BrokerError> {
        let path = self.handle.options.path.clone();
        self.handle
            .read(move |connection, _| {
                let size = || std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
                let before = size();
                connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")?;
                Ok(before.saturating_sub(size()))
            })
            .await
    }

    /// Expires the lease of every worker at once: their tasks return to the queues, counted as crashes, and workers that are
    /// still alive are notified. For use when the workers are known to be gone. Returns how many tasks returned.
    ///
    /// # Cancel safety
    /// Dropped, it still happens.
    pub async fn expire_leases(&self) -> Result<u64, BrokerError> {
        self.admin(Admin::ExpireLeases).await
    }

    async fn admin(&self, what: Admin) -> Result<u64, BrokerError> {
        self.handle.write(|answer| Write::Admin { what, answer }).await
    }
}

impl Broker for SqliteBroker {
    fn describe(&self) -> String {
        format!("sqlite:{}", self.handle.options.path.display())
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>> {
        Box::pin(async move {
            envelope_check::check(&batch, self.handle.options.body_bytes_max)?;
            self.handle.write(|answer| Write::Publish { batch, answer }).await
        })
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        Box::pin(async move {
            what.queues.iter().try_for_each(|queue| envelope_check::queue_name(queue))?;
            let feed = Arc::new(Feed::unbounded());
            let fed = Arc::clone(&feed);
            let reader = self.handle.write(|answer| Write::Subscribe { what, feed: fed, answer }).await?;
            let handle = Rc::clone(&self.handle);
            Ok(Rc::new(SqliteConsumer { handle, reader, feed, kept: RefCell::default() }) as Rc<dyn Consumer>)
        })
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        Box::pin(self.handle.read(admin::inspect))
    }

    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>> {
        let queue = queue.to_owned();
        Box::pin(self.handle.read(move |connection, _| admin::peek(connection, &queue, limit)))
    }

    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>> {
        Box::pin(self.admin(Admin::Purge(queue.to_owned())))
    }

    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>> {
        let queue = queue.map(str::to_owned);
        Box::pin(self.handle.read(move |connection, _| admin::dead(connection, queue.as_deref(), limit)))
    }

    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        Box::pin(self.admin(Admin::DeadRetry(which)))
    }

    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        Box::pin(self.admin(Admin::DeadDrop(which)))
    }

    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>> {
        let what = Admin::Revoke(id.clone());
        Box::pin(async move { self.admin(what).await.map(drop) })
    }

    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>> {
        let id = id.clone();
        Box::pin(self.handle.read(move |connection, now| rows::read_result(connection, &id, now)))
    }

    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>> {
        let id = id.clone();
        Box::pin(async move {
            let (answer, question) = oneshot();
            self.handle.ask(Op::WaitResult { id, answer }).await?;
            question.await
        })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            if self.closed.replace(true) {
                return Ok(());
            }
            let (answer, question) = oneshot();
            if self.handle.ask(Op::Close { answer }).await.is_err() {
                return Ok(());
            }
            question.await?;
            if let Some(owner) = self.owner.take() {
                // It ends by itself; whatever it says, the file is closed.
                let _ = owner.await;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for SqliteBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBroker").field("path", &self.handle.options.path).finish_non_exhaustive()
    }
}
