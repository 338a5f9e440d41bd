//! The reservations of a journaled limit: what it may book without another write. Pure; `journal.rs` states the guarantees.

use std::sync::Arc;

use crate::journal::{Reservation, Settled};
use crate::moment::{Moment, Wall, wall_time};
use crate::others::Others;
#[cfg(feature = "sqlite")]
use crate::others::Taken;
use crate::window::Model;
#[cfg(feature = "sqlite")]
use crate::window::WindowSetting;

/// A reservation for a sliding window lasts for this share of it, because after a restart all of it counts from its end.
const SHARE_OF_WINDOW: u64 = 64;

/// How long a reservation lasts if the window has no length.
const LASTS_NANOS: u64 = 1_000_000_000;

/// How late after it was booked a request may be sent, as a share of the time for which its row counts. The row covers this,
/// even if the reservation has ended by then. What is sent later is reserved again.
pub(crate) const LATE_SHARE: u64 = 1_024;

/// The shortest reservation. Shorter ones would be written too often.
const LASTS_NANOS_MIN: u64 = 50_000_000;

#[derive(Debug)]
pub(crate) struct Ledger {
    batch: u64,
    /// The number of the last reservation that was requested.
    serial: u64,
    current: Option<OpenReservation>,
    /// Requested, not yet written.
    asked: Option<OpenReservation>,
    /// Booked beyond what was reserved; included in the next reservation.
    overdrawn: u64,
    others: Others,
}

#[derive(Clone, Copy, Debug)]
struct OpenReservation {
    serial: u64,
    /// The amount that the waiting entry needs, without what was overdrawn. Less would be of no use.
    #[cfg(feature = "sqlite")]
    needed: u64,
    amount: u64,
    spent: u64,
    from: Moment,
    until: Moment,
}

impl Ledger {
    pub(crate) fn new(batch: u64) -> Ledger {
        Ledger { batch, serial: 0, current: None, asked: None, overdrawn: 0, others: Others::default() }
    }

    /// Returns whether `amount` may be booked at `now`.
    #[inline]
    pub(crate) fn covers(&self, amount: u64, model: &Model, now: Moment) -> bool {
        // While the next reservation is being written, what was used of this one is being written with it.
        self.asked.is_none()
            && self.overdrawn == 0
            && self.current.is_some_and(|current| {
                now < current.until && amount <= current.amount - current.spent && current.is_of_this_period(model)
            })
    }

    #[inline]
    pub(crate) fn spend(&mut self, amount: u64) {
        if let Some(current) = &mut self.current {
            current.spent = current.spent.saturating_add(amount).min(current.amount);
        }
    }

    /// Books `amount` that was not declared, so perhaps not reserved.
    pub(crate) fn overdraw(&mut self, amount: u64, now: Moment) {
        let current = self.current.filter(|current| self.asked.is_none() && now < current.until);
        let covered = current.map_or(0, |current| current.amount - current.spent).min(amount);
        self.spend(covered);
        self.overdrawn = self.overdrawn.saturating_add(amount - covered);
    }

    /// Makes what was booked at `booked_at` count from `now` on. If it was reserved for another time, it is reserved again.
    pub(crate) fn restamp(&mut self, amount: u64, booked_at: Moment, model: &Model, now: Moment) {
        let elsewhere = match model {
            // All that is reserved for a period counts in that period.
            Model::Calendar(calendar) => !calendar.has_counted(booked_at),
            // A reservation that has ended, or is about to be settled, does not cover `now`.
            _ => {
                let is_over = self.asked.is_some()
                    || self.current.is_none_or(|current| booked_at < current.from || now >= current.until);
                is_over && now > booked_at.plus(late(model))
            }
        };
        if elsewhere {
            self.overdraw(amount, now);
        }
    }

    pub(crate) fn is_overdrawn(&self) -> bool {
        self.overdrawn > 0
    }

    pub(crate) fn give_back(&mut self, amount: u64, booked_at: Moment) {
        if let Some(current) = &mut self.current
            && booked_at >= current.from
        {
            current.spent = current.spent.saturating_sub(amount);
        }
    }

