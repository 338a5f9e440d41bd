//! The state that a running server shares with its handles, which may be on other threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate_sync::Event;

/// A server's figures.
///
/// ```
/// # async fn example(server: tidegate_http::Server) {
/// let stats = server.handle().stats();
/// assert_eq!((stats.open, stats.requests), (0, 0));
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections open now.
    pub open: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Requests handed to the router so far.
    pub requests: u64,
    /// TLS handshakes that failed so far.
    pub handshakes_failed: u64,
    /// Connections closed so far because the peer took too long.
    pub timed_out: u64,
}

pub(super) struct ServerShared {
    stop: Event,
    accepted: AtomicU64,
    closed: AtomicU64,
    /// The value of `closed` when the server was stopped; `u64::MAX` before.
    closed_before: AtomicU64,
    requests: AtomicU64,
    handshakes_failed: AtomicU64,
    timed_out: AtomicU64,
}

impl ServerShared {
    pub(super) fn new() -> ServerShared {
        ServerShared {
            stop: Event::new(),
            accepted: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            closed_before: AtomicU64::new(u64::MAX),
            requests: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
        }
    }

    pub(super) async fn stopped(&self) {
        self.stop.wait().await;
    }

    pub(super) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    fn stop(&self) {
        let closed = self.closed.load(Relaxed);
        let _ = self.closed_before.compare_exchange(u64::MAX, closed, Relaxed, Relaxed);
        self.stop.set();
    }

    /// Connections closed since the server was stopped.
    pub(super) fn closed_since_stop(&self) -> usize {
        let since = self.closed.load(Relaxed).saturating_sub(self.closed_before.load(Relaxed));
        usize::try_from(since).unwrap_or(usize::MAX)
    }

    pub(super) fn requested(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(super) fn handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Relaxed);
    }

    pub(super) fn timed_out(&self) {
        self.timed_out.fetch_add(1, Relaxed);
    }

    pub(super) fn stats(&self) -> ServerStats {
        // `closed` is read first: each connection counted there has been counted in `accepted` before.
        let closed = self.closed.load(Relaxed);
        let accepted = self.accepted.load(Relaxed);
        ServerStats {
            open: accepted.saturating_sub(closed),
            accepted,
            requests: self.requests.load(Relaxed),
            handshakes_failed: self.handshakes_failed.load(Relaxed),
            timed_out: self.timed_out.load(Relaxed),
        }
    }
}

/// A handle to a running server; see [`Server::handle`](crate::Server::handle). Cheap to clone, for any thread.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<ServerShared>,
}

impl ServerHandle {
    pub(super) fn new(shared: Arc<ServerShared>) -> ServerHandle {
        ServerHandle { shared }
    }

    /// Stops the server as described in [`run`](crate::Server::run). A second call changes nothing.
    ///
    /// See [`serve`](crate::serve) for an example.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Whether [`stop`](Self::stop) was called.
    ///
    /// ```
    /// # async fn example(server: tidegate_http::Server) {
    /// assert!(!server.handle().is_stopping());
    /// # }
    /// ```
    pub fn is_stopping(&self) -> bool {
        self.shared.stop.is_set()
    }

    /// The server's figures.
    ///
    /// ```
    /// # async fn example(server: tidegate_http::Server) {
    /// assert_eq!(server.handle().stats().open, 0);
    /// # }
    /// ```
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("stopping", &self.is_stopping()).field("stats", &self.stats()).finish()
    }
}
