//! How far a run has come: counted as it happens, shown when somebody looks.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tidegate_limit::{Admission, Cost, Snapshot};

use super::pictures::PictureLimit;
use super::stop::Stop;
use crate::output::Status;
use crate::pace::{LastMinute, Look, Pace};
use crate::provider::Provider;
use crate::question::Usage;

/// How far a run has come, at one instant.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// Each file, in the order they were given.
    pub files: Vec<FileProgress>,
    /// Pages of all files that have been counted so far.
    pub pages: u64,
    /// Whether more may come: the pages of some file have not been counted.
    pub more: bool,
    /// Pages explained, kept ones included.
    pub done: u64,
    /// Of those, from an earlier run.
    pub kept: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Pages without a text that can be read.
    pub skipped: u64,
    /// Pages at the gate or being asked about.
    pub asking: u64,
    /// Tokens paid for so far.
    pub tokens: Usage,
    /// Pages answered in the last minute; those that were kept do not count.
    pub pages_per_minute: f64,
    /// How long it will take: as long as the limits say, or longer where the rest is slower; `None` while nobody can tell.
    /// Of a run that stops, until what is under way is done.
    pub remaining: Option<Duration>,
    /// Whether it ends early, because it was asked to or has no hope: nothing new is begun.
    pub stopping: bool,
    /// Pages that wait because enough pictures of their file are in flight; they are not in the gate's line yet.
    pub pictures_waiting: u64,
    /// The limits: what is used, who waits, what they wait for.
    pub gate: Snapshot,
}

/// How far a file has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileProgress {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: FileState,
    /// Pages that were chosen; 0 until they are counted.
    pub pages: u64,
    /// Pages explained, kept ones included.
    pub done: u64,
    /// Of those, from an earlier run.
    pub kept: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Pages without a text that can be read.
    pub skipped: u64,
    /// Pages at the gate or being asked about.
    pub asking: u64,
}

/// Where a file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileState {
    /// It is not its turn yet.
    Waiting,
    /// Its pages are under way.
    Running,
    /// Its pages are done, its outputs are being written.
    Writing,
    /// It is done.
    Done,
    /// It could not be read, or written.
    Failed,
}

/// What counts.
#[derive(Debug)]
pub(super) struct Board {
    began: Instant,
    files: Vec<FileProgress>,
    tokens: Usage,
    /// Which files' pages have been counted.
    counted: Vec<bool>,
    answered: LastMinute,
    pace: Pace,
}

impl Board {
    pub(super) fn new(names: impl Iterator<Item = String>, now: Instant) -> Board {
        let files: Vec<FileProgress> = names
            .map(|name| FileProgress {
                name,
                state: FileState::Waiting,
                pages: 0,
                done: 0,
                kept: 0,
                failed: 0,
                skipped: 0,
                asking: 0,
            })
            .collect();
        Board {
            began: now,
            counted: vec![false; files.len()],
            files,
            tokens: Usage::default(),
            answered: LastMinute::default(),
            pace: Pace::new(now),
        }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
        self.pace = Pace::new(now);
    }

    pub(super) fn opened(&mut self, file: usize, pages: usize) {
        self.files[file].state = FileState::Running;
        self.counted(file, pages);
    }

    /// Records how many pages of a file were chosen.
    pub(super) fn counted(&mut self, file: usize, pages: usize) {
        self.files[file].pages = pages as u64;
        self.counted[file] = true;
    }

    pub(super) fn is_counted(&self, file: usize) -> bool {
        self.counted[file]
    }

    /// Returns the number of files whose pages have not been counted.
    pub(super) fn uncounted(&self) -> u64 {
        self.counted.iter().filter(|counted| !**counted).count() as u64
    }

    pub(super) fn state(&mut self, file: usize, state: FileState) {
        self.files[file].state = state;
    }

    pub(super) fn asking(&mut self, file: usize) {
        self.files[file].asking += 1;
    }

    pub(super) fn asked(&mut self, file: usize) {
        self.files[file].asking -= 1;
    }

    pub(super) fn page(&mut self, file: usize, status: Status, kept: bool, usage: Usage, now: Instant) {
        let progress = &mut self.files[file];
        match status {
            Status::Done => progress.done += 1,
            Status::Failed => progress.failed += 1,
            Status::Skipped => progress.skipped += 1,
            Status::Missing => {}
        }
        if status == Status::Done && kept {
            progress.kept += 1;
        } else if status == Status::Done {
            self.tokens += usage;
            self.answered.count(now, 1);
        }
    }

    pub(super) fn tokens(&self) -> Usage {
        self.tokens
    }

