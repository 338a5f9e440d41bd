//! axum's `Router` on the loop: accepting, limits, and stopping in order.

mod connect_info;
mod connection;
mod shared;
mod watch;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use futures_rustls::TlsAcceptor;
use rustls::ServerConfig;
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{Task, race, sleep, spawn};
use tidegate_sync::{OwnedPermit, Semaphore};

pub use connect_info::{ConnectInfo, NoConnectInfo};
pub use shared::{ServerHandle, ServerStats};

use crate::deadline::{now, until};
use connection::{Connection, LAST_LOOK};
use shared::ServerShared;
use watch::ServerLimits;

/// Serves `router` on `listener`: configure the returned server, then [`run`](Server::run) it.
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_http::{Client, serve};
/// use tidegate_loop::{net::TcpListener, run, spawn};
///
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
///     let url = format!("http://{}/", listener.local_addr().unwrap());
///     let server = serve(listener, Router::new().route("/", get(|| async { "hello" })));
///     let handle = server.handle();
///     let running = spawn(server.run());
///
///     let response = Client::new().get(&url).await.unwrap();
///     assert_eq!(response.into_body().text().await.unwrap(), "hello");
///
///     handle.stop();
///     let stopped = running.await.unwrap().unwrap();
///     assert_eq!((stopped.requests, stopped.cut), (1, 0));
/// })
/// .unwrap();
/// ```
pub fn serve(listener: TcpListener, router: Router) -> Server {
    Server {
        listener,
        router,
        tls: None,
        limits: ServerLimits {
            header: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(60),
            body: Duration::from_secs(600),
        },
        connections: 10_000,
        grace: Duration::from_secs(10),
        shared: Arc::new(ServerShared::new()),
    }
}

/// A server that is not running yet; see [`serve`].
#[must_use = "a server does nothing until run() is awaited"]
pub struct Server {
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<ServerConfig>>,
    limits: ServerLimits,
    connections: usize,
    grace: Duration,
    shared: Arc<ServerShared>,
}

/// The result of [`Server::run`] after a stop.
///
/// See [`serve`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Connections accepted in total.
    pub accepted: u64,
    /// Requests passed to the router in total.
    pub requests: u64,
    /// Connections that were open when the server was stopped, and ended within the grace.
    pub finished: usize,
    /// Connections that were cut because the grace was over.
    pub cut: usize,
    /// Time from the stop to the end.
    pub took: Duration,
}

impl Server {
    /// Serves TLS; see [`server_config`](crate::server_config).
    ///
    /// ```no_run
    /// # use tidegate_http::{serve, server_config};
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = serve(listener, router).tls(server_config("cert.pem", "key.pem").unwrap());
    /// # }
    /// ```
    pub fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// The largest number of open connections; more wait in the listener's backlog. Default: 10,000.
    ///
    /// # Panics
    /// If `limit` is 0.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).connections(100);
    /// # }
    /// ```
    pub fn connections(mut self, limit: usize) -> Self {
        assert!(limit > 0, "the limit on connections must be at least 1");
        self.connections = limit;
        self
    }

    /// How long a request's head may take: from its first byte, or from the accepting of the connection, to its last byte.
    /// Also limits the TLS handshake. Default: 30 seconds.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).header_timeout(std::time::Duration::from_secs(5));
    /// # }
    /// ```
    pub fn header_timeout(mut self, limit: Duration) -> Self {
        self.limits.header = limit;
        self
    }

