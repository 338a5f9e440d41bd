//! The ring itself: what is queued for the kernel, the one call per tick, and which operation a completion belongs to. What each kind
//! of operation does with its completions is in the files named after it.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::fd::{AsFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::accept::ListenerOp;
use super::buffers::Buffers;
use super::poll::PollOp;
use super::setup::{self, Unavailable};
use super::slots::{Key, Kind, Slots};
use super::stream::StreamOp;
use crate::reactor::selector::{Readiness, Ready, Token};

/// The owner of a descriptor that the kernel works on; it is kept until the last completion.
pub(crate) type Owner = Rc<dyn AsFd>;

/// What a slot stands for. Streams and listeners own what the kernel uses for them, and stay here, orphaned if need
/// be, until the last completion has come.
pub(super) enum Op {
    Poll(PollOp),
    Listener(ListenerOp),
    Stream(Box<StreamOp>),
}

const LINGER: Duration = Duration::from_secs(1);
/// How long closing waits for cancelled operations. They end at once; if one does not, its memory is left to it.
const CANCEL: Duration = Duration::from_secs(5);
/// Longer than any program waits, and far from where the kernel's sums overflow. Waits may return early.
const WAIT_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(super) struct Core {
    ring: IoUring,
    /// Made when the first stream receives.
    buffers: Option<Buffers>,
    pub(super) slots: Slots<Op>,
    /// What is polled, received from or accepted from, by descriptor: each has one use at a time.
    pub(super) used: HashMap<RawFd, Key>,
    /// Polls that have told, and tell again in the next wait if they still can.
    pub(super) rearm: Vec<Key>,
    /// Streams with bytes for the next submission. Each is here once.
    pub(super) unsent: Vec<Key>,
    /// Streams that stopped receiving because no buffer was free.
    pub(super) starved: Vec<Key>,
    /// Operations that use memory or bring descriptors, up to their last completion. None of it is freed
    /// while this counts them.
    pub(super) in_flight: usize,
    pub(super) events: Vec<Readiness>,
    /// What the kernel has let go of, to be dropped when nothing is borrowed: foreign wakers may hang on it.
    pub(super) gone: Vec<Owner>,
    pub(super) closed: bool,
    /// Closing has waited long enough: what is cancelled is not begun again.
    pub(super) cancelling: bool,
    /// Within a wait: completions are read right after it.
    pub(super) waiting: bool,
    flags: EnterFlags,
    /// How long closing waits for the kernel to take more of what was written.
    pub(super) linger: Duration,
    pub(super) counts: Counts,
    /// The next entry finds the submission ring full and the kernel busy, once: no kernel does so on request.
    #[cfg(test)]
    pub(super) busy_once: bool,
}

/// What the ring did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Calls of the kernel.
    pub(super) enters: u64,
    /// Bytes that the kernel has taken.
    pub(super) sent: u64,
    /// Receives that found no buffer.
    pub(super) starvations: u64,
}

impl Core {
    pub(super) fn open() -> Result<Core, Unavailable> {
        let ring = setup::open()?;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // A loop that waits for a socket is idle, not waiting for a disk.
        flags.set(EnterFlags::NO_IOWAIT, ring.params().is_feature_no_iowait());
        Ok(Core {
            ring,
            buffers: None,
            slots: Slots::new(),
            used: HashMap::new(),
            rearm: Vec::new(),
            unsent: Vec::new(),
            starved: Vec::new(),
            in_flight: 0,
            events: Vec::new(),
            gone: Vec::new(),
            closed: false,
            cancelling: false,
            waiting: false,
            flags,
            linger: LINGER,
            counts: Counts::default(),
            #[cfg(test)]
            busy_once: false,
        })
    }

