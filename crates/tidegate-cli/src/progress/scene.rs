//! What is shown: a run at one instant, in plain values. Nothing here knows where they come from or how they look.

use std::time::Duration;

use tidegate_batch::Unit;

/// A run at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Scene {
    pub(crate) unit: Unit,
    pub(crate) elapsed: Duration,
    pub(crate) pages: u64,
    /// More may come: not every file has been opened, or the input has not ended.
    pub(crate) more: bool,
    pub(crate) done: u64,
    /// Of those, from an earlier run.
    pub(crate) cached: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) pages_per_minute: f64,
    pub(crate) remaining: Option<Duration>,
    pub(crate) tokens: u64,
    pub(crate) paused: bool,
    pub(crate) stopping: bool,
    pub(crate) files: Vec<File>,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) queue: Queue,
    /// What is known and done about limits that were not stated.
    pub(crate) found: Option<String>,
    /// This machine holds the run back.
    pub(crate) load: Option<String>,
}

/// A file and its pages.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) pages: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) blocked: u64,
    pub(crate) in_flight: u64,
    /// Pages that are in its outputs, while those are written.
    pub(crate) written: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Waiting,
    Running,
    Writing,
    Done,
    Failed,
}

/// How full a limit is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gauge {
    pub(crate) name: String,
    pub(crate) used: u64,
    pub(crate) amount: u64,
    /// When something comes back, from now.
    pub(crate) back_in: Option<Duration>,
    /// How long the server wants it to be left alone, from now.
    pub(crate) held_for: Option<Duration>,
    /// Requests that had to wait for it, and the time during which it blocked.
    pub(crate) blocked: u64,
    pub(crate) blocked_for: Duration,
    /// Why nothing passes any more.
    pub(crate) shut: Option<String>,
}

/// The run's items at the gate.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Queue {
    pub(crate) in_flight: u64,
    pub(crate) blocked: u64,
    pub(crate) blocked_by: Option<Blocker>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Blocker {
    /// The limit of that name.
    Limit(String),
    /// Each waits until a page of its own file is back.
    Files,
    /// A limit that was not stated: `Scene::found` says more.
    Found,
}

impl Scene {
    /// `writing outputs: page 120 of 2415 of book.pdf`, of the first file whose outputs are being written.
    pub(crate) fn writing(&self) -> Option<String> {
        let file = self.files.iter().find(|file| file.state == State::Writing)?;
        let mut text = "writing outputs".to_owned();
        if file.written > 0 {
            text += &format!(": page {} of {} of {}", file.written, file.pages, file.name);
        }
        Some(text)
    }

    /// Pages about which nothing is left to be done.
    pub(crate) fn settled(&self) -> u64 {
        self.done + self.failed + self.skipped
    }
}
