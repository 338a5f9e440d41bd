//! A connected socket on the ring: its two directions (`receive.rs`, `send.rs`), and how it ends. A stream that is
//! dropped stays behind as an orphan until the kernel has let go of its descriptor and its memory.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::rc::Rc;

use io_uring::types;
use rustix::net::{Shutdown, sockopt};

use super::Ring;
use super::core::{Core, Op, Owner};
use super::receive::Receiving;
use super::send::Sending;
use super::slots::{Key, Kind};
use crate::reactor::selector::Token;

pub(super) struct StreamOp {
    pub(super) owner: Owner,
    pub(super) token: Token,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// The handle is gone: what was written is still sent, and then the stream ends.
    pub(super) orphan: bool,
}

impl StreamOp {
    pub(super) fn fd(&self) -> types::Fd {
        types::Fd(self.owner.as_fd().as_raw_fd())
    }
}

/// How long the peer of an orphan may take to make room for what is left to send.
const ORPHAN_MS_MAX: u32 = 60_000;

impl Core {
    /// The handle is gone. What it wrote is handed over at once and the rest cancelled, so that mostly the descriptor is
    /// closed when this returns, as one that is closed is.
    fn orphan_stream(&mut self, key: Key) {
        let Some((stream, buffers)) = self.stream_and_buffers(key) else { return };
        stream.receiving.discard(buffers);
        stream.orphan = true;
        if stream.sending.is_stuck() {
            // The kernel times out on what it has taken; what it has not taken yet has to time out here, and with this option
            // it does. Refused for a socket that is not TCP's, which has no such peers.
            let _ = sockopt::set_tcp_user_timeout(stream.owner.as_fd(), ORPHAN_MS_MAX);
        }
        let fd = stream.owner.as_fd().as_raw_fd();
        let cancels = stream.receiving.armed && !stream.receiving.stopping;
        let idle = !stream.receiving.armed && stream.sending.is_idle();
        stream.receiving.stopping |= cancels;
        self.disown(fd, key);
        if cancels {
            self.cancel(key, Kind::Receive);
        }
        if idle {
            self.bury(key);
        } else {
            self.flush();
        }
    }

    /// Ends an orphan that the kernel has let go of.
    pub(super) fn end_orphan(&mut self, key: Key) {
        if let Some(Op::Stream(stream)) = self.slots.get(key)
            && stream.orphan
            && !stream.receiving.armed
            && stream.sending.is_idle()
        {
            self.bury(key);
        }
    }
}

/// A connected stream socket. Its token is reported ready when trying again is worth it. Nothing waits here.
pub(crate) struct Stream {
    ring: Rc<Ring>,
    pub(super) key: Key,
}

impl Stream {
    pub(crate) fn new(ring: &Rc<Ring>, owner: Owner, token: Token) -> Stream {
        let (receiving, sending) = (Receiving::default(), Sending::default());
        let stream = StreamOp { owner, token, receiving, sending, orphan: false };
        let fd = stream.owner.as_fd().as_raw_fd();
        let key = ring.core.borrow_mut().adopt(fd, Op::Stream(Box::new(stream)));
        Stream { ring: ring.clone(), key }
    }

    /// Copies what has arrived; 0 is the end, `AGAIN` nothing yet.
    #[inline]
    pub(crate) fn recv(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        self.ring.core.borrow_mut().receive(self.key, into, true)
    }

    pub(crate) fn recv_vectored(&self, into: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let mut core = self.ring.core.borrow_mut();
        let mut total = 0;
        for slice in into.iter_mut().filter(|slice| !slice.is_empty()) {
            // An error is returned once, so it is not fetched while there is something else to return.
            if total > 0 && core.parked(self.key) == 0 {
                break;
            }
            total += core.receive(self.key, slice, true)?;
        }
        Ok(total)
    }

    /// Copies what has arrived and leaves it there.
    pub(crate) fn peek(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        self.ring.core.borrow_mut().receive(self.key, into, false)
    }

    /// Takes on what there is room for, `AGAIN` if there is none. It goes out with the loop's next call of the kernel;
    /// what fails then is returned by the next write.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        self.ring.core.borrow_mut().gather(self.key, [bytes].into_iter())
    }

    pub(crate) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        self.ring.core.borrow_mut().gather(self.key, slices.iter().map(|slice| &**slice))
    }

    /// Shuts down the writing side, or both, behind everything that was written.
    pub(crate) fn shutdown(&self, how: Shutdown) -> rustix::io::Result<()> {
        self.ring.core.borrow_mut().shut_down(self.key, how)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ring.core.borrow_mut().orphan_stream(self.key);
        self.ring.drop_gone();
    }
}
