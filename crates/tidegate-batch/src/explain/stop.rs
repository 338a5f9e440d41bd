//! Ending a run early, in order.

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_limit::Admission;
use tidegate_sync::Event;

/// Ends a run early. Clones are the same.
///
/// First [`finish`](Self::finish): nothing new is begun, who waits at the gate is sent home, what was sent is waited for.
/// Then, if that takes too long, [`drop_calls`](Self::drop_calls). Either way outputs and report are written.
#[derive(Clone, Debug)]
pub struct Stop {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    gate: Admission,
    /// Why; set once.
    reason: RefCell<Option<String>>,
    asked: Event,
    now: Event,
}

impl Stop {
    pub(super) fn new(gate: &Admission) -> Stop {
        let inner = Inner { gate: gate.clone(), reason: RefCell::default(), asked: Event::new(), now: Event::new() };
        Stop { inner: Rc::new(inner) }
    }

    /// Begins nothing new, and waits for what was sent. Whether this was the first to say so.
    pub fn finish(&self, reason: impl Into<String>) -> bool {
        let first = self.inner.reason.borrow().is_none();
        if first {
            *self.inner.reason.borrow_mut() = Some(reason.into());
            self.inner.asked.set();
            self.inner.gate.close();
        }
        first
    }

    /// Does not wait for what was sent either: it is paid for and lost.
    pub fn drop_calls(&self, reason: impl Into<String>) {
        self.finish(reason);
        self.inner.now.set();
    }

    /// Why, if it was asked for.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.inner.reason.borrow().clone()
    }

    /// Until it is asked for.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn asked(&self) {
        let _ = self.inner.asked.wait().await;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.inner.asked.is_set()
    }

    /// Until calls are to be dropped.
    pub(super) async fn calls_dropped(&self) {
        let _ = self.inner.now.wait().await;
    }
}
