//! UDP: datagrams that arrive whole or not at all.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendFlags, SocketType, sockopt};

use super::address::ToAddrs;
use super::error::AddressError;
use super::socket;
use crate::reactor::methods::descriptor;
use crate::reactor::{Direction, Source};

/// A UDP socket: connected with [`send`](Self::send) and [`recv`](Self::recv), or not, with
/// [`send_to`](Self::send_to) and [`recv_from`](Self::recv_from).
///
/// ```
/// use tidegate_loop::{net::UdpSocket, run};
/// run(async {
///     let (near, far) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
///     near.send_to(b"ping", far.local_addr()?).await?;
///     let mut buffer = [0; 16];
///     let (count, from) = far.recv_from(&mut buffer).await?;
///     assert_eq!((&buffer[..count], from), (&b"ping"[..], near.local_addr()?));
///     far.connect(from).await?;
///     far.send(b"pong").await?;
///     assert_eq!(near.recv(&mut buffer).await?, 4);
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct UdpSocket {
    source: Source,
}

impl UdpSocket {
    /// Binds to `address`; if the name has several, the first that works. Port 0 picks a free one.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub async fn bind(address: impl ToAddrs) -> io::Result<UdpSocket> {
        let bind = |address: &SocketAddr| {
            let fd = socket::new_socket(address, SocketType::DGRAM)?;
            rustix::net::bind(&fd, address)?;
            Ok(UdpSocket { source: Source::new(fd) })
        };
        first_that_works("bind to", address, bind).await
    }

    /// Takes over a socket of the standard library's.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        Ok(UdpSocket { source: Source::new(socket.into()) })
    }

    /// Sets the address that [`send`](Self::send) sends to, and the only one that it receives from. Nothing is sent for this.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn connect(&self, address: impl ToAddrs) -> io::Result<()> {
        let connect = |address: &SocketAddr| Ok(rustix::net::connect(self.as_fd(), address)?);
        first_that_works("connect to", address, connect).await
    }

    /// Sends a datagram to the connected address.
    ///
    /// # Errors
    /// When it is not connected; [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) when an earlier one found
    /// no socket there.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was sent.
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.source.poll_io(cx, Direction::Write, |fd| socket::send(fd, data))).await
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was sent.
    pub async fn send_to(&self, data: &[u8], address: impl ToAddrs) -> io::Result<usize> {
        let target = address.target();
        let resolved = target.resolve().await;
        let addresses = resolved.map_err(|error| AddressError::wrap("send to", target.describe(), error))?;
        let to = *addresses.first().expect("resolving gives at least one address");
        let send = |fd: BorrowedFd<'_>| rustix::net::sendto(fd, data, SendFlags::NOSIGNAL, &to);
        let sent = poll_fn(|cx| self.source.poll_io(cx, Direction::Write, send)).await;
        sent.map_err(|error| AddressError::wrap("send to", to, error))
    }

    /// Receives a datagram; what does not fit into `buffer` is lost.
    ///
    /// # Errors
    /// When an earlier datagram found no socket at its address; after [`close`](Self::close).
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
        let receive = |fd: BorrowedFd<'_>, buffer: &mut [u8]| {
            rustix::net::recvfrom(fd, buffer, RecvFlags::empty()).map(|(_, count, from)| (count, from))
        };
        let polled = poll_fn(|cx| self.source.poll_io(cx, Direction::Read, |fd| receive(fd, buffer))).await;
        let (count, from) = polled?;
        Ok((count, socket::internet(from)?))
    }

    /// Whether it may send to all hosts on the network at once (broadcast).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_broadcast(self.as_fd(), broadcast)?)
    }

    /// Fails everything that is or will be waiting here.
    pub fn close(&self) {
        self.source.close();
    }

    /// Its address, with the port that was picked.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local_addr(self.as_fd())
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    /// When it is not.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        socket::peer_addr(self.as_fd())
    }
}

async fn first_that_works<T>(
    tried: &'static str,
    address: impl ToAddrs,
    mut attempt: impl FnMut(&SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let target = address.target();
    let resolved = target.resolve().await;
    let addresses = resolved.map_err(|error| AddressError::wrap(tried, target.describe(), error))?;
    let mut last = None;
    for address in addresses {
        match attempt(&address) {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(AddressError::wrap(tried, address, error)),
        }
    }
    Err(last.expect("resolving gives at least one address"))
}

descriptor!(UdpSocket);
