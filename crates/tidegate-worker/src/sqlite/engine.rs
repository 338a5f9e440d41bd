//! The one who owns the file. A turn takes everything that was asked since the last one and does it in one transaction:
//! settlements, due timers, publishes, and the next claim of every consumer. Time is an argument; who calls, and when, is the
//! driver's business.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::ErrorCode;

use crate::broker::{BrokerError, Incoming};

use super::Options;
use super::claim;
use super::consumers;
use super::error::is_about_rows;
use super::file::QueueFile;
use super::lease::ClockGuard;
use super::oneshot::Answer;
use super::op::{Admin, Op, ReaderKey, Write};
use super::publish::QueueIds;
use super::quarantine::Times;
use super::reader::Reader;
use super::rows;
use super::transaction::{self, Outcome};
use super::waiting::Waiting;

/// How often the engine checks that the file exists, and looks for expired leases and results. Also the longest delay of a
/// task whose publisher died before it could ring the bell.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// After this long without a commit the log's room is given back.
const IDLE_BEFORE_TRUNCATE: Duration = Duration::from_secs(5);

/// Delay of the next transaction after one that failed for a reason outside of the program.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Why the owner of a file gave up, for those who find it gone.
pub(super) type Failure = Arc<Mutex<Option<BrokerError>>>;

/// Both clocks at one instant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) wall: Timestamp,
    pub(super) mono: Instant,
}

impl Now {
    pub(super) fn ms(self) -> i64 {
        self.wall.as_millisecond()
    }
}

/// What the driver does next.
pub(super) struct Next {
    /// Come back after this long if nothing rings before; `None`: there is nothing to wait for.
    pub(super) within: Option<Duration>,
    /// Other processes write as well: pause before the next transaction.
    pub(super) yield_to_others: bool,
    /// The engine ends; the caller of `close` is answered once the file is closed.
    pub(super) closing: Option<Closing>,
}

/// A caller of `close` that waits for the end.
pub(super) struct Closing {
    answer: Answer<()>,
    result: Result<(), BrokerError>,
}

impl Closing {
    /// Answers only after SQLite has closed the file, because the caller may then delete or replace it.
    pub(super) fn tell(self) {
        self.answer.send(self.result);
    }
}

pub(super) struct Engine {
    pub(super) options: Options,
    pub(super) file: QueueFile,
    pub(super) queues: QueueIds,
    pub(super) readers: BTreeMap<ReaderKey, Reader>,
    waiting: Waiting,
    pub(super) guard: ClockGuard,
    next_reader: ReaderKey,
    next_sweep: Option<Instant>,
    truncate_at: Option<Instant>,
    /// Revokes up to this number were seen.
    revoked_seen: i64,
    /// Set when another process has written; cleared by a repair, which would find nothing new before the next write.
    may_repair: bool,
    /// Something makes it impossible to go on.
    failed: Option<BrokerError>,
    /// The same, for the handles.
    failure: Failure,
}

impl Engine {
    pub(super) fn open(options: Options, failure: Failure) -> Result<Engine, BrokerError> {
        let file = QueueFile::open(&options)?;
        Ok(Engine {
            options,
            file,
            queues: QueueIds::default(),
            readers: BTreeMap::new(),
            waiting: Waiting::default(),
            guard: ClockGuard::new(),
            next_reader: 0,
            next_sweep: None,
            truncate_at: None,
            revoked_seen: 0,
            may_repair: true,
            failed: None,
            failure,
        })
    }

    /// Does what was asked, and whatever is due.
    pub(super) fn turn(&mut self, ops: Vec<Op>, now: Now) -> Next {
        if let Some(error) = &self.failed {
            let mut closing = None;
            for op in ops {
                match op {
                    // A file that cannot be used need not be closed in order.
                    Op::Close { answer } => closing = Some(Closing { answer, result: Ok(()) }),
                    op => op.refuse(error.clone()),
                }
            }
            return Next { within: None, yield_to_others: false, closing };
        }
        let (mut writes, mut reads, mut close) = (Vec::new(), Vec::new(), None);
        for op in ops {
            match op {
                Op::Write(write) => writes.push(write),
                Op::Read(read) => reads.push(read),
                Op::WaitResult { id, answer } => self.waiting.add(id, answer),
                Op::Stop { reader, answer } => {
                    if let Some(reader) = self.readers.get_mut(&reader) {
                        reader.stopped = true;
                    }
                    answer.send(Ok(()));
                }
                Op::Abandon { reader } => drop(self.readers.remove(&reader)),
                Op::Close { answer } => close = Some(answer),
            }
        }
        let mut next = match self.work(writes, now) {
            Ok(next) => next,
            Err(error) => self.trouble(error),
        };
        for read in reads {
            read(Ok((&self.file.connection, now.ms())));
        }
        if let Some(answer) = close {
            next.closing = Some(Closing { answer, result: self.close(now) });
        }
        next
    }

