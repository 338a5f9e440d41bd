//! Listening through the ring: one request accepts connections until it is cancelled. They are parked here until
//! a task accepts them; past a limit the request is withdrawn, and the rest stay in the kernel's backlog.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, types};
use rustix::io::Errno;

use super::Ring;
use super::core::{Core, Op, Owner, outcome};
use super::slots::{Key, Kind};
use crate::reactor::selector::{Ready, Token};

/// More parked connections than this, and no more are accepted for the time being.
const PARKED_MAX: usize = 256;

pub(super) struct ListenerOp {
    owner: Owner,
    token: Token,
    parked: VecDeque<OwnedFd>,
    /// The last error of accepting, for the next call. It is not tried again before that.
    error: Option<Errno>,
    armed: bool,
    stopping: bool,
    /// The handle is gone: ends with the request's last completion.
    orphan: bool,
}

impl ListenerOp {
    pub(super) fn into_owner(self) -> Owner {
        self.owner
    }
}

impl Core {
    fn arm_accept(&mut self, key: Key) {
        let Some(Op::Listener(listener)) = self.slots.get(key) else { return };
        listener.armed = true;
        let entry = opcode::AcceptMulti::new(types::Fd(listener.owner.as_fd().as_raw_fd()))
            .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
            .build();
        self.in_flight += 1;
        // SAFETY: it points to nothing (no address is asked for).
        unsafe { self.queue(&entry.user_data(key.word(Kind::Accept))) };
    }

    pub(super) fn accepted(&mut self, key: Key, result: i32, more: bool) {
        // SAFETY: the kernel made this descriptor for us, and tells of it once.
        let accepted = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(Op::Listener(listener)) = self.slots.get(key) else { return };
        if !more {
            listener.armed = false;
            listener.stopping = false;
            self.in_flight -= 1;
        }
        if listener.orphan {
            if !more {
                self.bury(key);
            }
            return;
        }
        match outcome(result) {
            Ok(_) => listener.parked.extend(accepted),
            Err(Errno::CANCELED | Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => {}
            Err(error) => listener.error = Some(error),
        }
        let cancels = listener.parked.len() > PARKED_MAX && listener.armed && !listener.stopping;
        listener.stopping |= cancels;
        let arms = !listener.armed && listener.error.is_none() && listener.parked.len() <= PARKED_MAX;
        if !listener.parked.is_empty() || listener.error.is_some() {
            let token = listener.token;
            self.tell(token, Ready::READ);
        }
        if cancels {
            self.cancel(key, Kind::Accept);
        } else if arms && !self.closed {
            self.arm_accept(key);
        }
    }

    fn accept(&mut self, key: Key) -> rustix::io::Result<OwnedFd> {
        let is_closed = self.closed;
        let Some(Op::Listener(listener)) = self.slots.get(key) else { return Err(Errno::BADF) };
        let accepted = listener.parked.pop_front();
        if accepted.is_none()
            && let Some(error) = listener.error.take()
        {
            return Err(error);
        }
        if !listener.armed && listener.error.is_none() && listener.parked.len() <= PARKED_MAX / 2 && !is_closed {
            self.arm_accept(key);
        }
        accepted.ok_or(Errno::AGAIN)
    }

    /// At once, so that the port is free when the handle is gone; what was accepted and not asked for is closed.
    fn orphan_listener(&mut self, key: Key) {
        let Some(Op::Listener(listener)) = self.slots.get(key) else { return };
        let (fd, armed) = (listener.owner.as_fd().as_raw_fd(), listener.armed);
        listener.orphan = true;
        listener.parked.clear();
        let cancels = armed && !listener.stopping;
        self.disown(fd, key);
        if !armed {
            self.bury(key);
            return;
        }
        if cancels {
            self.cancel(key, Kind::Accept);
        }
        self.flush();
    }
}

/// A listening socket whose connections the ring accepts. Its token is reported ready when there are some.
pub(crate) struct Listener {
    ring: Rc<Ring>,
    key: Key,
}

impl Listener {
    pub(crate) fn new(ring: &Rc<Ring>, owner: Owner, token: Token) -> Listener {
        let fd = owner.as_fd().as_raw_fd();
        let listener = ListenerOp {
            owner,
            token,
            parked: VecDeque::new(),
            error: None,
            armed: false,
            stopping: false,
            orphan: false,
        };
        let key = ring.core.borrow_mut().adopt(fd, Op::Listener(listener));
        Listener { ring: ring.clone(), key }
    }

    /// The next connection, or an error; `AGAIN` if there is none yet.
    pub(crate) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        self.ring.core.borrow_mut().accept(self.key)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ring.core.borrow_mut().orphan_listener(self.key);
        self.ring.drop_gone();
    }
}
