//! What a limit is about to book, written down first: so that a restart knows of it.
//!
//! A journaled limit books only what it has reserved. A [`Reservation`] says "from now until then, up to so much";
//! once the [`Journal`] has it on disk, entries are booked against it without another write. A crash loses only how
//! much of the last one was really used, so what is [restored](crate::Builder::restore) is an upper bound: too much may
//! be counted, by a batch, never too little. A gate that is [closed](crate::Gate::close) settles its last reservations,
//! and then nothing too much is counted either.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use crate::cost::Cost;
use crate::gate::Shared;
use crate::limits::LimitId;
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::pump::Effects;

/// Where reservations are kept.
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
///         receipt.written(); // another thread may do this, once the disk has it
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
    /// Makes `reservation` last, and then hands the receipt in; at once or from another thread, but without blocking
    /// the caller for long: it may be an event loop. No lock of the gate is held. Reservations of one limit come one at a
    /// time, the next after the receipt of the one before.
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
    /// How much; zero if only `settles` is news.
    pub amount: u64,
    /// From when on.
    pub from: SystemTime,
    /// Until when. For a calendar limit this is the end of its period.
    pub until: SystemTime,
    /// From when on it can be forgotten: the window has passed it.
    pub counts_until: SystemTime,
    /// The start of the calendar period, for a calendar limit.
    pub period: Option<SystemTime>,
    /// The reservation before this one is over; here is what became of it.
    pub settles: Option<Settled>,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Its number.
    pub serial: u64,
    /// How much of it was booked, and not given back.
    pub spent: u64,
}

/// What was booked, at the most, before a restart.
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
    /// Up to `amount` was booked under `limit`, the last of it before `until` (a reservation's
    /// [`until`](Reservation::until), or for a calendar limit the start of its [`period`](Reservation::period)). What no
    /// longer counts, and what names no limit of the gate, is left aside.
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

    /// How much was booked, at the most.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::journal::Restored};
    /// assert_eq!(Restored::new("rpm", 12, SystemTime::now()).amount(), 12);
    /// ```
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Before when.
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

/// What a journal hands in when a reservation is safe. Dropped without that, it failed.
#[must_use = "a reservation counts once its receipt is handed in"]
pub struct Receipt {
    gate: Weak<Shared>,
    limit: LimitId,
    handed_in: bool,
}

impl Receipt {
    pub(crate) fn new(gate: &Arc<Shared>, limit: LimitId) -> Receipt {
        Receipt { gate: Arc::downgrade(gate), limit, handed_in: false }
    }

    /// Returns how much of the reservation may be written, if `taken` is all that other runs have in the journal for this
    /// limit and none of them can write before this is written. `None`: all of it.
    #[cfg(feature = "sqlite")]
    pub(crate) fn grant(&self, taken: &[Taken]) -> Option<u64> {
        let gate = self.gate.upgrade()?;
        // The instants of the others are of the wall clock, so it is looked at now.
        let now = gate.tell_time_and_wall();
        gate.lock_at(now).limits.grant(self.limit, taken, now.moment)
    }

    /// It is on disk. Whoever waited for it goes on.
    pub fn written(mut self) {
        self.hand_in(Ok(()));
    }

    /// It could not be written. Who waits for it is told why; who comes later makes the gate try again.
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
            self.hand_in(Err("the journal gave up on it".into()));
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Shared {
    /// Asks for what `cost` needs under `limit`.
    pub(crate) fn reserve(self: &Arc<Self>, limit: LimitId, cost: &Cost) {
        let now = self.now();
        let reservation = self.lock().limits.reserve(limit, cost, now);
        let journal = reservation.map(|reservation| (limit, reservation)).into_iter().collect();
        self.carry_out(Effects { journal, ..Effects::default() });
    }

    /// A receipt was handed in.
    pub(crate) fn reserved(self: &Arc<Self>, limit: LimitId, outcome: Result<(), Arc<str>>) {
        let now = self.tell_time();
        let mut effects = Effects::default();
        let mut state = self.lock_at(now);
        state.limits.reserved(limit, outcome.is_ok());
        match outcome {
            // What was booked meanwhile without having been reserved. Not if it failed: it would for ever.
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

    /// Gives reservations to the journal, in order. One thread at a time does: a journal that hands the receipt in from
    /// within lets somebody in who needs the next reservation, and with a long line that would go as many calls deep.
    pub(crate) fn write_down(self: &Arc<Self>, reservations: Vec<(LimitId, Reservation)>) {
        let Some(journal) = &self.journal else { return };
        let mut state = self.lock();
        state.unwritten.extend(reservations);
        while !state.journal_busy
            && let Some((limit, reservation)) = state.unwritten.pop_front()
        {
            state.journal_busy = true;
            drop(state);
            let writing = Writing(self);
            journal.write(reservation, Receipt::new(self, limit));
            drop(writing);
            state = self.lock();
        }
    }
}

/// Somebody is at the journal; a journal that panics must not leave it occupied.
struct Writing<'g>(&'g Shared);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.lock().journal_busy = false;
    }
}
