//! Sources whose reading, writing and accepting is done by the ring where the loop has one, and by trying, as with any
//! source, where it has not. Callers do not see the difference.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context as PollContext, Poll, ready};

use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::error::is_out_of_descriptors;
use super::pause::Pause;
use super::socket;
use crate::reactor::uring;
use crate::reactor::{Direction, Source};

/// A connected stream socket.
pub(super) struct StreamSource {
    /// Declared first: dropped before the source, so that what is left to do is left to the ring.
    ring: Option<uring::Stream>,
    source: Source,
}

impl StreamSource {
    /// Takes a connected socket that does not block.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub(super) fn new(fd: OwnedFd) -> StreamSource {
        StreamSource::of(Source::new(fd))
    }

    /// For sockets that may have more to say after a short read.
    pub(super) fn distrust_short_reads(self) -> StreamSource {
        self.source.distrust_short_reads();
        self
    }

    /// Takes over a source that has done its connecting.
    pub(super) fn of(source: Source) -> StreamSource {
        StreamSource { ring: source.complete_by(uring::Stream::new), source }
    }

    #[inline]
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }

    #[inline]
    pub(super) fn poll_read(&self, cx: &mut PollContext<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.source.poll_bytes(cx, Direction::Read, buffer.len(), |fd| match &self.ring {
            None => socket::recv(fd, buffer),
            Some(ring) => ring.recv(buffer),
        })
    }

    pub(super) fn poll_read_vectored(
        &self,
        cx: &mut PollContext<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        self.source.poll_bytes(cx, Direction::Read, wanted, |fd| match &self.ring {
            None => socket::recv_vectored(fd, buffers),
            Some(ring) => ring.recv_vectored(buffers),
        })
    }

    pub(super) fn poll_peek(&self, cx: &mut PollContext<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        // Never short for good: what was looked at is still there.
        self.source.poll_io(cx, Direction::Read, |fd| match &self.ring {
            None => socket::peek(fd, buffer),
            Some(ring) => ring.peek(buffer),
        })
    }

    #[inline]
    pub(super) fn poll_write(&self, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.source.poll_bytes(cx, Direction::Write, data.len(), |fd| match &self.ring {
            None => socket::send(fd, data),
            Some(ring) => ring.send(data),
        })
    }

    pub(super) fn poll_write_vectored(
        &self,
        cx: &mut PollContext<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        self.source.poll_bytes(cx, Direction::Write, wanted, |fd| match &self.ring {
            None => socket::send_vectored(fd, buffers),
            Some(ring) => ring.send_vectored(buffers),
        })
    }

    /// Waits until the direction is worth a try.
    pub(super) fn poll_ready(&self, cx: &mut PollContext<'_>, direction: Direction) -> Poll<io::Result<()>> {
        self.source.poll_ready(cx, direction)
    }

    /// Behind everything that was written.
    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.ring {
            Some(ring) if how != Shutdown::Read => Ok(ring.shutdown(socket::side(how))?),
            _ => socket::shutdown(self.fd(), how),
        }
    }

    /// From now on every operation fails, and the tasks that wait are woken.
    pub(super) fn close(&self) {
        self.source.close();
    }
}

/// A listening socket.
pub(super) struct ListenerSource {
    ring: Option<uring::Listener>,
    source: Source,
    pause: Pause,
}

impl ListenerSource {
    /// Takes a listening socket that does not block.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub(super) fn new(fd: OwnedFd) -> ListenerSource {
        let source = Source::new(fd);
        ListenerSource { ring: source.complete_by(uring::Listener::new), source, pause: Pause::default() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }

    /// The next connection and its peer; one that is gone already is passed over. Without a descriptor for it, it pauses:
    /// the connection stays in the backlog, and trying at once would find the same.
    pub(super) fn poll_accept(&self, cx: &mut PollContext<'_>) -> Poll<io::Result<(OwnedFd, Option<SocketAddrAny>)>> {
        loop {
            ready!(self.pause.poll(self.source.kernel(), cx));
            let accepted = ready!(self.source.poll_io(cx, Direction::Read, |fd| {
                loop {
                    match self.accept(fd) {
                        Err(error) if socket::is_transient(error) => {}
                        other => return other,
                    }
                }
            }));
            match accepted {
                Err(error) if is_out_of_descriptors(&error) => self.pause.begin(self.source.kernel(), &error),
                other => {
                    self.pause.end();
                    return Poll::Ready(other);
                }
            }
        }
    }

    fn accept(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<(OwnedFd, Option<SocketAddrAny>)> {
        let Some(ring) = &self.ring else { return rustix::net::acceptfrom_with(fd, socket::FLAGS) };
        let accepted = ring.accept()?;
        // A ring that goes on accepting has no place for addresses.
        match rustix::net::getpeername(&accepted) {
            Ok(peer) => Ok((accepted, peer)),
            Err(Errno::NOTCONN | Errno::INVAL) => Err(Errno::CONNABORTED),
            Err(error) => Err(error),
        }
    }

    pub(super) fn close(&self) {
        self.source.close();
    }
}