    pub(super) fn file(&self, file: usize) -> &FileProgress {
        &self.files[file]
    }

    /// How far it is at `now`, through `gate`, where a page costs about `cost`.
    fn progress(&mut self, gate: &Admission, cost: &Cost, stopping: bool, now: Instant) -> Progress {
        let sum = |of: fn(&FileProgress) -> u64| self.files.iter().map(of).sum::<u64>();
        let (pages, done, failed, skipped) = (sum(|f| f.pages), sum(|f| f.done), sum(|f| f.failed), sum(|f| f.skipped));
        let (kept, asking) = (sum(|f| f.kept), sum(|f| f.asking));
        let elapsed = now.saturating_duration_since(self.began);
        let more = self.uncounted() > 0;
        let stats = gate.stats();
        let left = match stopping {
            true => stats.current,
            false => pages.saturating_sub(done + failed + skipped),
        };
        let look = Look::new(now, (done + failed).saturating_sub(kept), left, gate, &stats, cost);
        // Unknown while pages are being counted.
        let remaining = self.pace.time_left(look).filter(|_| stopping || !more);
        Progress {
            elapsed,
            files: self.files.clone(),
            pages,
            more,
            done,
            kept,
            failed,
            skipped,
            asking,
            tokens: self.tokens,
            pages_per_minute: self.answered.per_minute(now) as f64,
            remaining,
            stopping,
            pictures_waiting: 0,
            gate: stats,
        }
    }
}

/// Looks at a run from outside, at any time.
#[derive(Clone)]
pub struct Watch {
    board: Rc<RefCell<Board>>,
    gate: Admission,
    provider: Rc<dyn Provider>,
    stop: Stop,
    pictures: Rc<PictureLimit>,
}

impl Watch {
    pub(super) fn new(
        board: &Rc<RefCell<Board>>,
        gate: &Admission,
        provider: &Rc<dyn Provider>,
        stop: &Stop,
        pictures: &Rc<PictureLimit>,
    ) -> Watch {
        Watch {
            board: Rc::clone(board),
            gate: gate.clone(),
            provider: Rc::clone(provider),
            stop: stop.clone(),
            pictures: Rc::clone(pictures),
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let (cost, stopping) = (self.provider.typical_cost(), self.stop.is_asked());
        let progress = self.board.borrow_mut().progress(&self.gate, &cost, stopping, Instant::now());
        Progress { pictures_waiting: self.pictures.waiting(), ..progress }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("board", &self.board).field("gate", &self.gate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limit::{Gate, Limit};

    fn board(began: Instant) -> Board {
        let mut board = Board::new(["a".to_owned(), "b".to_owned()].into_iter(), began);
        board.opened(0, 100);
        board.page(0, Status::Done, true, Usage::default(), began + Duration::from_secs(1));
        for second in 1..=60 {
            let (at, usage) = (began + Duration::from_secs(second), Usage { input_tokens: 10, output_tokens: 1 });
            board.page(0, Status::Done, false, usage, at);
        }
        board
    }

    fn gate(limits: impl IntoIterator<Item = Limit>) -> Admission {
        Gate::builder().limits(limits).build().unwrap().into()
    }

    #[test]
    fn the_rate_counts_what_was_answered_lately_and_not_what_was_kept() {
        let gate = gate([Limit::concurrency("global", 1)]);
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut board = board(began);
        let progress = board.progress(&gate, &Cost::request(), false, at(60));
        assert_eq!((progress.done, progress.kept, progress.tokens.total()), (61, 1, 660));
        assert!((57.0..=66.0).contains(&progress.pages_per_minute), "{}", progress.pages_per_minute);
        assert_eq!(progress.remaining, None, "the pages of b have not been counted");
        board.counted(1, 0);
        let remaining = board.progress(&gate, &Cost::request(), false, at(60)).remaining.unwrap();
        assert!((35..=42).contains(&remaining.as_secs()), "{remaining:?}");
    }

    #[test]
    fn what_a_limit_allows_counts_and_not_what_was_possible_before_it_bound() {
        let began = Instant::now();
        let mut board = board(began);
        board.opened(1, 16);
        let gate = gate([Limit::rpm(20)]);
        let remaining = |board: &mut Board, stopping| {
            board.progress(&gate, &Cost::request(), stopping, began + Duration::from_secs(60)).remaining
        };
        let left = remaining(&mut board, false).unwrap();
        assert_eq!(left.as_secs(), 120, "55 left: 20 now, 20 in a minute, 15 in two: {left:?}");
        assert_eq!(remaining(&mut board, true), Some(Duration::ZERO), "nothing is under way");
    }
}
