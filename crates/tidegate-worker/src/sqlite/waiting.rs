//! Callers that wait for results.

use crate::broker::{BrokerError, TaskResult};
use crate::task::TaskId;

use super::file::QueueFile;
use super::oneshot::Answer;
use super::rows;

#[derive(Default)]
pub(super) struct Waiting {
    all: Vec<(TaskId, Answer<TaskResult>)>,
    /// A caller was added whose result has not been looked up yet.
    new: bool,
}

impl Waiting {
    pub(super) fn add(&mut self, id: TaskId, answer: Answer<TaskResult>) {
        self.all.push((id, answer));
        self.new = true;
    }

    pub(super) fn has_new(&self) -> bool {
        self.new
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Answers all callers whose result is there.
    pub(super) fn look(&mut self, file: &QueueFile, now: i64) -> Result<(), BrokerError> {
        self.new = false;
        for (id, answer) in std::mem::take(&mut self.all) {
            if answer.is_unwanted() {
                continue;
            }
            match rows::read_result(&file.connection, &id, now).map_err(|error| file.place.sqlite(&error)) {
                Ok(Some(result)) if result.state.is_final() => answer.send(Ok(result)),
                Ok(_) => self.all.push((id, answer)),
                Err(error) => answer.send(Err(error)),
            }
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, error: &BrokerError) {
        self.all.drain(..).for_each(|(_, answer)| answer.send(Err(error.clone())));
    }
}
