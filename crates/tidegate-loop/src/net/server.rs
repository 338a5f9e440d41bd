//! A server: accepts, starts a task per connection, and stops in order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::tcp::{TcpListener, TcpStream};
use crate::runtime::event_loop::LoopHandle;
use crate::task::{JoinHandle, Task, spawn};
use crate::time::timeout::timeout;

/// How a [`Server`] is made.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until serve is called"]
pub struct ServerBuilder {
    connections_max: usize,
}

impl ServerBuilder {
    /// How many connections are served at one time; what is over waits in the listener's backlog. No limit unless set.
    ///
    /// # Panics
    /// When it is 0.
    pub fn connections_max(mut self, connections: usize) -> Self {
        assert!(connections > 0, "a server for no connections at all");
        self.connections_max = connections;
        self
    }

    /// Starts to serve: `handler` is called with every connection, and what it returns runs in a task of its own.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn serve<H, F>(self, listener: TcpListener, mut handler: H) -> Server
    where
        H: FnMut(TcpStream, SocketAddr) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let shared = Rc::new(ServerShared {
            connections_max: self.connections_max,
            open: RefCell::default(),
            accepted: Cell::new(0),
            most: Cell::new(0),
            changed: RefCell::default(),
        });
        let address = listener.local_addr();
        let serving = shared.clone();
        let acceptor = spawn(async move {
            loop {
                poll_fn(|cx| serving.poll_room(cx.waker())).await;
                match listener.accept().await {
                    Ok((stream, peer)) => serving.start(peer, handler(stream, peer)),
                    // The listener is closed; everything else is dealt with where it accepts.
                    Err(_) => return,
                }
            }
        });
        Server { shared, acceptor, address }
    }
}

/// Serves every connection of a listener. Dropped, it stops at once: connections are cancelled.
///
/// ```
/// use tidegate_loop::{net::{Server, TcpListener, TcpStream}, run, Duration};
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let server = Server::builder().connections_max(100).serve(listener, |stream, _peer| async move {
///         let mut buffer = [0; 1024];
///         while let Ok(count @ 1..) = stream.read(&mut buffer).await {
///             if stream.write_all(&buffer[..count]).await.is_err() {
///                 break;
///             }
///         }
///     });
///     let client = TcpStream::connect(server.local_addr()?).await?;
///     client.write_all(b"hello").await?;
///     client.read_exact(&mut [0; 5]).await?;
///     drop(client);
///     let stopped = server.stop(Duration::from_secs(5)).await;
///     assert!(stopped.cancelled.is_empty());
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub struct Server {
    shared: Rc<ServerShared>,
    acceptor: JoinHandle<()>,
    address: io::Result<SocketAddr>,
}

struct ServerShared {
    connections_max: usize,
    /// By the number of the connection, so in the order they came.
    open: RefCell<BTreeMap<u64, Connection>>,
    accepted: Cell<u64>,
    most: Cell<usize>,
    /// Wakers that wait for a connection to end: the acceptor for room, `stop` for the last one.
    changed: RefCell<Vec<Waker>>,
}

struct Connection {
    peer: SocketAddr,
    /// Its task, once that is made.
    task: Option<Task>,
}

impl ServerShared {
    fn poll_room(&self, waker: &Waker) -> Poll<()> {
        if self.open.borrow().len() < self.connections_max {
            return Poll::Ready(());
        }
        self.changed.borrow_mut().push(waker.clone());
        Poll::Pending
    }

    fn poll_empty(&self, waker: &Waker) -> Poll<()> {
        if self.open.borrow().is_empty() {
            return Poll::Ready(());
        }
        self.changed.borrow_mut().push(waker.clone());
        Poll::Pending
    }

    fn start(self: &Rc<Self>, peer: SocketAddr, connection: impl Future<Output = ()> + 'static) {
        let number = self.accepted.get();
        self.accepted.set(number + 1);
        self.open.borrow_mut().insert(number, Connection { peer, task: None });
        self.most.set(self.most.get().max(self.open.borrow().len()));
        let place = ConnectionGuard { shared: self.clone(), number };
        let task = LoopHandle::current().task().name(format!("connection from {peer}")).spawn(async move {
            let _place = place;
            connection.await;
        });
        if let Some(connection) = self.open.borrow_mut().get_mut(&number) {
            connection.task = Some(task.task());
        }
    }

    /// Cancels what is left; whose they were.
    fn cancel_all(&self) -> Vec<SocketAddr> {
        let left: Vec<(SocketAddr, Option<Task>)> =
            self.open.borrow().values().map(|connection| (connection.peer, connection.task.clone())).collect();
        let cancel = |(peer, task): (SocketAddr, Option<Task>)| task.is_some_and(|task| task.cancel()).then_some(peer);
        left.into_iter().filter_map(cancel).collect()
    }
}

/// A connection's place among the open ones, for as long as its task lives.
struct ConnectionGuard {
    shared: Rc<ServerShared>,
    number: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let connection = self.shared.open.borrow_mut().remove(&self.number);
        drop(connection);
        let changed = self.shared.changed.take();
        for waker in changed {
            waker.wake();
        }
    }
}

/// How a server came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Connections that were served over its life, those cancelled included.
    pub accepted: u64,
    /// Peers whose connections were still open when patience ran out, the oldest first.
    pub cancelled: Vec<SocketAddr>,
}

/// A server's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections open now.
    pub open: usize,
    /// The most that were open at one time.
    pub open_max: usize,
    /// Connections accepted so far.
    pub accepted: u64,
}

impl Server {
    /// A server made to measure.
    pub fn builder() -> ServerBuilder {
        ServerBuilder { connections_max: usize::MAX }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the kernel could not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.address.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }

    /// Its figures.
    pub fn stats(&self) -> ServerStats {
        let shared = &self.shared;
        ServerStats { open: shared.open.borrow().len(), open_max: shared.most.get(), accepted: shared.accepted.get() }
    }

    /// Stops: no more connections, those there are have up to `patience` to end by themselves, then they are cancelled.
    /// What a cancelled one does to clean up may take as long again; after that it is left to itself.
    ///
    /// # Cancel safety
    /// Dropped half-way it stops at once, as a dropped server does.
    ///
    /// See [`Server`] for an example.
    pub async fn stop(self, patience: Duration) -> Stopped {
        self.acceptor.cancel();
        self.acceptor.task().finished().await;
        let empty = || poll_fn(|cx| self.shared.poll_empty(cx.waker()));
        let mut cancelled = Vec::new();
        if timeout(patience, empty()).await.is_err() {
            cancelled = self.shared.cancel_all();
            let _ = timeout(patience, empty()).await;
        }
        Stopped { accepted: self.shared.accepted.get(), cancelled }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.acceptor.cancel();
        self.shared.cancel_all();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
