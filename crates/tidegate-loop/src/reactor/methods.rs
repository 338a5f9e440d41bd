//! What stream-like types have in common, written once: methods for tasks over `poll_read` and `poll_write`, and the
//! traits of `futures-io`.

/// Reading, for a type with `poll_read(&self, …)`.
macro_rules! read_methods {
    ($kind:ty) => {
        impl $kind {
            /// Reads what is there, up to the length of `buffer`; waits only if there is nothing. 0 is the end of the
            /// peer's side, or an empty buffer.
            ///
            /// # Errors
            /// When the peer was reset; after `close`.
            ///
            /// # Cancel safety
            /// Safe: dropped before it is done, nothing was read.
            #[inline]
            pub async fn read(&self, buffer: &mut [u8]) -> ::std::io::Result<usize> {
                ::std::future::poll_fn(|cx| self.poll_read(cx, buffer)).await
            }

            /// Reads until `buffer` is full.
            ///
            /// # Errors
            /// [`UnexpectedEof`](::std::io::ErrorKind::UnexpectedEof) when the peer's side ends before; otherwise as
            /// [`read`](Self::read).
            ///
            /// # Cancel safety
            /// Not safe: what was read so far is lost.
            pub async fn read_exact(&self, buffer: &mut [u8]) -> ::std::io::Result<()> {
                let mut filled = 0;
                while filled < buffer.len() {
                    match self.read(&mut buffer[filled..]).await? {
                        0 => return Err(::std::io::ErrorKind::UnexpectedEof.into()),
                        count => filled += count,
                    }
                }
                Ok(())
            }
        }

        $crate::reactor::methods::async_read!($kind);
        $crate::reactor::methods::async_read!(&$kind);
    };
}

macro_rules! async_read {
    ($kind:ty) => {
        impl ::futures_io::AsyncRead for $kind {
            fn poll_read(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buffer: &mut [u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                (*self).poll_read(cx, buffer)
            }
        }
    };
}

/// Writing, for a type with `poll_write(&self, …)` and `end_writing(&self)`.
macro_rules! write_methods {
    ($kind:ty) => {
        impl $kind {
            /// Writes what is taken of `data`; waits only if nothing is.
            ///
            /// # Errors
            /// When the peer is gone; after `close`.
            ///
            /// # Cancel safety
            /// Safe: dropped before it is done, nothing was written.
            #[inline]
            pub async fn write(&self, data: &[u8]) -> ::std::io::Result<usize> {
                ::std::future::poll_fn(|cx| self.poll_write(cx, data)).await
            }

            /// Writes all of `data`.
            ///
            /// # Errors
            /// As [`write`](Self::write).
            ///
            /// # Cancel safety
            /// Not safe: it is not known how much was written.
            pub async fn write_all(&self, data: &[u8]) -> ::std::io::Result<()> {
                let mut left = data;
                while !left.is_empty() {
                    match self.write(left).await? {
                        0 => return Err(::std::io::ErrorKind::WriteZero.into()),
                        count => left = &left[count..],
                    }
                }
                Ok(())
            }
        }

        $crate::reactor::methods::async_write!($kind);
        $crate::reactor::methods::async_write!(&$kind);
    };
}

macro_rules! async_write {
    ($kind:ty) => {
        impl ::futures_io::AsyncWrite for $kind {
            fn poll_write(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                data: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                (*self).poll_write(cx, data)
            }

            /// Nothing is buffered here.
            fn poll_flush(
                self: ::std::pin::Pin<&mut Self>,
                _: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::task::Poll::Ready(Ok(()))
            }

            /// Ends the writing side.
            fn poll_close(
                self: ::std::pin::Pin<&mut Self>,
                _: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::task::Poll::Ready(self.end_writing())
            }
        }
    };
}

/// The descriptor of a type that has a `source`.
macro_rules! descriptor {
    ($($kind:ty)*) => {$(
        impl ::std::os::fd::AsFd for $kind {
            fn as_fd(&self) -> ::std::os::fd::BorrowedFd<'_> {
                self.source.fd()
            }
        }

        impl ::std::os::fd::AsRawFd for $kind {
            fn as_raw_fd(&self) -> ::std::os::fd::RawFd {
                ::std::os::fd::AsRawFd::as_raw_fd(&self.source.fd())
            }
        }

        impl ::std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let fd = ::std::os::fd::AsRawFd::as_raw_fd(&self.source.fd());
                f.debug_struct(stringify!($kind)).field("fd", &fd).finish_non_exhaustive()
            }
        }
    )*};
}

pub(crate) use {async_read, async_write, descriptor, read_methods, write_methods};
