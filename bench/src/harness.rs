//! What a line is: contestants that each run a batch and return its cost per operation.
//!
//! Rounds interleave the contestants in rotating order, so that a machine that gets slower or a
//! cache that was left warm falls on everybody alike; medians are compared. A batch during which the
//! host gave the cores to somebody else is run again: it says nothing of whoever ran it. Knows
//! nothing of runtimes. Groups call it; `report.rs` prints what it returns.

use std::time::{Duration, Instant};

use crate::host::Host;

/// The contestant that all ratios are taken against.
pub(crate) const BASELINE: &str = "tidegate";

/// Of a batch's time, so much may be stolen.
const STOLEN_SHARE_MAX: f64 = 0.02;
/// For each round, a contestant's batches are run again so often at the most.
const REPEATS_A_ROUND: u32 = 2;

/// A batch's cost per operation in the line's unit, or why the contestant cannot run here.
pub(crate) type Sample = Result<f64, String>;

struct Contestant {
    name: &'static str,
    run: Box<dyn FnMut() -> Sample>,
}

/// One thing measured, on several contestants.
pub(crate) struct Line {
    name: String,
    unit: &'static str,
    note: Option<String>,
    goals: Vec<Goal>,
    rounds_max: u32,
    contestants: Vec<Contestant>,
}

/// What a line is held to: `limit` must be met, `aim` is hoped for; none is if it is not beyond the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// The cheapest of `against` costs at least `limit` times the baseline.
    Ratio { against: &'static [&'static str], limit: f64, aim: f64 },
    /// The cheapest of `against` costs at least `limit` times what the contestant `of` does.
    RatioOf { of: &'static str, against: &'static [&'static str], limit: f64 },
    /// The baseline's own median stays below `limit`, in the line's unit.
    Below { limit: f64, aim: f64 },
    /// The baseline's own median stays below the cheapest of `against`.
    BelowPeers { against: &'static [&'static str], aim: f64 },
}

impl Line {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, note: None, goals: Vec::new(), rounds_max: u32::MAX, contestants: Vec::new() }
    }

    /// Adds a contestant. `run` builds what it needs, then times one batch.
    pub(crate) fn contestant(self, name: &'static str, mut run: impl FnMut() -> f64 + 'static) -> Self {
        self.contestant_if(name, move || Ok(run()))
    }

    /// Adds a contestant that may turn out to be unavailable on this machine: the first `Err`
    /// retires it and is printed in place of its figures.
    pub(crate) fn contestant_if(mut self, name: &'static str, run: impl FnMut() -> Sample + 'static) -> Self {
        self.contestants.push(Contestant { name, run: Box::new(run) });
        self
    }

    /// Adds a goal. Several are judged each on a row of its own.
    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// Printed under the line: how it was measured, where that is not plain from its name.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// For lines whose batches are long: at most so many rounds, whatever was asked for.
    pub(crate) fn rounds_max(mut self, rounds_max: u32) -> Self {
        self.rounds_max = rounds_max;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs one warm-up round and `rounds` measured ones.
    pub(crate) fn measure(&mut self, rounds: u32, host: &dyn Host, progress: &mut dyn FnMut(&str)) -> Measured {
        let rounds = rounds.min(self.rounds_max);
        let begun = Instant::now();
        progress(&format!("{}: {rounds} rounds", self.name));

        let count = self.contestants.len();
        let mut samples: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); count];
        let mut watches: Vec<Watch<'_>> = (0..count).map(|_| Watch::new(host, rounds)).collect();
        let mut told = begun;
        for round in 0..=rounds {
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                progress(&format!("{}: round {round} of {rounds}", self.name));
            }
            for at in rotation(round, count) {
                let Ok(kept) = &mut samples[at] else { continue };
                let batch = &mut self.contestants[at].run;
                match if round == 0 { batch() } else { watches[at].run(batch) } {
                    Ok(_) if round == 0 => {}
                    Ok(cost) => kept.push(cost),
                    Err(why) => samples[at] = Err(why),
                }
            }
        }
        if begun.elapsed() > Duration::from_secs(5) {
            progress(&format!("{}: took {:.0?}", self.name, begun.elapsed()));
        }

        let outcomes = samples.into_iter().map(|kept| kept.map(Stats::of));
        let names = self.contestants.iter().map(|contestant| contestant.name);
        let rows = names.zip(outcomes).collect();
        let thefts = watches.iter().map(|watch| watch.thefts).fold(Thefts::default(), Thefts::and);
        Measured { thefts, ..Measured::new(self.name.clone(), self.unit, self.note.clone(), rows, &self.goals) }
    }
}

