//! The window models behind one interface: what fits, when, what is booked, what is taken back.

mod bucket;
mod calendar;
mod log;

pub(crate) use bucket::Bucket;
pub(crate) use calendar::{Calendar, Periods};
pub(crate) use log::Log;

use crate::moment::{Moment, Wall};

/// The settings of time beside the moment: the same for all limits in one decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSetting {
    pub(crate) wall: Wall,
    /// How long a strict entry still counts after its window.
    pub(crate) margin: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Model {
    Strict(Log),
    Bucket(Bucket),
    Calendar(Calendar),
}

impl Model {
    /// Expires what has left the window at `now`. Called before any other method at `now`.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment, setting: WindowSetting) {
        match self {
            Model::Strict(log) => log.expire(now, setting.margin),
            Model::Bucket(_) => {}
            Model::Calendar(calendar) => calendar.expire(now, setting.wall),
        }
    }

    #[inline]
    pub(crate) fn fits(&self, amount: u64, now: Moment) -> bool {
        match self {
            Model::Strict(log) => log.fits(amount),
            Model::Bucket(bucket) => bucket.fits(amount, now),
            Model::Calendar(calendar) => calendar.fits(amount),
        }
    }

    /// Returns the most that can ever fit at once.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        match self {
            Model::Strict(log) => log.amount(),
            Model::Bucket(bucket) => bucket.burst(),
            Model::Calendar(calendar) => calendar.amount(),
        }
    }

    /// Returns the longest time for which a booking may count.
    pub(crate) fn counts_for(&self) -> u64 {
        match self {
            // The margin is at most a share of the window.
            Model::Strict(log) => log.window().saturating_mul(2),
            Model::Bucket(bucket) => bucket.fills_in(),
            Model::Calendar(_) => 0,
        }
    }

    pub(crate) fn amount(&self) -> u64 {
        match self {
            Model::Strict(log) => log.amount(),
            Model::Bucket(bucket) => bucket.amount(),
            Model::Calendar(calendar) => calendar.amount(),
        }
    }

    pub(crate) fn set_amount(&mut self, amount: u64, now: Moment) {
        match self {
            Model::Strict(log) => log.set_amount(amount),
            Model::Bucket(bucket) => bucket.set_amount(amount, now),
            Model::Calendar(calendar) => calendar.set_amount(amount),
        }
    }

    pub(crate) fn used(&self, now: Moment) -> u64 {
        match self {
            Model::Strict(log) => log.used(),
            Model::Bucket(bucket) => bucket.used(now),
            Model::Calendar(calendar) => calendar.used(),
        }
    }

    /// Returns the earliest instant at which `amount` fits, if nothing but `extra`, now, is booked until then.
    pub(crate) fn ready_at(&self, amount: u64, extra: u64, now: Moment, setting: WindowSetting) -> Moment {
        match self {
            Model::Strict(log) => log.ready_at(amount, extra, now, setting.margin),
            Model::Bucket(bucket) => bucket.ready_at(amount, extra, now),
            Model::Calendar(calendar) => calendar.ready_at(amount, extra, now),
        }
    }

    /// Books `amount`. Returns a mark for `unbook` and `restamp`.
    #[inline]
    pub(crate) fn book(&mut self, amount: u64, now: Moment) -> Moment {
        match self {
            Model::Strict(log) => log.book(amount, now),
            Model::Bucket(bucket) => return bucket.book(amount, now),
            Model::Calendar(calendar) => calendar.book(amount),
        }
        Moment::ZERO
    }

    #[inline]
    pub(crate) fn unbook(&mut self, amount: u64, at: Moment, mark: Moment, now: Moment) {
        match self {
            Model::Strict(log) => log.unbook(amount, at),
            Model::Bucket(bucket) => bucket.unbook(amount, at, mark, now),
            Model::Calendar(calendar) => calendar.unbook(amount, at),
        }
    }

    /// Makes what was booked at `at` count from `now` on. Returns its new mark.
    pub(crate) fn restamp(&mut self, amount: u64, at: Moment, mark: Moment, now: Moment) -> Moment {
        match self {
            Model::Strict(log) => {
                log.unbook(amount, at);
                log.book(amount, now);
            }
            Model::Bucket(bucket) => return bucket.restamp(amount, at, mark, now),
            Model::Calendar(calendar) => calendar.restamp(amount, at),
        }
        mark
    }

    pub(crate) fn wall_moved(&mut self, now: Moment, wall: Wall) {
        if let Model::Calendar(calendar) = self {
            calendar.wall_moved(now, wall);
        }
    }

    /// Returns when something comes back: a strict limit's oldest entry, all of a bucket, the next minute or day.
    pub(crate) fn next_reset(&self, now: Moment, setting: WindowSetting) -> Option<Moment> {
        match self {
            Model::Strict(log) => log.next_reset(setting.margin),
            Model::Bucket(bucket) => bucket.next_reset(now),
            Model::Calendar(calendar) => Some(calendar.resets_at()),
        }
    }
}
