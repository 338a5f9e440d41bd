//! Layered limits: pure decisions at a given instant. No clock, no waiting. Called by the gate; see `gate.rs` for waiting.

mod control;
mod outcome;

pub use outcome::Refusal;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::cost::Cost;
use crate::error::{ConfigError, EnterError};
use crate::journal::{Reservation, Restored};
use crate::learn::FinderTicket;
use crate::ledger::Ledger;
use crate::limit::{Limit, LimitKind};
use crate::moment::{Moment, Wall, nanos_of, wall_nanos, wall_time};
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::slot::{MARKS, Slot, SlotCount, Withheld};
use crate::window::{Model, WindowSetting};

const LIMITS_MAX: usize = 1_000;

/// A difference to the wall clock below this is drift or the time of the reading, not a clock that was set.
const DRIFT_NANOS: i64 = 1_000_000;

/// The place of a limit among those it was made with.
///
/// ```
/// use tidegate_limit::{Limit, Limits, Moment};
/// let limits = Limits::new([Limit::rpm(1)], Moment::ZERO, std::time::SystemTime::now()).unwrap();
/// assert_eq!(limits.name(limits.find("rpm").unwrap()), "rpm");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub(crate) u16);

/// Several limits, decided on at once: all of them admit an entry, or none counts anything.
///
/// The caller passes the time, which never goes back: an instant earlier than one seen before is treated as that one.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_limit::{Cost, Limit, Limits, Moment, Until};
///
/// let start = Moment::ZERO;
/// let mut limits = Limits::new([Limit::rpm(2), Limit::tpm(1_000)], start, SystemTime::now()).unwrap();
/// limits.admit(&Cost::tokens(900), start).unwrap();
///
/// // A request is left, but not the tokens: nothing is counted, and the denial has the exact instant.
/// let later = start + Duration::from_secs(1);
/// let denied = limits.admit(&Cost::tokens(200), later).unwrap_err();
/// assert_eq!(limits.name(denied.limit), "tpm");
/// assert_eq!(denied.until, Until::At(start + Duration::from_secs(60)));
/// assert!(limits.admit(&Cost::tokens(100), later).is_ok());
/// ```
#[derive(Debug)]
pub struct Limits {
    /// In the order in which they were given; the slot that finds limits is the last.
    slots: Vec<Slot>,
    setting: WindowSetting,
    /// The latest instant seen.
    now: Moment,
}

/// What was booked for one entry. Needed to settle it, to take it back, and to free its slots.
#[derive(Debug)]
#[must_use = "slots are held until the booking is released"]
pub struct Booking {
    pub(crate) at: Moment,
    /// The marks that buckets returned when it was booked.
    pub(crate) marks: [Moment; MARKS],
    pub(crate) cost: Cost,
    /// It drained a limit, so less than `cost` was booked there.
    pub(crate) drained: bool,
    /// Its ticket with the finder of limits.
    pub(crate) ticket: FinderTicket,
}

/// Why nothing was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The limit that blocks the entry; the one that blocks it longest if there are several.
    pub limit: LimitId,
    /// Until when it blocks the entry.
    pub until: Until,
}

/// When a denied entry can be admitted, if nothing else is booked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// At this instant, and not before.
    At(Moment),
    /// When slots are released.
    Release,
    /// When the journal has written a reservation.
    Journal,
    /// Never: the cost is above what the limit ever admits.
    TooLarge,
    /// When the limit is resumed.
    Shut,
}

impl Booking {
    #[inline]
    fn new(cost: Cost, now: Moment) -> Booking {
        Booking { at: now, marks: [Moment::ZERO; MARKS], cost, drained: false, ticket: FinderTicket::default() }
    }
}

impl Until {
    /// The order in which denials are reported if several limits deny: what never comes, then slots, time, the journal.
    /// Slots come before time because it is not known when they will be free.
    fn rank(self) -> (u8, Moment) {
        match self {
            Until::Journal => (0, Moment::ZERO),
            Until::At(at) => (1, at),
            Until::Release => (2, Moment::ZERO),
            Until::TooLarge => (3, Moment::ZERO),
            Until::Shut => (4, Moment::ZERO),
        }
    }
}

