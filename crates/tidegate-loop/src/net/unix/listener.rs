//! Listening at a path.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::{Context as PollContext, Poll};

use rustix::net::SocketType;

use super::{UnixStream, address, local_addr, new_socket, path_address, wrap};
use crate::net::completing::ListenerSource;
use crate::net::socket;
use crate::reactor::methods::descriptor;

/// Listens for connections at a path. Dropped, it stops listening; the path stays, as the kernel leaves it.
///
/// ```
/// use tidegate_loop::{net::{UnixListener, UnixStream}, run};
/// run(async {
///     let path = std::env::temp_dir().join(format!("tidegate-doc-{}", std::process::id()));
///     let listener = UnixListener::bind(&path)?;
///     let near = UnixStream::connect(&path).await?;
///     let (far, _) = listener.accept().await?;
///     std::fs::remove_file(&path)?;
///     far.write_all(b"hello").await?;
///     near.read_exact(&mut [0; 5]).await
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct UnixListener {
    source: ListenerSource,
}

impl UnixListener {
    /// Binds and listens, with a backlog of 1,024.
    ///
    /// # Errors
    /// An [`AddressError`](crate::net::AddressError) that names the path; [`AddrInUse`](io::ErrorKind::AddrInUse) when
    /// there is something at it, which may be what a listener that is gone has left.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        let path = path.as_ref();
        let listen = || {
            let address = path_address(path)?;
            let fd = new_socket(SocketType::STREAM)?;
            rustix::net::bind(&fd, &address)?;
            rustix::net::listen(&fd, 1024)?;
            Ok(UnixListener { source: ListenerSource::new(fd) })
        };
        listen().map_err(|error| wrap("listen on", path, error))
    }

    /// The next connection, and where it comes from: mostly that is unnamed.
    ///
    /// # Errors
    /// When [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, no connection is lost.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for those who write futures by hand.
    pub fn poll_accept(&self, cx: &mut PollContext<'_>) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        self.source.poll_accept(cx).map(|accepted| {
            let (fd, peer) = accepted?;
            Ok((UnixStream::of(fd), address(peer)?))
        })
    }

    /// Stops listening, and fails every [`accept`](Self::accept) that waits.
    pub fn close(&self) {
        let _ = socket::shutdown(self.as_fd(), Shutdown::Both);
        self.source.close();
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.as_fd())
    }
}

descriptor!(UnixListener);
