//! What the socket types have in common: making one, and the operations as the kernel knows them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context as PollContext, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags, SocketType};

use crate::reactor::{Direction, Source};

/// Every socket of the loop's: it does not block, and children do not inherit it.
pub(super) const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

pub(super) fn new_socket(address: &SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, kind, FLAGS, None)?)
}

pub(super) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    internet(Some(rustix::net::getsockname(fd)?))
}

pub(super) fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    internet(rustix::net::getpeername(fd)?)
}

pub(super) fn internet(address: Option<SocketAddrAny>) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(address.ok_or(Errno::NOTCONN)?)?)
}

/// Starts to connect, and waits until the socket can be written: that is how the kernel says that it has finished.
pub(super) fn poll_connected(source: &Source, cx: &mut PollContext<'_>) -> Poll<io::Result<()>> {
    loop {
        match source.poll_ready(cx, Direction::Write) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(ready) => ready?,
        }
        rustix::net::sockopt::socket_error(source.fd())??;
        match rustix::net::getpeername(source.fd()) {
            Ok(_) => return Poll::Ready(Ok(())),
            Err(Errno::NOTCONN) => source.clear_ready(Direction::Write),
            Err(error) => return Poll::Ready(Err(error.into())),
        }
    }
}

#[inline]
pub(super) fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::net::recv(fd, buf, RecvFlags::empty()).map(|(_, count)| count)
}

#[inline]
pub(super) fn peek(fd: BorrowedFd<'_>, buf: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::net::recv(fd, buf, RecvFlags::PEEK).map(|(_, count)| count)
}

/// Without SIGPIPE: a peer that is gone is an error of this call, not the end of the process.
#[inline]
pub(super) fn send(fd: BorrowedFd<'_>, buf: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, buf, SendFlags::NOSIGNAL)
}

pub(super) fn recv_vectored(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
    rustix::io::readv(fd, bufs)
}

pub(super) fn send_vectored(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    rustix::net::sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
}

pub(super) fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
    Ok(rustix::net::shutdown(fd, side(how))?)
}

pub(super) fn side(how: Shutdown) -> rustix::net::Shutdown {
    match how {
        Shutdown::Read => rustix::net::Shutdown::Read,
        Shutdown::Write => rustix::net::Shutdown::Write,
        Shutdown::Both => rustix::net::Shutdown::Both,
    }
}

/// Whether accept should be called again: the connection it would have given failed, the listener has not.
pub(super) fn is_transient(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NONET
    )
}
