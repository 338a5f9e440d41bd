//! Selectors: how the loop sleeps until a descriptor is ready, a deadline has come, or another thread rings. The trait
//! speaks of readiness only; what is done with it is the loop's business.

mod epoll;
mod kind;
mod select;

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use crate::reactor::uring::Ring;

pub use kind::{SelectorKind, UnknownSelector};

/// What a registration is called in the events it causes; the loop chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token(pub(crate) u64);

/// What to watch a descriptor for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Tell once when it becomes ready, instead of for as long as it is. Only for selectors that are edge-triggered.
    pub(crate) edge: bool,
}

/// What a descriptor was found ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) token: Token,
    pub(crate) ready: Ready,
}

/// A set of the constants below. An error or a hang-up counts as readable and writable: the next read or write tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ready(pub(crate) u8);

impl Ready {
    pub(crate) const READ: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    /// The peer has ended its side, or there is an error: a read does not wait any more, and no further edge tells so.
    pub(crate) const READ_END: u8 = 4;
    /// Hung up, or an error: the same for a write.
    pub(crate) const WRITE_END: u8 = 8;
    /// There is urgent data: a read stops short of it, with more behind.
    pub(crate) const URGENT: u8 = 16;

    #[inline]
    pub(crate) fn has(self, any_of: u8) -> bool {
        self.0 & any_of != 0
    }
}

/// A way to wait. `wait` may return early and without events (an interrupted call does, and so does one that could
/// not be exact in one go): the loop looks at the clock and comes again. It never rounds up.
pub(crate) trait Selector {
    /// Whether it tells of changes. If it does, a source is registered once, for both directions; if it does not, a
    /// source is registered only for sides that a task waits for, or it would be reported for ever.
    fn is_edge_triggered(&self) -> bool;
    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;
    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;
    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;
    /// Appends to `ready`. `None` waits for ever, zero only looks.
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Readiness>) -> io::Result<()>;
}

/// A selector, and which one it is: where the one asked for cannot be had, it is the next best.
pub(crate) struct Opened {
    pub(crate) selector: Box<dyn Selector>,
    pub(crate) kind: SelectorKind,
    /// The ring behind it, where there is one: streams and listeners use it directly.
    pub(crate) ring: Option<Rc<Ring>>,
}

pub(crate) fn open(kind: SelectorKind) -> io::Result<Opened> {
    let selector: Box<dyn Selector> = match kind {
        SelectorKind::Select => Box::new(select::Select::new()),
        SelectorKind::EpollLevel => Box::new(epoll::Epoll::new(false)?),
        SelectorKind::Epoll => Box::new(epoll::Epoll::new(true)?),
        SelectorKind::Auto => return open(SelectorKind::Epoll),
        SelectorKind::IoUring => match Ring::open() {
            Ok(ring) => return Ok(Opened { selector: Box::new(ring.clone()), kind, ring: Some(ring) }),
            Err(reason) => {
                // Once: it does not change, and a program may have a loop a thread.
                static TOLD: Once = Once::new();
                TOLD.call_once(|| log::warn!("the loop uses epoll instead of io_uring: {reason}"));
                return open(SelectorKind::Epoll);
            }
        },
    };
    Ok(Opened { selector, kind, ring: None })
}

#[cfg(test)]
mod tests;
