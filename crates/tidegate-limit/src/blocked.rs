//! The entries in a gate's line: by which limit each is blocked, and until when.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::cost::Cost;
use crate::gate::Gate;
use crate::limits::Until;
use crate::moment::Moment;
use crate::pump::{Blocker, GateState};

/// The identity of an entry that waits at a gate. It does not change while the entry waits, and no other entry of the gate
/// ever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub(crate) u64);

/// What an entry in line waits for.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
/// let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
/// gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
/// let waiting = {
///     let gate = gate.clone();
///     tidegate_loop::spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.map(drop) })
/// };
/// tidegate_loop::sleep(Duration::from_secs(20)).await;
/// let [(_, blocked)] = &gate.line()[..] else { panic!("one waits") };
/// assert_eq!(&*blocked.limit, "rpm");
/// assert_eq!(blocked.until.unwrap().duration_since(gate.stats().at).unwrap(), Duration::from_secs(40));
/// waiting.await.unwrap().unwrap();
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The limit's name; `scopes` if the entry waits for its scope.
    pub limit: Arc<str>,
    /// When the entry is expected to be admitted, if the entries before it cost as much as it does. `None` if that depends
    /// on when slots are released.
    pub until: Option<SystemTime>,
}

impl Gate {
    /// Returns every entry in line, the first one first, with what it waits for.
    #[must_use]
    pub fn line(&self) -> Vec<(Place, Blocked)> {
        let now = self.shared.tell_time();
        self.shared.lock_at(now).blocked_entries(now.moment, None)
    }

    /// Returns what the entry at `place` waits for; `None` if it does not wait any more.
    #[must_use]
    pub fn blocked(&self, place: Place) -> Option<Blocked> {
        let now = self.shared.tell_time();
        self.shared.lock_at(now).blocked_entries(now.moment, Some(place)).pop().map(|(_, blocked)| blocked)
    }

    /// As [`outlook`](Self::outlook), as if each limit named in `amounts` had the amount beside its name. Changes nothing.
    /// A name that the gate does not have is ignored.
    ///
    /// ```
    /// # use {std::time::Duration, tidegate_limit::{Cost, Gate, Limit}};
    /// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
    /// let gate = Gate::builder().limit(Limit::rpm(20)).build().unwrap();
    /// assert_eq!(gate.outlook_if(&[("rpm", 30)], 55, &Cost::request()), Some(Duration::from_secs(60)));
    /// assert_eq!(gate.stats().limit("rpm").unwrap().amount, 20);
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn outlook_if(&self, amounts: &[(&str, u64)], count: u64, cost: &Cost) -> Option<Duration> {
        let now = self.shared.tell_time();
        let last = self.shared.lock_at(now).limits.last_of_if(amounts, count, cost, now.moment)?;
        Some(last.since(now.moment))
    }
}

impl GateState {
    /// Every entry in line, or the one at `only`.
    fn blocked_entries(&mut self, now: Moment, only: Option<Place>) -> Vec<(Place, Blocked)> {
        self.limits.expire(now);
        let mut entries = self.line.all_waiters();
        entries.sort_unstable_by_key(|id| self.line.waiter(*id).arrival);
        let mut ahead = 0;
        let mut blocked = Vec::new();
        for id in entries {
            let waiter = self.line.waiter(id);
            let (place, has_room) = (Place(waiter.arrival), self.line.scope(waiter.scope).has_room());
            ahead += u64::from(has_room);
            if only.is_some_and(|only| only != place) {
                continue;
            }
            let cost = waiter.cost.clone();
            let (limit, until) = if has_room { self.binding(ahead, &cost, now) } else { (None, None) };
            blocked.push((place, Blocked { limit: limit.unwrap_or_else(|| "scopes".into()), until }));
        }
        blocked
    }

    /// Returns the limit that the `number`-th entry in line, counted from 1, waits for, and until when.
    fn binding(&mut self, number: u64, cost: &Cost, now: Moment) -> (Option<Arc<str>>, Option<SystemTime>) {
        let name = |state: &GateState, limit| Some(Arc::clone(&state.limits.slot(limit).name));
        // If the first entry waits for slots, it is not known when they are released.
        if let Err(denied) = self.limits.check(cost, now)
            && denied.until == Until::Release
        {
            return (name(self, denied.limit), None);
        }
        match self.limits.latest_of(number, cost) {
            Some((limit, at)) => (name(self, limit), at.map(|at| self.limits.wall_of(at))),
            // The first entry is about to be admitted, or waits for something without a known instant.
            None => match self.blocker() {
                Some((Blocker::Limit(limit), _)) => (name(self, limit), None),
                _ => (None, None),
            },
        }
    }
}

/// Error of a change of a limit's amount.
///
/// ```
/// # use tidegate_limit::{Admission, Gate, Limit};
/// let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
/// assert_eq!(Admission::from(&gate).set("rpd", 5).unwrap_err().to_string(), "the gate has no limit \"rpd\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetError {
    /// The gate has no limit of this name.
    Unknown(crate::error::UnknownLimit),
    /// The limits are shared with other machines, which state the same amounts.
    Shared,
}

impl std::fmt::Display for SetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SetError::Unknown(unknown) => unknown.fmt(f),
            SetError::Shared => f.write_str(
                "the limits are shared with other machines: restart all of them with the new amounts to change them",
            ),
        }
    }
}

impl std::error::Error for SetError {}
