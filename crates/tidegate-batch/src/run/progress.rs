//! How far a run is, as plain values that every reader shows.

use std::time::Duration;

use serde::Serialize;
use tidegate_limit::Snapshot;

use crate::question::Usage;

/// How far a run is, at one instant. `total` is the sum of `waiting`, `blocked`, `in_flight`, `done`, `failed` and `skipped`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// The number of the last event that is counted in.
    pub seq: u64,
    /// What is counted.
    pub unit: Unit,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Each file, in the order they were given; none where requests are sent.
    pub files: Vec<FileProgress>,
    /// Items that have been counted so far.
    pub total: u64,
    /// More may come: the pages of some file have not been counted, or the input is a stream that has not ended.
    pub more: bool,
    /// Items that are neither blocked nor in flight, and not settled.
    pub waiting: u64,
    /// Items at the gate.
    pub blocked: u64,
    /// Items that were sent and not answered.
    pub in_flight: u64,
    /// Items answered, cached ones included.
    pub done: u64,
    /// Of those, answered from the store.
    pub cached: u64,
    /// Items that failed.
    pub failed: u64,
    /// Items that were not sent: pages without text that can be read.
    pub skipped: u64,
    /// Lines of the input that are not requests and were passed over; not in `total`.
    pub lines_skipped: u64,
    /// Tokens paid for so far.
    pub tokens: Usage,
    /// Items answered in the last minute; cached ones do not count.
    pub per_minute: f64,
    /// Time left: what the limits allow, or more where the rest is slower. Of a run that stops, until what is in flight is done.
    /// `None` while it is not known, or the run is paused.
    pub remaining: Option<Duration>,
    /// Nothing is admitted until the run is resumed.
    pub paused: bool,
    /// Nothing more is admitted, and the run ends.
    pub stopping: bool,
    /// The run has ended.
    pub ended: bool,
    /// Why it stops, if it does.
    pub reason: Option<String>,
    /// The gate: its limits and how far they are used. `None` until a run of requests has begun.
    pub gate: Option<Snapshot>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unit {
    /// Pages of files.
    #[default]
    Pages,
    /// Requests.
    Requests,
}

impl Unit {
    /// Its name in a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Pages => "pages",
            Unit::Requests => "requests",
        }
    }
}

/// How far a file is. `pages` is the sum of `waiting`, `blocked`, `in_flight`, `done`, `failed` and `skipped`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileProgress {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: FileState,
    /// Pages that were chosen; 0 until they are counted.
    pub pages: u64,
    /// Pages that are neither blocked nor in flight, and not settled.
    pub waiting: u64,
    /// Pages at the gate.
    pub blocked: u64,
    /// Pages that were sent and not answered.
    pub in_flight: u64,
    /// Pages explained, cached ones included.
    pub done: u64,
    /// Of those, from the store.
    pub cached: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Pages without text that can be read.
    pub skipped: u64,
    /// Pages that are in its HTML output, while that is written.
    pub written: u64,
}

/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileState {
    /// It is not open yet.
    Waiting,
    /// Its pages are asked about.
    Running,
    /// Its pages are settled, its outputs are being written.
    Writing,
    /// It is done.
    Done,
    /// It could not be read or written.
    Failed,
}