/// Batches during which the host had the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thefts {
    /// Run again instead.
    pub(crate) repeated: u32,
    /// Counted all the same, for there had been enough repeats.
    pub(crate) kept: u32,
}

impl Thefts {
    fn and(self, other: Thefts) -> Thefts {
        Thefts { repeated: self.repeated + other.repeated, kept: self.kept + other.kept }
    }
}

/// Runs a contestant's batches, and again those that were stolen from.
struct Watch<'a> {
    host: &'a dyn Host,
    repeats_left: u32,
    thefts: Thefts,
}

impl Watch<'_> {
    fn new(host: &dyn Host, rounds: u32) -> Watch<'_> {
        Watch { host, repeats_left: rounds.saturating_mul(REPEATS_A_ROUND), thefts: Thefts::default() }
    }

    fn run(&mut self, batch: &mut dyn FnMut() -> Sample) -> Sample {
        loop {
            let (before, begun) = (self.host.stolen(), Instant::now());
            let sample = batch();
            let took = begun.elapsed();
            let stolen = self.host.stolen().saturating_sub(before);
            // One unit may be the end of what was stolen before.
            if sample.is_err() || stolen <= self.host.unit().max(took.mul_f64(STOLEN_SHARE_MAX)) {
                return sample;
            }
            if self.repeats_left == 0 {
                self.thefts.kept += 1;
                return sample;
            }
            self.repeats_left -= 1;
            self.thefts.repeated += 1;
        }
    }
}

/// The order of round `round`: everybody once, each round begun by the next contestant.
fn rotation(round: u32, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round as usize) % count)
}

/// Summary of one contestant's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stats {
    pub(crate) median: f64,
    /// Interquartile range as a share of the median: how far to trust it.
    pub(crate) spread: f64,
}

impl Stats {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let median = quantile(&samples, 0.5);
        let spread = (quantile(&samples, 0.75) - quantile(&samples, 0.25)) / median;
        Self { median, spread }
    }
}

/// Quantile of sorted samples, interpolated. The samples must not be empty.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * place.fract()
}

/// A line after its rounds.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) line: String,
    pub(crate) unit: &'static str,
    pub(crate) note: Option<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) thefts: Thefts,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) contestant: &'static str,
    pub(crate) outcome: Result<Stats, String>,
    /// Contestant / baseline, if both ran.
    pub(crate) ratio: Option<f64>,
    /// On the one row that decides the line's goal.
    pub(crate) verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Miss,
    Ok,
    /// Met, and the aim as well.
    Aim,
}

impl Mark {
    fn of(met: bool, aimed: bool) -> Self {
        match (met, aimed) {
            (false, _) => Mark::Miss,
            (true, false) => Mark::Ok,
            (true, true) => Mark::Aim,
        }
    }
}