    /// Hands over what is queued, waits for something to complete, and sees to what has.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.waiting = true;
        let waited = self.wait_in_turn(timeout);
        self.waiting = false;
        waited
    }

    fn wait_in_turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.rearm_polls();
        self.feed_starved();
        // Sends complete at once, mostly, and that would end the wait for what is worth waking up for. So they go first,
        // and it brings back all completions that have come meanwhile: a busy loop makes no second call.
        if self.queue_sends() {
            self.enter(Some(Duration::ZERO))?;
            self.reap();
            if self.closed {
                // Sends are what closing waits for.
                return Ok(());
            }
        }
        let timeout = if self.has_news() { Some(Duration::ZERO) } else { timeout };
        self.enter(timeout)?;
        self.reap();
        Ok(())
    }

    /// Hands over what is queued and sees to what that completes.
    pub(super) fn flush(&mut self) {
        self.feed_starved();
        self.queue_sends();
        if let Err(error) = self.enter(Some(Duration::ZERO)) {
            log::error!("io_uring refused what was queued: {error}");
        }
        self.reap();
    }

    fn has_news(&mut self) -> bool {
        !self.events.is_empty() || !self.unsent.is_empty() || !self.ring.completion().is_empty()
    }

    pub(super) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submission = self.ring.submission();
        let queued = submission.len();
        let quiet = queued == 0 && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        let looks = timeout == Some(Duration::ZERO);
        if looks && quiet {
            return Ok(());
        }
        let want = if looks { 0 } else { 1 };
        let timeout = timeout.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        let timespec = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&timespec);
        self.counts.enters += 1;
        // SAFETY: the arguments are what `EXT_ARG` says they are, and live through the call. What the queued entries
        // point to lives until they complete: see `queue` and its callers.
        match unsafe { self.ring.submitter().enter(queued as u32, want, self.flags.bits(), Some(&args)) } {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // Busy and again: the kernel has completions that we must take first, or no memory at the moment.
                Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self) {
        loop {
            // Taken one by one: a completion may queue operations, and the ring is lent to one at a time.
            let Some(completion) = self.ring.completion().next() else { return };
            self.complete(completion);
        }
    }

    fn complete(&mut self, completion: cqueue::Entry) {
        let (kind, key) = Key::parse(completion.user_data());
        let (result, flags) = (completion.result(), completion.flags());
        match kind {
            Kind::Receive => self.received(key, result, flags),
            Kind::Send => self.sent(key, result),
            Kind::Poll => self.polled(key, result, cqueue::more(flags)),
            Kind::Accept => self.accepted(key, result, cqueue::more(flags)),
            Kind::Nothing => {}
        }
    }

    /// Queues an operation for the next call of the kernel.
    ///
    /// # Safety
    /// What the entry points to must stay where it is and unchanged until the operation's last completion.
    pub(super) unsafe fn queue(&mut self, entry: &squeue::Entry) {
        #[cfg(test)]
        if mem::take(&mut self.busy_once) {
            self.reap();
        }
        // SAFETY: the caller's promise.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            let queued = self.ring.submission().len();
            self.counts.enters += 1;
            // SAFETY: no arguments; and what the entries point to is promised.
            let submitted = unsafe { self.ring.submitter().enter::<()>(queued as u32, 0, 0, None) };
            if let Err(error) = submitted {
                match Errno::from_io_error(&error) {
                    Some(Errno::BUSY) => self.reap(),
                    Some(Errno::AGAIN | Errno::INTR) => {}
                    _ => panic!("io_uring takes no more submissions: {error}"),
                }
            }
        }
    }

    /// Queues the cancellation of an operation. Its own last completion tells that it has ended.
    pub(super) fn cancel(&mut self, key: Key, kind: Kind) {
        let entry = opcode::AsyncCancel::new(key.word(kind)).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: it points to nothing.
        unsafe { self.queue(&entry.user_data(0)) };
    }

    /// The receive buffers, made on first use.
    pub(super) fn buffers(&mut self) -> io::Result<&mut Buffers> {
        if self.buffers.is_none() {
            self.buffers = Some(Buffers::register(&self.ring)?);
        }
        Ok(self.buffers.as_mut().expect("made above"))
    }

    #[cfg(test)]
    pub(super) fn use_single_buffers(&mut self) {
        self.buffers = Some(Buffers::register_single(&self.ring));
    }

    /// Streams and buffers, lent apart.
    pub(super) fn stream_and_buffers(&mut self, key: Key) -> Option<(&mut StreamOp, Option<&mut Buffers>)> {
        match self.slots.get(key) {
            Some(Op::Stream(stream)) => Some((stream, self.buffers.as_mut())),
            _ => None,
        }
    }

    /// Ends every operation: first what was written gets a chance to reach the kernel, then all is cancelled, and
    /// nothing is freed before the kernel has let go of it.
    pub(super) fn close(&mut self) {
        if mem::replace(&mut self.closed, true) {
            return;
        }
        self.flush();
        let (mut until, mut sent) = (Instant::now() + self.linger, self.counts.sent);
        while self.is_sending() && self.wait_until(until) {
            if self.counts.sent > sent {
                (until, sent) = (Instant::now() + self.linger, self.counts.sent);
            }
        }
        self.cancelling = true;
        // SAFETY: it points to nothing.
        unsafe { self.queue(&opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(0)) };
        let until = Instant::now() + CANCEL;
        self.flush();
        while self.in_flight > 0 && self.wait_until(until) {}
        if self.in_flight > 0 {
            log::error!("{} io_uring operations did not end when cancelled; their memory is not freed", self.in_flight);
        }
    }

    /// One more wait; false when time is up.
    fn wait_until(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        // These completions are for operations that are gone; left there they would end the wait at once.
        self.events.clear();
        self.wait(Some(left)).is_ok() && !left.is_zero()
    }

    /// Gives a socket to the ring.
    pub(super) fn adopt(&mut self, fd: RawFd, op: Op) -> Key {
        let key = self.slots.insert(op);
        self.used.insert(fd, key);
        key
    }

    /// A socket is given away: its number is not ours any more, though the kernel may need it a moment longer.
    pub(super) fn disown(&mut self, fd: RawFd, key: Key) {
        if self.used.get(&fd) == Some(&key) {
            self.used.remove(&fd);
        }
    }

    /// Empties a slot that the kernel has let go of.
    pub(super) fn bury(&mut self, key: Key) {
        match self.slots.remove(key) {
            Some(Op::Stream(stream)) => self.gone.push(stream.owner),
            Some(Op::Listener(listener)) => self.gone.push(listener.into_owner()),
            Some(Op::Poll(_)) | None => {}
        }
    }

    pub(super) fn tell(&mut self, token: Token, ready: u8) {
        self.events.push(Readiness { token, ready: Ready(ready) });
    }

    /// Whether anything is queued or in flight that the loop has to attend to although no task waits for it.
    pub(super) fn is_busy(&mut self) -> bool {
        self.in_flight > 0 || !self.ring.submission().is_empty()
    }
}

/// What a completion's result says.
pub(super) fn outcome(result: i32) -> rustix::io::Result<u32> {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(result.wrapping_neg()))
}

impl Drop for Core {
    fn drop(&mut self) {
        self.close();
        let buffers = self.buffers.take();
        if self.in_flight > 0 {
            // The kernel may still write to them: a leak is better than a write to memory that is used for something else.
            mem::forget((mem::replace(&mut self.slots, Slots::new()), buffers));
        } else if let Some(buffers) = buffers
            && let Err(error) = buffers.unregister(&self.ring)
        {
            log::error!("io_uring keeps its receive buffers: {error}");
            mem::forget(buffers);
        }
    }
}
