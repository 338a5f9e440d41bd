//! The stream under a connection: plain, TLS, or TLS within TLS through a proxy. It counts bytes and records when they
//! moved.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::client::TlsStream;
use hyper::rt::{Read, ReadBufCursor, Write};
use tidegate_loop::net::TcpStream;

use crate::deadline::now;
use crate::rt::poll_read_into;

/// A stream to a server or a proxy.
pub(crate) enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<Link>>),
}

macro_rules! each {
    ($link:expr, $stream:ident => $call:expr) => {
        match $link.get_mut() {
            Link::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Link::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Link {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Link {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(cx, buf))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(cx))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_close(cx))
    }
}

/// The bytes that have moved on a connection.
pub(crate) struct Meter {
    /// Bytes received. Shows whether any of a response has arrived.
    received: Cell<u64>,
    last_move: Cell<Instant>,
}

impl Meter {
    pub(crate) fn new() -> Rc<Meter> {
        Rc::new(Meter { received: Cell::new(0), last_move: Cell::new(now()) })
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    pub(crate) fn last_move(&self) -> Instant {
        self.last_move.get()
    }
}

/// A link with hyper's `Read` and `Write` and a [`Meter`].
pub(crate) struct Metered {
    link: Link,
    meter: Rc<Meter>,
}

impl Metered {
    pub(crate) fn new(link: Link, meter: Rc<Meter>) -> Metered {
        Metered { link, meter }
    }
}

impl Read for Metered {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let n = ready!(poll_read_into(Pin::new(&mut this.link), cx, buf))?;
        this.meter.received.set(this.meter.received.get() + n as u64);
        this.meter.last_move.set(now());
        Poll::Ready(Ok(()))
    }
}

impl Metered {
    fn moved(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(_)) = written {
            self.meter.last_move.set(now());
        }
        written
    }
}

impl Write for Metered {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.link).poll_write(cx, buf);
        self.moved(written)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_close(cx)
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.link).poll_write_vectored(cx, bufs);
        self.moved(written)
    }
}
