//! Layered limits: pure decisions at a given instant. No clock, no waiting. Called by the gate; see `gate.rs` for who
//! waits.

mod control;
mod outcome;

pub use outcome::Refusal;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::cost::Cost;
use crate::error::{ConfigError, EnterError};
use crate::journal::{Reservation, Restored};
use crate::learn::Ticket;
use crate::ledger::Ledger;
use crate::limit::{Kind, Limit};
use crate::moment::{Moment, Wall, nanos_of, wall_nanos, wall_time};
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::slot::{Count, MARKS, Slot, Withheld};
use crate::window::{Model, Setting};

const LIMITS_MAX: usize = 1_000;

/// A difference to the wall clock below this is drift and a slow look, not a clock that was set.
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

/// Several limits, decided on at once: all of them grant, or none has counted anything.
///
/// Time is what the caller says it is, and never goes back: an earlier instant than one seen before is taken for that.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_limit::{Cost, Limit, Limits, Moment, Until};
///
/// let start = Moment::ZERO;
/// let mut limits = Limits::new([Limit::rpm(2), Limit::tpm(1_000)], start, SystemTime::now()).unwrap();
/// limits.admit(&Cost::tokens(900), start).unwrap();
///
/// // There is a request left, but not the tokens; nothing is counted, and the answer is exact.
/// let later = start + Duration::from_secs(1);
/// let denied = limits.admit(&Cost::tokens(200), later).unwrap_err();
/// assert_eq!(limits.name(denied.limit), "tpm");
/// assert_eq!(denied.until, Until::At(start + Duration::from_secs(60)));
/// assert!(limits.admit(&Cost::tokens(100), later).is_ok());
/// ```
#[derive(Debug)]
pub struct Limits {
    /// In the order they were given; the one that finds limits is the last.
    slots: Vec<Slot>,
    setting: Setting,
    /// The latest instant seen.
    now: Moment,
}

/// What was booked for one entry: needed to settle it, to take it back, and to free its slots.
#[derive(Debug)]
#[must_use = "slots are held until the booking is released"]
pub struct Booking {
    pub(crate) at: Moment,
    /// What buckets told when it was booked.
    pub(crate) marks: [Moment; MARKS],
    pub(crate) cost: Cost,
    /// A limit was drained by it: how much that was is not known here.
    pub(crate) drained: bool,
    /// What the finder knows it by.
    pub(crate) ticket: Ticket,
}

/// Nothing was booked; this is why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The limit that has to be waited for; the last of them.
    pub limit: LimitId,
    /// Until when.
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
    /// When what is to be booked was written to the journal.
    Journal,
    /// Never: the cost is above what the limit ever lets through.
    TooLarge,
    /// Never, until the limit is resumed.
    Shut,
}

impl Booking {
    #[inline]
    fn new(cost: Cost, now: Moment) -> Booking {
        Booking { at: now, marks: [Moment::ZERO; MARKS], cost, drained: false, ticket: Ticket::default() }
    }
}

