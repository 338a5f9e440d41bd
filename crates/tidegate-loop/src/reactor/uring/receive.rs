//! Receiving through the ring: one request that completes with a buffer whenever data is there. What has arrived is
//! parked with the stream until it is read, so that a read that is dropped loses nothing. A stream whose reader lags is
//! not received from until it catches up, and the peer's window closes.

use std::collections::VecDeque;

use io_uring::{cqueue, opcode};
use rustix::io::Errno;

use super::buffers::{self, Buffers, Lent};
use super::core::{Core, Op, outcome};
use super::slots::{Key, Kind};
use crate::reactor::selector::Ready;

/// More parked bytes than this, and the request is withdrawn.
const PARKED_MAX: usize = 64 * 1024;
/// With fewer than this, it is made again.
const PARKED_LOW: usize = PARKED_MAX / 2;

const _: () = assert!(PARKED_LOW > buffers::SIZE_MAX);

#[derive(Default)]
pub(super) struct Receiving {
    parked: VecDeque<Chunk>,
    /// How much of the first chunk has been read.
    read: usize,
    /// Parked and not read.
    bytes: usize,
    end: Option<End>,
    /// The kernel has the request.
    pub(super) armed: bool,
    pub(super) stopping: bool,
    /// In the list of those that found no buffer.
    starved: bool,
}

enum Chunk {
    Lent(Lent),
    /// Moved out of the ring's buffers when those ran out.
    Own(Box<[u8]>),
}

/// Nothing more will arrive.
#[derive(Clone, Copy)]
enum End {
    Eof,
    Failed(Errno),
}

impl Receiving {
    fn is_done(&self) -> bool {
        self.armed || self.end.is_some()
    }

    /// Drops what will not be read.
    pub(super) fn discard(&mut self, mut buffers: Option<&mut Buffers>) {
        self.bytes = 0;
        self.read = 0;
        for chunk in self.parked.drain(..) {
            if let (Chunk::Lent(lent), Some(buffers)) = (chunk, buffers.as_deref_mut()) {
                buffers.give_back(lent);
            }
        }
    }

    /// Copies out what fits; chunks that are read to their end go back at once, unless this is only a look.
    fn copy_out(&mut self, into: &mut [u8], mut buffers: Option<&mut Buffers>, consumes: bool) -> usize {
        let mut copied = 0;
        let (mut index, mut read) = (0, self.read);
        while copied < into.len()
            && let Some(chunk) = self.parked.get(index)
        {
            let bytes = match (chunk, buffers.as_deref()) {
                (Chunk::Lent(lent), Some(buffers)) => buffers.bytes(lent),
                (Chunk::Own(bytes), _) => bytes,
                (Chunk::Lent(_), None) => unreachable!("lent by buffers that do not exist"),
            };
            let bytes = &bytes[read..];
            let count = bytes.len().min(into.len() - copied);
            into[copied..copied + count].copy_from_slice(&bytes[..count]);
            copied += count;
            if count < bytes.len() {
                read += count;
            } else if !consumes {
                index += 1;
                read = 0;
            } else {
                read = 0;
                if let (Some(Chunk::Lent(lent)), Some(buffers)) = (self.parked.pop_front(), buffers.as_deref_mut()) {
                    buffers.give_back(lent);
                }
            }
        }
        if consumes {
            self.read = read;
            self.bytes -= copied;
        }
        copied
    }

    /// Moves what is parked out of the ring's buffers.
    fn move_out(&mut self, buffers: &mut Buffers) {
        for chunk in &mut self.parked {
            if let Chunk::Lent(lent) = chunk {
                let own = Chunk::Own(buffers.bytes(lent).into());
                if let Chunk::Lent(lent) = std::mem::replace(chunk, own) {
                    buffers.give_back(lent);
                }
            }
        }
    }
}

