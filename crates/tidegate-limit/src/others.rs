//! What other runs have reserved under the same limit, as the journal last said: earlier runs, and those of other processes
//! now. Pure; see `journal.rs` for how it is read.

#![cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "without a store there are no others"))]

use crate::moment::{Moment, Wall, WallNanos};
use crate::window::{Model, Setting};

/// How often the journal is read again while only the others leave no room, as a share of the window.
const READS_PER_WINDOW: u64 = 60;

/// The bounds of that interval.
const READ_AGAIN_NANOS: (u64, u64) = (250_000_000, 10_000_000_000);

/// A reservation of another run, as it is in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The run and the serial number.
    pub(crate) id: (i64, i64),
    pub(crate) amount: u64,
    /// All of it was booked before that.
    pub(crate) until: WallNanos,
}

#[derive(Debug, Default)]
pub(crate) struct Others {
    /// By `at`.
    rows: Vec<Row>,
    read_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    id: (i64, i64),
    amount: u64,
    until: WallNanos,
    /// The moment of `until` by the wall clock as it was when the row was seen first: a clock that is set later does not move
    /// it.
    at: Moment,
    /// What the bucket returned when this was booked in it.
    mark: Moment,
}

impl Others {
    /// Replaces what was known by what the journal has now. A bucket books it, other windows count it beside their own. A
    /// sliding window counts on what the journal no longer has, until it leaves: the clock may have been set ahead.
    /// `lasts`: the longest that a reservation of a sliding window can be open.
    pub(crate) fn refresh(&mut self, taken: &[Taken], lasts: u64, model: &mut Model, now: Moment, wall: Wall) {
        let mut known = std::mem::take(&mut self.rows);
        known.sort_unstable_by_key(|row| row.id);
        let is_first = self.read_at.is_none();
        self.rows.extend(taken.iter().map(|taken| {
            let before = known.binary_search_by_key(&taken.id, |row| row.id).ok().map(|index| known[index]);
            // A row of the future was written by a clock that has been set back since.
            let at = wall.moment(taken.until).min(now.plus(lasts));
            let at = match before {
                Some(before) if before.until == taken.until => before.at,
                // It was settled: earlier than it would have ended, by what a reservation lasts at most.
                Some(before) => at.min(before.at).max(Moment::from_nanos(before.at.as_nanos().saturating_sub(lasts))),
                None => at,
            };
            let mut row = Row { id: taken.id, amount: taken.amount, until: taken.until, at, mark: Moment::ZERO };
            if let Model::Bucket(bucket) = model {
                let booked = before.map_or(0, |before| before.amount);
                row.mark = before.map_or(Moment::ZERO, |before| before.mark);
                if taken.amount > booked {
                    // A bucket's own bookings are in order, so what comes to be known later is booked when it does.
                    row.at = if is_first { at.min(now) } else { now };
                    row.mark = bucket.restore(taken.amount - booked, row.at, now);
                } else if let Some(before) = before {
                    row.at = before.at;
                    bucket.unbook(booked - taken.amount, before.at, before.mark, now);
                }
            }
            row
        }));
        if let Model::Strict(log) = model {
            let mut ids: Vec<_> = taken.iter().map(|taken| taken.id).collect();
            ids.sort_unstable();
            let counts = |row: &Row| row.at.plus(log.window()).plus(log.window()) > now;
            self.rows.extend(known.iter().filter(|row| counts(row) && ids.binary_search(&row.id).is_err()));
        }
        self.rows.sort_by_key(|row| row.at);
        self.read_at = Some(now);
    }

    /// How much of the window the others use at `now`. What they use of a bucket is booked in it.
    #[inline]
    pub(crate) fn used(&self, model: &Model, now: Moment, setting: Setting) -> u64 {
        if self.rows.is_empty() { 0 } else { self.sum(model, now, setting) }
    }

    fn sum(&self, model: &Model, now: Moment, setting: Setting) -> u64 {
        let rows = self.rows.iter();
        match model {
            Model::Strict(log) => rows
                .filter(|row| row.at.plus(log.window()).plus(setting.margin) > now)
                .fold(0, |sum, row| sum.saturating_add(row.amount)),
            // Also what lies ahead: it was written by a clock that has been set back since.
            Model::Calendar(calendar) => {
                rows.filter(|row| row.until > calendar.begins()).fold(0, |sum, row| sum.saturating_add(row.amount))
            }
            Model::Bucket(_) => 0,
        }
    }

    /// The earliest instant at which `amount` fits beside what the others use, if nothing is booked until then but `extra`,
    /// now.
    pub(crate) fn ready_at(&self, model: &Model, amount: u64, extra: u64, now: Moment, setting: Setting) -> Moment {
        let mut left = self.used(model, now, setting);
        let ready = |left: u64| model.ready_at(amount, extra.saturating_add(left), now, setting);
        let Model::Strict(log) = model else { return ready(left) };
        let mut not_before = now;
        if left > 0 {
            for row in &self.rows {
                let leaves = row.at.plus(log.window()).plus(setting.margin);
                if leaves <= now {
                    continue;
                }
                let beside = ready(left);
                if beside <= leaves {
                    return beside.max(not_before);
                }
                not_before = leaves;
                left = left.saturating_sub(row.amount);
            }
        }
        ready(left).max(not_before)
    }

    /// When the first of what the others use leaves a strict window.
    pub(crate) fn next_reset(&self, model: &Model, now: Moment, setting: Setting) -> Option<Moment> {
        let Model::Strict(log) = model else { return None };
        self.rows.iter().map(|row| row.at.plus(log.window()).plus(setting.margin)).find(|leaves| *leaves > now)
    }

    /// When the journal is worth reading again: the others may have given something back.
    pub(crate) fn read_again_at(&self, model: &Model) -> Moment {
        let window = match model {
            Model::Strict(log) => log.window(),
            Model::Bucket(bucket) => bucket.fills_in(),
            Model::Calendar(calendar) => calendar.length(),
        };
        let (least, most) = READ_AGAIN_NANOS;
        self.read_at.unwrap_or(Moment::ZERO).plus((window / READS_PER_WINDOW).clamp(least, most))
    }
}
