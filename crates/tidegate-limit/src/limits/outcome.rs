//! The outcome of an entry, for limits that are found instead of stated.

use std::sync::Arc;
use std::time::Duration;

use super::{Booking, Limits};
use crate::cost::Dimension;
use crate::learn::{Finder, Found, RefusalHint};
use crate::moment::Moment;
use crate::slot::{Slot, SlotCount};
use crate::window::Model;

/// What a server's refusal states about the limit.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::Refusal;
/// let refusal = Refusal { delay: Some(Duration::from_secs(20)), ..Refusal::default() };
/// # let _ = refusal;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// How long the request has to wait, if stated.
    pub delay: Option<Duration>,
    /// The number of requests per time, if stated.
    pub window: Option<(u64, Duration)>,
}

impl Limits {
    /// Adds the slot that finds limits that were not stated, unless there is one.
    pub(crate) fn find_unstated(&mut self, name: impl Into<Arc<str>>, now: Moment) {
        if self.finder().is_none() {
            let finder = Finder::new(self.stated_window(), self.advance(now));
            self.slots.push(Slot::new(name.into(), SlotCount::Found(Box::new(finder))));
        }
    }

    /// Returns the slowest stated rate of requests in a strict window. A refusal is compared with it first.
    pub(super) fn stated_window(&self) -> Option<(u64, Duration)> {
        let strict = self.slots.iter().filter_map(|slot| match &slot.count {
            SlotCount::Rate { dimension: Dimension::REQUESTS, model: Model::Strict(log), .. } => {
                Some((log.amount(), Duration::from_nanos(log.window())))
            }
            _ => None,
        });
        strict.min_by(|a, b| {
            let rate = |(amount, length): &(u64, Duration)| *amount as f64 / length.as_secs_f64();
            rate(a).total_cmp(&rate(b))
        })
    }

    pub(crate) fn finder(&self) -> Option<&Finder> {
        match &self.slots.last()?.count {
            SlotCount::Found(finder) => Some(finder),
            _ => None,
        }
    }

    pub(super) fn finder_mut(&mut self) -> Option<&mut Finder> {
        match &mut self.slots.last_mut()?.count {
            SlotCount::Found(finder) => Some(finder),
            _ => None,
        }
    }

    /// Reports that the entry was answered and no limit refused it.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::found()], Moment::ZERO, SystemTime::now()).unwrap();
    /// let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// limits.served(&booking, Moment::ZERO);
    /// limits.release(booking);
    /// ```
    pub fn served(&mut self, booking: &Booking, now: Moment) {
        let now = self.advance(now);
        if let Some(finder) = self.finder_mut() {
            finder.served(booking.ticket, now);
        }
    }

    /// Reports that a limit of the server refused the entry: it is removed from the strict windows, and a limit that was not
    /// stated is looked for.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment, Refusal}};
    /// # let mut limits = Limits::new([Limit::found()], Moment::ZERO, SystemTime::now()).unwrap();
    /// let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// limits.refused(&booking, Refusal::default(), Moment::ZERO);
    /// limits.release(booking);
    /// assert!(limits.admit(&Cost::request(), Moment::ZERO).is_err());
    /// ```
    pub fn refused(&mut self, booking: &Booking, refusal: Refusal, now: Moment) {
        let now = self.advance(now);
        let setting = self.setting;
        let mut near_stated = false;
        for slot in &mut self.slots {
            slot.expire(now, setting);
            near_stated |= slot.is_nearly_full(&booking.cost, now, setting);
            slot.unbook(booking, now);
        }
        let Refusal { delay, window } = refusal;
        if let Some(finder) = self.finder_mut() {
            finder.refused(booking.ticket, RefusalHint { delay, window, near_stated }, now);
        }
    }

    /// Reports that the entry was not answered, or with an error that means that the server is down. Returns for how long
    /// the server has been down, if it is: it answered before, and failed three times in a row.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Cost, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::found()], Moment::ZERO, SystemTime::now()).unwrap();
    /// # let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    /// # limits.served(&booking, Moment::ZERO);
    /// # limits.release(booking);
    /// for _ in 0..3 {
    ///     let booking = limits.admit(&Cost::request(), Moment::ZERO).unwrap();
    ///     limits.failed(&booking, Moment::ZERO);
    ///     limits.release(booking);
    /// }
    /// assert!(limits.admit(&Cost::request(), Moment::ZERO).is_err(), "the server is down");
    /// ```
    pub fn failed(&mut self, booking: &Booking, now: Moment) -> Option<Duration> {
        let now = self.advance(now);
        let finder = self.finder_mut()?;
        finder.failed(booking.ticket, now);
        finder.down_for(now)
    }

    /// Returns the limits that were found so far, and what is being tried at `now`; `None` if limits are not looked for.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Limit, Limits, Moment}};
    /// # let limits = Limits::new([Limit::found()], Moment::ZERO, SystemTime::now()).unwrap();
    /// assert_eq!(limits.found(Moment::ZERO).unwrap().to_string(), "no limit");
    /// ```
    #[must_use]
    pub fn found(&self, now: Moment) -> Option<Found> {
        Some(self.finder()?.found(now.max(self.now)))
    }

    /// Starts with the limits that an earlier run has found.
    ///
    /// ```
    /// # use {std::time::SystemTime, tidegate_limit::{Found, Limit, Limits, Moment}};
    /// # let mut limits = Limits::new([Limit::found()], Moment::ZERO, SystemTime::now()).unwrap();
    /// limits.remember(&Found { in_flight: Some(20), ..Found::default() });
    /// assert_eq!(limits.found(Moment::ZERO).unwrap().to_string(), "20 requests in flight");
    /// ```
    pub fn remember(&mut self, found: &Found) {
        if let Some(finder) = self.finder_mut() {
            finder.remember(found);
        }
    }
}
