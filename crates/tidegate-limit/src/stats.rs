//! A gate's figures.

use std::time::{Duration, SystemTime};

use crate::learn::Found;
use crate::moment::Moment;
use crate::pump::{Blocker, GateState};
use crate::slot::{SlotCount, used_by_others};

/// A gate's figures at one instant: for dashboards and metrics. With the feature `serde` it can be serialised.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
/// let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
/// for _ in 0..2 {
///     gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
/// }
/// let stats = gate.stats();
/// assert_eq!((stats.granted, stats.blocked, stats.alarms), (2, 1, 1));
/// assert_eq!(stats.limit("rpm").unwrap().blocked_for.as_secs(), 60);
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// When it was taken.
    pub at: SystemTime,
    /// Leases now, including those that were granted and not taken yet.
    pub current: u64,
    /// The most leases that ever existed at once.
    pub peak: u64,
    /// Leases granted so far.
    pub granted: u64,
    /// Entries that had to wait so far.
    pub blocked: u64,
    /// Entries admitted so far before an earlier one that did not fit yet.
    pub passed: u64,
    /// Entries refused after they waited, or because the line was full.
    pub refused: u64,
    /// Entries whose future was dropped while they waited, or before it took its lease.
    pub abandoned: u64,
    /// Leases dropped before they were sent, or refunded.
    pub refunded: u64,
    /// Entries in line now.
    pub waiting: usize,
    /// Total time that entries have spent in line, without those still in line.
    pub waited: Duration,
    /// Moving mean of the time from [`sent`](crate::Lease::sent) to [`answered`](crate::Lease::answered); zero before the
    /// first answer.
    pub answer_time: Duration,
    /// How often the timer fired.
    pub alarms: u64,
    /// How often the timer fired and no entry could be admitted, because something had changed meanwhile.
    pub idle_alarms: u64,
    /// How long entries of strict limits count beyond their window, for the time on the wire.
    pub margin: Duration,
    /// What the first in line waits for: a limit's name, or `scopes` if all entries wait for their scopes.
    pub blocked_by: Option<String>,
    /// When the next entry in line is admitted, if nothing else happens before; `None` while none waits for an instant.
    pub next_admission: Option<SystemTime>,
    /// Entries so far that had to wait because their scope was full.
    pub blocked_by_scopes: u64,
    /// The time during which all entries in line waited for their scopes.
    pub blocked_by_scopes_for: Duration,
    /// The limits.
    pub limits: Vec<LimitSnapshot>,
    /// The limits that were found, beyond those that were stated; `None` if they are not looked for.
    pub found: Option<Found>,
    /// The scopes, the one without a cap first.
    pub scopes: Vec<ScopeSnapshot>,
}

/// One limit's figures.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// Its name.
    pub name: String,
    /// What it counts; `None` for concurrency.
    pub dimension: Option<String>,
    /// What it admits: at once, or in a window.
    pub amount: u64,
    /// The amount was [set](crate::Gate::set) while the gate was in use.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_set: bool,
    /// The part of the amount that is in use, or missing from a bucket.
    pub used: u64,
    /// What is left, less what is missing by the server's report.
    pub remaining: u64,
    /// The most that was ever in use at once.
    pub peak: u64,
    /// What was used so far: requests or tokens as settled, or entries of a concurrency.
    pub total: u64,
    /// How often the server refused a request under this limit and asked for a pause.
    pub pauses: u64,
    /// When something comes back: the oldest entry of a strict window, all of a bucket, the next minute or day.
    pub next_reset: Option<SystemTime>,
    /// Until when it is paused or parked; `None` for a limit that is shut.
    pub held_until: Option<SystemTime>,
    /// Why it is shut, if it is.
    pub shut: Option<String>,
    /// Entries so far that had to wait for it: those that this limit denied, and those behind others of which the first was
    /// blocked by this limit. Each entry counts for one limit.
    pub blocked: u64,
    /// The time during which the first in line waited for this limit.
    pub blocked_for: Duration,
    /// What was booked by settling at more than had been declared.
    pub overdrawn: u64,
}

/// One scope's figures.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ScopeSnapshot {
    /// Its name.
    pub name: String,
    /// Its cap, if it has one.
    pub cap: Option<u64>,
    /// Its leases now.
    pub current: u64,
    /// The most leases that it ever had at once.
    pub peak: u64,
    /// Leases granted in it so far.
    pub granted: u64,
    /// Its entries in line.
    pub waiting: usize,
}

