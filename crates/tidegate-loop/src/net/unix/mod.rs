//! Unix sockets: streams, listeners and datagrams, addressed by a path.

mod datagram;
mod listener;
mod stream;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType};

pub use datagram::UnixDatagram;
pub use listener::UnixListener;
pub use stream::UnixStream;

use super::error::AddressError;
use super::socket::FLAGS;

fn new_socket(kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None)?)
}

fn path_address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("the path is no socket's: {error}")))
}

fn wrap(tried: &'static str, path: &Path, error: io::Error) -> io::Error {
    AddressError::wrap(tried, path.display(), error)
}

/// The standard library's form of an address. One that has no name is unnamed there, too.
fn address(address: Option<SocketAddrAny>) -> io::Result<SocketAddr> {
    let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
    match &address {
        Some(address) if address.path().is_some() => {
            let path = address.path_bytes().expect("it has a path");
            SocketAddr::from_pathname(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
        }
        Some(address) => SocketAddr::from_abstract_name(address.abstract_name().unwrap_or_default()),
        None => SocketAddr::from_pathname(""),
    }
}

fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    address(Some(rustix::net::getsockname(fd)?))
}