    /// Returns the reservation that has to be written to cover `amount`, or `None` if one is being written already.
    pub(crate) fn reserve(
        &mut self,
        limit: &Arc<str>,
        amount: u64,
        model: &Model,
        now: Moment,
        wall: Wall,
    ) -> Option<Reservation> {
        if self.asked.is_some() {
            return None;
        }
        self.serial += 1;
        let until = match model {
            Model::Calendar(calendar) => calendar.resets_at(),
            Model::Strict(_) | Model::Bucket(_) => now.plus(lasts(model)),
        };
        #[cfg(feature = "sqlite")]
        let needed = amount;
        let amount = amount.max(self.batch).saturating_add(self.overdrawn);
        self.asked = Some(OpenReservation {
            serial: self.serial,
            #[cfg(feature = "sqlite")]
            needed,
            amount,
            spent: self.overdrawn,
            from: now,
            until,
        });
        Some(self.entry(limit, amount, now, until, model, wall))
    }

    /// Returns how much of the requested reservation may be written beside the `taken` ones of other runs: what they leave,
    /// or zero if that is less than is needed. What is overdrawn is added in any case. Returns `None` if none was requested.
    ///
    /// Called while no other run can write to the journal. So the sum of what all runs may book is never above the limit:
    /// what one has reserved and not booked yet is not granted to another.
    #[cfg(feature = "sqlite")]
    pub(crate) fn grant(
        &mut self,
        taken: &[Taken],
        model: &mut Model,
        now: Moment,
        setting: WindowSetting,
    ) -> Option<u64> {
        self.others.refresh(taken, lasts(model) + late(model), model, now, setting.wall);
        let asked = self.asked.as_mut()?;
        let others = self.others.used(model, now, setting);
        let free = model.capacity().saturating_sub(model.used(now)).saturating_sub(others);
        let fits = asked.needed.checked_add(others).is_some_and(|amount| model.fits(amount, now));
        let granted = if fits { (asked.amount - asked.spent).min(free).max(asked.needed) } else { 0 };
        asked.amount = asked.spent + granted;
        Some(asked.amount)
    }

    /// Counts what other runs have reserved before this one begins.
    #[cfg(feature = "sqlite")]
    pub(crate) fn begin_beside(&mut self, taken: &[Taken], model: &mut Model, now: Moment, wall: Wall) {
        self.others.refresh(taken, lasts(model) + late(model), model, now, wall);
    }

    pub(crate) fn others(&self) -> &Others {
        &self.others
    }

    fn entry(
        &self,
        limit: &Arc<str>,
        amount: u64,
        from: Moment,
        until: Moment,
        model: &Model,
        wall: Wall,
    ) -> Reservation {
        let (period, until) = match model {
            Model::Calendar(calendar) => (Some(wall_time(calendar.begins())), until),
            _ => (None, until.plus(late(model))),
        };
        Reservation {
            limit: Arc::clone(limit),
            serial: self.serial,
            amount,
            from: wall_time(wall.of(from)),
            until: wall_time(wall.of(until)),
            counts_until: wall_time(wall.of(until.plus(model.counts_for()))),
            period,
            settles: self.current.map(|current| Settled { serial: current.serial, spent: current.spent }),
        }
    }

    pub(crate) fn reserved(&mut self, written: bool) {
        if let Some(asked) = self.asked.take()
            && written
        {
            // What was overdrawn since the request is reserved next time.
            self.overdrawn = self.overdrawn.saturating_sub(asked.spent);
            self.current = Some(asked);
        }
    }

    /// Ends the current reservation, and returns what has to be written of it.
    pub(crate) fn close(&mut self, limit: &Arc<str>, model: &Model, now: Moment, wall: Wall) -> Option<Reservation> {
        self.current?;
        self.serial += 1;
        let last = self.entry(limit, self.overdrawn, now, now, model, wall);
        self.current = None;
        Some(last)
    }
}

/// Returns how long a reservation for a sliding window lasts.
fn lasts(model: &Model) -> u64 {
    match model {
        Model::Strict(log) => (log.window() / SHARE_OF_WINDOW).max(LASTS_NANOS_MIN.min(log.window())),
        Model::Bucket(_) | Model::Calendar(_) => LASTS_NANOS,
    }
}

/// Returns how long after it was booked a request may be sent and still be covered.
fn late(model: &Model) -> u64 {
    model.counts_for() / LATE_SHARE
}

impl OpenReservation {
    /// Returns whether this reservation is for the current period. The wall clock may have been set, and with it the period.
    fn is_of_this_period(&self, model: &Model) -> bool {
        match model {
            Model::Calendar(calendar) => self.until <= calendar.resets_at(),
            _ => true,
        }
    }
}
