//! Shared by the tests: loops, tidegate's servers, peers that follow a script, streams.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use bytes::Bytes;
use futures_core::Stream;
use tidegate_http::{Client, ClientBuilder, Proxies, Server, ServerHandle, serve};
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, JoinHandle, LoopHandle, spawn, yield_now};

/// Runs a test on a loop in real time.
pub(crate) fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    tidegate_loop::run(test).unwrap()
}

/// Runs a test on a loop whose clock stands still until it is moved: time-outs come when the test says so, never because
/// the machine is slow.
pub(crate) fn with_still_clock<F: Future + 'static>(test: F) -> F::Output {
    let event_loop = EventLoop::builder().manual_clock().build().unwrap();
    // A loop in virtual time gives up when nothing is ready; bytes on their way through the kernel are not ready yet.
    event_loop.spawn(until(|| false));
    event_loop.run_until_complete(test).unwrap()
}

pub(crate) fn advance(seconds: u64) {
    LoopHandle::current().advance(std::time::Duration::from_secs(seconds));
}

/// Gives others turns until `done` says so.
pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        yield_now().await;
    }
}

/// A client that no proxy of the machine's can confuse.
pub(crate) fn plain() -> ClientBuilder {
    Client::builder().proxies(Proxies::none())
}

pub(crate) fn client() -> Client {
    plain().build().unwrap()
}

pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) handle: ServerHandle,
    pub(crate) task: JoinHandle<std::io::Result<tidegate_http::Stopped>>,
}

/// Serves `router` on a free port.
pub(crate) async fn running(router: Router) -> Running {
    running_with(router, |server| server).await
}

pub(crate) async fn running_with(router: Router, configure: impl FnOnce(Server) -> Server) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = configure(serve(listener, router));
    let handle = server.handle();
    Running { url: format!("http://{address}"), address, handle, task: spawn(server.run()) }
}

/// A peer that treats each connection as `talk` says; the connection's number comes with it.
pub(crate) async fn scripted<F, T>(talk: F) -> SocketAddr
where
    F: Fn(usize, TcpStream) -> T + 'static,
    T: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            spawn(talk(number, stream));
        }
    });
    address
}

/// Reads up to an empty line; what there is when the peer closes before.
pub(crate) async fn read_head(stream: &TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads until the peer closes.
pub(crate) async fn read_to_end(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
        }
    }
}

pub(crate) fn answer(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A stream of what `next` makes.
pub(crate) struct Pieces<F>(pub(crate) F);

impl<F: FnMut() -> Option<Bytes> + Unpin> Stream for Pieces<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready((self.0)().map(Ok))
    }
}

pub(crate) fn pieces(list: &[&'static str]) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let mut list: VecDeque<Bytes> = list.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
    Pieces(move || list.pop_front())
}
