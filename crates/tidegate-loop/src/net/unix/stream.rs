//! A Unix stream.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::{Context as PollContext, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use super::{local_addr, new_socket, path_address, wrap};
use crate::net::completing::StreamSource;
use crate::net::socket;
use crate::reactor::methods::{descriptor, read_methods, write_methods};
use crate::reactor::{Direction, Source};
use crate::time::sleep::sleep;

/// A connection between two processes of this machine. Reading and writing take `&self`. Dropped, it is closed.
///
/// ```
/// use tidegate_loop::{net::UnixStream, run};
/// run(async {
///     let (near, far) = UnixStream::pair()?;
///     near.write_all(b"hello").await?;
///     let mut buffer = [0; 16];
///     assert_eq!(far.read(&mut buffer).await?, 5);
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct UnixStream {
    source: StreamSource,
}

impl UnixStream {
    pub(super) fn of(fd: OwnedFd) -> UnixStream {
        // A read stops where descriptors or credentials were sent along, with more behind.
        UnixStream { source: StreamSource::new(fd).distrust_short_reads() }
    }

    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// An [`AddressError`](crate::net::AddressError) that names the path: not found, refused, not permitted.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # use tidegate_loop::{net::UnixStream, run};
    /// let error = run(async { UnixStream::connect("/nowhere").await }).unwrap().unwrap_err();
    /// assert!(error.to_string().starts_with("cannot connect to /nowhere: "));
    /// ```
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let path = path.as_ref();
        UnixStream::connect_to(path).await.map_err(|error| wrap("connect to", path, error))
    }

    async fn connect_to(path: &Path) -> io::Result<UnixStream> {
        let address = path_address(path)?;
        let source = Source::new(new_socket(SocketType::STREAM)?);
        loop {
            match rustix::net::connect(source.fd(), &address) {
                // The listener's backlog is full, and no event tells when it is not.
                Err(Errno::AGAIN) => sleep(std::time::Duration::from_millis(1)).await,
                Err(Errno::INTR) => {}
                Err(Errno::INPROGRESS) => {
                    source.clear_ready(Direction::Write);
                    poll_fn(|cx| socket::poll_connected(&source, cx)).await?;
                    break;
                }
                other => break other?,
            }
        }
        Ok(UnixStream { source: StreamSource::of(source).distrust_short_reads() })
    }

    /// Two ends, connected to each other.
    ///
    /// # Errors
    /// When there are no descriptors left.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, socket::FLAGS, None)?;
        Ok((UnixStream::of(one), UnixStream::of(other)))
    }

    /// Takes over a stream of the standard library's.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        stream.set_nonblocking(true)?;
        Ok(UnixStream::of(stream.into()))
    }

    /// [`read`](Self::read) for those who write futures by hand.
    #[inline]
    pub fn poll_read(&self, cx: &mut PollContext<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.source.poll_read(cx, buffer)
    }

    /// [`write`](Self::write) for those who write futures by hand.
    #[inline]
    pub fn poll_write(&self, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.source.poll_write(cx, data)
    }

    /// Ends one side or both.
    ///
    /// # Errors
    /// When it is not connected any more.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.source.shutdown(how)
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    /// Ends both sides and fails everything that is or will be waiting here.
    pub fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
        self.source.close();
    }

    /// This side's address; mostly it has none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.as_fd())
    }

    /// The peer's process as it was when the connection was made: pid, uid, gid.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// ```
    /// # use tidegate_loop::{net::UnixStream, run};
    /// run(async {
    ///     let (near, _far) = UnixStream::pair().unwrap();
    ///     assert_eq!(near.peer_process().unwrap().0, std::process::id());
    /// })
    /// .unwrap();
    /// ```
    pub fn peer_process(&self) -> io::Result<(u32, u32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(self.as_fd())?;
        Ok((peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw(), peer.gid.as_raw()))
    }
}

read_methods!(UnixStream);
write_methods!(UnixStream);
descriptor!(UnixStream);
