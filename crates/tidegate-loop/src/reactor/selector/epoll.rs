//! Linux's epoll, edge-triggered or level-triggered.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Interest, Readiness, Ready, Selector, Token};
use crate::kernel::clock::timespec;

/// Its own time-out counts milliseconds, so it is used for whole ones, rounded down; what is left, and any short wait,
/// goes through `ppoll` on the epoll descriptor, which takes nanoseconds. A sleep without events costs one call either
/// way, and so does an event during a long one.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    edge: bool,
}

/// What is left over waits in the kernel's list, whose front moves on: no descriptor is passed over.
const EVENTS_MAX: usize = 1024;
/// Waits below this are made with `ppoll` alone.
const SHORT: Duration = Duration::from_millis(2);

impl Epoll {
    pub(crate) fn new(edge: bool) -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS_MAX), edge })
    }

    fn wait_once(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let whole = match timeout {
            None => None,
            Some(timeout) if timeout.is_zero() => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            Some(timeout) if timeout >= SHORT => {
                Some(timespec(Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))))
            }
            Some(timeout) => {
                if poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(timeout)))? == 0 {
                    return Ok(());
                }
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            }
        };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), whole.as_ref()).map(drop)
    }
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN | EventFlags::RDHUP, interest.readable);
    flags.set(EventFlags::OUT, interest.writable);
    // Level-triggered, urgent data would be told of again and again, and there is no need: nor is anything else lost.
    flags.set(EventFlags::ET | EventFlags::PRI, interest.edge);
    flags
}

/// What the kernel's flags mean to the loop.
#[inline]
fn ready(flags: EventFlags) -> Ready {
    let mut ready = 0;
    if flags.contains(EventFlags::IN) {
        ready |= Ready::READ;
    }
    if flags.contains(EventFlags::OUT) {
        ready |= Ready::WRITE;
    }
    // Rare, all of them: one test for the rest.
    if flags.intersects(EventFlags::RDHUP | EventFlags::ERR | EventFlags::HUP | EventFlags::PRI) {
        if flags.contains(EventFlags::RDHUP) {
            ready |= Ready::READ | Ready::READ_END;
        }
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            ready |= Ready::READ | Ready::READ_END | Ready::WRITE | Ready::WRITE_END;
        }
        if flags.contains(EventFlags::PRI) {
            ready |= Ready::READ | Ready::URGENT;
        }
    }
    Ready(ready)
}

impl Selector for Epoll {
    fn is_edge_triggered(&self) -> bool {
        self.edge
    }

    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))?)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))?)
    }

    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    fn wait(&mut self, timeout: Option<Duration>, found: &mut Vec<Readiness>) -> io::Result<()> {
        self.events.clear();
        match self.wait_once(timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Copied out: the kernel's struct is packed.
        found.extend(self.events.iter().map(|event| {
            let (data, flags) = (event.data, event.flags);
            Readiness { token: Token(data.u64()), ready: ready(flags) }
        }));
        Ok(())
    }
}
