//! The state of every item, counted as it changes. Plain values: nothing here waits, asks a gate or reads a clock.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use tidegate_limit::Place;

use super::item::{ItemId, ItemState, Phase};
use super::progress::{FileProgress, FileState, Unit};
use crate::pace::{LastMinute, Pace};
use crate::question::Usage;

/// For how many items the reason of a failure is kept. Results have all of them.
const REASONS_MAX: usize = 10_000;

/// What is counted.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) unit: Unit,
    pub(super) began: Instant,
    pub(super) files: Vec<FileBoard>,
    pub(super) requests: Requests,
    pub(super) lines_skipped: u64,
    pub(super) tokens: Usage,
    pub(super) answered: LastMinute,
    pub(super) pace: Pace,
    counts: Counts,
    /// Where blocked items stand in the gate's line, and the limit that they waited for at first. `None`: they wait for limits
    /// shared with other machines.
    places: HashMap<ItemId, (Option<Place>, String)>,
    /// Why items failed or were skipped.
    reasons: HashMap<ItemId, ItemState>,
}

/// How many items are in each state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts([u64; Phase::COUNT]);

impl Counts {
    pub(super) fn of(&self, phase: Phase) -> u64 {
        self.0[phase as usize]
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, phase: Phase, number: u64) {
        self.0[phase as usize] += number;
    }

    fn moved(&mut self, from: Phase, to: Phase) {
        self.0[from as usize] -= 1;
        self.0[to as usize] += 1;
    }
}

/// A file and its pages.
#[derive(Debug)]
pub(super) struct FileBoard {
    name: Rc<str>,
    state: FileState,
    /// The chosen pages, rising, and the state of each; `None` until they are counted.
    pages: Option<Vec<(u32, Phase)>>,
    counts: Counts,
    /// Pages that are in its HTML output, while that is written.
    written: u64,
}

impl FileBoard {
    fn phase_mut(&mut self, page: u32) -> Option<&mut Phase> {
        let pages = self.pages.as_mut()?;
        let at = pages.binary_search_by_key(&page, |(number, _)| *number).ok()?;
        Some(&mut pages[at].1)
    }

    fn progress(&self) -> FileProgress {
        let of = |phase| self.counts.of(phase);
        FileProgress {
            name: self.name.to_string(),
            state: self.state,
            pages: self.counts.total(),
            waiting: of(Phase::Waiting),
            blocked: of(Phase::Blocked),
            in_flight: of(Phase::InFlight),
            done: of(Phase::Done) + of(Phase::Cached),
            cached: of(Phase::Cached),
            failed: of(Phase::Failed),
            skipped: of(Phase::Skipped),
            written: self.written,
        }
    }
}

/// Requests by their lines.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The state of each line's request, from line 1; `None`: a line without one, or that was not read yet.
    phases: Vec<Option<Phase>>,
    /// How many there are, if the input was counted.
    pub(super) total: Option<u64>,
    /// No more will be read.
    pub(super) all_read: bool,
}

impl Board {
    pub(super) fn new(unit: Unit, names: impl Iterator<Item = String>, now: Instant) -> Board {
        let file = |name: String| FileBoard {
            name: name.into(),
            state: FileState::Waiting,
            pages: None,
            counts: Counts::default(),
            written: 0,
        };
        Board {
            unit,
            began: now,
            files: names.map(file).collect(),
            requests: Requests::default(),
            lines_skipped: 0,
            tokens: Usage::default(),
            answered: LastMinute::default(),
            pace: Pace::new(now),
            counts: Counts::default(),
            places: HashMap::new(),
            reasons: HashMap::new(),
        }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
        self.pace = Pace::new(now);
    }

    /// Records which pages of a file were chosen. Returns `false` if that was known.
    pub(super) fn count_pages(&mut self, file: usize, pages: &[u32]) -> bool {
        let board = &mut self.files[file];
        if board.pages.is_some() {
            return false;
        }
        board.pages = Some(pages.iter().map(|page| (*page, Phase::Waiting)).collect());
        board.counts.add(Phase::Waiting, pages.len() as u64);
        self.counts.add(Phase::Waiting, pages.len() as u64);
        true
    }

    pub(super) fn is_counted(&self, file: usize) -> bool {
        self.files[file].pages.is_some()
    }

    /// Returns the number of files whose pages have not been counted.
    pub(super) fn uncounted(&self) -> u64 {
        self.files.iter().filter(|file| file.pages.is_none()).count() as u64
    }

    pub(super) fn file_state(&mut self, file: usize, state: FileState) {
        self.files[file].state = state;
    }

    /// One more page of a file is in its HTML output.
    pub(super) fn page_written(&mut self, file: usize) {
        self.files[file].written += 1;
    }

    pub(super) fn file(&self, file: usize) -> FileProgress {
        self.files[file].progress()
    }