    fn work(&mut self, writes: Vec<Write>, now: Now) -> Result<Next, BrokerError> {
        let others = match self.file.others_wrote() {
            Ok(others) => others,
            Err(error) => {
                writes.into_iter().for_each(|write| write.refuse(error.clone()));
                return Err(error);
            }
        };
        let may_expire = self.guard.may_expire(now.ms(), now.mono, self.options.lease);
        let sweeps = self.next_sweep.is_none_or(|at| at <= now.mono);
        if others {
            self.may_repair = true;
            if let Err(error) = self.look_around(now) {
                writes.into_iter().for_each(|write| write.refuse(error.clone()));
                return Err(error);
            }
        }
        let mut stored = false;
        let must = !writes.is_empty() || self.readers.values().any(|reader| reader.renew_at <= now.mono);
        let mut again = false;
        if must || self.something_to_do(now, sweeps && may_expire, sweeps)? {
            let outcome = self.transact(writes, now, sweeps.then_some(may_expire))?;
            stored = outcome.results;
            again = outcome.again;
            if outcome.ring {
                self.file.bell.ring();
            }
            self.file.restart_long_log();
            self.truncate_at = Some(now.mono + IDLE_BEFORE_TRUNCATE);
            if outcome.bad_rows {
                again |= self.repair(now)?;
            }
        }
        if others || stored || sweeps || self.waiting.has_new() {
            self.waiting.look(&self.file, now.ms())?;
        }
        if sweeps {
            self.housekeeping(now)?;
        }
        if self.truncate_at.is_some_and(|at| at <= now.mono) {
            self.truncate_at = None;
            self.file.truncate_log();
        }
        let within = if again { Some(Duration::ZERO) } else { self.within(now)? };
        Ok(Next { within, yield_to_others: others, closing: None })
    }

    /// Something could not be done because of a row. Once per change by others the whole file is put in order. Returns `true` if
    /// that changed something, so that it is worth trying again.
    fn repair(&mut self, now: Now) -> Result<bool, BrokerError> {
        if !std::mem::take(&mut self.may_repair) {
            return Ok(false);
        }
        let (answer, _) = super::oneshot::oneshot();
        let write = Write::Admin { what: Admin::Repair, answer };
        let outcome = self.transact(vec![write], now, None)?;
        self.file.bell.ring();
        Ok(!outcome.bad_rows)
    }

    /// The times that follow from `now` and the options.
    pub(super) fn times(&self, now: Now) -> Times {
        Times { now: now.ms(), result_ttl_ms: rows::span_ms(self.options.result_ttl) }
    }

    /// After a commit of another process: checks that the consumers' rows are still there, and looks for revoked tasks.
    fn look_around(&mut self, now: Now) -> Result<(), BrokerError> {
        let seen = self.look_around_file(now);
        seen.map_err(|error| self.file.place.sqlite(&error))
    }

    pub(super) fn look_around_file(&mut self, now: Now) -> rusqlite::Result<()> {
        if self.readers.is_empty() {
            return Ok(());
        }
        let connection = &self.file.connection;
        for reader in self.readers.values_mut() {
            if !consumers::is_there(connection, reader.owner)? {
                // The renewal finds the same, and says what follows.
                reader.renew_at = now.mono;
            }
        }
        let mut statement = connection.prepare_cached("SELECT n, id FROM revoked WHERE n > ?1 ORDER BY n")?;
        let mut rows = statement.query([self.revoked_seen])?;
        while let Some(row) = rows.next()? {
            self.revoked_seen = row.get(0)?;
            // No task has an id that is not text.
            if let Ok(id) = row.get_ref(1)?.as_str() {
                tell_revoked(&self.readers, id);
            }
        }
        Ok(())
    }

