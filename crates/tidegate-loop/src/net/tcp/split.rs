//! The halves of a TCP stream.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::stream::TcpStream;

pub(super) fn borrowed(stream: &TcpStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf { stream }, WriteHalf { stream })
}

pub(super) fn owned(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Rc::new(stream);
    (OwnedReadHalf { stream: stream.clone() }, OwnedWriteHalf { stream, ended: false })
}

/// The reading half of a borrowed [`TcpStream`]; see [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a> {
    stream: &'a TcpStream,
}

/// The writing half of a borrowed [`TcpStream`]; see [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a> {
    stream: &'a TcpStream,
}

/// The reading half of a [`TcpStream`]; see [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Rc<TcpStream>,
}

/// The writing half of a [`TcpStream`]; see [`TcpStream::into_split`]. Dropped, the peer sees the end of this side.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Rc<TcpStream>,
    /// The end has been sent already, or the halves are one again.
    ended: bool,
}

impl OwnedReadHalf {
    /// Makes the stream whole again.
    ///
    /// # Errors
    /// The halves come back if they are of different streams.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// let (reader, writer) = stream.into_split();
    /// let stream: TcpStream = reader.reunite(writer).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn reunite(self, mut writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Rc::ptr_eq(&self.stream, &writer.stream) {
            return Err(ReuniteError { reader: self, writer });
        }
        writer.ended = true;
        drop(writer);
        Ok(Rc::into_inner(self.stream).expect("only the two halves hold it"))
    }
}

impl OwnedWriteHalf {
    /// Ends the writing side now, as dropping it would.
    ///
    /// # Errors
    /// When it is not connected any more.
    pub fn close(&mut self) -> io::Result<()> {
        self.ended = true;
        self.stream.shutdown(Shutdown::Write)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // With the other half gone the descriptor is closed in a moment, and that says the same.
        if !self.ended && Rc::strong_count(&self.stream) > 1 {
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

/// The halves are of different streams; here they are.
#[derive(Debug)]
pub struct ReuniteError {
    /// The one.
    pub reader: OwnedReadHalf,
    /// The other.
    pub writer: OwnedWriteHalf,
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these halves are of different streams")
    }
}

impl std::error::Error for ReuniteError {}

/// Everything that does not belong to the other half is the stream's.
macro_rules! halves {
    (read: $($reader:ty)*; write: $($writer:ty)*) => {
        $(
            impl $reader {
                /// See [`TcpStream::read`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                #[inline]
                pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                    self.stream.read(buffer).await
                }

                /// See [`TcpStream::read_exact`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
                    self.stream.read_exact(buffer).await
                }

                /// See [`TcpStream::peek`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
                    self.stream.peek(buffer).await
                }
            }

            impl AsyncRead for $reader {
                fn poll_read(
                    self: Pin<&mut Self>,
                    cx: &mut PollContext<'_>,
                    buffer: &mut [u8],
                ) -> Poll<io::Result<usize>> {
                    self.stream.poll_read(cx, buffer)
                }

                fn poll_read_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut PollContext<'_>,
                    buffers: &mut [IoSliceMut<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.stream.poll_read_vectored(cx, buffers)
                }
            }
        )*
        $(
            impl $writer {
                /// See [`TcpStream::write`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                #[inline]
                pub async fn write(&self, data: &[u8]) -> io::Result<usize> {
                    self.stream.write(data).await
                }

                /// See [`TcpStream::write_all`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                #[inline]
                pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
                    self.stream.write_all(data).await
                }

                /// See [`TcpStream::write_vectored`]; as cancel-safe as that.
                ///
                /// # Errors
                /// The same.
                pub async fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                    self.stream.write_vectored(buffers).await
                }
            }

            impl AsyncWrite for $writer {
                fn poll_write(
                    self: Pin<&mut Self>,
                    cx: &mut PollContext<'_>,
                    data: &[u8],
                ) -> Poll<io::Result<usize>> {
                    self.stream.poll_write(cx, data)
                }

                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut PollContext<'_>,
                    buffers: &[IoSlice<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.stream.poll_write_vectored(cx, buffers)
                }

                fn poll_flush(self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(Ok(()))
                }

                fn poll_close(self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(self.stream.shutdown(Shutdown::Write))
                }
            }
        )*
        $(
            impl AsRef<TcpStream> for $reader {
                fn as_ref(&self) -> &TcpStream {
                    &self.stream
                }
            }
        )*
        $(
            impl AsRef<TcpStream> for $writer {
                fn as_ref(&self) -> &TcpStream {
                    &self.stream
                }
            }
        )*
    };
}

halves! { read: ReadHalf<'_> OwnedReadHalf; write: WriteHalf<'_> OwnedWriteHalf }