impl Measured {
    pub(crate) fn new(
        line: String,
        unit: &'static str,
        note: Option<String>,
        outcomes: Vec<(&'static str, Result<Stats, String>)>,
        goals: &[Goal],
    ) -> Self {
        let row = |(contestant, outcome)| Row { contestant, outcome, ratio: None, verdict: None };
        let mut rows: Vec<Row> = outcomes.into_iter().map(row).collect();
        if let Some(own) = median_of(&rows, BASELINE) {
            for row in &mut rows {
                row.ratio = row.outcome.as_ref().ok().map(|stats| stats.median / own);
            }
        }
        for (name, verdict) in goals.iter().filter_map(|goal| judge(*goal, &rows)).collect::<Vec<_>>() {
            let row = rows.iter_mut().find(|row| row.contestant == name);
            row.expect("a verdict names one of the rows").verdict = Some(verdict);
        }
        Self { line, unit, note, rows, thefts: Thefts::default() }
    }

    /// The median of the cheapest of `names` that ran.
    pub(crate) fn cheapest(&self, names: &[&'static str]) -> Option<f64> {
        cheapest(&self.rows, names).map(|(_, cost)| cost)
    }
}

fn cheapest(rows: &[Row], names: &[&'static str]) -> Option<(&'static str, f64)> {
    let ran = names.iter().filter_map(|name| Some((*name, median_of(rows, name)?)));
    ran.min_by(|a, b| a.1.total_cmp(&b.1))
}

fn median_of(rows: &[Row], name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.contestant == name)?;
    row.outcome.as_ref().ok().map(|stats| stats.median)
}

/// The verdict and the contestant on whose row it belongs; nothing if one side did not run.
fn judge(goal: Goal, rows: &[Row]) -> Option<(&'static str, Verdict)> {
    let own = median_of(rows, BASELINE)?;
    Some(match goal {
        Goal::Ratio { against, limit, aim } => {
            let (name, cost) = cheapest(rows, against)?;
            let ratio = cost / own;
            let aims = aim > limit;
            let goal = if aims { format!(">= {limit} (aim {aim})") } else { format!(">= {limit}") };
            (name, Verdict { goal, mark: Mark::of(ratio >= limit, aims && ratio >= aim) })
        }
        Goal::RatioOf { of, against, limit } => {
            let (name, cost) = cheapest(rows, against)?;
            let ratio = cost / median_of(rows, of)?;
            let goal = format!("{name} >= {limit} of it, is {ratio:.2}");
            (of, Verdict { goal, mark: Mark::of(ratio >= limit, false) })
        }
        Goal::Below { limit, aim } => {
            let goal = format!("< {limit} (aim {aim})");
            (BASELINE, Verdict { goal, mark: Mark::of(own < limit, own <= aim) })
        }
        Goal::BelowPeers { against, aim } => {
            let (_, cost) = cheapest(rows, against)?;
            let goal = format!("< {cost:.0} (aim {aim})");
            (BASELINE, Verdict { goal, mark: Mark::of(own < cost, own <= aim) })
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;
    use crate::host::Honest;

    const UNIT: Duration = Duration::from_millis(10);

    /// Takes the cores away when told to.
    #[derive(Clone, Default)]
    struct Thief(Rc<Cell<Duration>>);

    impl Thief {
        fn steal(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    impl Host for Thief {
        fn stolen(&self) -> Duration {
            self.0.get()
        }

        fn unit(&self) -> Duration {
            UNIT
        }
    }

    fn measure(mut line: Line, rounds: u32) -> Measured {
        line.measure(rounds, &Honest, &mut |_| {})
    }

    fn verdict_of(measured: &Measured, name: &str) -> Option<Mark> {
        let row = measured.rows.iter().find(|row| row.contestant == name);
        row.expect("the contestant is listed").verdict.as_ref().map(|verdict| verdict.mark)
    }

    #[test]
    fn every_round_runs_everybody_once_and_begins_with_the_next() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut line = Line::new("l", "ns");
        for name in ["a", "b", "c"] {
            let log = Rc::clone(&log);
            line = line.contestant(name, move || {
                log.borrow_mut().push_str(name);
                1.0
            });
        }
        measure(line, 3);
        assert_eq!(*log.borrow(), "abcbcacababc");
    }

    #[test]
    fn the_warm_up_round_is_not_counted() {
        let mut costs = [1000.0, 2.0, 4.0, 3.0].into_iter();
        let line = Line::new("l", "ns").contestant(BASELINE, move || costs.next().unwrap());
        let stats = measure(line, 3).rows[0].outcome.clone().unwrap();
        assert_eq!(stats.median, 3.0);
    }

    #[test]
    fn ratio_is_contestant_over_tidegate() {
        let line = Line::new("l", "ns").contestant(BASELINE, || 2.0).contestant("peer", || 6.0);
        let measured = measure(line, 1);
        assert_eq!(measured.rows[0].ratio, Some(1.0));
        assert_eq!(measured.rows[1].ratio, Some(3.0));
    }

    #[test]
    fn a_ratio_goal_is_judged_against_the_cheaper_peer() {
        let line = Line::new("l", "ns")
            .contestant(BASELINE, || 1.0)
            .contestant("dear", || 9.0)
            .contestant("cheap", || 2.5)
            .goal(Goal::Ratio { against: &["dear", "cheap"], limit: 2.0, aim: 3.0 });
        let measured = measure(line, 1);
        assert_eq!(verdict_of(&measured, "cheap"), Some(Mark::Ok));
        assert_eq!(verdict_of(&measured, "dear"), None);
    }

    #[test]
    fn several_goals_are_judged_each_on_its_row() {
        let line = Line::new("l", "ns")
            .contestant(BASELINE, || 4.0)
            .contestant("other", || 2.0)
            .contestant("peer", || 5.0)
            .goal(Goal::Ratio { against: &["peer"], limit: 1.5, aim: 1.5 })
            .goal(Goal::RatioOf { of: "other", against: &["peer"], limit: 2.5 });
        let measured = measure(line, 1);
        assert_eq!(verdict_of(&measured, "peer"), Some(Mark::Miss));
        assert_eq!(verdict_of(&measured, "other"), Some(Mark::Ok));
    }

    #[test]
    fn an_absolute_goal_is_judged_on_our_own_row() {
        let line = |goal| {
            let line = Line::new("l", "us").contestant(BASELINE, || 50.0);
            measure(line.contestant("peer", || 40.0).goal(goal), 1)
        };
        let below = line(Goal::Below { limit: 200.0, aim: 80.0 });
        assert_eq!(verdict_of(&below, BASELINE), Some(Mark::Aim));
        let peers = line(Goal::BelowPeers { against: &["peer"], aim: 10.0 });
        assert_eq!(verdict_of(&peers, BASELINE), Some(Mark::Miss));
    }

    #[test]
    fn an_unavailable_contestant_is_asked_once_and_hurts_nobody() {
        let asked = Rc::new(RefCell::new(0));
        let count = Rc::clone(&asked);
        let line = Line::new("l", "ns")
            .contestant(BASELINE, || 1.0)
            .contestant_if("absent", move || {
                *count.borrow_mut() += 1;
                Err("no such thing".to_owned())
            })
            .goal(Goal::Ratio { against: &["absent"], limit: 1.0, aim: 1.0 });
        let measured = measure(line, 5);
        assert_eq!(*asked.borrow(), 1);
        assert_eq!(measured.rows[1].outcome, Err("no such thing".to_owned()));
        assert_eq!(measured.rows[1].verdict, None);
    }

    #[test]
    fn a_batch_that_was_stolen_from_is_run_again() {
        let thief = Thief::default();
        let mut batches = [(1.0, 0), (900.0, 3), (2.0, 1), (700.0, 2), (4.0, 0)].into_iter();
        let mut line = Line::new("l", "ns").contestant(BASELINE, {
            let thief = thief.clone();
            move || {
                let (cost, units) = batches.next().unwrap();
                thief.steal(UNIT * units);
                cost
            }
        });
        let measured = line.measure(2, &thief, &mut |_| {});
        assert_eq!(measured.rows[0].outcome.as_ref().unwrap().median, 3.0);
        assert_eq!(measured.thefts, Thefts { repeated: 2, kept: 0 });
    }

    #[test]
    fn a_host_that_always_steals_does_not_hold_up_the_run() {
        let thief = Thief::default();
        let mut ran = 0;
        let mut line = Line::new("l", "ns").contestant(BASELINE, {
            let thief = thief.clone();
            move || {
                thief.steal(UNIT * 5);
                ran += 1;
                f64::from(ran)
            }
        });
        let measured = line.measure(3, &thief, &mut |_| {});
        assert_eq!(measured.thefts, Thefts { repeated: 3 * REPEATS_A_ROUND, kept: 3 });
        assert_eq!(measured.rows[0].outcome.as_ref().unwrap().median, 9.0);
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0], 0.5), 1.0);
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
    }
}
