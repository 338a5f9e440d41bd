//! What one machine knows of a shared gate: who waits here, what is held, what has to be told. No I/O; time is an
//! argument.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, EnterError, Lease};

use super::spec::{Heard, Kind, Pause, Spec, state_key};
use super::stats::{SharedLimitStats, SharedStats};
use crate::wire::Command;

/// Asked for in one call; the rest comes with the next.
const ASKED_MAX: usize = 4096;
/// Runs of equal costs in one call: they are what it takes Redis' time for.
const RUNS_MAX: usize = 128;

/// Where bookings are counted, a number for each limit: empty until Redis has told. Shared by all of one call.
pub(crate) type Stamps = Rc<OnceCell<Box<[u64]>>>;

/// Where an entry's bookings are counted.
pub(crate) struct Booked {
    /// Of what it booked when it was let in.
    stamps: Stamps,
    /// What it turned out to cost beyond that, in the order it was booked: limit, where, amount.
    later: Vec<(usize, Stamps, u64)>,
}

impl Booked {
    pub(crate) fn at(stamps: &Stamps) -> Booked {
        Booked { stamps: Rc::clone(stamps), later: Vec::new() }
    }

    /// Takes an amount back from where it is, the last booked first.
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

/// What somebody who was let in has.
pub(crate) enum Grant {
    Shared { booked: Booked, asked_at: Instant },
    Local(Lease),
}

pub(crate) enum Fate {
    Waiting(Waker),
    Granted(Grant),
    Refused(EnterError),
    /// Told, or given up.
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

/// What is told in one call. Told again under the same number, Redis answers what it answered.
pub(crate) struct Batch {
    seq: u64,
    held: u64,
    books: Vec<u64>,
    pauses: Vec<Pause>,
    /// Limit, stamp, amount.
    returns: Vec<(usize, u64, u64)>,
    /// In their order; not in the line meanwhile.
    pub(crate) asked: Vec<Rc<Waiter>>,
    /// What was asked for, also when those who asked were served otherwise meanwhile.
    runs: Vec<(u64, Vec<u64>)>,
    /// Those who asked do not wait for this answer any more.
    orphaned: bool,
    stamps: Stamps,
    asked_at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Done,
    /// The calendar was outdated: tell the same again.
    Again,
    /// Not what the script says.
    Garbled,
}

/// Why the first in line waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    /// A limit's place; `None`: its turn.
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
    /// In the batch that is being told, not in the line.
    asked: usize,
    /// Given up, and perhaps still in the line: never much more than half of it.
    gone: usize,
    /// Leases out, granted and not fetched included: what Redis is told, not what it thinks.
    pub(crate) held: u64,
    /// Of the last call.
    seq: u64,
    /// What Redis said of its state: when it was begun, and the last time. Zero: nothing yet.
    born: u64,
    seen_us: u64,
    heard: Vec<Heard>,
    books: Vec<u64>,
    pauses: Vec<Pause>,
    returns: Vec<(usize, Stamps, u64)>,
    next_stamps: Stamps,
    /// There is something to tell or to ask now.
    dirty: bool,
    pub(crate) blocked: Option<Blocked>,
    /// What the last answer said is waited for, and since when that is counted.
    waits: Option<(usize, Instant)>,
    /// When the last call that was answered was made.
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

    /// Puts somebody in line; whether the driver should look.
    pub(crate) fn join(&mut self, waiter: Rc<Waiter>) -> bool {
        self.line.push_back(waiter);
        self.stats.waiting_peak = self.stats.waiting_peak.max(self.line.len() + self.asked);
        // Behind somebody who is known to have to wait, there is nothing to ask.
        self.dirty |= self.blocked.is_none();
        self.blocked.is_none()
    }

    /// Somebody gave up while in line. Only the first one's going changes anything.
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

    /// Whether the first in line has gone, so that the next one is to be asked for.
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

    /// A lease has ended. Its slot is told at once: somebody elsewhere may wait for it.
    pub(crate) fn release(&mut self) {
        self.held -= 1;
        self.dirty |= self.spec.has_concurrency();
    }

    /// Takes back what is booked for `cost` beyond `actual`, and books what is missing.
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

    /// What was booked earlier happens now, and is counted with the next call.
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

    /// Books without asking: it has happened already.
    pub(crate) fn book(&mut self, limit: usize, amount: u64) {
        self.books[limit] += amount;
        self.dirty |= amount > 0;
    }

    /// There is nothing to tell, but somebody wants to know.
    pub(crate) fn look(&mut self) {
        self.dirty = true;
    }

    /// What the server says of a limit, for all machines.
    pub(crate) fn pause(&mut self, limit: usize, pause: Pause) {
        self.pauses[limit] = pause.after(self.pauses[limit]);
        self.dirty = true;
    }

    /// When the driver should call next; `None`: when something happens.
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

    /// Nothing is held, waits, or has to be told.
    pub(crate) fn is_idle(&self) -> bool {
        !self.dirty && self.held == 0 && self.line.is_empty()
    }

    /// All there is to tell and to ask.
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
        // A record is kept for twice the lease; within one it must be there.
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

    /// Those who asked are back in line: they may be served otherwise, and the answer finds nobody.
    pub(crate) fn orphan(&mut self, batch: &mut Batch) {
        batch.orphaned = true;
        self.put_back(batch);
    }

    /// The front of the line is as it was.
    pub(crate) fn put_back(&mut self, batch: &mut Batch) {
        self.asked = 0;
        for waiter in batch.asked.drain(..).rev() {
            self.line.push_front(waiter);
        }
    }

    /// It was not told and will not be: what it had to say is said with the next one.
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

    /// Redis' answer: who goes, and until when the others wait. Wakers to wake are pushed to `wake`.
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
            // Counted from when it was sent: the next call takes as long to get there.
            let ready_at = sent_at + Duration::from_micros(answer.ready_us.saturating_sub(answer.now_us));
            self.blocked = Some(Blocked { limit, ready_at });
            self.waits = limit.map(|limit| (limit, sent_at));
            self.stats.denials += 1;
            match limit.and_then(|at| self.stats.limits.get_mut(at)) {
                Some(limit) => limit.blocked += 1,
                None => self.stats.turns += 1,
            }
        } else {
            // More wait than fit into one call.
            self.dirty |= !self.line.is_empty();
        }
        self.look_at_first();
        Applied::Done
    }

    /// Lets somebody in; if he has gone meanwhile, everything is taken back.
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

    /// What was granted to those who are not there any more is taken back.
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

    /// Tells everybody in line why nobody goes.
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

/// What the script says.
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
