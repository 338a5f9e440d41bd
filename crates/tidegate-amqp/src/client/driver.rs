//! The coroutine of a connection: it reads, hands out what came, and writes all there is at once.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::client::TlsStream;
use tidegate_loop::net::TcpStream;
pub(super) use tidegate_loop::now;
use tidegate_loop::{Sleep, catch_cancel, sleep_until};

use super::gather::{MARK_BYTES, Reading};
use super::shared::Shared;
use crate::session::Session;

/// Several hundred small messages at a time; a frame has at most twice as much.
const READ_BYTES: usize = 64 * 1024;

/// How long a connection that was dropped waits for the broker's part of the closing handshake.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// The bytes under a session.
pub(super) enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Link {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Link::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Link::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, data),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Link::Plain(_) => Poll::Ready(Ok(())),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    /// See [`TcpStream::set_receive_mark`].
    fn set_mark(&self, bytes: u32) -> io::Result<()> {
        match self {
            Link::Plain(stream) => stream.set_receive_mark(bytes),
            Link::Tls(stream) => stream.get_ref().0.set_receive_mark(bytes),
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Link::Plain(stream) => Pin::new(stream).poll_close(cx),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_close(cx),
        }
    }
}

/// Runs until the session has ended and its last words are sent.
pub(super) struct Driver {
    shared: Rc<Shared>,
    link: Link,
    buffer: Box<[u8]>,
    /// Being written, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    flushed: bool,
    /// Armed for this instant; it may be early, then it is looked at again.
    alarm: Option<(Instant, Sleep)>,
    read_patience: Duration,
    /// While what comes gathers: until then.
    gathering: Option<Sleep>,
    /// Set when the closing handshake of a dropped connection begins: until then it may take.
    leaving: Option<Sleep>,
}

/// The task of a connection. A loop that ends cancels its tasks and waits for them: the connection is closed in order then too.
pub(super) async fn drive(mut driver: Driver) {
    if catch_cancel(&mut driver).await.is_err() {
        driver.shared.abandoned.set(true);
        driver.await;
    }
}

impl Driver {
    pub(super) fn new(shared: Rc<Shared>, link: Link, read_patience: Duration) -> Driver {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Driver {
            shared,
            link,
            buffer,
            out: Vec::new(),
            sent: 0,
            flushed: true,
            alarm: None,
            read_patience,
            gathering: None,
            leaving: None,
        }
    }

    /// Closes a connection that was dropped; ready when the broker has not answered for too long.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.leaving.is_none() {
            self.shared.with_session(Session::close);
        }
        let leaving = self.leaving.get_or_insert_with(|| sleep_until(now() + CLOSE_PATIENCE));
        Pin::new(leaving).poll(cx)
    }

    fn hear(&mut self, count: usize) {
        let bytes = &self.buffer[..count];
        let before = self.shared.inner.borrow().delivered;
        let (room, prefetch) = self.shared.with_session(|session| {
            session.handle_bytes(bytes, now());
            (session.room(), session.prefetch())
        });
        let deliveries = (self.shared.inner.borrow().delivered - before) as usize;
        let reading = Reading { bytes: count, deliveries, room, prefetch };
        if !self.read_patience.is_zero() && reading.is_flood() {
            self.gather();
        }
    }

    /// Has the kernel wake us when more has come, or our patience is over.
    fn gather(&mut self) {
        // Refused, it goes on as before.
        if self.gathering.is_some() || self.link.set_mark(MARK_BYTES).is_ok() {
            self.gathering = Some(sleep_until(now() + self.read_patience));
        }
    }

    /// Ready when it has lasted long enough; what has come by then wakes us.
    fn poll_gathered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.gathering {
            Some(sleep) => ready!(Pin::new(sleep).poll(cx)),
            None => return Poll::Pending,
        }
        self.gathering = None;
        Poll::Ready(self.link.set_mark(1))
    }

    /// Ready when all there was is with the kernel.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.sent < self.out.len() {
                match self.link.poll_write(cx, &self.out[self.sent..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => self.sent += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            self.out.clear();
            self.sent = 0;
            let out = &mut self.out;
            // Sending also wakes callers that wait for room.
            if self.shared.with_session(|session| session.wants_transmit() && session.poll_transmit(now(), out)) {
                self.flushed = false;
                continue;
            }
            if !self.flushed {
                match self.link.poll_flush(cx) {
                    Poll::Ready(Ok(())) => self.flushed = true,
                    other => return other,
                }
            }
            return Poll::Ready(Ok(()));
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.shared.inner.borrow().session.poll_timeout() else { return Poll::Pending };
        if self.alarm.as_ref().is_none_or(|(at, _)| *at > due) {
            self.alarm = Some((due, sleep_until(due)));
        }
        let Some((_, sleep)) = &mut self.alarm else { unreachable!("armed above") };
        if Pin::new(sleep).poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.alarm = None;
        Poll::Ready(())
    }

    /// What the system says of the connection goes into the session's end.
    fn lose(&self, error: &io::Error) {
        tracing::debug!(broker = %self.shared.place, %error, "the connection broke");
        self.shared.with_session(Session::handle_end);
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.shared.keep_driver(cx);
        loop {
            if this.shared.abandoned.get() && this.poll_leave(cx).is_ready() {
                this.shared.with_session(Session::handle_end);
                return Poll::Ready(());
            }
            if let Poll::Ready(Err(error)) = this.poll_send(cx) {
                this.lose(&error);
                return Poll::Ready(());
            }
            if this.shared.inner.borrow().session.is_closed() {
                // The peer no longer reads, so the rest is not waited for.
                let _ = this.link.poll_close(cx);
                return Poll::Ready(());
            }
            let paused = this.shared.inner.borrow().session.is_paused();
            let read = if paused { Poll::Pending } else { this.link.poll_read(cx, &mut this.buffer) };
            match read {
                Poll::Ready(Ok(0)) => {
                    this.shared.with_session(Session::handle_end);
                    continue;
                }
                Poll::Ready(Ok(count)) => {
                    this.hear(count);
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    this.lose(&error);
                    return Poll::Ready(());
                }
                Poll::Pending => {}
            }
            if let Poll::Ready(Err(error)) = this.poll_gathered(cx) {
                this.lose(&error);
                return Poll::Ready(());
            }
            if this.poll_alarm(cx).is_pending() {
                return Poll::Pending;
            }
            this.shared.with_session(|session| session.handle_timeout(now()));
        }
    }
}

impl Drop for Driver {
    /// The loop may end a task at any time; callers must not wait for it then.
    fn drop(&mut self) {
        self.shared.with_session(Session::handle_end);
    }
}
