//! Computes how long a number of further entries would wait, from windows, buckets, days to come and pauses. Pure: books
//! nothing.

use std::cmp::Reverse;

use crate::cost::Cost;
use crate::hold::Hold;
use crate::limits::{LimitId, Limits};
use crate::moment::Moment;
use crate::slot::{Slot, SlotCount, effective, used_by_others};
use crate::window::{Model, WindowSetting};

impl Limits {
    /// Returns the earliest instant at which the last of `count` more entries of `cost` each is admitted, if all of them come
    /// now and no others do. Ignores concurrency, because it is not known how long slots are held. Returns `None` if it is
    /// never admitted.
    pub(crate) fn last_of(&mut self, count: u64, cost: &Cost, now: Moment) -> Option<Moment> {
        self.last_of_if(&[], count, cost, now)
    }

    /// As [`last_of`](Self::last_of), as if each limit named in `amounts` had the amount beside its name. Changes nothing.
    pub(crate) fn last_of_if(
        &mut self,
        amounts: &[(&str, u64)],
        count: u64,
        cost: &Cost,
        now: Moment,
    ) -> Option<Moment> {
        self.expire(now);
        let (now, setting) = (self.now(), self.setting());
        if count == 0 {
            return Some(now);
        }
        self.slots().iter().try_fold(now, |last, slot| {
            let amount = amounts.iter().find(|(name, _)| *name == &*slot.name).map(|(_, amount)| *amount);
            Some(last.max(slot.last_of(amount, count, cost, now, setting)?))
        })
    }

    /// Returns the limit that admits the last of `count` entries of `cost` latest, and when, unless that is at once.
    pub(crate) fn latest_of(&self, count: u64, cost: &Cost) -> Option<(LimitId, Option<Moment>)> {
        let (now, setting) = (self.now(), self.setting());
        let slots = self.slots().iter().enumerate();
        let ready = slots.map(|(at, slot)| (LimitId(at as u16), slot.last_of(None, count, cost, now, setting)));
        let latest = ready.max_by_key(|(limit, at)| (at.unwrap_or(Moment::NEVER), Reverse(*limit)));
        latest.filter(|(_, at)| *at != Some(now))
    }
}

