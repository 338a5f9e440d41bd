//! What the tests share.

use std::future::Future;
use std::net::SocketAddr;

use tidegate_loop::EventLoop;
use tidegate_loop::net::{TcpListener, TcpStream};

pub(crate) fn run<F: Future + 'static>(future: F) -> F::Output {
    EventLoop::new().unwrap().run_until_complete(future).unwrap()
}

pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Both ends of a connection.
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = listener().await;
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// An address that neither accepts nor refuses: its backlog is full, and the kernel drops what comes on top.
pub(crate) struct Silent {
    pub(crate) address: SocketAddr,
    _listener: std::net::TcpListener,
    _in_line: Vec<std::net::TcpStream>,
}

impl Silent {
    pub(crate) fn new() -> Silent {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        // A backlog of 0 has room for one.
        let in_line = vec![std::net::TcpStream::connect(address).unwrap()];
        Silent { address, _listener: listener, _in_line: in_line }
    }
}

/// An address at which nothing listens.
pub(crate) fn refusing() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
