//! The state of a shared gate on one machine: entries in line, leases held, changes to report. No I/O; time is an argument.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, EnterError, Lease};

use super::spec::{Heard, Kind, Pause, Spec, state_key};
use super::stats::{SharedLimitStats, SharedStats};
use crate::wire::Command;

/// Entries requested in one call; the rest follows in the next.
const ASKED_MAX: usize = 4096;
/// Runs of equal costs in one call. The script's time grows with the runs.
const RUNS_MAX: usize = 128;

/// The buckets in which the bookings of one call are counted, one number per limit. Empty until Redis has answered.
pub(crate) type Stamps = Rc<OnceCell<Box<[u64]>>>;

/// The bookings of one entry.
pub(crate) struct Booked {
    /// The buckets of what it booked when it was admitted.
    stamps: Stamps,
    /// Cost booked later, beyond the estimate, oldest first: limit, buckets, amount.
    later: Vec<(usize, Stamps, u64)>,
}

impl Booked {
    pub(crate) fn at(stamps: &Stamps) -> Booked {
        Booked { stamps: Rc::clone(stamps), later: Vec::new() }
    }

    /// Returns an amount to the buckets that count it, the last booked first.
    fn take_back(&mut self, limit: usize, mut amount: u64, mut returned: impl FnMut(Stamps, u64)) {
        while amount > 0
            && let Some(last) = self.later.iter().rposition(|later| later.0 == limit)
        {
            let (_, stamps, there) = &mut self.later[last];
            let taken = amount.min(*there);
            returned(Rc::clone(stamps), taken);
            amount -= taken;
            *there -= taken;
            if *there == 0 {
                self.later.remove(last);
            }
        }
        if amount > 0 {
            returned(Rc::clone(&self.stamps), amount);
        }
    }
}

/// What an admitted entry holds.
pub(crate) enum Grant {
    Shared { booked: Booked, asked_at: Instant },
    Local(Lease),
}

pub(crate) enum Fate {
    Waiting(Waker),
    Granted(Grant),
    Refused(EnterError),
    /// The caller has taken the outcome, or was dropped.
    Over,
}

pub(crate) struct Waiter {
    pub(crate) cost: Cost,
    pub(crate) since: Instant,
    pub(crate) fate: RefCell<Fate>,
}

impl Waiter {
    pub(crate) fn is_over(&self) -> bool {
        matches!(&*self.fate.borrow(), Fate::Over)
    }
}

/// The content of one call. If it is sent again with the same number, Redis repeats its stored answer.
pub(crate) struct Batch {
    seq: u64,
    held: u64,
    books: Vec<u64>,
    pauses: Vec<Pause>,
    /// Limit, stamp, amount.
    returns: Vec<(usize, u64, u64)>,
    /// The entries asked for, in order. They are not in the line until they are put back.
    pub(crate) asked: Vec<Rc<Waiter>>,
    /// The costs asked for, also if the entries were admitted locally meanwhile.
    runs: Vec<(u64, Vec<u64>)>,
    /// The entries do not wait for this answer any more.
    orphaned: bool,
    stamps: Stamps,
    asked_at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Done,
    /// The calendar was outdated: send the same call again.
    Again,
    /// The answer does not have the script's format.
    Garbled,
}

/// Why the first entry in line waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    /// The index of the limit; `None` if it is another machine's turn.
    pub(crate) limit: Option<usize>,
    pub(crate) ready_at: Instant,
}

pub(crate) struct Core {
    pub(crate) spec: Spec,
    gate: String,
    pub(crate) holder: String,
    lease: Duration,
    grace: Duration,
    pub(crate) line: VecDeque<Rc<Waiter>>,
    /// The number of entries in the batch that is being sent; they are not in the line.
    asked: usize,
    /// Dropped entries that may still be in the line; at most about half of it, then they are removed.
    gone: usize,
    /// Leases held here, granted and not yet taken ones included. This is what the next call reports.
    pub(crate) held: u64,
    /// The number of the last call.
    seq: u64,
    /// When the state in Redis was created, and the time of its last answer, by its clock. Zero: no answer yet.
    born: u64,
    seen_us: u64,
    heard: Vec<Heard>,
    books: Vec<u64>,
    pauses: Vec<Pause>,
    returns: Vec<(usize, Stamps, u64)>,
    next_stamps: Stamps,
    /// There is something to report or to ask for.
    dirty: bool,
    pub(crate) blocked: Option<Blocked>,
    /// The limit that the last answer named, and since when its blocked time is counted.
    waits: Option<(usize, Instant)>,
    /// When the last answered call was sent.
    told_at: Option<Instant>,
    pub(crate) stats: SharedStats,
}