impl Limits {
    /// Creates limits at `now`, when the wall clock shows `wall`.
    ///
    /// # Errors
    /// [`ConfigError`] names the limit that is impossible, and why.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Limit, Limits, Moment}};
    /// assert!(Limits::new([Limit::rpm(0)], Moment::ZERO, SystemTime::now()).is_err());
    /// ```
    pub fn new(limits: impl IntoIterator<Item = Limit>, now: Moment, wall: SystemTime) -> Result<Limits, ConfigError> {
        let wall = Wall::at(now, wall);
        let mut slots: Vec<Slot> = Vec::new();
        let mut marks = 0..MARKS as u8;
        let mut unstated = None;
        for limit in limits {
            if slots.iter().any(|slot| slot.name == limit.name) {
                return Err(ConfigError::Twice { limit: limit.name });
            }
            if slots.len() == LIMITS_MAX {
                return Err(ConfigError::TooMany);
            }
            let model = limit.model(now, wall)?;
            let count = match (limit.kind, model) {
                (LimitKind::Rate { dimension, oversize, journaled, .. }, Some(model)) => SlotCount::Rate {
                    dimension,
                    mark: matches!(model, Model::Bucket(_)).then(|| marks.next()).flatten(),
                    model,
                    oversize,
                    ledger: journaled.map(|batch| Box::new(Ledger::new(batch))),
                    withheld: Withheld::default(),
                    overdrawn: 0,
                },
                (LimitKind::Found, _) => {
                    unstated = Some(limit.name);
                    continue;
                }
                _ => SlotCount::Concurrency { amount: limit.amount, used: 0 },
            };
            slots.push(Slot::new(limit.name, count));
        }
        let mut limits = Limits { slots, setting: WindowSetting { wall, margin: 0 }, now };
        if let Some(name) = unstated {
            limits.find_unstated(name, now);
        }
        Ok(limits)
    }

    /// Returns the limit of that name.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Limit, Limits, Moment}};
    /// # let limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// assert!(limits.find("rpm").is_some() && limits.find("tpm").is_none());
    /// ```
    #[must_use]
    pub fn find(&self, name: &str) -> Option<LimitId> {
        self.slots.iter().position(|slot| &*slot.name == name).map(|at| LimitId(at as u16))
    }

    /// Returns the name of a limit.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Limit, Limits, Moment}};
    /// # let limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// assert_eq!(limits.name(limits.find("rpm").unwrap()), "rpm");
    /// ```
    #[must_use]
    pub fn name(&self, limit: LimitId) -> &str {
        &self.slot(limit).name
    }

    pub(crate) fn slot(&self, limit: LimitId) -> &Slot {
        &self.slots[usize::from(limit.0)]
    }