    /// A request was read; its state is waiting.
    pub(super) fn add_request(&mut self, line: u64) {
        let at = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
        if self.requests.phases.len() <= at {
            self.requests.phases.resize(at + 1, None);
        }
        if self.requests.phases[at].replace(Phase::Waiting).is_none() {
            self.counts.add(Phase::Waiting, 1);
        }
    }

    /// Whether a run that has not begun may come to this item.
    pub(super) fn may_come(&self, item: ItemId) -> bool {
        match item {
            ItemId::Page { file, page } => page > 0 && (file as usize) < self.files.len(),
            ItemId::Request { line } => line > 0 && self.unit == Unit::Requests,
        }
    }

    pub(super) fn phase(&self, item: ItemId) -> Option<Phase> {
        match item {
            ItemId::Page { file, page } => {
                let pages = self.files.get(file as usize)?.pages.as_ref()?;
                let at = pages.binary_search_by_key(&page, |(number, _)| *number).ok()?;
                Some(pages[at].1)
            }
            ItemId::Request { line } => *self.requests.phases.get(usize::try_from(line.checked_sub(1)?).ok()?)?,
        }
    }

    /// Puts an item into a state. `place`: where it stands in the gate's line, if it is blocked.
    pub(super) fn set(&mut self, item: ItemId, state: &ItemState, place: Option<Place>) {
        let phase = state.phase();
        let slot = match item {
            ItemId::Page { file, page } => self.files.get_mut(file as usize).and_then(|file| file.phase_mut(page)),
            ItemId::Request { line } => {
                let at = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
                self.requests.phases.get_mut(at).and_then(Option::as_mut)
            }
        };
        let Some(slot) = slot else { return };
        let before = std::mem::replace(slot, phase);
        self.counts.moved(before, phase);
        if let ItemId::Page { file, .. } = item {
            self.files[file as usize].counts.moved(before, phase);
        }
        match state {
            ItemState::Blocked { limit, .. } => drop(self.places.insert(item, (place, limit.clone()))),
            _ if before == Phase::Blocked => drop(self.places.remove(&item)),
            _ => {}
        }
        match phase {
            Phase::Failed | Phase::Skipped if self.reasons.len() < REASONS_MAX => {
                self.reasons.insert(item, state.clone());
            }
            _ if matches!(before, Phase::Failed | Phase::Skipped) => drop(self.reasons.remove(&item)),
            _ => {}
        }
    }

    /// Counts an answer that was paid for.
    pub(super) fn answered(&mut self, usage: Usage, now: Instant) {
        self.tokens += usage;
        self.answered.count(now, 1);
    }

    pub(super) fn count(&self, phase: Phase) -> u64 {
        self.counts.of(phase)
    }

    /// Items that are settled.
    pub(super) fn settled(&self) -> u64 {
        [Phase::Done, Phase::Cached, Phase::Failed, Phase::Skipped].into_iter().map(|phase| self.counts.of(phase)).sum()
    }

    /// Items in all, as far as they are counted.
    pub(super) fn total(&self) -> u64 {
        self.requests.total.unwrap_or(0).max(self.counts.total())
    }

    /// Whether more may come.
    pub(super) fn more(&self) -> bool {
        match self.unit {
            Unit::Pages => self.uncounted() > 0,
            Unit::Requests => self.requests.total.is_none() && !self.requests.all_read,
        }
    }

    /// An item's state, and the place of a blocked one: the gate knows until when it waits.
    pub(super) fn state(&self, item: ItemId) -> Option<(ItemState, Option<Place>)> {
        let phase = self.phase(item)?;
        let unknown = || String::from("see the results");
        let state = match phase {
            Phase::Waiting => ItemState::Waiting,
            Phase::Blocked => {
                let (place, limit) = self.places.get(&item).cloned().unwrap_or_default();
                return Some((ItemState::Blocked { limit, until: None }, place));
            }
            Phase::InFlight => ItemState::InFlight,
            Phase::Done => ItemState::Done,
            Phase::Cached => ItemState::Cached,
            Phase::Failed => self
                .reasons
                .get(&item)
                .cloned()
                .unwrap_or_else(|| ItemState::Failed { code: "failed".to_owned(), reason: unknown() }),
            Phase::Skipped => {
                self.reasons.get(&item).cloned().unwrap_or_else(|| ItemState::Skipped { reason: unknown() })
            }
        };
        Some((state, None))
    }

    /// Every item that is known so far, in order.
    pub(super) fn items(&self) -> impl Iterator<Item = ItemId> {
        let pages = self.files.iter().zip(0..).flat_map(|(board, file)| {
            let pages = board.pages.iter().flatten();
            pages.map(move |(page, _)| ItemId::Page { file, page: *page })
        });
        let requests = self.requests.phases.iter().zip(1..).filter(|(phase, _)| phase.is_some());
        pages.chain(requests.map(|(_, line)| ItemId::Request { line }))
    }
}
