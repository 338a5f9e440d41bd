//! Changes to a gate in use: amounts, pauses, and what a server reports.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Gate;
use crate::error::{EnterError, UnknownLimit};
use crate::learn::Found;
use crate::limits::LimitId;
use crate::moment::Moment;
use crate::pump::{Effects, GateState};

impl Gate {
    fn with_limit(&self, name: &str, change: impl FnOnce(&mut GateState, LimitId, Moment)) -> Result<(), UnknownLimit> {
        self.shared.change(|state, now, _| {
            let limit = state.limits.find(name).ok_or_else(|| UnknownLimit(name.to_owned()))?;
            change(state, limit, now);
            Ok(())
        })
    }

    /// Changes the amount of a limit, in effect when this returns. After a raise, entries that fit now are admitted at once.
    /// After a reduction, none is admitted until the lower amount is kept; leases stay valid. A concurrency of 0 blocks all
    /// entries until it is raised; a rate of 0 refuses every cost as too large. [`adjust`](Self::adjust) no longer changes
    /// this limit.
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

    /// As [`set`](Self::set), for a program that computes the amount: does not change an amount that was set. Returns `true`
    /// if it changed the amount.
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

    /// Blocks a limit for `duration`, as a server has asked for. A pause that lasts longer stays.
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

    /// Blocks a limit until the wall clock shows `until`, for a daily quota that is used up. With `probe_every`, one entry
    /// per that time is admitted.
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

    /// Blocks a limit until it is [resumed](Self::resume). Entries in line and later ones fail with `reason`.
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
        // Includes entries that wait for their scope alone: the pump does not check them.
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

    /// Ends what [`pause`](Self::pause), [`park`](Self::park) or [`shut`](Self::shut) began.
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

    /// Sets what is left under a limit to `remaining`, as a server reports, until all of it is back in `full_in`. Never
    /// raises what is left.
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

    /// As [`tighten`](Self::tighten), for the answer to a request that was sent at `sent`.
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

    /// Starts to look for limits that were not stated or were stated too high: adds [`Limit::found`](crate::Limit::found)
    /// unless the gate has it.
    pub(crate) fn find_limits(&self) {
        self.shared.change(|state, now, _| state.find_limits(now));
    }

    /// Starts with limits that an earlier run has [found](crate::Snapshot::found), if the gate looks for limits.
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
