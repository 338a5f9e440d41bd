//! Who keeps whom waiting on a connection. hyper has a time-out for a request's head alone, and arms a timer for each
//! request; here the connection's phase is noted as it changes, and one timer a connection, seldom armed, looks at it.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};
use hyper::rt::{Read, ReadBufCursor, Write};

use crate::limit::now;
use crate::rt::poll_read_into;

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
    /// All waits for parts of one request's body together.
    pub(super) body: Duration,
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
    /// For how long the peer has kept the server waiting within the current body, in nanoseconds, without the wait that
    /// has not ended. Set to 0 when a body begins.
    waited: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> Arc<Watch> {
        Arc::new(Watch {
            phase: AtomicU8::new(Phase::New as u8),
            start: now(),
            since: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        })
    }

    pub(super) fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Relaxed))]
    }

    pub(super) fn enter(&self, phase: Phase) {
        if matches!(phase, Phase::Idle | Phase::Head) {
            self.touch();
        }
        if phase == Phase::Body {
            self.waited.store(0, Relaxed);
        }
        self.phase.store(phase as u8, Relaxed);
    }

    /// The request's body has been read, or is not wanted.
    pub(super) fn body_done(&self) {
        let _ = self.phase.compare_exchange(Phase::Body as u8, Phase::Busy as u8, Relaxed, Relaxed);
    }

    /// A wait for a part of the body has ended.
    fn waited_for_body(&self, wait: Duration) {
        self.waited.fetch_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX / 2), Relaxed);
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Relaxed))
    }

    fn touch(&self) {
        let since = now().saturating_duration_since(self.start);
        self.since.store(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn since(&self) -> Instant {
        self.start + Duration::from_nanos(self.since.load(Relaxed))
    }
}

/// Since when the socket has kept somebody waiting.
#[derive(Default)]
pub(super) struct Waits {
    /// It has had nothing for whoever reads.
    read: Cell<Option<Instant>>,
    /// It has not taken what there is to write.
    write: Cell<Option<Instant>>,
}

impl Waits {
    /// Whether something is left to write that the socket does not take.
    pub(super) fn is_writing(&self) -> bool {
        self.write.get().is_some()
    }

    /// When the peer's time is over, as things stand.
    pub(super) fn deadline(&self, watch: &Watch, limits: &Limits) -> Option<Instant> {
        let reading = match watch.phase() {
            Phase::New | Phase::Head => Some(watch.since() + limits.header),
            Phase::Idle => Some(watch.since() + limits.idle),
            // Waits are added up, not the time since the body began: a handler may take its time to read.
            Phase::Body => {
                let limit = limits.stall.min(limits.body.saturating_sub(watch.waited()));
                self.read.get().map(|since| since + limit)
            }
            // It is not the peer who is waited for.
            Phase::Busy => None,
        };
        let writing = self.write.get().map(|since| since + limits.stall);
        match (reading, writing) {
            (Some(reading), Some(writing)) => Some(reading.min(writing)),
            (reading, writing) => reading.or(writing),
        }
    }
}

fn wait(since: &Cell<Option<Instant>>) {
    if since.get().is_none() {
        since.set(Some(now()));
    }
}

/// A connection's stream under watch. The limits are kept by the connection's task: hyper does not read again only because
/// a response is done.
pub(super) struct Watched<T> {
    stream: T,
    watch: Arc<Watch>,
    waits: Rc<Waits>,
}

impl<T> Watched<T> {
    pub(super) fn new(stream: T, watch: Arc<Watch>, waits: Rc<Waits>) -> Watched<T> {
        Watched { stream, watch, waits }
    }

    fn wrote<R>(&self, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_pending() {
            wait(&self.waits.write);
            return written;
        }
        self.waits.write.set(None);
        // The last of a response leaves after its body is done.
        if self.watch.phase() == Phase::Idle {
            self.watch.touch();
        }
        written
    }
}

impl<T: AsyncRead + Unpin> Read for Watched<T> {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Poll::Ready(read) = poll_read_into(Pin::new(&mut this.stream), cx, buf) else {
            if this.watch.phase() == Phase::Body {
                wait(&this.waits.read);
            }
            return Poll::Pending;
        };
        if let Some(since) = this.waits.read.take() {
            this.watch.waited_for_body(now().saturating_duration_since(since));
        }
        if matches!(this.watch.phase(), Phase::New | Phase::Idle) {
            this.watch.enter(Phase::Head);
        }
        Poll::Ready(read.map(|_| ()))
    }
}

impl<T: AsyncWrite + Unpin> Write for Watched<T> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote(written)
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        // TLS keeps what the socket did not take; a socket keeps nothing, and its flush is no news.
        if flushed.is_pending() { this.wrote(flushed) } else { flushed }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = Pin::new(&mut this.stream).poll_close(cx);
        this.wrote(closed)
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
        this.wrote(written)
    }
}
