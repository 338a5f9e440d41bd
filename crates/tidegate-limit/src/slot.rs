//! One limit in use: its count and its hold.

use std::sync::Arc;

use crate::cost::{Cost, Dimension};
use crate::hold::Hold;
use crate::learn::{Finder, Ready};
use crate::ledger::Ledger;
use crate::limit::Oversize;
use crate::limits::{Booking, Until};
use crate::moment::Moment;
use crate::window::{Model, WindowSetting};

/// The number of buckets whose refunds are exact. Refunds to further ones err on the safe side.
pub(crate) const MARKS: usize = 3;

/// A stated window that is used to this share explains a refusal: the request arrived a few milliseconds too early.
const NEARLY_FULL: f64 = 0.9;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: Arc<str>,
    pub(crate) hold: Hold,
    pub(crate) count: SlotCount,
    /// What was booked so far: requests or tokens as settled, or entries of a concurrency.
    pub(crate) total: u64,
    /// The most that was ever in use at once.
    pub(crate) peak: u64,
    /// How often the server asked for a pause of this limit.
    pub(crate) pauses: u64,
    /// Set by `set_amount`: `adjust` does not change the amount any more.
    pub(crate) is_set: bool,
}

#[derive(Debug)]
pub(crate) enum SlotCount {
    Concurrency {
        amount: u64,
        used: u64,
    },
    Rate {
        dimension: Dimension,
        model: Model,
        oversize: Oversize,
        /// The index in [`Booking::marks`] for this limit's bucket.
        mark: Option<u8>,
        ledger: Option<Box<Ledger>>,
        withheld: Withheld,
        /// What was booked by settling at more than had been declared.
        overdrawn: u64,
    },
    /// Limits that were not stated. There is at most one such slot, the last.
    Found(Box<Finder>),
}

/// What is missing by the server's report beyond what was booked here, and until when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Withheld {
    amount: u64,
    until: Moment,
}

impl Withheld {
    #[inline]
    pub(crate) fn at(self, now: Moment) -> u64 {
        if now < self.until { self.amount } else { 0 }
    }

    pub(crate) fn tighten(&mut self, amount: u64, until: Moment, now: Moment) {
        if amount > self.at(now) {
            *self = Withheld { amount, until };
        }
    }
}

/// Returns what is booked for a cost: all of it, or the limit's capacity if it can be drained.
#[inline]
pub(crate) fn effective(cost: u64, oversize: Oversize, model: &Model) -> u64 {
    match oversize {
        Oversize::Refuse => cost,
        // A limit of zero cannot be drained: the cost is too large.
        Oversize::Drain => match model.capacity() {
            0 => cost,
            capacity => cost.min(capacity),
        },
    }
}

/// Returns what other runs use of the window, by the journal's last report.
#[inline]
pub(crate) fn used_by_others(ledger: Option<&Ledger>, model: &Model, now: Moment, setting: WindowSetting) -> u64 {
    ledger.map_or(0, |ledger| ledger.others().used(model, now, setting))
}

impl Slot {
    /// Creates a limit that is open and has counted nothing.
    pub(crate) fn new(name: Arc<str>, count: SlotCount) -> Slot {
        Slot { name, hold: Hold::Open, count, total: 0, peak: 0, pauses: 0, is_set: false }
    }

    /// Expires what has left the window at `now`, and returns whether `cost` fits.
    #[inline]
    pub(crate) fn fits(&mut self, cost: &Cost, now: Moment, setting: WindowSetting) -> bool {
        let held = !self.hold.is_open() && !self.hold.lets_through(now);
        match &mut self.count {
            SlotCount::Concurrency { amount, used } => used < amount && !held,
            SlotCount::Rate { dimension, model, oversize, ledger, withheld, .. } => {
                model.expire(now, setting);
                let amount = cost.of(*dimension);
                if amount == 0 {
                    return true;
                }
                if held {
                    return false;
                }
                let amount = effective(amount, *oversize, model);
                let missing = withheld.at(now).saturating_add(used_by_others(ledger.as_deref(), model, now, setting));
                let fits = match missing {
                    0 => model.fits(amount, now),
                    missing => amount.checked_add(missing).is_some_and(|amount| model.fits(amount, now)),
                };
                fits && ledger.as_ref().is_none_or(|ledger| ledger.covers(amount, model, now))
            }
            SlotCount::Found(finder) => !held && finder.ready(now) == Ready::Now,
        }
    }

