//! What a journaled limit may book without another write. Pure; see `journal.rs` for what is promised.

use std::sync::Arc;

use crate::journal::{Reservation, Settled};
use crate::moment::{Moment, Wall, wall_time};
use crate::window::Model;

/// A reservation for a window that slides lasts for this share of it: after a restart all of it counts from its end.
const SHARE_OF_WINDOW: u64 = 64;

/// Where a window has no length of its own to take a share of.
const LASTS_NANOS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Ledger {
    batch: u64,
    /// The number of the last reservation that was asked for.
    serial: u64,
    current: Option<Open>,
    /// Asked for, not yet written.
    asked: Option<Open>,
    /// Booked beyond what was reserved: the next reservation makes up for it.
    overdrawn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    serial: u64,
    amount: u64,
    spent: u64,
    from: Moment,
    until: Moment,
}

impl Ledger {
    pub(crate) fn new(batch: u64) -> Ledger {
        Ledger { batch, serial: 0, current: None, asked: None, overdrawn: 0 }
    }

    /// Whether `amount` may be booked at `now`.
    #[inline]
    pub(crate) fn covers(&self, amount: u64, model: &Model, now: Moment) -> bool {
        // While the next one is being written, what became of this one is on its way to the journal already.
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

    /// Booked above what was declared, without having asked first.
    pub(crate) fn overdraw(&mut self, amount: u64, now: Moment) {
        let current = self.current.filter(|current| self.asked.is_none() && now < current.until);
        let covered = current.map_or(0, |current| current.amount - current.spent).min(amount);
        self.spend(covered);
        self.overdrawn = self.overdrawn.saturating_add(amount - covered);
    }

    /// What was booked at `booked_at` happens only now. Reserved for another time, it has to be reserved for this one.
    pub(crate) fn restamp(&mut self, amount: u64, booked_at: Moment, model: &Model, now: Moment) {
        let elsewhere = match model {
            // All that is reserved for one period counts together.
            Model::Calendar(calendar) => !calendar.has_counted(booked_at),
            _ => self.current.is_none_or(|current| booked_at < current.from),
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

    /// What has to be written so that `amount` is covered; nothing if something is being written already.
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
            Model::Strict(log) => now.plus((log.window() / SHARE_OF_WINDOW).max(1)),
            Model::Bucket(_) => now.plus(LASTS_NANOS),
        };
        let amount = amount.max(self.batch).saturating_add(self.overdrawn);
        self.asked = Some(Open { serial: self.serial, amount, spent: self.overdrawn, from: now, until });
        Some(self.entry(limit, amount, now, until, model, wall))
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
        let period = match model {
            Model::Calendar(calendar) => Some(wall_time(calendar.begins())),
            _ => None,
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
            // What was overdrawn since it was asked for stays overdrawn.
            self.overdrawn = self.overdrawn.saturating_sub(asked.spent);
            self.current = Some(asked);
        }
    }

    /// What became of the current reservation; it is over.
    pub(crate) fn close(&mut self, limit: &Arc<str>, model: &Model, now: Moment, wall: Wall) -> Option<Reservation> {
        self.current?;
        self.serial += 1;
        let last = self.entry(limit, self.overdrawn, now, now, model, wall);
        self.current = None;
        Some(last)
    }
}

impl Open {
    /// The wall clock may have moved and a calendar's period with it.
    fn is_of_this_period(&self, model: &Model) -> bool {
        match model {
            Model::Calendar(calendar) => self.until <= calendar.resets_at(),
            _ => true,
        }
    }
}
