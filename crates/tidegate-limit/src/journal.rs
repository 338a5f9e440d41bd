//! Reservations: a limit writes what it is about to book, so that the next run counts it.
//!
//! A journaled limit books only what it has reserved. A [`Reservation`] means "up to this amount, from this instant until
//! that one". When the [`Journal`] has written it, entries are booked against it without another write. After a crash it is
//! not known how much of the last reservation was used, so all of it is [restored](crate::Builder::restore): up to a batch
//! too much is counted, never too little. A gate that is [closed](crate::Gate::close) writes what was used of its last
//! reservations, and then the count is exact.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use crate::cost::Cost;
use crate::gate::GateShared;
use crate::limits::LimitId;
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::pump::Effects;

/// A store of reservations.
///
/// ```
/// use std::sync::Mutex;
/// use tidegate_limit::journal::{Journal, Receipt, Reservation};
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// #[derive(Default)]
/// struct InMemory(Mutex<Vec<Reservation>>);
///
/// impl Journal for InMemory {
///     fn write(&self, reservation: Reservation, receipt: Receipt) {
///         self.0.lock().unwrap().push(reservation);
///         receipt.written(); // another thread may do this, when it is on disk
///     }
/// }
///
/// # tidegate_loop::run(async {
/// let journal = std::sync::Arc::new(InMemory::default());
/// let limit = Limit::rpd(10_000, "UTC").journaled(50);
/// let gate = Gate::builder().limit(limit).journal(journal.clone()).build().unwrap();
/// for _ in 0..60 {
///     gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
/// }
/// let amounts: Vec<u64> = journal.0.lock().unwrap().iter().map(|entry| entry.amount).collect();
/// assert_eq!(amounts, [50, 50]);
/// # }).unwrap();
/// ```
pub trait Journal: Send + Sync + 'static {
    /// Writes `reservation` durably, then calls [`Receipt::written`], at once or from another thread. It must not block the
    /// caller for long, which may be an event loop. No lock of the gate is held. Each limit has one reservation at a time:
    /// the next one comes after the receipt of the one before.
    fn write(&self, reservation: Reservation, receipt: Receipt);
}

impl<T: Journal + ?Sized> Journal for Arc<T> {
    fn write(&self, reservation: Reservation, receipt: Receipt) {
        (**self).write(reservation, receipt);
    }
}

/// Up to `amount` may be booked under a limit between two instants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The number of this reservation of this limit, counted from 1 in each gate.
    pub serial: u64,
    /// The amount; zero if only `settles` is to be written.
    pub amount: u64,
    /// When it begins.
    pub from: SystemTime,
    /// When it ends. For a calendar limit this is the end of its period.
    pub until: SystemTime,
    /// When it has left the window and can be deleted.
    pub counts_until: SystemTime,
    /// The start of the calendar period, for a calendar limit.
    pub period: Option<SystemTime>,
    /// What was used of the reservation before this one, which has ended.
    pub settles: Option<Settled>,
}

/// What was used of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// The reservation's number.
    pub serial: u64,
    /// The amount that was booked and not given back.
    pub spent: u64,
}

/// An upper bound of what was booked before a restart.
///
/// ```
/// use std::time::SystemTime;
/// use tidegate_limit::{Gate, Limit};
/// use tidegate_limit::journal::Restored;
///
/// let gate = Gate::builder()
///     .limit(Limit::rpd(10_000, "UTC"))
///     .restore([Restored::new("rpd", 9_000, SystemTime::now())])
///     .build()
///     .unwrap();
/// assert_eq!(gate.stats().limit("rpd").unwrap().remaining, 1_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub(crate) limit: Arc<str>,
    pub(crate) amount: u64,
    pub(crate) until: SystemTime,
}

impl Restored {
    /// Creates the bound: at most `amount` was booked under `limit`, the last of it before `until` (a reservation's
    /// [`until`](Reservation::until), or for a calendar limit the start of its [`period`](Reservation::period)). A gate
    /// ignores what no longer counts, and limits that it does not have.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::journal::Restored};
    /// let restored = Restored::new("rpm", 12, SystemTime::now());
    /// # let _ = restored;
    /// ```
    #[must_use]
    pub fn new(limit: impl Into<Arc<str>>, amount: u64, until: SystemTime) -> Restored {
        Restored { limit: limit.into(), amount, until }
    }