    /// A look costs microseconds; a write transaction keeps others waiting.
    fn something_to_do(&self, now: Now, may_expire: bool, sweeps: bool) -> Result<bool, BrokerError> {
        let look = || -> rusqlite::Result<bool> {
            let connection = &self.file.connection;
            if self.readers.values().any(Reader::wants) {
                if claim::next_due(connection)?.is_some_and(|at| at <= now.ms()) {
                    return Ok(true);
                }
                let mut ready = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM ready WHERE queue = ?1)")?;
                for queue in self.readers.values().filter(|reader| reader.wants()).flat_map(|reader| &reader.queues) {
                    if ready.query_row([queue], |row| row.get(0))? {
                        return Ok(true);
                    }
                }
            }
            Ok(sweeps && !self.readers.is_empty() && consumers::sweep_is_due(connection, now.ms(), may_expire)?)
        };
        look().map_err(|error| self.file.place.sqlite(&error))
    }

    /// One transaction for everything. When the disk is full what adds to it is refused, and the rest tried again: settling
    /// makes room. A write that fails because of a row, after a repair too, is refused, and the others tried again without it.
    fn transact(&mut self, mut writes: Vec<Write>, now: Now, sweep: Option<bool>) -> Result<Outcome, BrokerError> {
        let (mut made_room, mut bad_rows) = (false, false);
        loop {
            let failed = match transaction::run(self, &writes, now, sweep) {
                Ok((mut outcome, answers)) => {
                    outcome.bad_rows |= bad_rows;
                    transaction::answer(self, writes, answers, now);
                    return Ok(outcome);
                }
                Err(failed) => failed,
            };
            self.file.roll_back();
            self.queues.forget();
            let error = failed.error;
            if let Some(at) = failed.write
                && is_about_rows(&error)
            {
                tracing::warn!(%error, "a row of the queue's file could not be used");
                if self.repair(now)? {
                    continue;
                }
                // What another asked for is not to fail with it.
                bad_rows = true;
                writes.remove(at).refuse(self.file.place.sqlite(&error));
                continue;
            }
            let is_full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
            let error = self.file.place.sqlite(&error);
            if is_full {
                let (adding, rest): (Vec<Write>, Vec<Write>) = writes.into_iter().partition(Write::adds);
                adding.into_iter().for_each(|write| write.refuse(error.clone()));
                writes = rest;
                if !made_room {
                    made_room = true;
                    self.file.make_room();
                    continue;
                }
            }
            writes.into_iter().for_each(|write| write.refuse(error.clone()));
            return Err(error);
        }
    }

    /// Once a second.
    fn housekeeping(&mut self, now: Now) -> Result<(), BrokerError> {
        self.next_sweep = Some(now.mono + SWEEP_EVERY);
        // A dropped subscribe call leaves a reader without a consumer; its lease must not be renewed.
        self.readers.retain(|_, reader| Arc::strong_count(&reader.feed) > 1);
        self.file.check_still_there()?;
        self.file.bell.mend();
        self.file.mend_ballast();
        Ok(())
    }

    fn within(&self, now: Now) -> Result<Option<Duration>, BrokerError> {
        let mut at = self.truncate_at;
        if !self.readers.is_empty() || !self.waiting.is_empty() {
            let soonest = self.readers.values().map(|reader| reader.renew_at).chain(self.next_sweep).min();
            at = at.into_iter().chain(soonest).min();
        }
        let mut within = at.map(|at| at.saturating_duration_since(now.mono));
        if self.readers.values().any(Reader::wants) {
            let due = claim::next_due(&self.file.connection).map_err(|error| self.file.place.sqlite(&error))?;
            let due = due.map(|at| Duration::from_millis(at.saturating_sub(now.ms()).max(0) as u64));
            within = within.into_iter().chain(due).min();
        }
        Ok(within)
    }

    /// Nothing was done. What passes is tried again; what does not ends everything that depends on it.
    fn trouble(&mut self, error: BrokerError) -> Next {
        let passes = !matches!(error, BrokerError::Damaged { .. });
        if passes {
            tracing::warn!(%error, "the queue could not be worked on; trying again");
        } else {
            tracing::error!(%error, "the queue cannot be used any longer");
            // Set before the feeds are closed, because a consumer that finds its feed closed reads the reason.
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
            self.readers.values().for_each(|reader| reader.feed.close());
            self.readers.clear();
            self.waiting.fail(&error);
            self.failed = Some(error);
        }
        let depends = !self.readers.is_empty() || !self.waiting.is_empty();
        Next { within: depends.then_some(PAUSE_AFTER_FAILURE), yield_to_others: false, closing: None }
    }

    /// Every consumer's deliveries return.
    fn close(&mut self, now: Now) -> Result<(), BrokerError> {
        let closing: Vec<Write> = self
            .readers
            .keys()
            .map(|&reader| Write::CloseReader { reader, answer: super::oneshot::oneshot().0 })
            .collect();
        if closing.is_empty() {
            return Ok(());
        }
        let outcome = self.transact(closing, now, None)?;
        if outcome.ring {
            self.file.bell.ring();
        }
        Ok(())
    }

    pub(super) fn new_reader_key(&mut self) -> ReaderKey {
        self.next_reader += 1;
        self.next_reader
    }
}

/// Notifies the consumer that has the task.
fn tell_revoked(readers: &BTreeMap<ReaderKey, Reader>, id: &str) {
    for reader in readers.values() {
        if let Some(held) = reader.held.values().find(|held| held.id.as_str() == id) {
            reader.tell(vec![Incoming::Revoked(held.id.clone())]);
        }
    }
}
