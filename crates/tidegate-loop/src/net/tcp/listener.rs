//! Listening for TCP connections.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context as PollContext, Poll};

use rustix::net::{SocketType, sockopt};

use super::stream::TcpStream;
use crate::net::address::ToAddrs;
use crate::net::completing::ListenerSource;
use crate::net::error::AddressError;
use crate::net::socket;

/// How a [`TcpListener`] is made.
///
/// ```
/// use tidegate_loop::{net::TcpListener, run};
/// run(async {
///     let listener = TcpListener::options().backlog(16).reuse_port(true).bind("127.0.0.1:0").await?;
///     // Another one on the same port: the kernel spreads the connections over both.
///     TcpListener::options().reuse_port(true).bind(listener.local_addr()?).await?;
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until bind is called"]
pub struct TcpOptions {
    backlog: u32,
    reuse_address: bool,
    reuse_port: bool,
    only_v6: Option<bool>,
}

impl TcpOptions {
    /// How many connections may wait to be accepted, 1,024 unless set; the kernel has a limit of its own
    /// (`net.core.somaxconn`).
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Whether an address can be bound while connections of its last owner linger. On unless set.
    pub fn reuse_address(mut self, reuse: bool) -> Self {
        self.reuse_address = reuse;
        self
    }

    /// Whether several listeners may bind the same address, for a loop a thread. Off unless set.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Whether an IPv6 listener refuses IPv4. Unless set, the system decides.
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = Some(only);
        self
    }

    /// Binds and listens. If the name has several addresses, the first that works is taken. Port 0 picks a free one.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address: in use, not this machine's, not permitted.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub async fn bind(self, address: impl ToAddrs) -> io::Result<TcpListener> {
        let target = address.target();
        let resolved = target.resolve().await;
        let addresses = resolved.map_err(|error| AddressError::wrap("listen on", target.describe(), error))?;
        let mut last = None;
        for address in addresses {
            match self.listen(&address) {
                Ok(fd) => return Ok(TcpListener { source: ListenerSource::new(fd) }),
                Err(error) => last = Some(AddressError::wrap("listen on", address, error)),
            }
        }
        Err(last.expect("resolving gives at least one address"))
    }

    fn listen(&self, address: &SocketAddr) -> io::Result<OwnedFd> {
        let fd = socket::new_socket(address, SocketType::STREAM)?;
        sockopt::set_socket_reuseaddr(&fd, self.reuse_address)?;
        if self.reuse_port {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        if let Some(only) = self.only_v6.filter(|_| address.is_ipv6()) {
            sockopt::set_ipv6_v6only(&fd, only)?;
        }
        rustix::net::bind(&fd, address)?;
        rustix::net::listen(&fd, i32::try_from(self.backlog).unwrap_or(i32::MAX))?;
        Ok(fd)
    }
}

/// Listens for TCP connections. Dropped, it stops listening.
///
/// ```
/// use tidegate_loop::{net::TcpListener, run, spawn};
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let server = spawn(async move {
///         loop {
///             let (stream, peer) = listener.accept().await.unwrap();
///             spawn(async move { stream.write_all(format!("hello, {peer}").as_bytes()).await });
///         }
///     });
///     server.cancel();
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct TcpListener {
    source: ListenerSource,
}

impl TcpListener {
    /// Binds and listens, see [`TcpOptions::bind`] for what can go wrong.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # use tidegate_loop::{net::TcpListener, run};
    /// # run(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let error = TcpListener::bind(listener.local_addr()?).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn bind(address: impl ToAddrs) -> io::Result<TcpListener> {
        TcpListener::options().bind(address).await
    }

    /// A listener made to measure.
    pub fn options() -> TcpOptions {
        TcpOptions { backlog: 1024, reuse_address: true, reuse_port: false, only_v6: None }
    }

    /// Takes over a listener of the standard library's.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # use tidegate_loop::{net::TcpListener, run};
    /// # run(async {
    /// let listener = TcpListener::from_std(std::net::TcpListener::bind("127.0.0.1:0")?)?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener { source: ListenerSource::new(listener.into()) })
    }

    /// The next connection. Connections come in batches: after one event they are accepted, call by call, until the
    /// backlog is empty, and only then does a call wait.
    ///
    /// A connection that its peer gave up before it was accepted is passed over.
    ///
    /// # Errors
    /// When [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, no connection is lost.
    ///
    /// See [`TcpListener`] for an example.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for those who write futures by hand.
    pub fn poll_accept(&self, cx: &mut PollContext<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.source.poll_accept(cx);
        accepted.map(|accepted| {
            let (fd, peer) = accepted?;
            Ok((TcpStream::of(fd), socket::internet(peer)?))
        })
    }

    /// Stops listening, and fails every [`accept`](Self::accept) that waits.
    ///
    /// ```
    /// # use tidegate_loop::{net::TcpListener, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// listener.close();
    /// assert!(listener.accept().await.is_err());
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn close(&self) {
        let _ = socket::shutdown(self.as_fd(), std::net::Shutdown::Both);
        self.source.close();
    }

    /// The address it listens on, with the port that was picked.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local_addr(self.as_fd())
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TcpListener");
        debug.field("fd", &self.as_raw_fd());
        if let Ok(address) = self.local_addr() {
            debug.field("local", &address);
        }
        debug.finish()
    }
}
