//! What is read of a run: how far it is, how long it takes, and the state of each item. Nothing is changed by looking.

use std::time::Duration;

use tidegate_limit::{Blocked, LimitSnapshot, Snapshot};

use super::control::{Control, Source};
use super::item::{Item, ItemId, ItemState, Phase};
use super::progress::Progress;
use crate::pace::Look;

impl Control {
    /// How far the run is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let now = super::now();
        let gate = self.gate_stats();
        let look = gate.as_ref().and_then(|stats| self.look(stats, &[]));
        let (seq, paused, stopping) = (self.seq(), self.is_paused(), self.is_stopping());
        let mut board = self.inner.board.borrow_mut();
        let more = board.more();
        let is_known = stopping || !(more || paused || self.is_ended());
        let remaining = look.and_then(|look| board.pace.time_left(look)).filter(|_| is_known);
        let board = &*board;
        let total = board.total();
        let count = |phase| board.count(phase);
        let known = board.settled() + count(Phase::Blocked) + count(Phase::InFlight);
        Progress {
            seq,
            unit: board.unit,
            elapsed: now.saturating_duration_since(board.began),
            files: (0..board.files.len()).map(|file| board.file(file)).collect(),
            total,
            more,
            waiting: total - known,
            blocked: count(Phase::Blocked),
            in_flight: count(Phase::InFlight),
            done: count(Phase::Done) + count(Phase::Cached),
            cached: count(Phase::Cached),
            failed: count(Phase::Failed),
            skipped: count(Phase::Skipped),
            lines_skipped: board.lines_skipped,
            tokens: board.tokens,
            per_minute: board.answered.per_minute(now) as f64,
            remaining,
            paused,
            stopping,
            ended: self.is_ended(),
            reason: self.reason(),
            gate,
        }
    }

    /// Returns the time left if each limit named in `amounts` had the amount beside its name. Nothing is changed.
    #[must_use]
    pub fn what_if(&self, amounts: &[(&str, u64)]) -> Option<Duration> {
        let stats = self.gate_stats()?;
        let look = self.look(&stats, amounts)?;
        let is_slots = |name: &str| stats.limit(name).is_some_and(|limit| limit.dimension.is_none());
        let slots = |changed: bool| {
            let limits = stats.limits.iter().filter(|limit| limit.dimension.is_none());
            let amount = |limit: &LimitSnapshot| {
                let new = amounts.iter().find(|(name, _)| changed && *name == limit.name);
                new.map_or(limit.amount, |(_, amount)| *amount)
            };
            limits.map(amount).min()
        };
        let changed = amounts.iter().any(|(name, _)| is_slots(name));
        let slots = slots(false).zip(slots(true)).filter(|_| changed);
        self.inner.board.borrow().pace.time_left_if(look, slots)
    }

    fn gate_stats(&self) -> Option<Snapshot> {
        self.inner.source.borrow().as_ref().map(|source| source.gate.stats())
    }

    /// A look at the run, as if limits had other amounts.
    fn look(&self, stats: &Snapshot, amounts: &[(&str, u64)]) -> Option<Look> {
        let source = self.inner.source.borrow();
        let Source { gate, cost } = source.as_ref()?;
        let cost = cost();
        let board = self.inner.board.borrow();
        let (in_flight, blocked) = (board.count(Phase::InFlight), board.count(Phase::Blocked));
        let left = match self.is_stopping() {
            true => in_flight,
            false => board.total().saturating_sub(board.settled()),
        };
        // Other runs' items in line go before the last of this one's.
        let others = (stats.waiting as u64).saturating_sub(blocked);
        let entries = left.saturating_sub(in_flight);
        let entries = if entries > 0 { entries + others } else { 0 };
        let settled = board.count(Phase::Done) + board.count(Phase::Failed);
        let held_up =
            stats.limits.iter().filter(|limit| limit.dimension.is_some()).map(|limit| limit.blocked_for).sum();
        let quota = match amounts {
            [] => gate.outlook(entries, &cost),
            amounts => gate.outlook_if(amounts, entries, &cost),
        };
        Some(Look { at: super::now(), settled, left, held_up, quota, answer_time: stats.answer_time })
    }

    /// Returns every item that is known so far, in order.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let source = self.inner.source.borrow();
        let line = source.as_ref().map(|source| source.gate.line()).unwrap_or_default();
        let board = self.inner.board.borrow();
        let state = |item: ItemId| {
            let (state, place) = board.state(item)?;
            let at = place.and_then(|place| line.binary_search_by_key(&place, |(place, _)| *place).ok());
            Some(Item { item, state: with_place(state, at.map(|at| line[at].1.clone())) })
        };
        board.items().filter_map(state).collect()
    }

    /// Returns the state of an item; `None` if the run does not know it, or not yet.
    #[must_use]
    pub fn item(&self, item: ItemId) -> Option<ItemState> {
        let (state, place) = self.inner.board.borrow().state(item)?;
        let source = self.inner.source.borrow();
        let blocked = place.and_then(|place| source.as_ref()?.gate.gate().blocked(place));
        Some(with_place(state, blocked))
    }
}

/// The state with what the gate says about its blocked entry. Without that the entry was admitted, and is about to notice.
fn with_place(state: ItemState, blocked: Option<Blocked>) -> ItemState {
    match (state, blocked) {
        (ItemState::Blocked { .. }, Some(blocked)) => {
            ItemState::Blocked { limit: blocked.limit.to_string(), until: blocked.until }
        }
        (state, _) => state,
    }
}
