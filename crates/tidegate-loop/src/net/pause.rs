//! What a listener does when the process is out of descriptors: it waits, for a moment or until this loop closes one.
//! The connection it cannot take stays in the backlog, and nothing spins.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use crate::kernel::Kernel;
use crate::time::sleep::{Sleep, sleep};

/// Descriptors closed elsewhere, by other threads or other loops, are noticed after this long.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Pause {
    waiting: RefCell<Option<Waiting>>,
    /// Logged once, until a connection is taken again.
    told: Cell<bool>,
}

struct Waiting {
    sleep: Pin<Box<Sleep>>,
    /// The loop's count of closed descriptors when it began.
    closed: u64,
}

impl Pause {
    pub(super) fn begin(&self, kernel: &Kernel, error: &io::Error) {
        if !self.told.replace(true) {
            log::warn!("cannot accept a connection: {error}; it waits until a descriptor is free (see `ulimit -n`)");
        }
        let waiting = Waiting { sleep: Box::pin(sleep(PAUSE)), closed: kernel.io.borrow().closed() };
        self.waiting.replace(Some(waiting));
    }

    /// Ready when it is time to try, which it is without a pause.
    #[inline]
    pub(super) fn poll(&self, kernel: &Kernel, cx: &mut PollContext<'_>) -> Poll<()> {
        let mut waiting = self.waiting.borrow_mut();
        let Some(Waiting { sleep, closed }) = &mut *waiting else { return Poll::Ready(()) };
        if kernel.io.borrow().closed() == *closed && sleep.as_mut().poll(cx).is_pending() {
            kernel.io.borrow_mut().wait_for_closing(cx.waker());
            return Poll::Pending;
        }
        *waiting = None;
        Poll::Ready(())
    }

    pub(super) fn end(&self) {
        self.told.set(false);
    }
}