impl Slot {
    /// As [`Limits::last_of`], for one limit, with its own amount or another. Called after `expire`.
    fn last_of(
        &self,
        amount: Option<u64>,
        count: u64,
        cost: &Cost,
        now: Moment,
        setting: WindowSetting,
    ) -> Option<Moment> {
        if !self.concerns(cost) {
            return Some(now);
        }
        if let Hold::Shut { .. } = self.hold {
            return None;
        }
        // Probes of a parked limit are too few to count.
        let from = self.hold.until(now).unwrap_or(now);
        let (dimension, model, oversize, ledger) = match &self.count {
            SlotCount::Found(finder) => return Some(finder.last_of(count, now).max(from)),
            SlotCount::Concurrency { .. } => return (amount != Some(0)).then_some(from),
            SlotCount::Rate { dimension, model, oversize, ledger, .. } => (dimension, model, oversize, ledger),
        };
        let changed = amount.map(|amount| {
            let mut model = model.clone();
            model.set_amount(amount, now);
            model
        });
        let model = changed.as_ref().unwrap_or(model);
        let each = effective(cost.of(*dimension), *oversize, model);
        // The number that fits into an empty window.
        let whole = model.capacity().checked_div(each).filter(|whole| *whole > 0)?;
        Some(match model {
            Model::Bucket(bucket) => bucket.ready_at(each, each.saturating_mul(count - 1), from),
            // As each entry of one full window leaves, one of the next takes its place.
            Model::Strict(log) => {
                let (windows, place) = ((count - 1) / whole, (count - 1) % whole);
                let first = self.ready_under(model, each, each.saturating_mul(place), now, setting).max(from);
                first.plus(log.window().saturating_add(setting.margin).saturating_mul(windows))
            }
            Model::Calendar(calendar) => {
                let free = if from < calendar.resets_at() {
                    let others = used_by_others(ledger.as_deref(), model, now, setting);
                    calendar.amount().saturating_sub(calendar.used()).saturating_sub(others) / each
                } else {
                    whole
                };
                match count.saturating_sub(free) {
                    0 => from,
                    rest => calendar.begins_after(rest.div_ceil(whole), from, setting.wall),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::cost::Dimension;
    use crate::limit::{Limit, Start, Window};

    fn at(secs: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(secs)
    }

    fn limits<const N: usize>(limits: [Limit; N]) -> Limits {
        Limits::new(limits, Moment::ZERO, SystemTime::UNIX_EPOCH).unwrap()
    }

    fn enter(limits: &mut Limits, cost: &Cost, count: u64, now: Moment) {
        for _ in 0..count {
            let booking = limits.admit(cost, now).unwrap();
            limits.release(booking);
        }
    }

    /// Simulates `count` entries that come at `now`: each is admitted as soon as it fits.
    fn happens(limits: &mut Limits, count: u64, cost: &Cost, now: Moment) -> Moment {
        let mut now = now;
        for _ in 0..count {
            loop {
                match limits.admit(cost, now) {
                    Ok(booking) => break limits.release(booking),
                    Err(denied) => match denied.until {
                        crate::limits::Until::At(at) => now = at,
                        until => panic!("{until:?}"),
                    },
                }
            }
        }
        now
    }

    #[test]
    fn twenty_a_minute_let_the_last_of_fifty_five_in_after_the_windows_it_takes() {
        let (request, mut limits) = (Cost::request(), limits([Limit::rpm(20)]));
        assert_eq!(limits.last_of(0, &request, at(0)), Some(at(0)));
        assert_eq!(limits.last_of(20, &request, at(0)), Some(at(0)));
        assert_eq!(limits.last_of(55, &request, at(0)), Some(at(120)));
        enter(&mut limits, &request, 20, at(0));
        assert_eq!(limits.last_of(55, &request, at(5)), Some(at(180)), "20 at 60 s, 20 at 120 s, 15 at 180 s");
        assert_eq!(limits.last_of(1, &request, at(5)), Some(at(60)));
    }

    #[test]
    fn what_is_in_the_window_leaves_it_as_it_came() {
        let (request, mut limits) = (Cost::request(), limits([Limit::rpm(3)]));
        for second in [0, 10, 20] {
            enter(&mut limits, &request, 1, at(second));
        }
        let last = |limits: &mut Limits, count| limits.last_of(count, &request, at(30)).unwrap();
        assert_eq!([1, 2, 3, 4, 5].map(|count| last(&mut limits, count)), [60, 70, 80, 120, 130].map(at));
    }

    #[test]
    fn the_limit_that_takes_longest_decides() {
        let cost = Cost::tokens(400);
        let mut both = limits([Limit::concurrency("global", 1), Limit::rpm(100), Limit::tpm(1_000)]);
        assert_eq!(both.last_of(5, &cost, at(0)), Some(at(120)), "two a minute fit under the tokens");
        assert_eq!(both.last_of(5, &Cost::tokens(1), at(0)), Some(at(0)));
        assert_eq!(both.last_of(201, &Cost::request(), at(0)), Some(at(120)), "no tokens, so requests decide");
        assert_eq!(both.last_of(5, &Cost::tokens(1_001), at(0)), None, "never");
    }

    #[test]
    fn a_bucket_is_waited_for_drop_by_drop() {
        let window = |start| Window::Bucket { per: Duration::from_secs(60), burst: None, start };
        let request = Cost::request();
        assert_eq!(limits([Limit::rpm(60).window(window(Start::Cold))]).last_of(90, &request, at(0)), Some(at(90)));
        assert_eq!(limits([Limit::rpm(60).window(window(Start::Full))]).last_of(90, &request, at(0)), Some(at(30)));
    }

    #[test]
    fn days_are_waited_for_one_after_the_other() {
        let (hour, request) = (3_600, Cost::request());
        let mut limits = limits([Limit::rpd(10, "UTC")]);
        enter(&mut limits, &request, 4, at(hour));
        let last = |limits: &mut Limits, count| limits.last_of(count, &request, at(hour)).unwrap();
        assert_eq!(last(&mut limits, 6), at(hour));
        assert_eq!(last(&mut limits, 7), at(24 * hour));
        assert_eq!(last(&mut limits, 16), at(24 * hour));
        assert_eq!(last(&mut limits, 17), at(48 * hour));
        assert_eq!(last(&mut limits, 6 + 10 * 1_000), at(1_000 * 24 * hour));
    }

    #[test]
    fn a_pause_comes_first_and_what_is_shut_never_ends() {
        let (request, mut limits) = (Cost::request(), limits([Limit::rpm(10)]));
        let rpm = limits.find("rpm").unwrap();
        limits.pause(rpm, at(30));
        assert_eq!(limits.last_of(10, &request, at(0)), Some(at(30)));
        assert_eq!(limits.last_of(11, &request, at(0)), Some(at(90)));
        limits.shut(rpm, "no credit");
        assert_eq!(limits.last_of(1, &request, at(0)), None);
    }

    /// SplitMix64, below `end`.
    fn draw(random: &mut u64, end: u64) -> u64 {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    #[test]
    fn what_is_foretold_for_other_amounts_is_foretold_once_they_are_set_and_nothing_is_touched() {
        let minute = Duration::from_secs(60);
        let request = Cost::request();
        let windows = [Window::strict(minute), Window::bucket(minute), Window::Aligned(minute)];
        for seed in 0..300 {
            let (mut random, window) = (seed, windows[seed as usize % windows.len()].clone());
            let mut limits = limits([
                Limit::rpm(2 + draw(&mut random, 30)).window(window.clone()),
                Limit::rpd(500 + draw(&mut random, 500), "UTC"),
                Limit::concurrency("global", 5),
            ]);
            let mut now = Moment::ZERO;
            for _ in 0..draw(&mut random, 20) {
                now = now + Duration::from_secs(draw(&mut random, 9));
                if let Ok(booking) = limits.admit(&request, now) {
                    limits.release(booking);
                }
            }
            let (count, to) = (1 + draw(&mut random, 900), 1 + draw(&mut random, 60));
            let before = limits.last_of(count, &request, now);
            let foretold = limits.last_of_if(&[("rpm", to), ("no such limit", 1)], count, &request, now);
            assert_eq!(limits.last_of(count, &request, now), before, "seed {seed}: nothing is touched");
            assert_eq!(limits.last_of_if(&[("global", 0)], count, &request, now), None);
            limits.set_amount(limits.find("rpm").unwrap(), to, now);
            assert_eq!(limits.last_of(count, &request, now), foretold, "seed {seed}: {count} at {to} in {window:?}");
        }
    }

    #[test]
    fn what_is_foretold_is_what_happens() {
        let (minute, answers) = (Duration::from_secs(60), Dimension::named("output-tokens"));
        for seed in 0..600 {
            let mut random = seed;
            let window = |drawn: u64| match drawn {
                0 => Window::strict(minute),
                1 => Window::bucket(minute),
                _ => Window::Aligned(minute),
            };
            let [rpm, otpm] = [2 + draw(&mut random, 30), 50 + draw(&mut random, 500)];
            let windows = [draw(&mut random, 3), draw(&mut random, 3)].map(window);
            let alone = draw(&mut random, 2) == 0;
            let all = || {
                let rate = Limit::rate("otpm", answers, otpm, windows[1].clone());
                let other = Limit::rpm(rpm).window(windows[0].clone());
                Limits::new([rate].into_iter().chain((!alone).then_some(other)), Moment::ZERO, SystemTime::UNIX_EPOCH)
                    .unwrap()
            };
            let (mut foretold, mut lived) = (all(), all());
            let cost = Cost::request().and(answers, 1 + draw(&mut random, 50));
            let mut now = Moment::ZERO;
            for _ in 0..draw(&mut random, 20) {
                now = now + Duration::from_secs(draw(&mut random, 9));
                for limits in [&mut foretold, &mut lived] {
                    if let Ok(booking) = limits.admit(&cost, now) {
                        limits.release(booking);
                    }
                }
            }
            let count = 1 + draw(&mut random, 200);
            let (said, done) = (foretold.last_of(count, &cost, now).unwrap(), happens(&mut lived, count, &cost, now));
            if alone {
                assert_eq!(said, done, "seed {seed}: {count} of {cost:?} under {windows:?}");
            } else {
                // If limits bind alternately, an entry may wait for one of them although the other has room. So the
                // simulation may be a little later, but never earlier.
                assert!(said <= done && done.since(said) < 2 * minute, "seed {seed}: {said:?} foretold, {done:?} came");
            }
        }
    }
}
