//! The states of jobs and of their pages, and what leads from one to another.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of a job as it is stored. A job that runs and has nothing in flight because a limit has no room is shown as blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Files are being added; not started yet.
    Draft,
    /// Started, also across restarts of the server.
    Running,
    /// Paused by a person: nothing is sent until it is resumed.
    Paused,
    /// Ended. Some pages may have failed.
    Done,
    /// Stopped by an error that concerns all of its pages.
    Failed,
    /// Cancelled by a person.
    Cancelled,
}

impl JobState {
    /// The name in the database and the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            JobState::Draft => "draft",
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<JobState> {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        [Draft, Running, Paused, Done, Failed, Cancelled].into_iter().find(|state| state.name() == name)
    }

    /// Returns `true` if nothing more happens by itself.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }

    /// The state that an action leads to; an error names what the job is instead.
    pub(crate) fn after(self, action: Action) -> Result<JobState, IllegalAction> {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        match (self, action) {
            (Draft, Action::Start) => Ok(Running),
            (Running, Action::Pause) => Ok(Paused),
            (Paused | Failed | Cancelled, Action::Resume) => Ok(Running),
            (Running | Paused, Action::Cancel) => Ok(Cancelled),
            (Running | Done | Failed | Cancelled | Paused, Action::Retry) => Ok(Running),
            (state, action) => Err(IllegalAction { state, action }),
        }
    }
}

/// What a person does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts a draft.
    Start,
    /// Stops sending; what is in flight is finished.
    Pause,
    /// Goes on.
    Resume,
    /// Ends it before its end.
    Cancel,
    /// Asks again about pages that failed.
    Retry,
}

/// An action that a job in this state does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalAction {
    pub(crate) state: JobState,
    pub(crate) action: Action,
}

impl fmt::Display for IllegalAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Start => "started",
            Action::Pause => "paused",
            Action::Resume => "resumed",
            Action::Cancel => "cancelled",
            Action::Retry => "retried",
        };
        write!(f, "a job that is {} cannot be {action}", self.state.name())
    }
}

/// How far a page has come: one letter in the grid, in events and in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PageState {
    /// Not sent yet.
    #[default]
    Waiting,
    /// Next to be sent, when a limit has room.
    Blocked,
    /// Sent, not answered.
    InFlight,
    /// Explained.
    Done,
    /// Explained earlier; not paid for again.
    Cached,
    /// Could not be explained.
    Failed,
    /// Blank, or without anything that the model can read.
    Skipped,
}

impl PageState {
    /// All of them, in the order of legends.
    pub(crate) const ALL: [PageState; 7] = [
        PageState::Waiting,
        PageState::Blocked,
        PageState::InFlight,
        PageState::Done,
        PageState::Cached,
        PageState::Failed,
        PageState::Skipped,
    ];

    /// The class of its mark.
    pub(crate) fn letter(self) -> char {
        match self {
            PageState::Waiting => 'w',
            PageState::Blocked => 'b',
            PageState::InFlight => 'i',
            PageState::Done => 'd',
            PageState::Cached => 'k',
            PageState::Failed => 'x',
            PageState::Skipped => 's',
        }
    }

    pub(crate) fn parse(letter: &str) -> Option<PageState> {
        PageState::ALL.into_iter().find(|state| letter.chars().eq([state.letter()]))
    }

    /// The word beside its mark.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PageState::Waiting => "waiting",
            PageState::Blocked => "blocked",
            PageState::InFlight => "in flight",
            PageState::Done => "done",
            PageState::Cached => "cached",
            PageState::Failed => "failed",
            PageState::Skipped => "skipped",
        }
    }

    /// Returns `true` if it has a result.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, PageState::Done | PageState::Cached | PageState::Failed | PageState::Skipped)
    }

    /// Returns `true` if it has an explanation.
    pub(crate) fn is_explained(self) -> bool {
        matches!(self, PageState::Done | PageState::Cached)
    }
}

/// How many pages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    /// All of them.
    pub pages: u64,
    /// Not sent yet.
    pub waiting: u64,
    /// Next, when a limit has room.
    pub blocked: u64,
    /// Sent, not answered.
    pub in_flight: u64,
    /// Explained by this job.
    pub done: u64,
    /// Explained earlier.
    pub cached: u64,
    /// Failed.
    pub failed: u64,
    /// Blank or unreadable.
    pub skipped: u64,
}

impl Counts {
    /// Counts `states`.
    pub(crate) fn of<'a>(states: impl IntoIterator<Item = &'a PageState>) -> Counts {
        let mut counts = Counts::default();
        for state in states {
            counts.pages += 1;
            *counts.slot(*state) += 1;
        }
        counts
    }

    fn slot(&mut self, state: PageState) -> &mut u64 {
        match state {
            PageState::Waiting => &mut self.waiting,
            PageState::Blocked => &mut self.blocked,
            PageState::InFlight => &mut self.in_flight,
            PageState::Done => &mut self.done,
            PageState::Cached => &mut self.cached,
            PageState::Failed => &mut self.failed,
            PageState::Skipped => &mut self.skipped,
        }
    }

    pub(crate) fn get(mut self, state: PageState) -> u64 {
        *self.slot(state)
    }

    /// Pages with a result.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.done + self.cached + self.failed + self.skipped
    }

    /// Pages without one.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.pages - self.settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_takes_the_actions_that_make_sense() {
        use JobState::{Cancelled, Done, Draft, Failed, Paused, Running};
        let taken = |action: Action| -> Vec<JobState> {
            [Draft, Running, Paused, Done, Failed, Cancelled].into_iter().filter(|s| s.after(action).is_ok()).collect()
        };
        assert_eq!(taken(Action::Start), [Draft]);
        assert_eq!(taken(Action::Pause), [Running]);
        assert_eq!(taken(Action::Resume), [Paused, Failed, Cancelled]);
        assert_eq!(taken(Action::Cancel), [Running, Paused]);
        assert_eq!(Draft.after(Action::Retry).unwrap_err().to_string(), "a job that is draft cannot be retried");
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        for state in PageState::ALL {
            assert_eq!(PageState::parse(&state.letter().to_string()), Some(state));
        }
        for name in ["draft", "running", "paused", "done", "failed", "cancelled"] {
            assert_eq!(JobState::parse(name).unwrap().name(), name);
        }
        assert_eq!((PageState::parse("dd"), JobState::parse("x")), (None, None));
    }
}
