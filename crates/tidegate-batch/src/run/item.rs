//! The items of a run: pages or requests, and the states that they are in.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Names one item of a run.
///
/// ```
/// use tidegate_batch::ItemId;
///
/// let page = ItemId::Page { file: 0, page: 3 };
/// assert_eq!(serde_json::to_string(&page).unwrap(), r#"{"file":0,"page":3}"#);
/// assert_eq!(serde_json::from_str::<ItemId>(r#"{"line":7}"#).unwrap(), ItemId::Request { line: 7 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ItemId {
    /// A page of a file.
    Page {
        /// The file's place among the inputs, from 0.
        file: u32,
        /// The page's number, from 1.
        page: u32,
    },
    /// A request of a JSONL file.
    Request {
        /// Its line, from 1.
        line: u64,
    },
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemId::Page { file, page } => write!(f, "page {page} of file {}", u64::from(*file) + 1),
            ItemId::Request { line } => write!(f, "the request in line {line}"),
        }
    }
}

/// An item and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Item {
    /// Which one.
    #[serde(flatten)]
    pub item: ItemId,
    /// Its state.
    #[serde(flatten)]
    pub state: ItemState,
}

/// The state of an item. At every instant it is in exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ItemState {
    /// Neither blocked nor in flight: it is not read yet, its connection is being made, it is between two attempts, the run is
    /// paused, or its answer is being stored.
    Waiting,
    /// It waits at the gate.
    Blocked {
        /// The limit that it waits for; `scopes`: the page concurrency of its file; `shared`: limits that are shared with
        /// other machines.
        limit: String,
        /// When it is admitted, as things are; `None` if that is not known.
        until: Option<SystemTime>,
    },
    /// Admitted and sent, and not answered.
    InFlight,
    /// Answered in this run, and stored.
    Done,
    /// Answered from the store; nothing was paid.
    Cached,
    /// It failed.
    Failed {
        /// For programs.
        code: String,
        /// For people.
        reason: String,
    },
    /// It was not sent.
    Skipped {
        /// Why.
        reason: String,
    },
}

/// The state without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting,
    Blocked,
    InFlight,
    Done,
    Cached,
    Failed,
    Skipped,
}

impl Phase {
    pub(crate) const COUNT: usize = 7;

    /// Nothing is left to be done.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Phase::Done | Phase::Cached | Phase::Failed | Phase::Skipped)
    }
}

impl ItemState {
    pub(crate) fn phase(&self) -> Phase {
        match self {
            ItemState::Waiting => Phase::Waiting,
            ItemState::Blocked { .. } => Phase::Blocked,
            ItemState::InFlight => Phase::InFlight,
            ItemState::Done => Phase::Done,
            ItemState::Cached => Phase::Cached,
            ItemState::Failed { .. } => Phase::Failed,
            ItemState::Skipped { .. } => Phase::Skipped,
        }
    }
}
