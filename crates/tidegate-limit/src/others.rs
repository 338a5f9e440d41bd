//! What other runs have reserved under the same limit, as last read from the journal: earlier runs, and other processes.
//! Pure; see `journal.rs` for the reading.

#![cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "other runs are known only with a store"))]

use crate::moment::{Moment, Wall, WallNanos};
use crate::window::{Model, WindowSetting};

/// How often per window the journal is read again while only other runs leave no room.
const READS_PER_WINDOW: u64 = 60;

/// The bounds of that interval.
const READ_AGAIN_NANOS: (u64, u64) = (250_000_000, 10_000_000_000);

/// A reservation of another run, as in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The run and the serial number.
    pub(crate) id: (i64, i64),
    pub(crate) amount: u64,
    /// The instant before which all of it was booked.
    pub(crate) until: WallNanos,
}

#[derive(Debug, Default)]
pub(crate) struct Others {
    /// In the order of `at`.
    rows: Vec<OthersRow>,
    read_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct OthersRow {
    id: (i64, i64),
    amount: u64,
    until: WallNanos,
    /// The moment of `until`, computed when the row was first read. Setting the wall clock later does not move it.
    at: Moment,
    /// The mark that the bucket returned when this was booked in it.
    mark: Moment,
}

impl Others {
    /// Replaces the rows by those that the journal has now. They are booked in a bucket; other windows count them beside
    /// their own bookings. A sliding window also counts a row that the journal no longer has until that leaves the window,
    /// because the clock may have been set ahead. `lasts` is the longest duration of a reservation of a sliding window.
    pub(crate) fn refresh(&mut self, taken: &[Taken], lasts: u64, model: &mut Model, now: Moment, wall: Wall) {
        let mut known = std::mem::take(&mut self.rows);
        known.sort_unstable_by_key(|row| row.id);
        let is_first = self.read_at.is_none();
        self.rows.extend(taken.iter().map(|taken| {
            let before = known.binary_search_by_key(&taken.id, |row| row.id).ok().map(|index| known[index]);
            // A row in the future was written by a clock that has been set back since.
            let at = wall.moment(taken.until).min(now.plus(lasts));
            let at = match before {
                Some(before) if before.until == taken.until => before.at,
                // It was settled, and so ended earlier, by at most the duration of a reservation.
                Some(before) => at.min(before.at).max(Moment::from_nanos(before.at.as_nanos().saturating_sub(lasts))),
                None => at,
            };
            let mut row = OthersRow { id: taken.id, amount: taken.amount, until: taken.until, at, mark: Moment::ZERO };
            if let Model::Bucket(bucket) = model {
                let booked = before.map_or(0, |before| before.amount);
                row.mark = before.map_or(Moment::ZERO, |before| before.mark);
                if taken.amount > booked {
                    // Bookings of a bucket must be in order, so a row that is read later is booked now.
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
            let counts = |row: &OthersRow| row.at.plus(log.window()).plus(log.window()) > now;
            self.rows.extend(known.iter().filter(|row| counts(row) && ids.binary_search(&row.id).is_err()));
        }
        self.rows.sort_by_key(|row| row.at);
        self.read_at = Some(now);
    }

    /// Returns how much of the window other runs use at `now`. It is zero for a bucket, in which the rows are booked.
    #[inline]
    pub(crate) fn used(&self, model: &Model, now: Moment, setting: WindowSetting) -> u64 {
        if self.rows.is_empty() { 0 } else { self.sum(model, now, setting) }
    }

    fn sum(&self, model: &Model, now: Moment, setting: WindowSetting) -> u64 {
        let rows = self.rows.iter();
        match model {
            Model::Strict(log) => rows
                .filter(|row| row.at.plus(log.window()).plus(setting.margin) > now)
                .fold(0, |sum, row| sum.saturating_add(row.amount)),
            // Includes rows in the future, written by a clock that has been set back since.
            Model::Calendar(calendar) => {
                rows.filter(|row| row.until > calendar.begins()).fold(0, |sum, row| sum.saturating_add(row.amount))
            }
            Model::Bucket(_) => 0,
        }
    }

    /// Returns the earliest instant at which `amount` fits beside what other runs use, if nothing but `extra`, now, is
    /// booked until then.
    pub(crate) fn ready_at(
        &self,
        model: &Model,
        amount: u64,
        extra: u64,
        now: Moment,
        setting: WindowSetting,
    ) -> Moment {
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

    /// Returns when the first row of other runs leaves a strict window.
    pub(crate) fn next_reset(&self, model: &Model, now: Moment, setting: WindowSetting) -> Option<Moment> {
        let Model::Strict(log) = model else { return None };
        self.rows.iter().map(|row| row.at.plus(log.window()).plus(setting.margin)).find(|leaves| *leaves > now)
    }

    /// Returns when to read the journal again, because other runs may have given something back.
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