impl Snapshot {
    /// Returns the figures of the limit of that name.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// assert_eq!(gate.stats().limit("rpm").unwrap().amount, 60);
    /// assert!(gate.stats().limit("tpm").is_none());
    /// ```
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitSnapshot> {
        self.limits.iter().find(|limit| limit.name == name)
    }

    pub(crate) fn of(state: &mut GateState, now: Moment) -> Snapshot {
        let now = now.max(state.limits.now());
        state.limits.expire(now);
        let state = &*state;
        let tally = &state.tally;
        let (blocker, so_far) = match state.blocker() {
            Some((blocker, since)) => (Some(blocker), now.since(since)),
            None => (None, Duration::ZERO),
        };
        let still = |is: Blocker| if blocker == Some(is) { so_far } else { Duration::ZERO };
        let limits = (0_u16..).map(crate::limits::LimitId).zip(&tally.by_limit);
        let limits = limits.map(|(id, blocked)| {
            let mut limit = LimitSnapshot::of(state, id, now);
            limit.blocked = blocked.entries;
            limit.blocked_for = blocked.time + still(Blocker::Limit(id));
            limit
        });
        let scopes = state.line.scopes().map(|scope| ScopeSnapshot {
            name: scope.name.to_string(),
            cap: (scope.cap < u64::MAX).then_some(scope.cap),
            current: scope.used,
            peak: scope.peak,
            granted: scope.granted,
            waiting: scope.waiting,
        });
        Snapshot {
            at: state.limits.wall_of(now),
            current: tally.current,
            peak: tally.peak,
            granted: tally.granted,
            blocked: tally.blocked,
            passed: tally.passed,
            refused: tally.refused,
            abandoned: tally.abandoned,
            refunded: tally.refunded,
            waiting: state.line.waiting(),
            waited: tally.waited,
            answer_time: Duration::from_nanos(tally.answer_time),
            alarms: tally.alarms,
            idle_alarms: tally.idle_alarms,
            margin: Duration::from_nanos(state.limits.setting().margin),
            blocked_by: blocker.map(|blocker| match blocker {
                Blocker::Limit(id) => state.limits.slot(id).name.to_string(),
                Blocker::Scopes => "scopes".into(),
            }),
            next_admission: state.due.map(|at| state.limits.wall_of(at)),
            blocked_by_scopes: tally.by_scopes.entries,
            blocked_by_scopes_for: tally.by_scopes.time + still(Blocker::Scopes),
            limits: limits.collect(),
            found: state.limits.found(now),
            scopes: scopes.collect(),
        }
    }
}

impl LimitSnapshot {
    fn of(state: &GateState, id: crate::limits::LimitId, now: Moment) -> LimitSnapshot {
        let limits = &state.limits;
        let slot = limits.slot(id);
        let (dimension, amount, used, remaining, next_reset, overdrawn) = match &slot.count {
            SlotCount::Concurrency { amount, used } => (None, *amount, *used, amount.saturating_sub(*used), None, 0),
            SlotCount::Found(finder) => {
                let found = finder.found(now);
                let amount = found.window.map(|window| window.amount).or(found.in_flight).unwrap_or(0);
                (Some("found".to_owned()), amount, 0, 0, None, 0)
            }
            SlotCount::Rate { dimension, model, withheld, overdrawn, ledger, .. } => {
                let ledger = ledger.as_deref();
                let used = model.used(now).saturating_add(used_by_others(ledger, model, now, limits.setting()));
                let remaining = model.capacity().saturating_sub(used).saturating_sub(withheld.at(now));
                let beside = ledger.and_then(|ledger| ledger.others().next_reset(model, now, limits.setting()));
                let reset = model.next_reset(now, limits.setting()).into_iter().chain(beside).min();
                (Some(dimension.to_string()), model.amount(), used, remaining, reset, *overdrawn)
            }
        };
        let shut = match &slot.hold {
            crate::hold::Hold::Shut { reason } => Some(reason.to_string()),
            _ => None,
        };
        LimitSnapshot {
            name: slot.name.to_string(),
            dimension,
            amount,
            is_set: slot.is_set,
            used,
            remaining,
            peak: slot.peak,
            total: slot.total,
            pauses: slot.pauses,
            next_reset: next_reset.map(|at| limits.wall_of(at)),
            held_until: slot.hold.until(now).filter(|_| shut.is_none()).map(|at| limits.wall_of(at)),
            shut,
            blocked: 0,
            blocked_for: Duration::ZERO,
            overdrawn,
        }
    }
}
