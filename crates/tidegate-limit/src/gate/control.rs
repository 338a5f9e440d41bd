//! What a gate is told while it is in use: other amounts, and what the server said.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Gate;
use crate::error::{EnterError, UnknownLimit};
use crate::learn::Found;
use crate::limits::LimitId;
use crate::moment::Moment;
use crate::pump::{Effects, State};

impl Gate {
    fn with_limit(&self, name: &str, change: impl FnOnce(&mut State, LimitId, Moment)) -> Result<(), UnknownLimit> {
        self.shared.change(|state, now, _| {
            let limit = state.limits.find(name).ok_or_else(|| UnknownLimit(name.to_owned()))?;
            change(state, limit, now);
            Ok(())
        })
    }

    /// Changes the amount of a limit, in effect when this returns. Raised: whoever fits now goes at once. Lowered: nobody
    /// goes until the lower amount is kept; leases that have been granted stay. A concurrency of 0 stops everybody until
    /// it is raised; a rate of 0 refuses every cost as too large. [`adjust`](Self::adjust) does not change it any more.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::concurrency("global", 1)).build().unwrap();
    /// let first = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_err());
    /// gate.set("global", 2).unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
    /// # drop(first);
    /// ```
    pub fn set(&self, limit: &str, amount: u64) -> Result<(), UnknownLimit> {
        self.with_limit(limit, |state, limit, now| state.limits.set_amount(limit, amount, now))
    }

    /// As [`set`](Self::set), by a program that derives the amount from something: an amount that was set stays. Returns
    /// `true` if the amount is this one now.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::concurrency("global", 200)).build().unwrap();
    /// assert!(gate.adjust("global", 300).unwrap());
    /// gate.set("global", 50).unwrap();
    /// assert!(!gate.adjust("global", 300).unwrap());
    /// assert_eq!(gate.stats().limit("global").unwrap().amount, 50);
    /// ```
    pub fn adjust(&self, limit: &str, amount: u64) -> Result<bool, UnknownLimit> {
        let mut is_adjusted = false;
        self.with_limit(limit, |state, limit, now| is_adjusted = state.limits.adjust_amount(limit, amount, now))?;
        Ok(is_adjusted)
    }

    /// Lets nobody past a limit for this long: the server has said so. A longer pause told before stays.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Cost, Gate, Limit}};
    /// # let gate = Gate::builder().limit(Limit::tpm(1_000)).build().unwrap();
    /// gate.pause("tpm", Duration::from_millis(372)).unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::tokens(1)).is_err());
    /// ```
    pub fn pause(&self, limit: &str, duration: Duration) -> Result<(), UnknownLimit> {
        self.with_limit(limit, |state, limit, now| state.limits.pause(limit, now + duration))
    }

    /// Lets nobody past a limit until the wall clock shows `until`, except for one entry every `probe_every`, if given:
    /// for a daily quota that is used up.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use {std::time::*, tidegate_limit::{Cost, Gate, Limit}};
    /// # let gate = Gate::builder().limit(Limit::rpd(1_000, "UTC")).build().unwrap();
    /// let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    /// gate.park("rpd", tomorrow, Some(Duration::from_secs(1_800))).unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_err());
    /// ```
    pub fn park(&self, limit: &str, until: SystemTime, probe_every: Option<Duration>) -> Result<(), UnknownLimit> {
        self.with_limit(limit, |state, limit, now| {
            let until = state.limits.moment_of(until);
            state.limits.park(limit, until, probe_every, now);
        })
    }

    /// Lets nobody past a limit until it is [resumed](Self::resume), and tells everybody why: who waits, and who comes.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit, TryEnterError};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// gate.shut("rpm", "the account has no credit left").unwrap();
    /// let error = gate.try_enter(gate.unscoped(), Cost::request()).unwrap_err();
    /// assert_eq!(error.to_string(), "limit rpm is shut: the account has no credit left");
    /// ```
    pub fn shut(&self, limit: &str, reason: impl Into<Arc<str>>) -> Result<(), UnknownLimit> {
        let (now, reason) = (self.shared.tell_time(), reason.into());
        let mut effects = Effects::default();
        let mut state = self.shared.lock_at(now);
        let id = state.limits.find(limit).ok_or_else(|| UnknownLimit(limit.to_owned()))?;
        state.limits.shut(id, Arc::clone(&reason));
        // Those too who wait for their scope alone: nobody else would ever tell them.
        state.refuse_all(now.moment, &mut effects, |limits, cost| {
            let slot = limits.slot(id);
            let error = || EnterError::Shut { limit: Arc::clone(&slot.name), reason: Arc::clone(&reason) };
            slot.concerns(cost).then(error)
        });
        state.pump(now.moment, &mut effects);
        drop(state);
        self.shared.carry_out(effects);
        Ok(())
    }

    /// Ends a pause, a parking or a shutting.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Cost, Gate, Limit}};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// gate.pause("rpm", Duration::from_secs(60)).unwrap();
    /// gate.resume("rpm").unwrap();
    /// assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
    /// ```
    pub fn resume(&self, limit: &str) -> Result<(), UnknownLimit> {
        self.with_limit(limit, |state, limit, _| state.limits.resume(limit))
    }

    /// The server says that `remaining` is left under a limit, and all of it back in `full_in`. Only ever tightens.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Cost, Gate, Limit}};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// gate.tighten("rpm", 7, Duration::from_secs(20)).unwrap();
    /// assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 7);
    /// gate.tighten("rpm", 50, Duration::from_secs(20)).unwrap();
    /// assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 7);
    /// ```
    pub fn tighten(&self, limit: &str, remaining: u64, full_in: Duration) -> Result<(), UnknownLimit> {
        self.with_limit(limit, |state, limit, now| state.limits.tighten(limit, remaining, now + full_in, now))
    }

    /// The same, of what the server said to a request that left at `sent`.
    pub(crate) fn tighten_as_of(
        &self,
        sent: Instant,
        limit: &str,
        remaining: u64,
        full_in: Duration,
    ) -> Result<(), UnknownLimit> {
        let sent = self.shared.moment(sent);
        self.with_limit(limit, |state, limit, now| {
            state.limits.tighten_as_of(sent, limit, remaining, now + full_in, now);
        })
    }

    /// Looks for limits that were not stated, or that were stated too high: adds [`Limit::found`](crate::Limit::found), unless
    /// the gate has it.
    pub(crate) fn find_limits(&self) {
        self.shared.change(|state, now, _| state.find_limits(now));
    }

    /// Starts with limits that an earlier run has [found](crate::Snapshot::found), if the gate looks for some.
    ///
    /// ```
    /// # use tidegate_limit::{Found, Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::found()).build().unwrap();
    /// gate.remember(&Found { in_flight: Some(20), ..Found::default() });
    /// assert_eq!(gate.stats().found.unwrap().to_string(), "20 requests in flight");
    /// ```
    pub fn remember(&self, found: &Found) {
        self.shared.change(|state, _, _| state.limits.remember(found));
    }
}