    /// [`fits`](Self::fits) and [`book`](Self::book) in one, for a gate with a single limit.
    #[inline]
    pub(crate) fn take(&mut self, booking: &mut Booking, now: Moment, setting: WindowSetting) -> bool {
        if let SlotCount::Rate {
            dimension,
            model: Model::Bucket(bucket),
            oversize: Oversize::Refuse,
            mark: Some(mark),
            ledger: None,
            withheld,
            ..
        } = &mut self.count
            && self.hold.is_open()
            && withheld.at(now) == 0
        {
            let amount = booking.cost.of(*dimension);
            if amount == 0 {
                return true;
            }
            let taken = bucket.take(amount, now);
            if let Some(bucket_mark) = taken {
                booking.marks[usize::from(*mark)] = bucket_mark;
                self.total = self.total.saturating_add(amount);
                self.peak = self.peak.max(bucket.used(now));
            }
            return taken.is_some();
        }
        let fits = self.fits(&booking.cost, now, setting);
        if fits {
            self.book(booking, now);
        }
        fits
    }

    /// Books a cost that fits.
    #[inline]
    pub(crate) fn book(&mut self, booking: &mut Booking, now: Moment) {
        match &mut self.count {
            SlotCount::Concurrency { used, .. } => {
                *used += 1;
                self.total += 1;
                self.peak = self.peak.max(*used);
            }
            SlotCount::Rate { dimension, model, oversize, mark, ledger, .. } => {
                let cost = booking.cost.of(*dimension);
                if cost == 0 {
                    return;
                }
                let amount = effective(cost, *oversize, model);
                booking.drained |= amount < cost;
                let model_mark = model.book(amount, now);
                self.total = self.total.saturating_add(amount);
                self.peak = self.peak.max(model.used(now));
                if let Some(mark) = mark {
                    booking.marks[usize::from(*mark)] = model_mark;
                }
                if let Some(ledger) = ledger {
                    ledger.spend(amount);
                }
            }
            SlotCount::Found(finder) => booking.ticket = finder.sent(now),
        }
        self.hold.passed(now);
    }

    /// Expires what has left the window at `now`.
    pub(crate) fn expire(&mut self, now: Moment, setting: WindowSetting) {
        if let SlotCount::Rate { model, .. } = &mut self.count {
            model.expire(now, setting);
        }
    }

    /// Returns what has to happen before `cost` fits, or `None` if it fits. Called after [`expire`](Self::expire).
    pub(crate) fn until(&mut self, cost: &Cost, now: Moment, setting: WindowSetting) -> Option<Until> {
        if !self.concerns(cost) {
            return None;
        }
        if let Hold::Shut { .. } = self.hold {
            return Some(Until::Shut);
        }
        let held = self.hold.ready_at(now);
        if let SlotCount::Found(finder) = &mut self.count {
            return match finder.ready(now) {
                Ready::Now => held.map(Until::At),
                Ready::At(at) => Some(Until::At(at.max(held.unwrap_or(now)))),
                Ready::AfterAnswer => Some(Until::Release),
            };
        }
        match &self.count {
            SlotCount::Found(_) => None,
            SlotCount::Concurrency { amount, used } if used >= amount => Some(Until::Release),
            SlotCount::Concurrency { .. } => held.map(Until::At),
            SlotCount::Rate { dimension, model, oversize, ledger, withheld, .. } => {
                let amount = effective(cost.of(*dimension), *oversize, model);
                if amount > model.capacity() {
                    return Some(Until::TooLarge);
                }
                let ready = self.ready_at(amount, 0, now, setting).max(held.unwrap_or(now));
                let (ledger, withheld) = (ledger.as_deref(), withheld.at(now));
                let fits_beside =
                    |missing| amount.checked_add(missing).is_some_and(|amount: u64| model.fits(amount, now));
                let others = used_by_others(ledger, model, now, setting);
                if ready > now || !fits_beside(withheld.saturating_add(others)) {
                    // At the last moment there is no later one, so `ready` may be `now`.
                    let ready = ready.max(now.plus(1));
                    let again = ledger.filter(|_| others > 0 && held.is_none() && fits_beside(withheld));
                    // If only other runs leave no room, the journal is read again: they may have given some back.
                    return Some(match again.map(|ledger| ledger.others().read_again_at(model)) {
                        Some(again) if again <= now => Until::Journal,
                        Some(again) => Until::At(ready.min(again)),
                        None => Until::At(ready),
                    });
                }
                let covered = ledger.is_none_or(|ledger| ledger.covers(amount, model, now));
                (!covered).then_some(Until::Journal)
            }
        }
    }