impl Until {
    /// What has to be waited for last is told: what never comes, or else slots, time, the journal. Slots before time,
    /// because nobody knows when they will be free.
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
    /// Limits as they are at `now`, when the wall clock shows `wall`.
    ///
    /// # Errors
    /// [`ConfigError`] says which limit is impossible, and why.
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
                (Kind::Rate { dimension, oversize, journaled, .. }, Some(model)) => Count::Rate {
                    dimension,
                    mark: matches!(model, Model::Bucket(_)).then(|| marks.next()).flatten(),
                    model,
                    oversize,
                    ledger: journaled.map(|batch| Box::new(Ledger::new(batch))),
                    withheld: Withheld::default(),
                    overdrawn: 0,
                },
                (Kind::Found, _) => {
                    unstated = Some(limit.name);
                    continue;
                }
                _ => Count::Concurrency { amount: limit.amount, used: 0 },
            };
            slots.push(Slot::new(limit.name, count));
        }
        let mut limits = Limits { slots, setting: Setting { wall, margin: 0 }, now };
        if let Some(name) = unstated {
            limits.find_unstated(name, now);
        }
        Ok(limits)
    }

    /// The limit of that name.
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

    /// The name of a limit.
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

    pub(crate) fn setting(&self) -> Setting {
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
    /// [`Denied`] says which limit to wait for, and until when: the earliest instant at which this cost would be admitted
    /// if nothing else were booked before.
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
        // Nobody can say no after the only one said yes.
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
        // Whoever said no first, those after it have not been asked: what they remember may have passed.
        self.slots.iter_mut().for_each(|slot| slot.expire(now, setting));
        let slots = self.slots.iter_mut().enumerate().rev();
        let answers = slots.filter_map(|(at, slot)| Some((at, slot.until(cost, now, setting)?)));
        // Of equals the first, as they are listed.
        let last = answers.max_by_key(|(_, until)| until.rank()).expect("somebody has denied it");
        Denied { limit: LimitId(last.0 as u16), until: last.1 }
    }

    /// Whether `head`, who waits until `ready_at`, could still go then if `extra` were admitted now, and would find a
    /// slot.
    pub(crate) fn leaves_room(&self, head: &Cost, ready_at: Moment, extra: &Cost, now: Moment) -> bool {
        let setting = self.setting;
        self.slots.iter().all(|slot| match &slot.count {
            Count::Concurrency { amount, used } => used.saturating_add(2) <= *amount,
            Count::Rate { dimension, .. } => {
                slot.hold.is_open()
                    && slot.ready_at(head.of(*dimension), extra.of(*dimension), now, setting) <= ready_at
            }
            Count::Found(finder) => slot.hold.is_open() && finder.has_room_to_spare(),
        })
    }

    /// Gives the slots of an entry back. What it booked under rate limits stays booked.
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
                Count::Concurrency { used, .. } => *used -= 1,
                Count::Found(finder) => finder.ended(booking.ticket),
                Count::Rate { .. } => {}
            }
        }
        drop(booking);
    }

    /// The entry cost `actual`, not what was booked for it. Less: the difference is taken off where it was booked. More:
    /// the rest is booked now, and a window may be exceeded by that, which nobody declared.
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

    /// The entry never happened: takes back what it booked under rate limits. Its slots are given back by
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

    /// The entry happens only now, later than it was booked, and counts from now on.
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
            if let Count::Rate { dimension, model, mark, ledger, .. } = &mut slot.count {
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

    /// How long an entry of a strict limit counts beyond its window, from now on: a server counts arrivals, and the way
    /// there does not always take the same time.
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

    /// The wall clock shows `wall` at `now`. Calendar windows follow it; if it went back they count on, and give nothing
    /// back.
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
            if let Count::Rate { model, .. } = &mut slot.count {
                model.wall_moved(now, wall);
            }
        }
    }

    /// Counts what was booked before a restart.
    pub(crate) fn restore(&mut self, restored: &Restored, now: Moment) {
        let Some(limit) = self.find(&restored.limit) else { return };
        let (setting, until) = (self.setting, wall_nanos(restored.until));
        let Count::Rate { model, .. } = &mut self.slot_mut(limit).count else { return };
        model.expire(now, setting);
        match model {
            Model::Calendar(calendar) => {
                // What lies ahead was written by a clock that has been set back since: not to count it could only be too
                // little.
                if until >= calendar.begins() {
                    calendar.book(restored.amount);
                }
            }
            // The past before the beginning of time counts from the beginning: later than it was.
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

    /// Counts what other runs have in the journal. Returns `false` if the limit is not journaled, or there is none of that
    /// name.
    #[cfg(feature = "sqlite")]
    pub(crate) fn begin_beside(&mut self, limit: &str, taken: &[Taken], now: Moment) -> bool {
        let setting = self.setting;
        let Some(limit) = self.find(limit) else { return false };
        let Count::Rate { model, ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count else { return false };
        ledger.begin_beside(taken, model, now, setting.wall);
        true
    }

    /// Returns how much of the reservation that `limit` asked for may be written, with `taken` in the journal by others.
    #[cfg(feature = "sqlite")]
    pub(crate) fn grant(&mut self, limit: LimitId, taken: &[Taken], now: Moment) -> Option<u64> {
        let now = self.advance(now);
        let setting = self.setting;
        let Count::Rate { model, ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count else { return None };
        model.expire(now, setting);
        ledger.grant(taken, model, now, setting)
    }

    /// What has to be written down before `cost` can be booked under `limit`; nothing if that is under way.
    pub(crate) fn reserve(&mut self, limit: LimitId, cost: &Cost, now: Moment) -> Option<Reservation> {
        let setting = self.setting;
        let slot = self.slot_mut(limit);
        let Count::Rate { dimension, model, ledger: Some(ledger), .. } = &mut slot.count else { return None };
        let amount = cost.of(*dimension).min(model.capacity());
        ledger.reserve(&slot.name, amount, model, now, setting.wall)
    }

    /// Why somebody of that cost is refused when a reservation could not be written, if it concerns him.
    pub(crate) fn unwritten(&self, limit: LimitId, cost: &Cost, reason: &Arc<str>) -> Option<EnterError> {
        let slot = self.slot(limit);
        let Count::Rate { dimension, .. } = &slot.count else { return None };
        let limit = Arc::clone(&slot.name);
        (cost.of(*dimension) > 0).then(|| EnterError::Journal { limit, reason: Arc::clone(reason) })
    }

    /// Brings every limit up to `now`.
    pub(crate) fn expire(&mut self, now: Moment) {
        let now = self.advance(now);
        for slot in &mut self.slots {
            if let Count::Rate { model, .. } = &mut slot.count {
                model.expire(now, self.setting);
            }
        }
    }

    /// What has to be written down because it was booked without having been reserved.
    pub(crate) fn overdrafts(&mut self, now: Moment) -> Vec<(LimitId, Reservation)> {
        let setting = self.setting;
        let mut asked = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Count::Rate { ledger: Some(ledger), model, .. } = &mut slot.count
                && ledger.is_overdrawn()
            {
                let reservation = ledger.reserve(&slot.name, 0, model, now, setting.wall);
                asked.extend(reservation.map(|reservation| (LimitId(at as u16), reservation)));
            }
        }
        asked
    }

    /// The reservation under way was written, or was not.
    pub(crate) fn reserved(&mut self, limit: LimitId, written: bool) {
        if let Count::Rate { ledger: Some(ledger), .. } = &mut self.slot_mut(limit).count {
            ledger.reserved(written);
        }
    }

    /// What became of the reservations that are open, to be written down at the end.
    pub(crate) fn settle_ledgers(&mut self, now: Moment) -> Vec<(LimitId, Reservation)> {
        let setting = self.setting;
        let mut settled = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Count::Rate { ledger: Some(ledger), model, .. } = &mut slot.count {
                let last = ledger.close(&slot.name, model, now, setting.wall);
                settled.extend(last.map(|last| (LimitId(at as u16), last)));
            }
        }
        settled
    }
}
