//! What a task waits for at a descriptor, in words: for dumps, which may take their time.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::rc::Rc;

use rustix::net::{SocketAddrAny, SocketAddrUnix, SocketType};

use super::source::{Direction, SharedSource};
use crate::mailbox::name::Name;

/// Which task waits at which descriptor: collected once per dump, so that a dump is linear in tasks and descriptors.
#[derive(Default)]
pub(crate) struct Waits {
    by_task: HashMap<Name, (Rc<SharedSource>, Direction)>,
}

impl Waits {
    pub(super) fn add(&mut self, source: &Rc<SharedSource>) {
        source.each_waiting(|task, direction| {
            self.by_task.entry(task).or_insert_with(|| (source.clone(), direction));
        });
    }

    /// What the task waits for, if it waits at a descriptor.
    pub(crate) fn describe(&self, task: Name) -> Option<String> {
        self.by_task.get(&task).map(|(source, direction)| wait(source.fd(), *direction))
    }
}

/// Such as `something to read from TCP 127.0.0.1:443 (descriptor 7)`.
fn wait(fd: BorrowedFd<'_>, direction: Direction) -> String {
    let what = match socket(fd) {
        Some(Socket::Listener(address)) => return format!("a connection to {address} (descriptor {})", fd.as_raw_fd()),
        Some(Socket::Peer(address)) => address,
        None => match kind(fd).as_deref() {
            Some("anon_inode:[pidfd]") => return format!("a child process to end (descriptor {})", fd.as_raw_fd()),
            Some(kind) if kind.starts_with("pipe:") => "a pipe".to_owned(),
            Some(kind) => kind.to_owned(),
            None => return format!("descriptor {}", fd.as_raw_fd()),
        },
    };
    let to = match direction {
        Direction::Read => "something to read from",
        Direction::Write => "room to write to",
    };
    format!("{to} {what} (descriptor {})", fd.as_raw_fd())
}

enum Socket {
    Listener(String),
    Peer(String),
}

/// What kind of socket this is and its peer's address, if it is a socket.
fn socket(fd: BorrowedFd<'_>) -> Option<Socket> {
    let own = rustix::net::getsockname(fd).ok()?;
    let stream = rustix::net::sockopt::socket_type(fd).ok()? == SocketType::STREAM;
    if rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false) {
        return Some(Socket::Listener(address(&own, stream)));
    }
    let peer = rustix::net::getpeername(fd).ok().flatten();
    Some(Socket::Peer(address(&peer.unwrap_or(own), stream)))
}

fn address(address: &SocketAddrAny, stream: bool) -> String {
    if let Ok(address) = std::net::SocketAddr::try_from(address.clone()) {
        return format!("{} {address}", if stream { "TCP" } else { "UDP" });
    }
    match SocketAddrUnix::try_from(address.clone()).ok().and_then(|address| Some(address.path()?.into_owned())) {
        Some(path) => format!("Unix socket {}", path.to_string_lossy()),
        None => "a Unix socket".to_owned(),
    }
}

/// The kernel's word for a descriptor that is no socket: a path, or what it was made by.
fn kind(fd: BorrowedFd<'_>) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(link.to_string_lossy().into_owned())
}
