//! Names to numbers. `getaddrinfo` blocks, so it is called on a thread of the loop's pool: this is the one place that does.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::address::ToAddrs;
use crate::threads::to_thread;

/// The addresses of a host, in the order the system prefers. Numbers are parsed without a look-up; names are
/// looked up by the system's resolver on a thread, and the loop goes on meanwhile.
///
/// # Errors
/// When the address is malformed ([`InvalidInput`](io::ErrorKind::InvalidInput)) or the name is not known.
///
/// # Cancel safety
/// Safe: dropped, a look-up that has begun ends by itself, and its result is dropped.
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
    let look_up = move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    let found = to_thread(look_up).name(format!("look up {host}")).await;
    match found.map_err(|error| io::Error::other(error.to_string()))? {
        Ok(addresses) if addresses.is_empty() => Err(not_found(host, "it has no addresses")),
        Ok(addresses) => Ok(addresses),
        Err(error) => Err(not_found(host, &error.to_string())),
    }
}

fn not_found(host: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("cannot find the address of {host:?}: {why}"))
}
