//! What happens in a run, as it happens, and the last of it for readers that have missed some.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use super::item::{ItemId, ItemState};
use crate::question::Usage;

/// How many events are kept for readers that come back.
const KEPT: usize = 4_096;

/// Something that has happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// Its number in the run: 1, 2, 3, without gaps.
    pub seq: u64,
    /// What has happened.
    #[serde(flatten)]
    pub change: Change,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// The chosen pages of a file are counted.
    Counted {
        /// The file's place among the inputs.
        file: u32,
        /// How many there are.
        pages: u64,
    },
    /// A file is open, and its pages come next.
    FileOpened {
        /// Its place among the inputs.
        file: u32,
        /// Its name.
        name: Rc<str>,
        /// How many of its pages were chosen.
        pages: u32,
        /// How many of them may be in flight at once.
        page_concurrency: u32,
    },
    /// A file's outputs are written.
    FileDone {
        /// Its place among the inputs.
        file: u32,
        /// Its name.
        name: Rc<str>,
        /// How many of its pages were chosen.
        pages: u64,
        /// How many of them are explained.
        done: u64,
        /// What was written.
        outputs: Rc<[PathBuf]>,
    },
    /// A file could not be read or written.
    FileFailed {
        /// Its place among the inputs.
        file: u32,
        /// Its name.
        name: Rc<str>,
        /// Why.
        reason: Rc<str>,
    },
    /// An item is in another state.
    Item {
        /// Which one.
        #[serde(flatten)]
        item: ItemId,
        /// The name of its file, or its id.
        name: Rc<str>,
        /// The state.
        #[serde(flatten)]
        state: ItemState,
        /// What it cost, if it was answered and that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// An item was asked again and failed. It keeps the answer that it had; its state follows.
    RetryFailed {
        /// Which one.
        #[serde(flatten)]
        item: ItemId,
        /// The name of its file, or its id.
        name: Rc<str>,
        /// For programs.
        code: String,
        /// For people.
        reason: String,
    },
    /// A line of the input is not a request and was passed over.
    LineSkipped {
        /// Which one, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing more is admitted until the run is resumed.
    Paused,
    /// The run goes on.
    Resumed,
    /// Nothing more is admitted; what is in flight is finished.
    Stopping {
        /// Why.
        reason: Rc<str>,
        /// The run stops by itself, because no item would succeed; otherwise it was asked to.
        gave_up: bool,
    },
    /// The run has ended.
    Ended,
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct Log {
    seq: u64,
    events: VecDeque<Event>,
}

impl Log {
    pub(super) fn push(&mut self, change: Change) -> Event {
        self.seq += 1;
        let event = Event { seq: self.seq, change };
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event.clone());
        event
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// The events after `seq`; `None` if they are not kept any more, or `seq` is from another run.
    pub(super) fn after(&self, seq: u64) -> Option<Vec<Event>> {
        let missed = usize::try_from(self.seq.checked_sub(seq)?).ok()?;
        let first = self.events.len().checked_sub(missed)?;
        Some(self.events.range(first..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_catches_up_from_any_event_that_is_kept_and_is_told_when_it_cannot() {
        let mut log = Log::default();
        assert_eq!(log.after(0), Some(vec![]));
        assert_eq!(log.after(1), None, "another run's");
        for _ in 0..KEPT + 10 {
            log.push(Change::Paused);
        }
        let last = log.seq();
        assert_eq!(log.after(9), None);
        for seen in [10, 11, last - 1, last] {
            let seqs: Vec<u64> = log.after(seen).unwrap().iter().map(|event| event.seq).collect();
            assert_eq!(seqs, (seen + 1..=last).collect::<Vec<_>>());
        }
    }
}