impl Core {
    pub(crate) fn new(spec: Spec, gate: &str, holder: String, lease: Duration, grace: Duration) -> Core {
        let limits = spec.limits.iter().map(|limit| SharedLimitStats {
            name: limit.name.clone(),
            amount: limit.limit.amount(),
            used: 0,
            blocked: 0,
            blocked_for: Duration::ZERO,
        });
        let stats = SharedStats { limits: limits.collect(), ..SharedStats::default() };
        let count = spec.limits.len();
        Core {
            spec,
            gate: gate.to_owned(),
            holder,
            lease,
            grace,
            line: VecDeque::new(),
            asked: 0,
            gone: 0,
            held: 0,
            seq: 0,
            born: 0,
            seen_us: 0,
            heard: vec![Heard::default(); count],
            books: vec![0; count],
            pauses: vec![Pause::None; count],
            returns: Vec::new(),
            next_stamps: Stamps::default(),
            dirty: false,
            blocked: None,
            waits: None,
            told_at: None,
            stats,
        }
    }

    pub(crate) fn channel(&self) -> String {
        format!("{}:turn:{}", state_key(&self.gate), self.holder)
    }

    /// Puts an entry in line. Returns `true` if the driver should call.
    pub(crate) fn join(&mut self, waiter: Rc<Waiter>) -> bool {
        self.line.push_back(waiter);
        self.stats.waiting_peak = self.stats.waiting_peak.max(self.line.len() + self.asked);
        // The first in line is known to be blocked, so those behind it need no call.
        self.dirty |= self.blocked.is_none();
        self.blocked.is_none()
    }

    /// Counts an entry that was dropped in line. Returns `true` if the driver should call, because the first one is gone.
    pub(crate) fn abandon(&mut self) -> bool {
        self.stats.abandoned += 1;
        self.gone += 1;
        if self.gone > 64 && self.gone > self.line.len() / 2 {
            self.gone = 0;
            self.line.retain(|waiter| !waiter.is_over());
            self.dirty |= self.blocked.take().is_some();
            return true;
        }
        self.look_at_first()
    }

    /// Returns `true` if the first in line was dropped, so that the next one is to be asked for.
    fn look_at_first(&mut self) -> bool {
        let gone = self.line.front().is_some_and(|first| first.is_over());
        if gone {
            self.blocked = None;
            self.dirty = true;
        }
        gone
    }

    pub(crate) fn notify(&mut self) {
        self.blocked = None;
        self.dirty = true;
        self.stats.notifications += 1;
    }

    /// Counts the end of a lease. Its slot is reported at once, because another machine may wait for it.
    pub(crate) fn release(&mut self) {
        self.held -= 1;
        self.dirty |= self.spec.has_concurrency();
    }

    /// Returns what was booked for `cost` beyond `actual`, or books what is missing.
    pub(crate) fn settle(&mut self, booked: &mut Booked, cost: &Cost, actual: Option<&Cost>) {
        for at in 0..self.spec.limits.len() {
            let before = self.spec.limits[at].cost_of(cost);
            let actual = actual.map_or(0, |actual| self.spec.limits[at].cost_of(actual));
            if actual < before {
                booked.take_back(at, before - actual, |stamps, amount| self.returns.push((at, stamps, amount)));
                self.dirty = true;
            } else if actual > before {
                self.books[at] += actual - before;
                booked.later.push((at, self.next_stamps.clone(), actual - before));
                self.stats.overdrawn += actual - before;
                self.dirty = true;
            }
        }
    }

