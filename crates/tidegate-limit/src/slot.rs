//! One limit at work: its count, and whether it is held.

use std::sync::Arc;

use crate::cost::{Cost, Dimension};
use crate::hold::Hold;
use crate::learn::{Finder, Ready};
use crate::ledger::Ledger;
use crate::limit::Oversize;
use crate::limits::{Booking, Until};
use crate::moment::Moment;
use crate::window::{Model, Setting};

/// Buckets whose refunds are exact; what is refunded to further ones errs on the safe side.
pub(crate) const MARKS: usize = 3;

/// A stated window that is used to this share explains a refusal: the request came a few milliseconds too early.
const NEARLY_FULL: f64 = 0.9;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: Arc<str>,
    pub(crate) hold: Hold,
    pub(crate) count: Count,
    /// What was booked, ever: requests or tokens as settled, or entries of a concurrency.
    pub(crate) total: u64,
    /// The most that was in use at once.
    pub(crate) peak: u64,
    /// How often the server asked for a pause of this limit.
    pub(crate) pauses: u64,
    /// Set by `set_amount`: `adjust` does not change the amount any more.
    pub(crate) is_set: bool,
}

#[derive(Debug)]
pub(crate) enum Count {
    Concurrency {
        amount: u64,
        used: u64,
    },
    Rate {
        dimension: Dimension,
        model: Model,
        oversize: Oversize,
        /// Where a booking keeps what this limit's bucket told it.
        mark: Option<u8>,
        ledger: Option<Box<Ledger>>,
        withheld: Withheld,
        /// What was booked by settling above what had been declared.
        overdrawn: u64,
    },
    /// Limits that were not stated. There is at most one such slot, the last.
    Found(Box<Finder>),
}

/// What the server says is gone beyond what we know of, and until when.
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

/// What is booked for a cost: all of it, or as much as there is room for at all if the limit lets itself be drained.
#[inline]
pub(crate) fn effective(cost: u64, oversize: Oversize, model: &Model) -> u64 {
    match oversize {
        Oversize::Refuse => cost,
        // A limit of nothing is not drained but shut.
        Oversize::Drain => match model.capacity() {
            0 => cost,
            capacity => cost.min(capacity),
        },
    }
}

/// What other runs use of the window, as far as the journal has said.
#[inline]
pub(crate) fn used_by_others(ledger: Option<&Ledger>, model: &Model, now: Moment, setting: Setting) -> u64 {
    ledger.map_or(0, |ledger| ledger.others().used(model, now, setting))
}

impl Slot {
    /// A limit that is open and has counted nothing.
    pub(crate) fn new(name: Arc<str>, count: Count) -> Slot {
        Slot { name, hold: Hold::Open, count, total: 0, peak: 0, pauses: 0, is_set: false }
    }

