//! Selectors: how the loop sleeps until a descriptor is ready, a deadline has come, or another thread rings. The trait
//! speaks of readiness only; what is done with it is the loop's business.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// What a registration is called in the events it causes; the loop chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token(pub(crate) u64);

/// What to watch a descriptor for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Tell once when it becomes ready, instead of for as long as it is.
    pub(crate) edge: bool,
}

/// What a descriptor was found ready for. An error or a hang-up counts as both: the next read or write tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A way to wait. `wait` may return early and without events (an interrupted call does, and so does one that could
/// not be exact in one go): the loop looks at the clock and comes again. It never rounds up.
pub(crate) trait Selector {
    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;
    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;
    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;
    /// Appends to `ready`. `None` waits for ever, zero only looks.
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Readiness>) -> io::Result<()>;
}

/// Linux's epoll. Its own time-out counts milliseconds, so it is used for whole ones, rounded down; what is left, and
/// any short wait, goes through `ppoll` on the epoll descriptor, which takes nanoseconds. A sleep without events costs
/// one call either way, and so does an event during a long one.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

const EVENTS_MAX: usize = 256;
/// Waits below this are made with `ppoll` alone.
const SHORT: Duration = Duration::from_millis(2);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    fn wait_once(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let whole = match timeout {
            None => None,
            Some(timeout) if timeout.is_zero() || timeout >= SHORT => {
                Some(timespec(Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))))
            }
            Some(timeout) => {
                if poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(timeout)))? == 0 {
                    return Ok(());
                }
                Some(timespec(Duration::ZERO))
            }
        };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), whole.as_ref()).map(drop)
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN | EventFlags::RDHUP, interest.readable);
    flags.set(EventFlags::OUT, interest.writable);
    flags.set(EventFlags::ET, interest.edge);
    flags
}

impl Selector for Epoll {
    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))?)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))?)
    }

    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Readiness>) -> io::Result<()> {
        self.events.clear();
        match self.wait_once(timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let both = EventFlags::ERR | EventFlags::HUP;
        for event in &self.events {
            // Copied out: the kernel's struct is packed.
            let (data, flags) = (event.data, event.flags);
            ready.push(Readiness {
                token: Token(data.u64()),
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | both),
                writable: flags.intersects(EventFlags::OUT | both),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn epoll_waits_for_what_it_was_asked() {
        let mut epoll = Epoll::new().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let readable = Interest { readable: true, writable: false, edge: false };
        epoll.register(near.as_fd(), Token(7), readable).unwrap();
        let mut ready = Vec::new();

        // As the loop does: early returns are allowed, rounding up is not (and not tested: that would be a matter of time).
        let deadline = Instant::now() + Duration::from_micros(3_300);
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            epoll.wait(Some(left), &mut ready).unwrap();
        }
        assert_eq!(ready, []);

        far.write_all(b"x").unwrap();
        epoll.wait(Some(Duration::from_secs(60)), &mut ready).unwrap();
        assert_eq!(ready, [Readiness { token: Token(7), readable: true, writable: false }]);

        ready.clear();
        epoll.modify(near.as_fd(), Token(8), Interest { writable: true, readable: false, edge: false }).unwrap();
        epoll.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [Readiness { token: Token(8), readable: false, writable: true }]);

        ready.clear();
        epoll.deregister(near.as_fd()).unwrap();
        epoll.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert_eq!(ready, []);
    }
}
