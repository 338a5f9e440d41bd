//! Changes to limits in use: amounts, pauses, and what a server reports.

use std::sync::Arc;
use std::time::Duration;

use super::{LimitId, Limits};
use crate::hold::Hold;
use crate::moment::Moment;
use crate::slot::{SlotCount, used_by_others};
use crate::window::Model;

impl Limits {
    /// Changes the amount of a limit. After a reduction, no entry is admitted until the amount is kept; what was granted
    /// stays granted. With a concurrency of zero, no entry is admitted until it is raised; under a rate of zero, every cost
    /// is too large.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// # let rpm = limits.find("rpm").unwrap();
    /// limits.set_amount(rpm, 0, Moment::ZERO);
    /// assert_eq!(limits.check(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::TooLarge);
    /// limits.set_amount(rpm, 5, Moment::ZERO);
    /// assert!(limits.check(&Cost::request(), Moment::ZERO).is_ok());
    /// ```
    pub fn set_amount(&mut self, limit: LimitId, to: u64, now: Moment) {
        self.slot_mut(limit).is_set = true;
        self.change_amount(limit, to, now);
    }

    /// Changes the amount of a limit that nothing has [set](Self::set_amount) so far. Returns `false` if it was set.
    pub(crate) fn adjust_amount(&mut self, limit: LimitId, to: u64, now: Moment) -> bool {
        let is_set = self.slot_mut(limit).is_set;
        if !is_set {
            self.change_amount(limit, to, now);
        }
        !is_set
    }

    fn change_amount(&mut self, limit: LimitId, to: u64, now: Moment) {
        let now = self.advance(now);
        match &mut self.slot_mut(limit).count {
            SlotCount::Concurrency { amount, .. } => *amount = to,
            SlotCount::Rate { model, .. } => {
                model.set_amount(to, now);
                let stated = self.stated_window();
                if let Some(finder) = self.finder_mut() {
                    finder.restate(stated);
                }
            }
            // A limit that is found has no stated amount.
            SlotCount::Found(_) => {}
        }
    }

    /// Blocks a limit until `until`. A pause that lasts longer stays. Entries that were admitted are not affected.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let until = Moment::ZERO + Duration::from_secs(7);
    /// limits.pause(limits.find("rpm").unwrap(), until);
    /// assert_eq!(limits.check(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::At(until));
    /// ```
    pub fn pause(&mut self, limit: LimitId, until: Moment) {
        let slot = self.slot_mut(limit);
        slot.pauses += 1;
        slot.hold = std::mem::take(&mut slot.hold).paused(until);
    }

    /// As [`pause`](Self::pause), but with `probe_every`, one entry per that time is admitted, to see whether the limit is
    /// back earlier.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(9)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
    /// limits.park(limits.find("rpm").unwrap(), Moment::ZERO + hour, Some(minute), Moment::ZERO);
    /// let probe = Moment::ZERO + minute;
    /// assert_eq!(limits.check(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::At(probe));
    /// limits.admit(&Cost::request(), probe).unwrap();
    /// assert_eq!(limits.check(&Cost::request(), probe).unwrap_err().until, Until::At(probe + minute));
    /// ```
    pub fn park(&mut self, limit: LimitId, until: Moment, probe_every: Option<Duration>, now: Moment) {
        let now = self.advance(now);
        let slot = self.slot_mut(limit);
        slot.pauses += 1;
        slot.hold = std::mem::take(&mut slot.hold).parked(until, probe_every, now);
    }

    /// Blocks a limit until it is [resumed](Self::resume); entries are denied with `reason`.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// limits.shut(limits.find("rpm").unwrap(), "no credit left");
    /// assert_eq!(limits.check(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::Shut);
    /// ```
    pub fn shut(&mut self, limit: LimitId, reason: impl Into<Arc<str>>) {
        self.slot_mut(limit).hold = Hold::Shut { reason: reason.into() };
    }

    /// Ends what [`pause`](Self::pause), [`park`](Self::park) or [`shut`](Self::shut) began.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(1)], Moment::ZERO, SystemTime::now()).unwrap();
    /// # let rpm = limits.find("rpm").unwrap();
    /// limits.shut(rpm, "no credit left");
    /// limits.resume(rpm);
    /// assert!(limits.check(&Cost::request(), Moment::ZERO).is_ok());
    /// ```
    pub fn resume(&mut self, limit: LimitId) {
        self.slot_mut(limit).hold = Hold::Open;
    }

    /// Sets what is left under a limit to `remaining`, as a server reports, until all of it is back at `full_at`. Never
    /// raises what is left. A bucket is emptied to `remaining`, a calendar window is counted up to it, and a strict window
    /// withholds the difference until `full_at`. A concurrency limit is not changed.
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Limit, Limits, Moment, Until}};
    /// # let mut limits = Limits::new([Limit::rpm(10)], Moment::ZERO, SystemTime::now()).unwrap();
    /// let full_at = Moment::ZERO + Duration::from_secs(3);
    /// limits.tighten(limits.find("rpm").unwrap(), 0, full_at, Moment::ZERO);
    /// assert_eq!(limits.check(&Cost::request(), Moment::ZERO).unwrap_err().until, Until::At(full_at));
    /// ```
    pub fn tighten(&mut self, limit: LimitId, remaining: u64, full_at: Moment, now: Moment) {
        self.tighten_as_of(now, limit, remaining, full_at, now);
    }

    /// As [`tighten`](Self::tighten), for a report about an instant between `sent` and `now`: the server still counted what
    /// has left a strict window since `sent`.
    pub(crate) fn tighten_as_of(&mut self, sent: Moment, limit: LimitId, remaining: u64, full_at: Moment, now: Moment) {
        let now = self.advance(now);
        let setting = self.setting;
        let SlotCount::Rate { model, withheld, ledger, .. } = &mut self.slot_mut(limit).count else { return };
        model.expire(now, setting);
        // The server's figure includes what other runs have used.
        let others = used_by_others(ledger.as_deref(), model, now, setting);
        match model {
            Model::Bucket(bucket) => bucket.tighten(remaining, now),
            Model::Calendar(calendar) => calendar.tighten(remaining.saturating_add(others)),
            Model::Strict(log) => {
                let known = log.used().saturating_add(log.left_since(sent)).saturating_add(others);
                let missing = log.amount().saturating_sub(known).saturating_sub(remaining);
                withheld.tighten(missing, full_at, now);
            }
        }
    }
}