    /// The limit's name.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::journal::Restored};
    /// assert_eq!(Restored::new("rpm", 12, SystemTime::now()).limit(), "rpm");
    /// ```
    #[must_use]
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// The largest amount that was booked.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::journal::Restored};
    /// assert_eq!(Restored::new("rpm", 12, SystemTime::now()).amount(), 12);
    /// ```
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// The instant before which it was booked.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::journal::Restored};
    /// let now = SystemTime::now();
    /// assert_eq!(Restored::new("rpm", 12, now).until(), now);
    /// ```
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }
}

/// Reports that a reservation was written. Dropping it reports a failure.
#[must_use = "the gate waits for the receipt of a reservation"]
pub struct Receipt {
    gate: Weak<GateShared>,
    limit: LimitId,
    handed_in: bool,
}

impl Receipt {
    pub(crate) fn new(gate: &Arc<GateShared>, limit: LimitId) -> Receipt {
        Receipt { gate: Arc::downgrade(gate), limit, handed_in: false }
    }

    /// Returns how much of the reservation may be written, or `None` for all of it. `taken` is what other runs have in the
    /// journal for this limit; none of them may write before this is written.
    #[cfg(feature = "sqlite")]
    pub(crate) fn grant(&self, taken: &[Taken]) -> Option<u64> {
        let gate = self.gate.upgrade()?;
        // The instants of the others are of the wall clock, so it is read now.
        let now = gate.tell_time_and_wall();
        gate.lock_at(now).limits.grant(self.limit, taken, now.moment)
    }

    /// Reports that the reservation is on disk; entries that wait for it are admitted.
    pub fn written(mut self) {
        self.hand_in(Ok(()));
    }

    /// Reports that the reservation could not be written. Entries that wait for it fail with `reason`; the next entry makes
    /// the gate try again.
    pub fn failed(mut self, reason: impl fmt::Display) {
        self.hand_in(Err(reason.to_string().into()));
    }

    fn hand_in(&mut self, outcome: Result<(), Arc<str>>) {
        self.handed_in = true;
        if let Some(gate) = self.gate.upgrade() {
            gate.reserved(self.limit, outcome);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.handed_in {
            self.hand_in(Err("the journal dropped the reservation".into()));
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl GateShared {
    /// Passes the reservation that `cost` needs under `limit` to the journal.
    pub(crate) fn reserve(self: &Arc<Self>, limit: LimitId, cost: &Cost) {
        let now = self.now();
        let reservation = self.lock().limits.reserve(limit, cost, now);
        let journal = reservation.map(|reservation| (limit, reservation)).into_iter().collect();
        self.carry_out(Effects { journal, ..Effects::default() });
    }

    /// Handles a receipt.
    pub(crate) fn reserved(self: &Arc<Self>, limit: LimitId, outcome: Result<(), Arc<str>>) {
        let now = self.tell_time();
        let mut effects = Effects::default();
        let mut state = self.lock_at(now);
        state.limits.reserved(limit, outcome.is_ok());
        match outcome {
            // Reserves what was booked meanwhile without a reservation. Not after a failure, which would repeat for ever.
            Ok(()) => effects.journal = state.limits.overdrafts(now.moment),
            Err(reason) => {
                state.refuse_all(now.moment, &mut effects, |limits, cost| limits.unwritten(limit, cost, &reason));
            }
        }
        if !state.closed {
            state.pump(now.moment, &mut effects);
        }
        drop(state);
        self.carry_out(effects);
    }

    /// Passes reservations to the journal, in order. One thread at a time does so, in a loop: a journal may report the
    /// receipt from within `write`, which admits entries that need the next reservation, and recursion would become as deep
    /// as the line is long.
    pub(crate) fn write_down(self: &Arc<Self>, reservations: Vec<(LimitId, Reservation)>) {
        let Some(journal) = &self.journal else { return };
        let mut state = self.lock();
        state.unwritten.extend(reservations);
        while !state.journal_busy
            && let Some((limit, reservation)) = state.unwritten.pop_front()
        {
            state.journal_busy = true;
            drop(state);
            let writing = JournalTurn(self);
            journal.write(reservation, Receipt::new(self, limit));
            drop(writing);
            state = self.lock();
        }
    }
}

/// Resets `journal_busy`, also if the journal panics.
struct JournalTurn<'g>(&'g GateShared);

impl Drop for JournalTurn<'_> {
    fn drop(&mut self) {
        self.0.lock().journal_busy = false;
    }
}
