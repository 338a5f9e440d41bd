//! Unix datagrams: kept whole, in order, and none is lost.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use super::{address, local_addr, new_socket, path_address, wrap};
use crate::net::socket;
use crate::reactor::methods::descriptor;
use crate::reactor::{Direction, Source};
use crate::time::sleep::sleep;

/// A socket for datagrams between processes of this machine.
///
/// ```
/// use tidegate_loop::{net::UnixDatagram, run};
/// run(async {
///     let (near, far) = UnixDatagram::pair()?;
///     near.send(b"one").await?;
///     near.send(b"two").await?;
///     let mut buffer = [0; 16];
///     assert_eq!(far.recv(&mut buffer).await?, 3);
///     assert_eq!(&buffer[..3], b"one");
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct UnixDatagram {
    source: Source,
}

impl UnixDatagram {
    fn of(fd: OwnedFd) -> UnixDatagram {
        UnixDatagram { source: Source::new(fd) }
    }

    /// A socket that can be sent to at `path`.
    ///
    /// # Errors
    /// An [`AddressError`](crate::net::AddressError) that names the path.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let path = path.as_ref();
        let bind = || {
            let address = path_address(path)?;
            let fd = new_socket(SocketType::DGRAM)?;
            rustix::net::bind(&fd, &address)?;
            Ok(UnixDatagram::of(fd))
        };
        bind().map_err(|error| wrap("bind to", path, error))
    }

    /// A socket without a name, to send from.
    ///
    /// # Errors
    /// When there are no descriptors left.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn unbound() -> io::Result<UnixDatagram> {
        Ok(UnixDatagram::of(new_socket(SocketType::DGRAM)?))
    }

    /// Two sockets, connected to each other.
    ///
    /// # Errors
    /// When there are no descriptors left.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, socket::FLAGS, None)?;
        Ok((UnixDatagram::of(one), UnixDatagram::of(other)))
    }

    /// Sets the address that [`send`](Self::send) sends to, and the only one that [`recv`](Self::recv) receives from.
    ///
    /// # Errors
    /// An [`AddressError`](crate::net::AddressError) that names the path.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let connect = || Ok(rustix::net::connect(self.as_fd(), &path_address(path)?)?);
        connect().map_err(|error| wrap("connect to", path, error))
    }

    /// Sends a datagram to the connected address.
    ///
    /// # Errors
    /// When it is not connected, or no socket is bound to that address.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was sent.
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.source.poll_io(cx, Direction::Write, |fd| socket::send(fd, data))).await
    }

    /// Sends a datagram to the socket at `path`.
    ///
    /// # Errors
    /// An [`AddressError`](crate::net::AddressError) that names the path.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was sent.
    ///
    /// ```
    /// use tidegate_loop::{net::UnixDatagram, run};
    /// run(async {
    ///     let path = std::env::temp_dir().join(format!("tidegate-datagram-{}", std::process::id()));
    ///     let (near, far) = (UnixDatagram::unbound()?, UnixDatagram::bind(&path)?);
    ///     near.send_to(b"one", &path).await?;
    ///     std::fs::remove_file(&path)?;
    ///     let (count, from) = far.recv_from(&mut [0; 16]).await?;
    ///     assert!(count == 3 && from.is_unnamed());
    ///     Ok::<(), std::io::Error>(())
    /// })
    /// .unwrap()
    /// .unwrap();
    /// ```
    pub async fn send_to(&self, data: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let path = path.as_ref();
        let to = path_address(path).map_err(|error| wrap("send to", path, error))?;
        loop {
            // Not by waiting for an event: it is the receiver's queue that is full, and this socket is never told.
            match rustix::net::sendto(self.as_fd(), data, SendFlags::NOSIGNAL, &to) {
                Err(Errno::AGAIN) => sleep(std::time::Duration::from_millis(1)).await,
                Err(Errno::INTR) => {}
                other => return other.map_err(|error| wrap("send to", path, error.into())),
            }
        }
    }

    /// Receives a datagram; what does not fit into `buffer` is lost.
    ///
    /// # Errors
    /// When the kernel refuses; after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was received.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.source.poll_io(cx, Direction::Read, |fd| socket::recv(fd, buffer))).await
    }

    /// Receives a datagram, and returns its sender's address.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was received.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = |fd: std::os::fd::BorrowedFd<'_>, buffer: &mut [u8]| {
            rustix::net::recvfrom(fd, buffer, RecvFlags::empty()).map(|(_, count, from)| (count, from))
        };
        let polled = poll_fn(|cx| self.source.poll_io(cx, Direction::Read, |fd| receive(fd, buffer))).await;
        let (count, from) = polled?;
        Ok((count, address(from)?))
    }

    /// Fails everything that is or will be waiting here.
    pub fn close(&self) {
        self.source.close();
    }

    /// Where it can be sent to.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.as_fd())
    }
}

descriptor!(UnixDatagram);
