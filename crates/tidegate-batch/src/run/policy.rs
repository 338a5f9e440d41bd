//! What an error means: for its item, or for the whole run. The one place that decides it.

use std::cell::{Cell, RefCell};

use tidegate_sync::Event as Signal;

use super::Unit;
use crate::call_error::{CallError, ErrorScope};

/// Items in a row without a usable answer that end the run: each of them may be paid for.
pub(crate) const UNANSWERED_MAX: u32 = 8;

/// What becomes of an item, and of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The item is recorded as it is.
    Record,
    /// The item is recorded, and the run stops for this reason.
    RecordAndStop(String),
    /// The run stops for this reason; the item is asked again by the next run.
    Stop(String),
    /// The item is recorded if another one is answered. If none is, the run stops for this reason.
    Hold(String),
    /// The run stops already; the item is asked again by the next run.
    Drop,
}

/// Judges how items end.
#[derive(Debug)]
pub(crate) struct Policy {
    unit: Unit,
    /// Set once an item of this run was answered.
    answered: Signal,
    /// Items that failed since the last answer, as far as that says something about the others.
    unanswered: Cell<u32>,
    /// Why requests are held.
    held: RefCell<Vec<String>>,
}

impl Policy {
    /// Pages are all sent with the same model and parameters; requests each have their own.
    pub(crate) fn new(unit: Unit) -> Policy {
        Policy { unit, answered: Signal::new(), unanswered: Cell::new(0), held: RefCell::default() }
    }

    /// Takes note of how an item ended, and decides what becomes of it.
    pub(crate) fn judge<T>(&self, outcome: &Result<T, CallError>) -> Verdict {
        let error = match outcome {
            Ok(_) => {
                self.answered.set();
                self.unanswered.set(0);
                return Verdict::Record;
            }
            Err(error) => error,
        };
        let alike = self.unit == Unit::Pages;
        match error.scope() {
            ErrorScope::Stopped => return Verdict::Drop,
            ErrorScope::Run => return Verdict::Stop(error.to_string()),
            ErrorScope::Parameter(name) if alike => {
                let said = match error {
                    CallError::Refused { message, .. } => message.clone(),
                    error => error.to_string(),
                };
                return Verdict::Stop(format!("the model does not take the parameter {name}: {said}"));
            }
            ErrorScope::Address if alike => return Verdict::Stop(with_advice(error)),
            ErrorScope::Address if !self.answered.is_set() => return Verdict::Hold(with_advice(error)),
            ErrorScope::Address | ErrorScope::Parameter(_) | ErrorScope::Request => {}
        }
        let unanswered = match error {
            CallError::Unavailable { .. } | CallError::Garbled { .. } => true,
            // The server answers; pages differ, so that others may succeed.
            CallError::Refused { .. } | CallError::NoPictures { .. } | CallError::Declined { .. } if alike => {
                self.unanswered.set(0);
                false
            }
            CallError::Refused { .. } | CallError::Declined { .. } => !self.answered.is_set(),
            _ => false,
        };
        if !unanswered {
            return Verdict::Record;
        }
        self.unanswered.set(self.unanswered.get() + 1);
        match self.unanswered.get() {
            count if count >= UNANSWERED_MAX => Verdict::RecordAndStop(format!(
                "{count} {} in a row had no answer; the last time: {error}",
                self.unit.name()
            )),
            _ => Verdict::Record,
        }
    }

    /// Until an item is answered.
    pub(crate) async fn answered(&self) {
        let _ = self.answered.wait().await;
    }

    /// An item is held for this reason until what is returned is dropped.
    pub(crate) fn hold(&self, reason: String) -> Held<'_> {
        self.held.borrow_mut().push(reason);
        Held(self)
    }

    /// Returns why the run stops, if `all` items are held, or as many as can be in flight.
    pub(crate) fn all_held(&self, asking: usize, all_read: bool, in_flight_max: usize) -> Option<String> {
        let held = self.held.borrow();
        let all = all_read && held.len() == asking;
        held.first().filter(|_| all || held.len() >= in_flight_max.min(UNANSWERED_MAX as usize)).cloned()
    }
}

/// An item that is held.
pub(crate) struct Held<'a>(&'a Policy);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.borrow_mut().pop();
    }
}

fn with_advice(error: &CallError) -> String {
    format!("{error}; check the model, the address and the rights of the key, then run the same command again")
}
