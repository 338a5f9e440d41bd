//! hyper's `Read` and `Write` over a `futures_io` stream.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use hyper::rt::{Read, ReadBufCursor, Write};

/// The most bytes that one read takes from a socket.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    /// hyper's buffers are not initialised, and zeroing a whole buffer for each read would cost more than reading few bytes.
    /// So bytes are read into this buffer and copied once. Empty during a read.
    static SCRATCH: Cell<Box<[u8]>> = Cell::default();
}

/// A `futures_io` stream with hyper's `Read` and `Write`.
///
/// ```
/// use hyper::rt::{Read, ReadBuf};
/// use std::{pin::Pin, task::{Context, Poll, Waker}};
/// use tidegate_http::rt::Io;
///
/// let mut memory = [0; 16];
/// let mut buffer = ReadBuf::new(&mut memory);
/// let mut stream = Io::new(&b"hello"[..]);
/// let poll = Pin::new(&mut stream).poll_read(&mut Context::from_waker(Waker::noop()), buffer.unfilled());
/// assert!(matches!(poll, Poll::Ready(Ok(()))));
/// assert_eq!(buffer.filled(), b"hello");
/// ```
#[derive(Debug)]
pub struct Io<T> {
    inner: T,
}

impl<T> Io<T> {
    /// Wraps `inner`.
    ///
    /// ```
    /// let io = tidegate_http::rt::Io::new(&b"bytes"[..]);
    /// assert_eq!(*io.get_ref(), b"bytes");
    /// ```
    pub fn new(inner: T) -> Io<T> {
        Io { inner }
    }

    /// Returns the wrapped stream by reference.
    ///
    /// ```
    /// assert_eq!(*tidegate_http::rt::Io::new(&b"bytes"[..]).get_ref(), b"bytes");
    /// ```
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the wrapped stream.
    ///
    /// ```
    /// assert_eq!(tidegate_http::rt::Io::new(&b"bytes"[..]).into_inner(), b"bytes");
    /// ```
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsyncRead + Unpin> Read for Io<T> {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        poll_read_into(Pin::new(&mut self.get_mut().inner), cx, buf).map_ok(|_| ())
    }
}

/// Reads once and returns the number of bytes.
pub(crate) fn poll_read_into<T: AsyncRead>(
    stream: Pin<&mut T>,
    cx: &mut Context<'_>,
    mut buf: ReadBufCursor<'_>,
) -> Poll<io::Result<usize>> {
    let mut scratch = SCRATCH.take();
    if scratch.is_empty() {
        scratch = vec![0; SCRATCH_BYTES].into_boxed_slice();
    }
    let room = buf.remaining().min(SCRATCH_BYTES);
    let polled = stream.poll_read(cx, &mut scratch[..room]);
    if let Poll::Ready(Ok(n)) = polled {
        buf.put_slice(&scratch[..n]);
    }
    SCRATCH.set(scratch);
    Poll::Ready(Ok(ready!(polled)?))
}

impl<T: AsyncWrite + Unpin> Write for Io<T> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(cx)
    }

    /// Always `true`: a `futures_io` stream without vectored writes writes the first buffer, as hyper would.
    #[inline]
    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }
}