    /// Moves a booking to the instant of the next call, because the request is sent only now.
    pub(crate) fn restamp(&mut self, booked: &mut Booked, cost: &Cost) {
        for (at, spec) in self.spec.limits.iter().enumerate() {
            let amount = spec.cost_of(cost);
            if amount > 0 && matches!(spec.kind(), Kind::Strict { .. }) {
                booked.take_back(at, amount, |stamps, amount| self.returns.push((at, stamps, amount)));
                self.books[at] += amount;
            }
        }
        self.stats.restamped += 1;
        self.dirty = true;
        booked.stamps = self.next_stamps.clone();
    }

    /// Books an amount that was used already, without asking.
    pub(crate) fn book(&mut self, limit: usize, amount: u64) {
        self.books[limit] += amount;
        self.dirty |= amount > 0;
    }

    /// Makes the driver send a call that only reads the state.
    pub(crate) fn look(&mut self) {
        self.dirty = true;
    }

    /// Sets or ends a pause of a limit, for all machines.
    pub(crate) fn pause(&mut self, limit: usize, pause: Pause) {
        self.pauses[limit] = pause.after(self.pauses[limit]);
        self.dirty = true;
    }

    /// Returns when the driver should call next; `None` if not before a change.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if self.dirty {
            return Some(now);
        }
        let renewal =
            (self.held > 0 || !self.line.is_empty()).then(|| self.told_at.map_or(now, |told| told + self.lease / 3));
        let ready = self.blocked.filter(|_| !self.line.is_empty()).map(|blocked| blocked.ready_at);
        match (renewal, ready) {
            (Some(renewal), Some(ready)) => Some(renewal.min(ready)),
            (one, other) => one.or(other),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.asked + self.line.iter().filter(|waiter| !waiter.is_over()).count()
    }

    /// Returns `true` if nothing is held, waits, or has to be reported.
    pub(crate) fn is_idle(&self) -> bool {
        !self.dirty && self.held == 0 && self.line.is_empty()
    }

    /// Collects all reports and requests for one call.
    pub(crate) fn batch(&mut self, now: Instant) -> Batch {
        self.dirty = false;
        let mut asked = Vec::new();
        let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
        while asked.len() < ASKED_MAX {
            let Some(first) = self.line.front() else { break };
            if first.is_over() {
                self.line.pop_front();
                continue;
            }
            let same = |costs: &[u64]| {
                self.spec.dimensions.iter().zip(costs).all(|(dimension, cost)| first.cost.of(*dimension) == *cost)
            };
            let full = runs.len() == RUNS_MAX;
            match runs.last_mut() {
                Some((count, costs)) if same(costs) => *count += 1,
                _ if full => break,
                _ => runs.push((1, self.spec.dimensions.iter().map(|of| first.cost.of(*of)).collect())),
            }
            asked.extend(self.line.pop_front());
        }
        self.asked = asked.len();
        self.seq += 1;
        let count = self.books.len();
        let mut returns: Vec<(usize, u64, u64)> = Vec::with_capacity(self.returns.len());
        for (limit, stamps, amount) in self.returns.drain(..) {
            let stamp = stamps.get().map_or(0, |stamps| stamps[limit]);
            match returns.iter_mut().find(|known| (known.0, known.1) == (limit, stamp)) {
                Some(known) => known.2 += amount,
                None => returns.push((limit, stamp, amount)),
            }
        }
        Batch {
            seq: self.seq,
            held: self.held,
            books: std::mem::replace(&mut self.books, vec![0; count]),
            pauses: std::mem::replace(&mut self.pauses, vec![Pause::None; count]),
            returns,
            asked,
            runs,
            orphaned: false,
            stamps: std::mem::take(&mut self.next_stamps),
            asked_at: now,
        }
    }

    /// The arguments of the script.
    pub(crate) fn encode(&self, batch: &Batch, now: Instant) -> Command {
        let mut out = Command::arguments();
        self.spec.push_keys(&self.gate, &mut out);
        out.push(self.holder.as_bytes());
        out.push_int(batch.seq as i64);
        out.push_int(batch.held as i64);
        out.push_int(self.lease.as_micros() as i64);
        out.push_int(self.grace.as_micros() as i64);
        out.push_int(self.born as i64);
        out.push_int(self.seen_us as i64);
        // Redis keeps the record of a machine for two leases, so within one lease it must be there.
        out.push_int(i64::from(self.told_at.is_some_and(|told| now < told + self.lease)));
        self.spec.push_limits(&batch.books, &batch.pauses, &self.heard, &mut out);
        out.push_int(batch.returns.len() as i64);
        for (limit, stamp, amount) in &batch.returns {
            out.push_int(*limit as i64 + 1);
            out.push_int(*stamp as i64);
            out.push_int(*amount as i64);
        }
        out.push_int(batch.runs.len() as i64);
        out.push_int(self.spec.dimensions.len() as i64);
        for (count, costs) in &batch.runs {
            out.push_int(*count as i64);
            for cost in costs {
                out.push_int(*cost as i64);
            }
        }
        out
    }

    /// Puts the entries of a batch back in line, where the local share may admit them; the answer will be disowned.
    pub(crate) fn orphan(&mut self, batch: &mut Batch) {
        batch.orphaned = true;
        self.put_back(batch);
    }

    /// Puts the entries of a batch back at the front of the line, in order.
    pub(crate) fn put_back(&mut self, batch: &mut Batch) {
        self.asked = 0;
        for waiter in batch.asked.drain(..).rev() {
            self.line.push_front(waiter);
        }
    }

    /// Takes the content of a batch back that was not sent and will not be; the next one carries it.
    pub(crate) fn take_back(&mut self, mut batch: Batch) {
        self.put_back(&mut batch);
        for (limit, amount) in batch.books.iter().enumerate() {
            self.books[limit] += amount;
        }
        for (now, before) in self.pauses.iter_mut().zip(&batch.pauses) {
            *now = now.after(*before);
        }
        for (limit, stamp, amount) in batch.returns {
            let stamps = vec![stamp; self.spec.limits.len()].into_boxed_slice();
            self.returns.push((limit, Rc::new(OnceCell::from(stamps)), amount));
        }
        self.dirty = true;
    }

    /// Applies Redis' answer: which entries are admitted, and until when the others wait. Wakers to wake are pushed to `wake`.
    pub(crate) fn apply(&mut self, batch: &mut Batch, text: &[u8], sent_at: Instant, wake: &mut Vec<Waker>) -> Applied {
        let Some(answer) = Answer::read(text, self.spec.limits.len()) else { return Applied::Garbled };
        self.spec.look_at_calendar(answer.now_us);
        if answer.waits_for == -2 {
            return Applied::Again;
        }
        if self.born != 0 && self.born != answer.born {
            self.stats.memory_losses += 1;
        }
        (self.born, self.seen_us) = (answer.born, answer.now_us);
        self.told_at = Some(sent_at);
        self.heard = answer.limits;
        for (known, heard) in self.stats.limits.iter_mut().zip(&self.heard) {
            known.used = heard.used;
        }
        let stamps: Box<[u64]> = self.heard.iter().map(|heard| heard.stamp).collect();
        let _ = batch.stamps.set(stamps);
        self.stats.calls += 1;
        if batch.orphaned {
            self.disown(batch, answer.granted);
            return Applied::Done;
        }
        let granted = usize::try_from(answer.granted).unwrap_or(usize::MAX).min(batch.asked.len());
        for waiter in batch.asked.drain(..granted) {
            self.grant(
                &waiter,
                Grant::Shared { booked: Booked::at(&batch.stamps), asked_at: batch.asked_at },
                sent_at,
                wake,
            );
        }
        let waits = !batch.asked.is_empty();
        self.put_back(batch);
        self.blocked = None;
        if let Some((limit, since)) = self.waits.take()
            && let Some(limit) = self.stats.limits.get_mut(limit)
        {
            limit.blocked_for += sent_at.saturating_duration_since(since);
        }
        if waits && answer.waits_for != 0 {
            let limit = usize::try_from(answer.waits_for - 1).ok().filter(|_| answer.waits_for > 0);
            // Counted from the sending of this call, because the next one takes about as long to reach Redis.
            let ready_at = sent_at + Duration::from_micros(answer.ready_us.saturating_sub(answer.now_us));
            self.blocked = Some(Blocked { limit, ready_at });
            self.waits = limit.map(|limit| (limit, sent_at));
            self.stats.denials += 1;
            match limit.and_then(|at| self.stats.limits.get_mut(at)) {
                Some(limit) => limit.blocked += 1,
                None => self.stats.turns += 1,
            }
        } else {
            // More entries wait than fit into one call.
            self.dirty |= !self.line.is_empty();
        }
        self.look_at_first();
        Applied::Done
    }

    /// Admits an entry. If it was dropped meanwhile, its bookings are returned.
    pub(crate) fn grant(&mut self, waiter: &Waiter, mut grant: Grant, now: Instant, wake: &mut Vec<Waker>) {
        let mut fate = waiter.fate.borrow_mut();
        self.held += 1;
        match &*fate {
            Fate::Waiting(_) => {
                let Fate::Waiting(waker) = std::mem::replace(&mut *fate, Fate::Granted(grant)) else { unreachable!() };
                wake.push(waker);
                self.stats.granted += 1;
                self.stats.peak = self.stats.peak.max(self.held);
                self.stats.waited += now.saturating_duration_since(waiter.since);
            }
            _ => {
                drop(fate);
                self.stats.refunded += 1;
                if let Grant::Shared { booked, .. } = &mut grant {
                    self.settle(booked, &waiter.cost, None);
                }
                self.release();
            }
        }
    }

    /// Returns what was granted to the entries of an orphaned batch.
    fn disown(&mut self, batch: &mut Batch, mut granted: u64) {
        for (count, costs) in std::mem::take(&mut batch.runs) {
            let count = count.min(granted);
            granted -= count;
            for (at, spec) in self.spec.limits.iter().enumerate() {
                let Some((dimension, _)) = spec.limit.rated() else { continue };
                let place = self.spec.dimensions.iter().position(|known| *known == dimension);
                let amount = place.map_or(0, |place| costs[place]) * count;
                if amount > 0 {
                    self.returns.push((at, batch.stamps.clone(), amount));
                }
            }
        }
        self.dirty = true;
    }

    /// Ends all entries in line, and those of `batch`, with an error.
    pub(crate) fn refuse_all(&mut self, batch: &mut Batch, why: &EnterError, wake: &mut Vec<Waker>) {
        self.put_back(batch);
        self.refuse_line(why, wake);
    }

    pub(crate) fn refuse_line(&mut self, why: &EnterError, wake: &mut Vec<Waker>) {
        for waiter in std::mem::take(&mut self.line) {
            let mut fate = waiter.fate.borrow_mut();
            if matches!(&*fate, Fate::Waiting(_)) {
                let Fate::Waiting(waker) = std::mem::replace(&mut *fate, Fate::Refused(why.clone())) else {
                    unreachable!()
                };
                wake.push(waker);
                self.stats.refused += 1;
            }
        }
        self.blocked = None;
    }
}

/// The script's answer.
struct Answer {
    now_us: u64,
    born: u64,
    granted: u64,
    waits_for: i64,
    ready_us: u64,
    limits: Vec<Heard>,
}

impl Answer {
    fn read(text: &[u8], limits: usize) -> Option<Answer> {
        let mut numbers = std::str::from_utf8(text).ok()?.split(' ').map(str::parse::<i64>);
        let mut next = || numbers.next()?.ok();
        let mut positive = || u64::try_from(next()?).ok();
        let (now_us, born, granted, _ticket) = (positive()?, positive()?, positive()?, positive()?);
        let waits_for = next()?;
        let mut positive = || u64::try_from(next()?).ok();
        let ready_us = positive()?;
        let limits = match waits_for {
            -2 => Vec::new(),
            _ => (0..limits).map(|_| Some(Heard { stamp: positive()?, used: positive()? })).collect::<Option<_>>()?,
        };
        Some(Answer { now_us, born, granted, waits_for, ready_us, limits })
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
