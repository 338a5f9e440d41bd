//! A TCP connection.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context as PollContext, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use rustix::io::Errno;
use rustix::net::SocketType;

use super::split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::net::address::ToAddrs;
use crate::net::completing::StreamSource;
use crate::net::connect::TcpConnector;
use crate::net::error::AddressError;
use crate::net::socket;
use crate::reactor::{Direction, Source};
use crate::stream::{StreamReader, StreamWriter};

/// A TCP connection. Dropped, it is closed.
///
/// Reading and writing take `&self`. It implements [`AsyncRead`] and [`AsyncWrite`], and so does `&TcpStream`.
///
/// ```
/// use tidegate_loop::{net::{TcpListener, TcpStream}, run};
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let near = TcpStream::connect(listener.local_addr()?).await?;
///     let (far, _) = listener.accept().await?;
///     far.write_all(b"hello").await?;
///     let mut buffer = [0; 16];
///     assert_eq!(near.read(&mut buffer).await?, 5);
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct TcpStream {
    source: StreamSource,
}

impl TcpStream {
    pub(super) fn of(fd: OwnedFd) -> TcpStream {
        TcpStream { source: StreamSource::new(fd) }
    }

    /// Connects. If the name has several addresses, the next one is tried as soon as one fails or has kept silent for a
    /// quarter of a second, and the first that answers is taken; [`TcpConnector`] changes that and adds a time-out.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address: refused, unreachable, name not found, out of descriptors.
    ///
    /// # Cancel safety
    /// Safe: dropped, the attempt is abandoned and its socket closed.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// let listener = TcpListener::bind("localhost:0").await?;
    /// let stream = TcpStream::connect(("localhost", listener.local_addr()?.port())).await?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn connect(address: impl ToAddrs) -> io::Result<TcpStream> {
        TcpStream::connector().connect(address).await
    }

    /// A way to connect made to measure.
    pub fn connector() -> TcpConnector {
        TcpConnector::new()
    }

    /// Connects to one address.
    pub(crate) async fn connect_one(address: SocketAddr) -> io::Result<TcpStream> {
        let connected = async {
            let source = Source::new(socket::new_socket(&address, SocketType::STREAM)?);
            match rustix::net::connect(source.fd(), &address) {
                // Interrupted it goes on in the background, as one in progress does.
                Err(Errno::INPROGRESS | Errno::INTR) => {
                    source.clear_ready(Direction::Write);
                    poll_fn(|cx| socket::poll_connected(&source, cx)).await?;
                }
                other => other?,
            }
            Ok(TcpStream { source: StreamSource::of(source) })
        };
        connected.await.map_err(|error| AddressError::wrap("connect to", address, error))
    }

    /// Takes over a connection of the standard library's.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # use tidegate_loop::{net::TcpStream, run};
    /// # run(async {
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
    /// let stream = TcpStream::from_std(stream)?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(true)?;
        Ok(TcpStream::of(stream.into()))
    }

    /// Reads what is there, up to the length of `buffer`; waits only if there is nothing. 0 is the end of the peer's
    /// side, or an empty buffer.
    ///
    /// # Errors
    /// When the connection was reset; when [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was read.
    ///
    /// See [`TcpStream`] for an example.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        // Not an async function: there is nothing to remember between polls, and its state machine would cost.
        poll_fn(move |cx| self.poll_read(cx, buffer))
    }

    /// Reads until `buffer` is full.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the peer's side ends before; otherwise as [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Not safe: what was read so far is lost.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (far, _) = listener.accept().await?;
    /// far.write_all(b"12345678").await?;
    /// let mut number = [0; 8];
    /// near.read_exact(&mut number).await?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Reads without taking what it reads out of the receive buffer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (far, _) = listener.accept().await?;
    /// far.write_all(b"x").await?;
    /// let mut buffer = [0; 8];
    /// assert_eq!(near.peek(&mut buffer).await?, 1);
    /// assert_eq!(near.read(&mut buffer).await?, 1);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.source.poll_peek(cx, buffer)).await
    }

    /// Reads into several buffers, one after the other.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # use std::io::IoSliceMut;
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (far, _) = listener.accept().await?;
    /// far.write_all(b"abc").await?;
    /// let (mut head, mut tail) = ([0; 1], [0; 9]);
    /// let count = near.read_vectored(&mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)]).await?;
    /// assert_eq!((count, &head, &tail[..2]), (3, b"a", &b"bc"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read_vectored(cx, buffers)).await
    }

    /// Writes what the send buffer takes of `data`; waits only if it takes nothing.
    ///
    /// # Errors
    /// When the peer is gone ([`BrokenPipe`](io::ErrorKind::BrokenPipe),
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset)); when [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe: dropped before it is done, nothing was written.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(near.write(b"abc").await?, 3);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[inline]
    pub fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_write(cx, data))
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Not safe: it is not known how much was written.
    ///
    /// See [`TcpStream`] for an example.
    #[inline]
    pub fn write_all(&self, data: &[u8]) -> impl Future<Output = io::Result<()>> {
        let mut left = data;
        poll_fn(move |cx| {
            while !left.is_empty() {
                match ready!(self.poll_write(cx, left))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => left = &left[count..],
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Writes several buffers, one after the other, in one call.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # use std::io::IoSlice;
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(near.write_vectored(&[IoSlice::new(b"head"), IoSlice::new(b"body")]).await?, 8);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write_vectored(cx, buffers)).await
    }

    /// [`read`](Self::read) for those who write futures by hand.
    #[inline]
    pub fn poll_read(&self, cx: &mut PollContext<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.source.poll_read(cx, buffer)
    }

    /// [`read_vectored`](Self::read_vectored) for those who write futures by hand.
    pub fn poll_read_vectored(
        &self,
        cx: &mut PollContext<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.source.poll_read_vectored(cx, buffers)
    }

    /// [`write`](Self::write) for those who write futures by hand.
    #[inline]
    pub fn poll_write(&self, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.source.poll_write(cx, data)
    }

    /// [`write_vectored`](Self::write_vectored) for those who write futures by hand.
    pub fn poll_write_vectored(&self, cx: &mut PollContext<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.source.poll_write_vectored(cx, buffers)
    }

    /// Waits until reading is worth a try. It may be told ready and still have nothing: then reading waits.
    ///
    /// # Errors
    /// When [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// near.readable().await?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.source.poll_ready(cx, Direction::Read)).await
    }

    /// The same for writing.
    ///
    /// # Errors
    /// When [`close`](Self::close) was called.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// near.writable().await?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.source.poll_ready(cx, Direction::Write)).await
    }

    /// Ends one side or both. After [`Shutdown::Write`] the peer reads to the end; reading here goes on.
    ///
    /// # Errors
    /// When it is not connected any more.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let near = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (far, _) = listener.accept().await?;
    /// near.shutdown(std::net::Shutdown::Write)?;
    /// assert_eq!(far.read(&mut [0; 8]).await?, 0);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.source.shutdown(how)
    }

    /// Ends both sides and fails everything that is or will be waiting here, in whichever task. The descriptor itself is
    /// closed when the stream is dropped.
    ///
    /// ```
    /// # use std::rc::Rc;
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run, spawn, yield_now};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let stream = Rc::new(TcpStream::connect(listener.local_addr()?).await?);
    /// let reader = spawn({
    ///     let stream = stream.clone();
    ///     async move { stream.read(&mut [0; 8]).await }
    /// });
    /// yield_now().await;
    /// stream.close();
    /// assert!(reader.await.unwrap().is_err());
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn close(&self) {
        // Refused means that it is not connected any more.
        let _ = self.shutdown(Shutdown::Both);
        self.source.close();
    }

    /// The halves, to be used at the same time. Since reading and writing take `&self` this is a convenience.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// let (_reader, writer) = stream.split();
    /// writer.write_all(b"x").await?;
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::borrowed(self)
    }

    /// The halves, for different tasks to own. When the writing half is dropped the peer sees the end; when both are, the
    /// connection is closed.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (far, _) = listener.accept().await?;
    /// let (reader, writer) = stream.into_split();
    /// drop(writer);
    /// assert_eq!(far.read(&mut [0; 8]).await?, 0);
    /// far.write_all(b"still here").await?;
    /// assert_eq!(reader.read(&mut [0; 16]).await?, 10);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split::owned(self)
    }
}