    fn slot_mut(&mut self, limit: LimitId) -> &mut Slot {
        &mut self.slots[usize::from(limit.0)]
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(crate) fn setting(&self) -> WindowSetting {
        self.setting
    }

    /// The latest instant seen.
    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    pub(crate) fn wall_of(&self, moment: Moment) -> SystemTime {
        wall_time(self.setting.wall.of(moment))
    }

    pub(crate) fn moment_of(&self, wall: SystemTime) -> Moment {
        self.setting.wall.moment(wall_nanos(wall))
    }

    #[inline]
    fn advance(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        self.now
    }

    /// Books `cost` under every limit, or nothing at all.
    ///
    /// # Errors
    /// [`Denied`] names the limit that blocks the entry, and until when: the earliest instant at which this cost would be
    /// admitted if nothing else were booked before.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::concurrency("slots", 1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// assert_eq!(limits.admit(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::Release);
    /// limits.release(booking);
    /// assert!(limits.admit(&Cost::request(), Moment::ZERO).is_ok());
    /// ```
    #[inline]
    pub fn admit(&mut self, cost: &Cost, now: Moment) -> Result<Booking, Denied> {
        let now = self.advance(now);
        let setting = self.setting;
        // With a single limit, no other can deny after it has booked.
        if let [only] = &mut self.slots[..] {
            let mut booking = Booking::new(cost.clone(), now);
            return if only.take(&mut booking, now, setting) { Ok(booking) } else { Err(self.denial(cost, now)) };
        }
        if self.fits(cost, now) { Ok(self.book(cost.clone(), now)) } else { Err(self.denial(cost, now)) }
    }

    /// As [`admit`](Self::admit), without booking anything.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// assert!(limits.check(&Cost::request(), Moment::ZERO).is_ok());
    /// assert!(limits.check(&Cost::request(), Moment::ZERO).is_ok());
    /// ```
    pub fn check(&mut self, cost: &Cost, now: Moment) -> Result<(), Denied> {
        let now = self.advance(now);
        if self.fits(cost, now) { Ok(()) } else { Err(self.denial(cost, now)) }
    }

    #[inline]
    fn fits(&mut self, cost: &Cost, now: Moment) -> bool {
        let setting = self.setting;
        self.slots.iter_mut().all(|slot| slot.fits(cost, now, setting))
    }

    #[inline]
    fn book(&mut self, cost: Cost, now: Moment) -> Booking {
        let mut booking = Booking::new(cost, now);
        for slot in &mut self.slots {
            slot.book(&mut booking, now);
        }
        booking
    }

    #[cold]
    fn denial(&mut self, cost: &Cost, now: Moment) -> Denied {
        let setting = self.setting;
        // The slots after the first that denied have not been checked, so they may hold expired entries.
        self.slots.iter_mut().for_each(|slot| slot.expire(now, setting));
        let slots = self.slots.iter_mut().enumerate().rev();
        let answers = slots.filter_map(|(at, slot)| Some((at, slot.until(cost, now, setting)?)));
        // Of equals the first: the iterator is reversed, and `max_by_key` returns the last.
        let last = answers.max_by_key(|(_, until)| until.rank()).expect("a limit has denied it");
        Denied { limit: LimitId(last.0 as u16), until: last.1 }
    }

    /// Returns whether `head`, which is due at `ready_at`, could still be admitted then and find a slot if `extra` were
    /// admitted now.
    pub(crate) fn leaves_room(&self, head: &Cost, ready_at: Moment, extra: &Cost, now: Moment) -> bool {
        let setting = self.setting;
        self.slots.iter().all(|slot| match &slot.count {
            SlotCount::Concurrency { amount, used } => used.saturating_add(2) <= *amount,
            SlotCount::Rate { dimension, .. } => {
                slot.hold.is_open()
                    && slot.ready_at(head.of(*dimension), extra.of(*dimension), now, setting) <= ready_at
            }
            SlotCount::Found(finder) => slot.hold.is_open() && finder.has_room_to_spare(),
        })
    }

    /// Frees the slots of an entry. What it booked under rate limits stays booked.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::concurrency("slots", 1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// limits.release(booking);
    /// ```
    #[inline]
    pub fn release(&mut self, booking: Booking) {
        for slot in &mut self.slots {
            match &mut slot.count {
                SlotCount::Concurrency { used, .. } => *used -= 1,
                SlotCount::Found(finder) => finder.ended(booking.ticket),
                SlotCount::Rate { .. } => {}
            }
        }
        drop(booking);
    }

    /// Replaces what was booked for an entry by its actual cost. If that is less, the difference is removed where it was
    /// booked. If it is more, the rest is booked now, and may exceed a window, because it was not declared.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::tpm(1_000)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let mut booking = limits.admit(&Cost::tokens(1_000), Moment::ZERO).unwrap();
    /// limits.settle(&mut booking, Cost::tokens(400), Moment::ZERO);
    /// assert!(limits.admit(&Cost::tokens(600), Moment::ZERO).is_ok());
    /// ```
    pub fn settle(&mut self, booking: &mut Booking, actual: Cost, now: Moment) {
        let now = self.advance(now);
        let setting = self.setting;
        for slot in &mut self.slots {
            slot.settle(booking, &actual, now, setting);
        }
        booking.cost = actual;
    }

    /// Takes back what an entry booked under rate limits, because it was not used. Its slots are freed by
    /// [`release`](Self::release).
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let mut booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// limits.refund(&mut booking, Moment::ZERO);
    /// limits.release(booking);
    /// assert!(limits.admit(&Cost::request(), Moment::ZERO).is_ok());
    /// ```
    pub fn refund(&mut self, booking: &mut Booking, now: Moment) {
        if let Some(finder) = self.finder_mut() {
            finder.withdraw(booking.ticket);
        }
        self.settle(booking, Cost::nothing(), now);
    }

    /// Makes an entry count from `now` on instead of from when it was booked, because it is used only now.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let mut booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// let sent = Moment::ZERO + Duration::from_secs(5);
    /// limits.restamp(&mut booking, sent);
    /// let denied = limits.check(&Cost::request(), sent).unwrap_err();
    /// assert_eq!(denied.until, Until::At(sent + Duration::from_secs(60)));
    /// ```
    pub fn restamp(&mut self, booking: &mut Booking, now: Moment) {
        let now = self.advance(now);
        for slot in &mut self.slots {
            if let SlotCount::Rate { dimension, model, mark, ledger, .. } = &mut slot.count {
                let amount = booking.cost.of(*dimension).min(model.capacity());
                if amount > 0 {
                    model.expire(now, self.setting);
                    if let Some(ledger) = ledger {
                        ledger.restamp(amount, booking.at, model, now);
                    }
                    let at = mark.map(usize::from);
                    let renewed = model.restamp(amount, booking.at, at.map_or(booking.at, |at| booking.marks[at]), now);
                    if let Some(at) = at {
                        booking.marks[at] = renewed;
                    }
                }
            }
        }
        booking.at = now;
        if let Some(finder) = self.finder_mut() {
            finder.restamp(booking.ticket, now);
        }
    }

    /// Sets how long an entry of a strict limit counts beyond its window. A server counts requests as they arrive, and
    /// requests take different times to arrive.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// limits.set_margin(Duration::from_millis(50));
    /// limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// let denied = limits.check(&Cost::request(), Moment::ZERO).unwrap_err();
    /// assert_eq!(denied.until, Until::At(Moment::ZERO + Duration::from_millis(60_050)));
    /// ```
    pub fn set_margin(&mut self, margin: Duration) {
        self.setting.margin = nanos_of(margin);
    }

    /// Sets the wall clock to `wall` at `now`, for calendar windows. If the clock went back, they continue to count and give
    /// nothing back.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
    /// let mut limits = Limits::new([Limit::rpd(1, "UTC")], Moment::ZERO, noon).unwrap();
    /// limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// limits.set_wall(Moment::ZERO, noon - Duration::from_secs(3600));
    /// let denied = limits.check(&Cost::request(), Moment::ZERO).unwrap_err();
    /// assert_eq!(denied.until, Until::At(Moment::ZERO + Duration::from_secs(13 * 3600)));
    /// ```
    pub fn set_wall(&mut self, now: Moment, wall: SystemTime) {
        let now = self.advance(now);
        let wall = Wall::at(now, wall);
        if wall.of(now).abs_diff(self.setting.wall.of(now)) < DRIFT_NANOS.unsigned_abs() {
            return;
        }
        self.setting.wall = wall;
        for slot in &mut self.slots {
            if let SlotCount::Rate { model, .. } = &mut slot.count {
                model.wall_moved(now, wall);
            }
        }
    }

    /// Counts what was booked before a restart.
    pub(crate) fn restore(&mut self, restored: &Restored, now: Moment) {
        let Some(limit) = self.find(&restored.limit) else { return };
        let (setting, until) = (self.setting, wall_nanos(restored.until));
        let SlotCount::Rate { model, .. } = &mut self.slot_mut(limit).count else { return };
        model.expire(now, setting);
        match model {
            Model::Calendar(calendar) => {
                // An entry in the future was written by a clock that has been set back since. It is counted, which is the
                // safe side.
                if until >= calendar.begins() {
                    calendar.book(restored.amount);
                }
            }
            // A moment before `Moment::ZERO` becomes `Moment::ZERO`, which is later, so on the safe side.
            Model::Strict(log) => {
                let at = setting.wall.moment(until).min(now);
                log.book(restored.amount, at);
                log.expire(now, setting.margin);
            }
            Model::Bucket(bucket) => {
                let at = setting.wall.moment(until).min(now);
                bucket.restore(restored.amount, at, now);
            }
        }
    }

    /// Counts what other runs have reserved in the journal. Returns `false` if there is no journaled limit of that name.
    #[cfg(feature = "sqlite")]
    pub(crate) fn begin_beside(&mut self, limit: &str, taken: &[Taken], now: Moment) -> bool {
        let setting = self.setting;
        let Some(limit) = self.find(limit) else { return false };
        let SlotCount::Rate { model, ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count else { return false };
        ledger.begin_beside(taken, model, now, setting.wall);
        true
    }

    /// Returns how much of the reservation for `limit` may be written when other runs have `taken` in the journal.
    #[cfg(feature = "sqlite")]
    pub(crate) fn grant(&mut self, limit: LimitId, taken: &[Taken], now: Moment) -> Option<u64> {
        let now = self.advance(now);
        let setting = self.setting;
        let SlotCount::Rate { model, ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count else { return None };
        model.expire(now, setting);
        ledger.grant(taken, model, now, setting)
    }

    /// Returns the reservation that has to be written before `cost` can be booked under `limit`, or `None` if one is being
    /// written.
    pub(crate) fn reserve(&mut self, limit: LimitId, cost: &Cost, now: Moment) -> Option<Reservation> {
        let setting = self.setting;
        let slot = self.slot_mut(limit);
        let SlotCount::Rate { dimension, model, ledger: Some(ledger), .. } = &mut slot.count else { return None };
        let amount = cost.of(*dimension).min(model.capacity());
        ledger.reserve(&slot.name, amount, model, now, setting.wall)
    }

    /// Returns the error of an entry of that cost when a reservation for `limit` could not be written, or `None` if the
    /// entry does not depend on that limit.
    pub(crate) fn unwritten(&self, limit: LimitId, cost: &Cost, reason: &Arc<str>) -> Option<EnterError> {
        let slot = self.slot(limit);
        let SlotCount::Rate { dimension, .. } = &slot.count else { return None };
        let limit = Arc::clone(&slot.name);
        (cost.of(*dimension) > 0).then(|| EnterError::Journal { limit, reason: Arc::clone(reason) })
    }

    /// Brings every limit up to `now`.
    pub(crate) fn expire(&mut self, now: Moment) {
        let now = self.advance(now);
        for slot in &mut self.slots {
            if let SlotCount::Rate { model, .. } = &mut slot.count {
                model.expire(now, self.setting);
            }
        }
    }

    /// Returns the reservations for what was booked without having been reserved.
    pub(crate) fn overdrafts(&mut self, now: Moment) -> Vec<(LimitId, Reservation)> {
        let setting = self.setting;
        let mut asked = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let SlotCount::Rate { ledger: Some(ledger), model, .. } = &mut slot.count
                && ledger.is_overdrawn()
            {
                let reservation = ledger.reserve(&slot.name, 0, model, now, setting.wall);
                asked.extend(reservation.map(|reservation| (LimitId(at as u16), reservation)));
            }
        }
        asked
    }

    /// Reports that the reservation was written, or that it could not be.
    pub(crate) fn reserved(&mut self, limit: LimitId, written: bool) {
        if let SlotCount::Rate { ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count {
            ledger.reserved(written);
        }
    }

    /// Returns what was used of the open reservations, to be written at the end.
    pub(crate) fn settle_ledgers(&mut self, now: Moment) -> Vec<(LimitId, Reservation)> {
        let setting = self.setting;
        let mut settled = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let SlotCount::Rate { ledger: Some(ledger), model, .. } = &mut slot.count {
                let last = ledger.close(&slot.name, model, now, setting.wall);
                settled.extend(last.map(|last| (LimitId(at as u16), last)));
            }
        }
        settled
    }
}
