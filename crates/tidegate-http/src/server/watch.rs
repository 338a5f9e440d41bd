//! The time-outs of a served connection. hyper has one for a request's head only, with a timer per request. Here a
//! connection records its phase as it changes, and one timer per connection, seldom armed, checks it.

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

use crate::deadline::now;
use crate::rt::poll_read_into;

#[derive(Debug, Clone, Copy)]
pub(super) struct ServerLimits {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
    /// For all waits for parts of one request's body together.
    pub(super) body: Duration,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum WatchPhase {
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

const PHASES: [WatchPhase; 5] =
    [WatchPhase::New, WatchPhase::Idle, WatchPhase::Head, WatchPhase::Body, WatchPhase::Busy];

/// A connection's phase. Atomic, because a handler may send a body, which changes the phase, to another thread. Only the
/// connection's own task acts on it.
pub(super) struct Watch {
    phase: AtomicU8,
    start: Instant,
    /// When the phase began, in nanoseconds since `start`. Set in the phases whose limit counts from there.
    since: AtomicU64,
    /// How long the server has waited for parts of the current body, in nanoseconds, without a wait that has not ended.
    /// Reset when a body begins.
    waited: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> Arc<Watch> {
        Arc::new(Watch {
            phase: AtomicU8::new(WatchPhase::New as u8),
            start: now(),
            since: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        })
    }

    pub(super) fn phase(&self) -> WatchPhase {
        PHASES[usize::from(self.phase.load(Relaxed))]
    }

    pub(super) fn enter(&self, phase: WatchPhase) {
        if matches!(phase, WatchPhase::Idle | WatchPhase::Head) {
            self.touch();
        }
        if phase == WatchPhase::Body {
            self.waited.store(0, Relaxed);
        }
        self.phase.store(phase as u8, Relaxed);
    }

    /// The request's body has been read, or was dropped.
    pub(super) fn body_done(&self) {
        let _ = self.phase.compare_exchange(WatchPhase::Body as u8, WatchPhase::Busy as u8, Relaxed, Relaxed);
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

/// Since when the connection has waited for its socket.
#[derive(Default)]
pub(super) struct WatchWaits {
    /// Since when a read has been pending.
    read: Cell<Option<Instant>>,
    /// Since when a write has been pending.
    write: Cell<Option<Instant>>,
}

impl WatchWaits {
    /// Whether a write is pending.
    pub(super) fn is_writing(&self) -> bool {
        self.write.get().is_some()
    }

    /// Returns when the current wait for the peer times out, or `None` without a limit.
    pub(super) fn deadline(&self, watch: &Watch, limits: &ServerLimits) -> Option<Instant> {
        let reading = match watch.phase() {
            WatchPhase::New | WatchPhase::Head => Some(watch.since() + limits.header),
            WatchPhase::Idle => Some(watch.since() + limits.idle),
            // Waits are added up, not the time since the body began: a handler may take its time to read.
            WatchPhase::Body => {
                let limit = limits.stall.min(limits.body.saturating_sub(watch.waited()));
                self.read.get().map(|since| since + limit)
            }
            // The connection waits for the handler, not for the peer.
            WatchPhase::Busy => None,
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

/// A connection's stream, which records phases and waits. The connection's task enforces the limits, because hyper does
/// not poll the stream just because a response is done.
pub(super) struct WatchedStream<T> {
    stream: T,
    watch: Arc<Watch>,
    waits: Rc<WatchWaits>,
}

impl<T> WatchedStream<T> {
    pub(super) fn new(stream: T, watch: Arc<Watch>, waits: Rc<WatchWaits>) -> WatchedStream<T> {
        WatchedStream { stream, watch, waits }
    }

    fn wrote<R>(&self, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_pending() {
            wait(&self.waits.write);
            return written;
        }
        self.waits.write.set(None);
        // The last bytes of a response are written after its body has been dropped.
        if self.watch.phase() == WatchPhase::Idle {
            self.watch.touch();
        }
        written
    }
}

impl<T: AsyncRead + Unpin> Read for WatchedStream<T> {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Poll::Ready(read) = poll_read_into(Pin::new(&mut this.stream), cx, buf) else {
            if this.watch.phase() == WatchPhase::Body {
                wait(&this.waits.read);
            }
            return Poll::Pending;
        };
        if let Some(since) = this.waits.read.take() {
            this.watch.waited_for_body(now().saturating_duration_since(since));
        }
        if matches!(this.watch.phase(), WatchPhase::New | WatchPhase::Idle) {
            this.watch.enter(WatchPhase::Head);
        }
        Poll::Ready(read.map(|_| ()))
    }
}

impl<T: AsyncWrite + Unpin> Write for WatchedStream<T> {
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
        // A TLS stream buffers what the socket does not accept. A socket buffers nothing, so a flush that is ready does not
        // mean that bytes were written.
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
