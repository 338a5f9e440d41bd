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
use tidegate_loop::{Task, sleep, spawn};
use tidegate_sync::{OwnedPermit, Semaphore};

pub use connect_info::{ConnectInfo, NoConnectInfo};
pub use shared::{ServerHandle, ServerStats};

use crate::limit::{now, until};
use connection::{Connection, LAST_LOOK};
use shared::Shared;
use watch::Limits;

/// After running out of descriptors, how long until the next try, unless a connection ends before.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `router` on `listener`: configure what is returned, then [`run`](Server::run) it.
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
        limits: Limits {
            header: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(60),
            body: Duration::from_secs(600),
        },
        connections: 10_000,
        grace: Duration::from_secs(10),
        shared: Arc::new(Shared::new()),
    }
}

/// A server that is not running yet; see [`serve`].
#[must_use = "a server does nothing until run() is awaited"]
pub struct Server {
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<ServerConfig>>,
    limits: Limits,
    connections: usize,
    grace: Duration,
    shared: Arc<Shared>,
}

/// How a server ended.
///
/// See [`serve`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Connections accepted, all in all.
    pub accepted: u64,
    /// Requests handed to the router, all in all.
    pub requests: u64,
    /// Connections that were still open when the server was told to stop, and ended by themselves.
    pub finished: usize,
    /// Connections that were cut because the grace was over.
    pub cut: usize,
    /// From the word to the end.
    pub took: Duration,
}

impl Server {
    /// Speaks TLS; see [`server_config`](crate::server_config).
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

    /// How many connections there may be at once; more wait in the listener's backlog. 10,000 unless set.
    ///
    /// # Panics
    /// When it is 0.
    ///
    /// ```
    /// # async fn example(listener: tidegate_loop::net::TcpListener, router: axum::Router) {
    /// let server = tidegate_http::serve(listener, router).connections(100);
    /// # }
    /// ```
    pub fn connections(mut self, limit: usize) -> Self {
        assert!(limit > 0, "a server without connections could serve nobody");
        self.connections = limit;
        self
    }

    /// How long a request's head may take, from its first byte, or from accepting the connection, to its last; the TLS
    /// handshake may take as long. 30 seconds unless set.
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

    /// How long a connection is kept between requests. 75 seconds unless set.
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

    /// How long a peer may send nothing while its body is waited for, or read nothing while there is something to write.
    /// 60 seconds unless set. A handler may take as long as it likes.
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

    /// How long a peer may keep the server waiting for one request's body, all waits together. 10 minutes unless set. It
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

    /// How long requests may take to finish once the server is told to stop. 10 seconds unless set.
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

    /// The way to stop it and to look at it while it runs, from any thread.
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

    /// Serves until [`ServerHandle::stop`] is called. Then nothing more is accepted but what waits in the backlog; idle
    /// connections are closed, requests under way are finished, and what is left after the [grace](Self::grace) is cut.
    ///
    /// A panic in a handler ends its connection and is reported by the loop; the server goes on. Out of descriptors it
    /// waits for one to become free.
    ///
    /// # Errors
    /// When the listener fails for another reason.
    ///
    /// # Cancel safety
    /// Dropped, the listener and all connections are closed at once.
    ///
    /// See [`serve`] for an example.
    pub async fn run(self) -> io::Result<Stopped> {
        let Server { listener, router, tls, limits, connections, grace, shared } = self;
        let acceptor = tls.map(TlsAcceptor::from);
        let gate = Arc::new(Semaphore::new(connections));
        let crowd = Crowd::default();
        let admit = |stream: TcpStream, peer: SocketAddr, permit: OwnedPermit| {
            let connection = Connection {
                stream,
                peer,
                acceptor: acceptor.clone(),
                limits,
                router: router.clone(),
                shared: shared.clone(),
            };
            crowd.spawn(connection.serve(), permit);
            shared.accepted();
        };
        let accepting = async {
            loop {
                let permit = gate.clone().acquire_owned().await.expect("the gate is never closed");
                match listener.accept().await {
                    Ok((stream, peer)) => admit(stream, peer, permit),
                    Err(error) if is_out_of_descriptors(&error) => {
                        drop(permit);
                        log::warn!("no more connections for now: {error}");
                        until(Some(now() + ACCEPT_AGAIN), pin!(crowd.one_leaves())).await;
                    }
                    Err(error) => return error,
                }
            }
        };
        if let Some(error) = unless(shared.stopped(), accepting).await {
            return Err(error);
        }

        let told = now();
        // Whoever is in the backlog has been accepted as far as he can tell. A ring has to be asked before it answers, so
        // they are looked for twice.
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
        until(Some(told + grace), pin!(crowd.all_leave())).await;
        let (finished, cut) = (shared.closed_since_stop(), crowd.len());
        crowd.cut();
        crowd.all_leave().await;
        let stats = shared.stats();
        let (accepted, requests) = (stats.accepted, stats.requests);
        Ok(Stopped { accepted, requests, finished, cut, took: now() - told })
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

fn is_out_of_descriptors(error: &io::Error) -> bool {
    // ENFILE, EMFILE, ENOBUFS, ENOMEM: of a loop on Linux.
    matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}

/// `future`'s output, or `None` once `end` is reached.
async fn unless<F: Future>(end: impl Future, future: F) -> Option<F::Output> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    poll_fn(|cx| {
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// The connections' tasks. Dropped, all of them are cancelled.
#[derive(Default)]
struct Crowd {
    inner: Rc<CrowdInner>,
}

#[derive(Default)]
struct CrowdInner {
    tasks: RefCell<HashMap<u64, Task>>,
    next: std::cell::Cell<u64>,
    left: tidegate_sync::Event,
}

impl Crowd {
    fn spawn(&self, connection: impl Future<Output = ()> + 'static, permit: OwnedPermit) {
        let id = self.inner.next.get();
        self.inner.next.set(id + 1);
        let place = Place { crowd: self.inner.clone(), id, permit: Some(permit) };
        let task = spawn(async move {
            let _place = place;
            connection.await;
        })
        .task();
        self.inner.tasks.borrow_mut().insert(id, task);
    }

    fn len(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    async fn one_leaves(&self) {
        self.inner.left.wait().await;
    }

    async fn all_leave(&self) {
        while self.len() > 0 {
            self.one_leaves().await;
        }
    }

    fn cut(&self) {
        let tasks: Vec<Task> = self.inner.tasks.borrow().values().cloned().collect();
        for task in tasks {
            task.cancel();
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.cut();
    }
}

/// A connection's place among the others, given up when its task ends, however it ends.
struct Place {
    crowd: Rc<CrowdInner>,
    id: u64,
    permit: Option<OwnedPermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let task = self.crowd.tasks.borrow_mut().remove(&self.id);
        drop(task);
        self.permit = None;
        self.crowd.left.notify_all();
    }
}