    /// How long a connection is kept between requests. Default: 75 seconds.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).idle_timeout(std::time::Duration::from_secs(5));
    /// # }
    /// ```
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.limits.idle = limit;
        self
    }

    /// How long a peer may send nothing of a body that the server waits for, or read nothing of a response. Default: 60
    /// seconds. The time that a handler takes is not limited.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).stall_timeout(std::time::Duration::from_secs(5));
    /// # }
    /// ```
    pub fn stall_timeout(mut self, limit: Duration) -> Self {
        self.limits.stall = limit;
        self
    }

    /// How long a peer may keep the server waiting for one request's body, all waits together. Default: 10 minutes. This
    /// bounds a body that comes byte by byte; the time that a handler takes to read it does not count.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).body_timeout(std::time::Duration::from_secs(30));
    /// # }
    /// ```
    pub fn body_timeout(mut self, limit: Duration) -> Self {
        self.limits.body = limit;
        self
    }

    /// How long requests may take to finish once the server is stopped. Default: 10 seconds.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).grace(std::time::Duration::from_secs(1));
    /// # }
    /// ```
    pub fn grace(mut self, limit: Duration) -> Self {
        self.grace = limit;
        self
    }

    /// Returns a handle that stops the server and reads its figures, from any thread.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router);
    /// let handle = server.handle();
    /// std::thread::spawn(move || handle.stop());
    /// server.run().await.unwrap();
    /// # }
    /// ```
    pub fn handle(&self) -> ServerHandle {
        ServerHandle::new(self.shared.clone())
    }

    /// Serves until [`ServerHandle::stop`] is called. Then the connections in the backlog are accepted and no others; idle
    /// connections are closed, requests in flight are finished, and connections that are still open after the
    /// [grace](Self::grace) are cut.
    ///
    /// A panic in a handler ends its connection and is reported by the loop; the server goes on. When the process is out of
    /// descriptors, the listener waits until one is free.
    ///
    /// # Errors
    /// If the listener fails for another reason.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener and all connections at once.
    ///
    /// See [`serve`] for an example.
    pub async fn run(self) -> io::Result<Stopped> {
        let Server { listener, router, tls, limits, connections, grace, shared } = self;
        let acceptor = tls.map(TlsAcceptor::from);
        let gate = Arc::new(Semaphore::new(connections));
        let open = Connections::default();
        let admit = |stream: TcpStream, peer: SocketAddr, permit: OwnedPermit| {
            let connection = Connection {
                stream,
                peer,
                acceptor: acceptor.clone(),
                limits,
                router: router.clone(),
                shared: shared.clone(),
            };
            open.spawn(connection.serve(), permit);
            shared.accepted();
        };
        let accepting = async {
            loop {
                let permit = gate.clone().acquire_owned().await.expect("the gate is never closed");
                match listener.accept().await {
                    Ok((stream, peer)) => admit(stream, peer, permit),
                    Err(error) => return error,
                }
            }
        };
        if let Some(error) = race(shared.stopped(), accepting).await.right() {
            return Err(error);
        }

        let stopped_at = now();
        // To their peers, the connections in the backlog look accepted, so they are served. With io_uring the first poll
        // only submits the request, so there are two rounds.
        for _ in 0..2 {
            poll_fn(|cx| {
                while let Ok(permit) = gate.try_acquire_owned() {
                    match listener.poll_accept(cx) {
                        Poll::Ready(Ok((stream, peer))) => admit(stream, peer, permit),
                        _ => break,
                    }
                }
                Poll::Ready(())
            })
            .await;
            sleep(LAST_LOOK).await;
        }
        drop(listener);
        until(Some(stopped_at + grace), pin!(open.all_end())).await;
        let (finished, cut) = (shared.closed_since_stop(), open.len());
        open.cut();
        open.all_end().await;
        let stats = shared.stats();
        let (accepted, requests) = (stats.accepted, stats.requests);
        Ok(Stopped { accepted, requests, finished, cut, took: now() - stopped_at })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listener", &self.listener)
            .field("tls", &self.tls.is_some())
            .field("limits", &self.limits)
            .field("connections", &self.connections)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// The tasks of the open connections. Dropping this cancels them.
#[derive(Default)]
struct Connections {
    inner: Rc<ConnectionsInner>,
}

#[derive(Default)]
struct ConnectionsInner {
    tasks: RefCell<HashMap<u64, Task>>,
    next: std::cell::Cell<u64>,
    /// Notified whenever a connection ends.
    ended: tidegate_sync::Event,
}

impl Connections {
    fn spawn(&self, connection: impl Future<Output = ()> + 'static, permit: OwnedPermit) {
        let id = self.inner.next.get();
        self.inner.next.set(id + 1);
        let entry = ConnectionEntry { open: self.inner.clone(), id, permit: Some(permit) };
        let task = spawn(async move {
            let _entry = entry;
            connection.await;
        })
        .task();
        self.inner.tasks.borrow_mut().insert(id, task);
    }

    fn len(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    async fn all_end(&self) {
        while self.len() > 0 {
            self.inner.ended.wait().await;
        }
    }

    fn cut(&self) {
        let tasks: Vec<Task> = self.inner.tasks.borrow().values().cloned().collect();
        for task in tasks {
            task.cancel();
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.cut();
    }
}

/// A connection's entry in [`Connections`], removed when its task ends, however it ends.
struct ConnectionEntry {
    open: Rc<ConnectionsInner>,
    id: u64,
    permit: Option<OwnedPermit>,
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let task = self.open.tasks.borrow_mut().remove(&self.id);
        drop(task);
        self.permit = None;
        self.open.ended.notify_all();
    }
}
