//! Who keeps whom waiting on a connection. hyper has a time-out for a request's head alone, and arms a timer for each
//! request; here the connection's phase is noted as it changes, and one timer a connection, seldom armed, looks at it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};
use hyper::rt::{Read, ReadBufCursor, Write};

use super::shared::Shared;
use crate::limit::{Watchdog, now};
use crate::rt::poll_read_into;

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
}

/// What the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The first byte of the first request.
    New,
    /// The first byte of the next one.
    Idle,
    /// The rest of a request's head.
    Head,
    /// More of a request's body.
    Body,
    /// The handler, or the response's body.
    Busy,
}

const PHASES: [Phase; 5] = [Phase::New, Phase::Idle, Phase::Head, Phase::Body, Phase::Busy];

/// A connection's phase. Bodies carry it to wherever a handler takes them, so it is atomic; only the connection's own task
/// acts on it.
pub(super) struct Watch {
    phase: AtomicU8,
    start: Instant,
    /// When the phase began, in nanoseconds since `start`. Kept where a limit counts from there.
    since: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> Arc<Watch> {
        Arc::new(Watch { phase: AtomicU8::new(Phase::New as u8), start: now(), since: AtomicU64::new(0) })
    }

    pub(super) fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Relaxed))]
    }

    pub(super) fn enter(&self, phase: Phase) {
        if matches!(phase, Phase::Idle | Phase::Head) {
            self.touch();
        }
        self.phase.store(phase as u8, Relaxed);
    }

    /// The request's body has been read, or is not wanted.
    pub(super) fn body_done(&self) {
        let _ = self.phase.compare_exchange(Phase::Body as u8, Phase::Busy as u8, Relaxed, Relaxed);
    }

    fn touch(&self) {
        let since = now().saturating_duration_since(self.start);
        self.since.store(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn since(&self) -> Instant {
        self.start + Duration::from_nanos(self.since.load(Relaxed))
    }
}

/// A connection's stream under watch.
pub(super) struct Watched<T> {
    stream: T,
    watch: Arc<Watch>,
    limits: Limits,
    shared: Arc<Shared>,
    /// Since when the socket has had nothing for somebody who waits for it.
    read_waits: Option<Instant>,
    /// Since when the socket has not taken what there is to write.
    write_waits: Option<Instant>,
    reading: Watchdog,
    writing: Watchdog,
}

impl<T> Watched<T> {
    pub(super) fn new(stream: T, watch: Arc<Watch>, limits: Limits, shared: Arc<Shared>) -> Watched<T> {
        Watched {
            stream,
            watch,
            limits,
            shared,
            read_waits: None,
            write_waits: None,
            reading: Watchdog::default(),
            writing: Watchdog::default(),
        }
    }

    fn wait_to_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let deadline = match self.watch.phase() {
            Phase::New | Phase::Head => self.watch.since() + self.limits.header,
            Phase::Idle => self.watch.since() + self.limits.idle,
            Phase::Body => *self.read_waits.get_or_insert_with(now) + self.limits.stall,
            // hyper looks whether the peer has gone.
            Phase::Busy => return Poll::Pending,
        };
        self.reading.poll(cx, deadline).map(|()| self.time_out())
    }

    fn time_out(&self) -> io::Error {
        self.shared.timed_out();
        io::ErrorKind::TimedOut.into()
    }

    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.write_waits = None;
            // The last of a response leaves after its body is done.
            if self.watch.phase() == Phase::Idle {
                self.watch.touch();
            }
            return written;
        }
        let deadline = *self.write_waits.get_or_insert_with(now) + self.limits.stall;
        self.writing.poll(cx, deadline).map(|()| Err(self.time_out()))
    }
}

impl<T: AsyncRead + Unpin> Read for Watched<T> {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match poll_read_into(Pin::new(&mut this.stream), cx, buf) {
            Poll::Pending => this.wait_to_read(cx).map(Err),
            Poll::Ready(read) => {
                this.read_waits = None;
                if matches!(this.watch.phase(), Phase::New | Phase::Idle) {
                    this.watch.enter(Phase::Head);
                }
                Poll::Ready(read.map(|_| ()))
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> Write for Watched<T> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote(cx, written)
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // TLS keeps what the socket did not take.
        match Pin::new(&mut this.stream).poll_flush(cx) {
            Poll::Pending => this.wrote(cx, Poll::Pending).map_ok(|_| ()),
            done => done,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_close(cx) {
            Poll::Pending => this.wrote(cx, Poll::Pending).map_ok(|_| ()),
            done => done,
        }
    }

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
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.wrote(cx, written)
    }
}
