//! POSIX's select: the one that works everywhere. Every wait hands the kernel every descriptor, and it knows only those
//! below 1,024.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{FdSetElement, FdSetIter, fd_set_insert, fd_set_num_elements, select};
use rustix::io::Errno;

use super::{Interest, Readiness, Ready, Selector, Token};
use crate::kernel::clock::timespec;

/// Descriptors from here on do not fit into the `fd_set` that POSIX knows.
pub(crate) const DESCRIPTORS_MAX: RawFd = 1024;

pub(crate) struct Select {
    /// In order, so that the highest is at the end.
    registered: BTreeMap<RawFd, (Token, Interest)>,
    read: Vec<FdSetElement>,
    write: Vec<FdSetElement>,
}

impl Select {
    pub(crate) fn new() -> Select {
        let elements = fd_set_num_elements(DESCRIPTORS_MAX as usize, DESCRIPTORS_MAX);
        let empty = vec![FdSetElement::default(); elements];
        Select { registered: BTreeMap::new(), read: empty.clone(), write: empty }
    }

    /// The sets for the next call, and the bound it asks for.
    fn fill(&mut self) -> i32 {
        self.read.fill(FdSetElement::default());
        self.write.fill(FdSetElement::default());
        for (&fd, (_, interest)) in &self.registered {
            if interest.readable {
                fd_set_insert(&mut self.read, fd);
            }
            if interest.writable {
                fd_set_insert(&mut self.write, fd);
            }
        }
        self.registered.last_key_value().map_or(0, |(&fd, _)| fd + 1)
    }

    /// A descriptor that is registered was closed by other code, and the whole call is refused for it. It is reported ready,
    /// so that its task finds out; the registration is removed, as epoll would do.
    fn drop_closed(&mut self, found: &mut Vec<Readiness>) {
        self.registered.retain(|&fd, (token, _)| {
            // SAFETY: asks about a number. Nothing is read or written, and EBADF is one of the answers.
            let open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
            if !open {
                let all = Ready::READ | Ready::READ_END | Ready::WRITE | Ready::WRITE_END;
                found.push(Readiness { token: *token, ready: Ready(all) });
            }
            open
        });
    }
}

/// The lower one of those there are.
fn lower(one: Option<&RawFd>, other: Option<&RawFd>) -> Option<RawFd> {
    one.into_iter().chain(other).min().copied()
}

fn refuse(fd: BorrowedFd<'_>) -> io::Result<()> {
    if fd.as_raw_fd() >= DESCRIPTORS_MAX {
        return Err(io::Error::other(format!(
            "the selector \"select\" cannot watch descriptor {}: it ends at {}; choose \"epoll\" \
             (Builder::selector or TIDEGATE_SELECTOR), or keep fewer descriptors open",
            fd.as_raw_fd(),
            DESCRIPTORS_MAX - 1,
        )));
    }
    Ok(())
}

impl Selector for Select {
    fn is_edge_triggered(&self) -> bool {
        false
    }

    fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        refuse(fd)?;
        rustix::io::fcntl_getfd(fd)?;
        if self.registered.contains_key(&fd.as_raw_fd()) {
            return Err(Errno::EXIST.into());
        }
        self.registered.insert(fd.as_raw_fd(), (token, interest));
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let known = self.registered.get_mut(&fd.as_raw_fd()).ok_or(Errno::NOENT)?;
        *known = (token, interest);
        Ok(())
    }

    fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.registered.remove(&fd.as_raw_fd()).map(drop).ok_or(Errno::NOENT.into())
    }

    fn wait(&mut self, timeout: Option<Duration>, found: &mut Vec<Readiness>) -> io::Result<()> {
        let bound = self.fill();
        let timeout = timeout.map(timespec);
        // SAFETY: select reads and writes the sets only, which are long enough for `bound`, a registered descriptor below
        // 1,024 plus one. It does nothing to the descriptors but ask; one that was closed is refused.
        let count = unsafe { select(bound, Some(&mut self.read), Some(&mut self.write), None, timeout.as_ref()) };
        match count {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(Errno::BADF) => {
                self.drop_closed(found);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        let (mut read, mut write) = (FdSetIter::new(&self.read).peekable(), FdSetIter::new(&self.write).peekable());
        // Both are in order; a descriptor is reported once, as epoll does.
        while let Some(fd) = lower(read.peek(), write.peek()) {
            let readable = read.next_if_eq(&fd).map_or(0, |_| Ready::READ);
            let writable = write.next_if_eq(&fd).map_or(0, |_| Ready::WRITE);
            found.push(Readiness { token: self.registered[&fd].0, ready: Ready(readable | writable) });
        }
        Ok(())
    }
}
