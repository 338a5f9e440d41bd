//! The channel from the handles to the thread that owns the file: a bounded queue of operations, and a wake-up.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tidegate_sync::{Event, Permit, Semaphore};

use crate::broker::BrokerError;

use super::op::Op;

/// One transaction takes this many operations, or bytes, whichever comes first: enough to share the price of a sync, few
/// enough that others get their turn.
const DRAIN_OPS: usize = 1_000;
const DRAIN_BYTES: usize = 1 << 20;

/// Bound of the operations that are not answered yet, in units of [`UNIT_BYTES`]; further callers wait.
const ROOM: usize = 4_096;
const UNIT_BYTES: usize = 16 << 10;

struct Parcel {
    op: Op,
    /// Gives its room back when the operation was taken out for good.
    room: Option<Permit<Arc<Semaphore>>>,
}

#[derive(Default)]
struct Line {
    parcels: VecDeque<Parcel>,
    /// No handle is left, or the owner has gone.
    closed: bool,
}

pub(super) struct Inbox {
    line: Mutex<Line>,
    room: Arc<Semaphore>,
    /// The owner waits for the eventfd; without this every operation would cost a system call.
    asleep: AtomicBool,
    eventfd: OwnedFd,
    /// For an owner that lives on the loop.
    pub(super) rung: Event,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Inbox> {
        Ok(Inbox {
            line: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM)),
            asleep: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            rung: Event::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it in line, after waiting for room.
    ///
    /// # Cancel safety
    /// If the future is dropped before there is room, nothing was sent; after that the operation is carried out all the same.
    pub(super) async fn push(&self, op: Op) -> Result<(), BrokerError> {
        let units = (1 + op.bytes() / UNIT_BYTES).min(ROOM);
        let room = self.room.acquire_many_owned(units).await.map_err(|_| BrokerError::Closed)?;
        self.put(Parcel { op, room: Some(room) })
    }

    /// For what must not wait: it is said while something is dropped.
    pub(super) fn push_now(&self, op: Op) {
        // A closed inbox means that the engine has ended, so nothing is left to do.
        let _ = self.put(Parcel { op, room: None });
    }

    fn put(&self, parcel: Parcel) -> Result<(), BrokerError> {
        {
            let mut line = self.lock();
            if line.closed {
                return Err(BrokerError::Closed);
            }
            line.parcels.push_back(parcel);
        }
        self.ring();
        Ok(())
    }

    fn ring(&self) {
        self.rung.set();
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// What the next transaction takes.
    pub(super) fn take(&self) -> Vec<Op> {
        let mut line = self.lock();
        let (mut ops, mut bytes, mut rooms) = (Vec::new(), 0, Vec::new());
        while ops.len() < DRAIN_OPS && bytes < DRAIN_BYTES {
            let Some(Parcel { op, room }) = line.parcels.pop_front() else { break };
            bytes += op.bytes();
            ops.push(op);
            rooms.extend(room);
        }
        drop(line);
        // Behind the lock: giving room wakes others.
        drop(rooms);
        ops
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().parcels.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Takes no more; what is in line is dropped unanswered, which says that the broker was closed.
    pub(super) fn close(&self) {
        let parcels = {
            let mut line = self.lock();
            line.closed = true;
            std::mem::take(&mut line.parcels)
        };
        self.room.close();
        drop(parcels);
        self.ring();
    }

    /// No handle is left: the owner does what is in line, then ends.
    pub(super) fn orphan(&self) {
        self.lock().closed = true;
        self.ring();
    }

    /// About to sleep; `false` if there is something after all.
    pub(super) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let line = self.lock();
        let quiet = line.parcels.is_empty() && !line.closed;
        drop(line);
        if !quiet {
            self.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.eventfd, &mut count[..]);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