impl Core {
    fn arm_receive(&mut self, key: Key) {
        if let Err(error) = self.buffers() {
            let Some(Op::Stream(stream)) = self.slots.get(key) else { return };
            stream.receiving.end = Some(End::Failed(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM)));
            return;
        }
        let Some(Op::Stream(stream)) = self.slots.get(key) else { return };
        stream.receiving.armed = true;
        let entry = opcode::RecvMulti::new(stream.fd(), Buffers::GROUP).build();
        self.in_flight += 1;
        // SAFETY: it names the group of buffers, which is freed when nothing is in flight.
        unsafe { self.queue(&entry.user_data(key.word(Kind::Receive))) };
    }

    pub(super) fn received(&mut self, key: Key, result: i32, flags: u32) {
        let more = cqueue::more(flags);
        if !more {
            self.in_flight -= 1;
        }
        let Some((stream, mut buffers)) = self.stream_and_buffers(key) else { return };
        let receiving = &mut stream.receiving;
        if !more {
            receiving.armed = false;
            receiving.stopping = false;
        }
        let lent = match (cqueue::buffer_select(flags), &mut buffers) {
            (Some(id), Some(buffers)) => Some(buffers.take(id, result.max(0) as usize, cqueue::buffer_more(flags))),
            _ => None,
        };
        match (lent, buffers) {
            (Some(lent), _) if result > 0 && !stream.orphan => {
                receiving.bytes += lent.len();
                receiving.parked.push_back(Chunk::Lent(lent));
            }
            (Some(lent), Some(buffers)) => buffers.give_back(lent),
            _ => {}
        }
        match outcome(result) {
            Ok(0) => receiving.end = Some(End::Eof),
            Ok(_) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NOBUFS) => receiving.starved = true,
            Err(error) => {
                receiving.end = Some(End::Failed(error));
                stream.sending.end();
            }
        }
        if stream.orphan {
            self.end_orphan(key);
            return;
        }
        let mut news = 0;
        if receiving.end.is_some() {
            news = Ready::READ | Ready::READ_END;
        } else if receiving.bytes > 0 {
            news = Ready::READ;
        }
        let stops = receiving.bytes > PARKED_MAX && receiving.armed && !receiving.stopping;
        receiving.stopping |= stops;
        // The kernel ends the request when completions overflow, and we have ended it when the reader lagged.
        let starved = receiving.starved;
        let arms = !receiving.is_done() && !starved && receiving.bytes < PARKED_LOW;
        let token = stream.token;
        if news != 0 {
            self.tell(token, news);
        }
        if starved {
            self.counts.starvations += 1;
            self.starved.push(key);
        } else if stops {
            self.cancel(key, Kind::Receive);
        } else if arms && !self.closed {
            self.arm_receive(key);
        }
    }

    /// Retries the streams that found no buffer. If few are free, they are held by streams that are not read from: the bytes
    /// parked there are copied out, so that slow readers do not starve fast ones.
    pub(super) fn feed_starved(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        for key in self.slots.keys() {
            if let Some((stream, Some(buffers))) = self.stream_and_buffers(key) {
                stream.receiving.move_out(buffers);
            }
        }
        for key in std::mem::take(&mut self.starved) {
            let Some(Op::Stream(stream)) = self.slots.get(key) else { continue };
            stream.receiving.starved = false;
            if !stream.orphan && !stream.receiving.is_done() && !self.closed {
                self.arm_receive(key);
            }
        }
    }

    /// Bytes that can be read without waiting.
    pub(super) fn parked(&mut self, key: Key) -> usize {
        match self.slots.get(key) {
            Some(Op::Stream(stream)) => stream.receiving.bytes,
            _ => 0,
        }
    }

    /// Copies what has arrived, 0 at the end; `AGAIN` if nothing has.
    pub(super) fn receive(&mut self, key: Key, into: &mut [u8], consumes: bool) -> rustix::io::Result<usize> {
        let is_closed = self.closed;
        let Some((stream, buffers)) = self.stream_and_buffers(key) else { return Err(Errno::BADF) };
        let receiving = &mut stream.receiving;
        let result = if receiving.bytes > 0 || into.is_empty() {
            Ok(receiving.copy_out(into, buffers, consumes))
        } else {
            match receiving.end {
                Some(End::Eof) => Ok(0),
                Some(End::Failed(error)) => {
                    // As in the kernel: an error is returned once, and then the stream has ended.
                    receiving.end = Some(End::Eof);
                    Err(error)
                }
                None => Err(Errno::AGAIN),
            }
        };
        if !receiving.is_done() && !receiving.starved && receiving.bytes < PARKED_LOW && !is_closed {
            self.arm_receive(key);
        }
        result
    }
}