    /// Brings the limit up to `now` and says whether `cost` fits.
    #[inline]
    pub(crate) fn fits(&mut self, cost: &Cost, now: Moment, setting: Setting) -> bool {
        let held = !self.hold.is_open() && !self.hold.lets_through(now);
        match &mut self.count {
            Count::Concurrency { amount, used } => used < amount && !held,
            Count::Rate { dimension, model, oversize, ledger, withheld, .. } => {
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
            Count::Found(finder) => !held && finder.ready(now) == Ready::Now,
        }
    }

    /// [`fits`](Self::fits) and [`book`](Self::book) at once, for a limit that is asked alone.
    #[inline]
    pub(crate) fn take(&mut self, booking: &mut Booking, now: Moment, setting: Setting) -> bool {
        if let Count::Rate {
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
            let told = bucket.take(amount, now);
            if let Some(told) = told {
                booking.marks[usize::from(*mark)] = told;
                self.total = self.total.saturating_add(amount);
                self.peak = self.peak.max(bucket.used(now));
            }
            return told.is_some();
        }
        let fits = self.fits(&booking.cost, now, setting);
        if fits {
            self.book(booking, now);
        }
        fits
    }

    /// Books what `fits` has said yes to.
    #[inline]
    pub(crate) fn book(&mut self, booking: &mut Booking, now: Moment) {
        match &mut self.count {
            Count::Concurrency { used, .. } => {
                *used += 1;
                self.total += 1;
                self.peak = self.peak.max(*used);
            }
            Count::Rate { dimension, model, oversize, mark, ledger, .. } => {
                let cost = booking.cost.of(*dimension);
                if cost == 0 {
                    return;
                }
                let amount = effective(cost, *oversize, model);
                booking.drained |= amount < cost;
                let told = model.book(amount, now);
                self.total = self.total.saturating_add(amount);
                self.peak = self.peak.max(model.used(now));
                if let Some(mark) = mark {
                    booking.marks[usize::from(*mark)] = told;
                }
                if let Some(ledger) = ledger {
                    ledger.spend(amount);
                }
            }
            Count::Found(finder) => booking.ticket = finder.sent(now),
        }
        self.hold.passed(now);
    }

    /// Brings the limit up to `now`.
    pub(crate) fn expire(&mut self, now: Moment, setting: Setting) {
        if let Count::Rate { model, .. } = &mut self.count {
            model.expire(now, setting);
        }
    }

    /// What has to be waited for before `cost` fits, of a limit that is up to `now`.
    pub(crate) fn until(&mut self, cost: &Cost, now: Moment, setting: Setting) -> Option<Until> {
        if !self.concerns(cost) {
            return None;
        }
        if let Hold::Shut { .. } = self.hold {
            return Some(Until::Shut);
        }
        let held = self.hold.ready_at(now);
        if let Count::Found(finder) = &mut self.count {
            return match finder.ready(now) {
                Ready::Now => held.map(Until::At),
                Ready::At(at) => Some(Until::At(at.max(held.unwrap_or(now)))),
                Ready::AfterAnswer => Some(Until::Release),
            };
        }
        match &self.count {
            Count::Found(_) => None,
            Count::Concurrency { amount, used } if used >= amount => Some(Until::Release),
            Count::Concurrency { .. } => held.map(Until::At),
            Count::Rate { dimension, model, oversize, ledger, withheld, .. } => {
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
                    // At the end of time there is no later instant to name.
                    let ready = ready.max(now.plus(1));
                    let again = ledger.filter(|_| others > 0 && held.is_none() && fits_beside(withheld));
                    // Only the others leave no room: they may have given some back.
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

    /// Whether somebody of this cost passes this limit at all.
    pub(crate) fn concerns(&self, cost: &Cost) -> bool {
        match &self.count {
            Count::Concurrency { .. } | Count::Found(_) => true,
            Count::Rate { dimension, .. } => cost.of(*dimension) > 0,
        }
    }

    /// What a cost that never fits comes to, and what would fit.
    pub(crate) fn too_large(&self, cost: &Cost) -> (u64, u64) {
        match &self.count {
            Count::Concurrency { amount, .. } => (1, *amount),
            Count::Found(_) => (1, 1),
            Count::Rate { dimension, model, .. } => (cost.of(*dimension), model.capacity()),
        }
    }

    /// The earliest instant at which `cost` fits under a rate, if nothing is booked until then but `extra`, now.
    pub(crate) fn ready_at(&self, cost: u64, extra: u64, now: Moment, setting: Setting) -> Moment {
        let Count::Rate { model, .. } = &self.count else { return now };
        self.ready_under(model, cost, extra, now, setting)
    }

    /// The same as if the rate's window were `model`.
    pub(crate) fn ready_under(&self, model: &Model, cost: u64, extra: u64, now: Moment, setting: Setting) -> Moment {
        let Count::Rate { withheld, oversize, ledger, .. } = &self.count else { return now };
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
            // What is withheld may come back, or the window may pass what is there before that.
            missing => {
                let with = ready_at(extra.saturating_add(missing));
                with.min(without.max(withheld.until))
            }
        }
    }

    pub(crate) fn settle(&mut self, booking: &mut Booking, actual: &Cost, now: Moment, setting: Setting) {
        let Count::Rate { dimension, model, oversize, mark, ledger, overdrawn, .. } = &mut self.count else { return };
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
            let told = mark.map_or(booking.at, |mark| booking.marks[usize::from(mark)]);
            model.unbook(booked - actual, booking.at, told, now);
            self.total = self.total.saturating_sub(booked - actual);
            if let Some(ledger) = ledger {
                ledger.give_back(booked - actual, booking.at);
            }
        }
    }

    /// Whether it is a strict window that has no or hardly any room, as seen by `cost`.
    pub(crate) fn is_nearly_full(&self, cost: &Cost, now: Moment, setting: Setting) -> bool {
        match &self.count {
            Count::Rate { dimension, model: model @ Model::Strict(log), ledger, .. } if cost.of(*dimension) > 0 => {
                let used = log.used().saturating_add(used_by_others(ledger.as_deref(), model, now, setting));
                used as f64 >= NEARLY_FULL * log.amount() as f64
            }
            Count::Rate { .. } | Count::Concurrency { .. } | Count::Found(_) => false,
        }
    }

    /// The server did not count the entry: a strict window does not, either. A day's quota and what flows into a bucket are
    /// left as they are, on the safe side.
    pub(crate) fn unbook(&mut self, booking: &Booking, now: Moment) {
        if let Count::Rate { dimension, model: model @ Model::Strict(_), oversize, ledger, .. } = &mut self.count {
            let amount = effective(booking.cost.of(*dimension), *oversize, model);
            model.unbook(amount, booking.at, booking.at, now);
            if let Some(ledger) = ledger {
                ledger.give_back(amount, booking.at);
            }
        }
    }
}
