//! Results of threads in virtual time: the loop hands them out itself, when nothing else is ready, in the order in which
//! the jobs were handed over.

use std::time::Duration;

use crate::kernel::Kernel;
use crate::mailbox::inbox::Bed;

/// A result to come that is not to be seen before it is released.
pub(crate) trait Held {
    /// It is there, or no task waits for it any more.
    fn is_settled(&self) -> bool;
    /// Lets the awaiter see it.
    fn release(&self);
}

impl Kernel {
    /// Whether the first of the results to come is there.
    pub(crate) fn is_held_settled(&self) -> bool {
        self.held.borrow().front().is_some_and(|held| held.is_settled())
    }

    /// Hands out the first of the results to come, if it is there.
    pub(crate) fn release_held(&self) -> bool {
        let is_settled = self.is_held_settled();
        let first = if is_settled { self.held.borrow_mut().pop_front() } else { None };
        if let Some(first) = first {
            first.release();
        }
        is_settled
    }

    /// Nothing is ready, and before virtual time moves on, threads have their say: waits, in real time, for the first of
    /// the results to come. Neither how long a job took nor which one was done first can be seen from inside.
    pub(crate) fn await_held(&self) -> usize {
        let inbox = &self.registration.mailbox.inbox;
        while self.ready.len() == 0 && !self.held.borrow().is_empty() {
            if self.release_held() {
                continue;
            }
            let sleeps = inbox.before_sleep(Bed::Selector);
            let timeout = if sleeps { None } else { Some(Duration::ZERO) };
            let events = self.select(timeout);
            inbox.after_sleep();
            if events > 0 {
                return events;
            }
            if inbox.is_posted() {
                self.read_inbox();
            }
        }
        0
    }
}
