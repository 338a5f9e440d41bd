//! `io_uring`: operations are submitted to the kernel, and their completions read back. One call per tick submits
//! everything that was queued, waits, and brings back everything that has completed.
//!
//! The promise that makes it sound: **what the kernel uses is owned by the operation, not by the code that started it**.
//! Descriptors, and the buffers that are sent from, live in a slot of `core.rs` until the operation's last completion;
//! buffers that are received into belong to the ring. A future or a stream that is dropped leaves its slot behind, and
//! the loop does not close before the slots that the kernel knows are empty.
//!
//! To read: `slots.rs` (names), `buffers.rs`, `setup.rs`, `core.rs` (the call), then `poll.rs`, `accept.rs`,
//! `stream.rs` with `receive.rs` and `send.rs`. Nothing here waits or wakes: a source that should be tried again
//! is reported by its token, as by any selector.

mod accept;
mod buffers;
mod core;
mod poll;
mod receive;
mod send;
mod setup;
mod slots;
mod stream;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use self::accept::Listener;
use self::core::Core;
pub(crate) use self::core::Owner;
pub(crate) use self::setup::Unavailable;
pub(crate) use self::stream::Stream;
use crate::reactor::selector::{Interest, Readiness, Selector, Token};

/// A loop's ring, shared by the loop and its sockets.
pub(crate) struct Ring {
    core: RefCell<Core>,
}

impl Ring {
    pub(crate) fn open() -> Result<Rc<Ring>, Unavailable> {
        Ok(Rc::new(Ring { core: RefCell::new(Core::open()?) }))
    }

    /// The loop stops running, for now: what is queued must not wait for its next tick.
    pub(crate) fn leave(&self) {
        self.core.borrow_mut().flush();
        self.drop_gone();
    }

    /// Ends everything; see `Core::close`.
    pub(crate) fn close(&self) {
        self.core.borrow_mut().close();
        self.drop_gone();
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.core.borrow_mut().is_busy()
    }

    /// Those whose last completion has come since, to be dropped when nothing of the loop's is lent.
    pub(crate) fn take_gone(&self) -> Vec<Owner> {
        std::mem::take(&mut self.core.borrow_mut().gone)
    }

    fn drop_gone(&self) {
        let gone = self.take_gone();
        drop(gone);
    }
}

/// The ring as a selector: readiness of what is polled, and news of what completes.
impl Selector for Rc<Ring> {
    fn is_edge_triggered(&self) -> bool {
        true
    }

    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.core.borrow_mut().register(fd, token, interest)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.core.borrow_mut().modify(fd, token, interest)
    }

    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.core.borrow_mut().deregister(fd)
    }

    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Readiness>) -> io::Result<()> {
        let mut core = self.core.borrow_mut();
        core.wait(timeout)?;
        ready.append(&mut core.events);
        Ok(())
    }
}
