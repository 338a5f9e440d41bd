//! Names to numbers. `getaddrinfo` blocks, so it is called on a thread: this is the one place that does.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::address::ToAddrs;

/// The addresses of a host, in the order the system prefers. Numbers are understood without asking anybody; names are
/// looked up by the system's resolver on a thread, and the loop goes on meanwhile.
///
/// # Errors
/// When the address is malformed ([`InvalidInput`](io::ErrorKind::InvalidInput)) or the name is not known.
///
/// # Cancel safety
/// Safe: dropped, the look-up ends by itself and nobody hears of it.
///
/// ```
/// use tidegate_loop::{net::lookup_host, run};
/// let addresses = run(async { lookup_host("localhost:80").await }).unwrap().unwrap();
/// assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
/// ```
pub async fn lookup_host(host: impl ToAddrs) -> io::Result<Vec<SocketAddr>> {
    host.target().resolve().await
}

pub(super) async fn by_name(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = host.to_owned();
    let found = off_loop(move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter)).await;
    match found {
        Ok(addresses) if addresses.is_empty() => Err(not_found(host, "it has no addresses")),
        Ok(addresses) => Ok(addresses),
        Err(error) => Err(not_found(host, &error.to_string())),
    }
}

fn not_found(host: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("cannot find the address of {host:?}: {why}"))
}

/// Runs what blocks on a thread of its own.
async fn off_loop<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};
    enum State<T> {
        Waiting(Option<Waker>),
        Done(Option<T>),
    }
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    let shared = state.clone();
    std::thread::spawn(move || {
        let output = job();
        let before = std::mem::replace(&mut *shared.lock().unwrap(), State::Done(Some(output)));
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    });
    std::future::poll_fn(move |cx| match &mut *state.lock().unwrap() {
        State::Waiting(waker) => {
            *waker = Some(cx.waker().clone());
            Poll::Pending
        }
        State::Done(output) => Poll::Ready(output.take().expect("polled once after it is done")),
    })
    .await
}
