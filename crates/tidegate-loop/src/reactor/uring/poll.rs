//! Readiness through the ring, for what is not received or accepted by it: descriptors with callbacks, datagrams,
//! pipes, the bell. Polls tell of changes (one request that completes again and again) or, for as long as something is
//! ready, once a wait (a request that is made anew in the next wait).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::{opcode, types};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::core::{Core, Op};
use super::slots::{Key, Kind};
use crate::reactor::selector::{Interest, Ready, Token};

/// Owns nothing: the kernel keeps the file, and the caller of `register` keeps the descriptor until it is deregistered.
pub(super) struct PollOp {
    fd: RawFd,
    token: Token,
    mask: u32,
    /// Tells for as long as it is ready.
    level: bool,
}

/// In the bits of `poll(2)`, to which epoll's others are equal.
fn mask(interest: Interest) -> u32 {
    let mut mask = 0;
    if interest.readable {
        mask |= libc::EPOLLIN | libc::EPOLLRDHUP;
    }
    if interest.writable {
        mask |= libc::EPOLLOUT;
    }
    if interest.edge {
        mask |= libc::EPOLLPRI;
    }
    mask as u32
}

/// What the kernel's answer means to the loop. An error that polling itself met counts as one of the descriptor's: who
/// waits for it tries, and finds out.
fn ready(result: i32) -> u8 {
    const READ_END: u8 = Ready::READ | Ready::READ_END;
    const BOTH_END: u8 = READ_END | Ready::WRITE | Ready::WRITE_END;
    if result < 0 {
        return BOTH_END;
    }
    let meanings = [
        (libc::EPOLLIN, Ready::READ),
        (libc::EPOLLOUT, Ready::WRITE),
        (libc::EPOLLRDHUP, READ_END),
        (libc::EPOLLERR | libc::EPOLLHUP, BOTH_END),
        (libc::EPOLLPRI, Ready::READ | Ready::URGENT),
    ];
    meanings.into_iter().filter(|(bits, _)| result & bits != 0).fold(0, |ready, (_, meaning)| ready | meaning)
}

impl Core {
    pub(super) fn register(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        if self.used.contains_key(&raw) {
            return Err(Errno::EXIST.into());
        }
        // Asked here because the ring would answer later: files and directories are always ready, and refused by epoll.
        if matches!(FileType::from_raw_mode(fstat(fd)?.st_mode), FileType::RegularFile | FileType::Directory) {
            return Err(Errno::PERM.into());
        }
        self.watch(raw, token, interest);
        Ok(())
    }

    fn watch(&mut self, fd: RawFd, token: Token, interest: Interest) {
        let poll = PollOp { fd, token, mask: mask(interest), level: !interest.edge };
        let key = self.slots.insert(Op::Poll(poll));
        self.used.insert(fd, key);
        self.arm_poll(key);
    }

    pub(super) fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.forget_poll(fd.as_raw_fd())?;
        self.watch(fd.as_raw_fd(), token, interest);
        Ok(())
    }

    /// At once and not in the next wait: the kernel keeps the file for as long as it polls, so that a port or a
    /// connection would outlive the descriptor that is about to be closed.
    pub(super) fn deregister(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.forget_poll(fd.as_raw_fd())?;
        self.flush();
        Ok(())
    }

    fn forget_poll(&mut self, fd: RawFd) -> io::Result<()> {
        let key = *self.used.get(&fd).ok_or(Errno::NOENT)?;
        if !matches!(self.slots.get(key), Some(Op::Poll(_))) {
            return Err(Errno::NOENT.into());
        }
        self.used.remove(&fd);
        // Completions that are still to come find the slot gone.
        self.slots.remove(key);
        self.cancel(key, Kind::Poll);
        Ok(())
    }

    fn arm_poll(&mut self, key: Key) {
        let Some(Op::Poll(poll)) = self.slots.get(key) else { return };
        let entry = opcode::PollAdd::new(types::Fd(poll.fd), poll.mask).multi(!poll.level).build();
        // SAFETY: it points to nothing.
        unsafe { self.queue(&entry.user_data(key.word(Kind::Poll))) };
    }

    pub(super) fn rearm_polls(&mut self) {
        let count = self.rearm.len();
        for index in 0..count {
            // Closing waits for what ends, not for what is ready again and again.
            if !self.closed {
                self.arm_poll(self.rearm[index]);
            }
        }
        // A full submission ring makes `queue` reap, and that adds polls behind the first `count`.
        self.rearm.drain(..count);
    }

    pub(super) fn polled(&mut self, key: Key, result: i32, more: bool) {
        let Some(Op::Poll(poll)) = self.slots.get(key) else { return };
        let (token, level) = (poll.token, poll.level);
        // An edge that the kernel gave up on (it does when completions overflow) is asked for anew. A descriptor that
        // cannot be polled at all has said so, and is left alone.
        if !more && (level || result >= 0) {
            self.rearm.push(key);
        }
        // Level-triggered readiness is reported when it is read; the next wait looks again.
        if self.waiting || !level {
            self.tell(token, ready(result));
        }
    }
}