    /// Returns whether an entry of this cost depends on this limit.
    pub(crate) fn concerns(&self, cost: &Cost) -> bool {
        match &self.count {
            SlotCount::Concurrency { .. } | SlotCount::Found(_) => true,
            SlotCount::Rate { dimension, .. } => cost.of(*dimension) > 0,
        }
    }

    /// Returns, for a cost that never fits, its amount in this limit's dimension and the limit's capacity.
    pub(crate) fn too_large(&self, cost: &Cost) -> (u64, u64) {
        match &self.count {
            SlotCount::Concurrency { amount, .. } => (1, *amount),
            SlotCount::Found(_) => (1, 1),
            SlotCount::Rate { dimension, model, .. } => (cost.of(*dimension), model.capacity()),
        }
    }

    /// Returns the earliest instant at which `cost` fits under a rate, if nothing but `extra`, now, is booked until then.
    pub(crate) fn ready_at(&self, cost: u64, extra: u64, now: Moment, setting: WindowSetting) -> Moment {
        let SlotCount::Rate { model, .. } = &self.count else { return now };
        self.ready_under(model, cost, extra, now, setting)
    }

    /// As [`ready_at`](Self::ready_at), with `model` as the rate's window.
    pub(crate) fn ready_under(
        &self,
        model: &Model,
        cost: u64,
        extra: u64,
        now: Moment,
        setting: WindowSetting,
    ) -> Moment {
        let SlotCount::Rate { withheld, oversize, ledger, .. } = &self.count else { return now };
        let amount = effective(cost, *oversize, model);
        if amount == 0 {
            return now;
        }
        let ready_at = |extra| match ledger {
            Some(ledger) => ledger.others().ready_at(model, amount, extra, now, setting),
            None => model.ready_at(amount, extra, now, setting),
        };
        let without = ready_at(extra);
        match withheld.at(now) {
            0 => without,
            // The cost fits when what is withheld comes back, or earlier if enough leaves the window.
            missing => {
                let with = ready_at(extra.saturating_add(missing));
                with.min(without.max(withheld.until))
            }
        }
    }

    pub(crate) fn settle(&mut self, booking: &mut Booking, actual: &Cost, now: Moment, setting: WindowSetting) {
        let SlotCount::Rate { dimension, model, oversize, mark, ledger, overdrawn, .. } = &mut self.count else {
            return;
        };
        model.expire(now, setting);
        let (booked, actual) = (booking.cost.of(*dimension), actual.of(*dimension));
        if actual > booked {
            let rest = actual - booked;
            model.book(rest, now);
            self.total = self.total.saturating_add(rest);
            self.peak = self.peak.max(model.used(now));
            *overdrawn = overdrawn.saturating_add(rest);
            if let Some(ledger) = ledger {
                ledger.overdraw(rest, now);
            }
        } else if booked > actual && !(booking.drained && *oversize == Oversize::Drain) {
            let bucket_mark = mark.map_or(booking.at, |mark| booking.marks[usize::from(mark)]);
            model.unbook(booked - actual, booking.at, bucket_mark, now);
            self.total = self.total.saturating_sub(booked - actual);
            if let Some(ledger) = ledger {
                ledger.give_back(booked - actual, booking.at);
            }
        }
    }

    /// Returns whether this is a strict window for `cost` with little or no room.
    pub(crate) fn is_nearly_full(&self, cost: &Cost, now: Moment, setting: WindowSetting) -> bool {
        match &self.count {
            SlotCount::Rate { dimension, model: model @ Model::Strict(log), ledger, .. } if cost.of(*dimension) > 0 => {
                let used = log.used().saturating_add(used_by_others(ledger.as_deref(), model, now, setting));
                used as f64 >= NEARLY_FULL * log.amount() as f64
            }
            SlotCount::Rate { .. } | SlotCount::Concurrency { .. } | SlotCount::Found(_) => false,
        }
    }

    /// Removes an entry that the server did not count from a strict window. A day's quota and a bucket keep it, which is the
    /// safe side.
    pub(crate) fn unbook(&mut self, booking: &Booking, now: Moment) {
        if let SlotCount::Rate { dimension, model: model @ Model::Strict(_), oversize, ledger, .. } = &mut self.count {
            let amount = effective(booking.cost.of(*dimension), *oversize, model);
            model.unbook(amount, booking.at, booking.at, now);
            if let Some(ledger) = ledger {
                ledger.give_back(amount, booking.at);
            }
        }
    }
}