/// Streams with flow control.
impl TcpStream {
    /// A reader with a buffer and a writer that takes data at once; see [`stream`](crate::stream) for an example.
    ///
    /// # Panics
    /// Outside of a running loop.
    #[track_caller]
    pub fn into_streams(self) -> (StreamReader<OwnedReadHalf>, StreamWriter) {
        let (reader, writer) = self.into_split();
        (StreamReader::new(reader), StreamWriter::new(writer))
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TcpStream");
        debug.field("fd", &self.as_raw_fd());
        if let Ok(address) = self.local_addr() {
            debug.field("local", &address);
        }
        if let Ok(address) = self.peer_addr() {
            debug.field("peer", &address);
        }
        debug.finish()
    }
}

/// Both traits, for a type that reaches a stream through `$this`.
macro_rules! async_read_write {
    ($($kind:ty)*) => {$(
        impl AsyncRead for $kind {
            #[inline]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut PollContext<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_read(&self, cx, buffer)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut PollContext<'_>,
                buffers: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_read_vectored(&self, cx, buffers)
            }
        }

        impl AsyncWrite for $kind {
            #[inline]
            fn poll_write(self: Pin<&mut Self>, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
                TcpStream::poll_write(&self, cx, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut PollContext<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_write_vectored(&self, cx, buffers)
            }

            /// Nothing is buffered here.
            fn poll_flush(self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            /// Ends the writing side.
            fn poll_close(self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.shutdown(Shutdown::Write))
            }
        }
    )*};
}

async_read_write! { TcpStream &TcpStream }
