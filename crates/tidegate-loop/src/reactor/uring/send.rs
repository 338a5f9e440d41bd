//! Sending through the ring: what is written in a tick is gathered with the stream and submitted together
//! with that of all other streams in one call. Most of it is sent in that call; the rest when the peer has room.

use io_uring::opcode;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::core::{Core, Op, outcome};
use super::slots::{Key, Kind};
use crate::reactor::selector::Ready;

/// What a stream takes on before a writer must wait: this much for the send in flight, and this much behind it.
const GATHERED_MAX: usize = 64 * 1024;
/// Buffers that grew beyond this are not kept by an idle stream.
const KEPT_MAX: usize = 8 * 1024;

#[derive(Default)]
pub(super) struct Sending {
    /// Being sent, from `sent` on. While `state` is `InFlight` the kernel reads from it: it is neither changed nor freed.
    flying: Vec<u8>,
    sent: usize,
    /// Written since.
    gathered: Vec<u8>,
    state: SendState,
    /// What sending failed with, for the next who writes.
    error: Option<Errno>,
    /// A writer was turned away, or got rid of a part only: to be told when there is room.
    full: bool,
    /// Nothing more is taken on: it was shut down, or the connection is known to be gone.
    ended: bool,
    /// To be shut down behind what is left to send.
    shutdown: Option<Shutdown>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum SendState {
    #[default]
    Idle,
    /// In the list of those with bytes for the next submission.
    Queued,
    InFlight,
}

impl Sending {
    pub(super) fn is_idle(&self) -> bool {
        self.state == SendState::Idle
    }

    /// The peer has no room for what was written.
    pub(super) fn is_stuck(&self) -> bool {
        self.state == SendState::InFlight
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    fn room(&mut self) -> &mut Vec<u8> {
        if self.state == SendState::InFlight { &mut self.gathered } else { &mut self.flying }
    }

    fn fail(&mut self, error: Errno) {
        self.error = Some(error);
        self.flying = Vec::new();
        self.gathered = Vec::new();
        self.sent = 0;
        self.state = SendState::Idle;
    }
}

impl Core {
    /// Takes on what there is room for of `slices`; `AGAIN` if there is none.
    pub(super) fn gather<'a>(&mut self, key: Key, slices: impl Iterator<Item = &'a [u8]>) -> rustix::io::Result<usize> {
        let is_closed = self.closed;
        let Some(Op::Stream(stream)) = self.slots.get(key) else { return Err(Errno::BADF) };
        let sending = &mut stream.sending;
        if let Some(error) = sending.error.take() {
            return Err(error);
        }
        if is_closed || sending.ended {
            return Err(Errno::PIPE);
        }
        let room = sending.room();
        let before = room.len();
        let mut refused = false;
        for slice in slices {
            let count = slice.len().min(GATHERED_MAX - room.len());
            room.extend_from_slice(&slice[..count]);
            refused = count < slice.len();
            if refused {
                break;
            }
        }
        let taken = room.len() - before;
        sending.full |= refused;
        if taken > 0 && sending.state == SendState::Idle {
            sending.state = SendState::Queued;
            self.unsent.push(key);
        }
        if taken == 0 && refused { Err(Errno::AGAIN) } else { Ok(taken) }
    }

    /// Ends the writing side (or both) behind everything that was written; a refusal is known at once only if there is
    /// nothing left to send.
    pub(super) fn shut_down(&mut self, key: Key, how: Shutdown) -> rustix::io::Result<()> {
        self.flush();
        let Some(Op::Stream(stream)) = self.slots.get(key) else { return Err(Errno::BADF) };
        stream.sending.ended = true;
        if !stream.sending.is_idle() {
            stream.sending.shutdown = Some(how);
            return Ok(());
        }
        shutdown(stream.owner.as_fd(), how)
    }

    /// Queues what was written; whether there was anything.
    pub(super) fn queue_sends(&mut self) -> bool {
        let count = self.unsent.len();
        for index in 0..count {
            self.send(self.unsent[index]);
        }
        // A full submission ring makes `queue` reap, and that adds streams behind the first `count`.
        self.unsent.drain(..count);
        count > 0
    }

    /// Queues what is left of `flying`.
    fn send(&mut self, key: Key) {
        let Some(Op::Stream(stream)) = self.slots.get(key) else { return };
        let (fd, sending) = (stream.fd(), &mut stream.sending);
        sending.state = SendState::InFlight;
        let rest = &sending.flying[sending.sent..];
        // To wait for all: what the peer has no room for at once the kernel sends when it has.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32).flags(flags).build();
        self.in_flight += 1;
        // SAFETY: it points into `flying`, which is not changed while `InFlight` (see `room`), and not freed either: the
        // stream keeps its slot until it is idle, and the slots are kept while anything is in flight.
        unsafe { self.queue(&entry.user_data(key.word(Kind::Send))) };
    }

    pub(super) fn sent(&mut self, key: Key, result: i32) {
        self.in_flight -= 1;
        let Some(Op::Stream(stream)) = self.slots.get(key) else { return };
        let (orphan, sending) = (stream.orphan, &mut stream.sending);
        match outcome(result) {
            Ok(count) => {
                self.counts.sent += u64::from(count);
                sending.sent += count as usize;
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(error) => sending.fail(error),
        }
        let left = sending.sent < sending.flying.len();
        if left && !self.cancelling {
            self.send(key);
            return;
        }
        if self.cancelling && (left || !sending.gathered.is_empty()) {
            sending.fail(Errno::CANCELED);
        }
        sending.flying.clear();
        sending.sent = 0;
        if !sending.gathered.is_empty() {
            std::mem::swap(&mut sending.flying, &mut sending.gathered);
            sending.state = SendState::Queued;
            self.unsent.push(key);
        } else {
            sending.state = SendState::Idle;
            if sending.flying.capacity() > KEPT_MAX {
                sending.flying = Vec::new();
                sending.gathered = Vec::new();
            }
        }
        let ended = if sending.is_idle() { sending.shutdown.take() } else { None };
        if let Some(how) = ended {
            // Refused means that the connection is gone, which the peer knows.
            let _ = shutdown(stream.owner.as_fd(), how);
        }
        if std::mem::take(&mut sending.full) {
            let token = stream.token;
            let end = if stream.sending.error.is_some() { Ready::WRITE_END } else { 0 };
            self.tell(token, Ready::WRITE | end);
        }
        if orphan {
            self.end_orphan(key);
        }
    }

    pub(super) fn is_sending(&mut self) -> bool {
        let keys = self.slots.keys();
        keys.into_iter().any(|key| matches!(self.slots.get(key), Some(Op::Stream(stream)) if !stream.sending.is_idle()))
    }
}
