//! A source: a descriptor of the loop's own that tasks wait for. It is tried first; only when the kernel has nothing is
//! it registered, and edge-triggered that happens once, for both directions. What is known about its readiness
//! stands in it, so that trying again costs no look into a table.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context as PollContext, Poll, Waker};

use super::table::{Due, Sink};
use crate::kernel::current;
use crate::kernel::{Kernel, RunState};
use crate::mailbox::name::Name;
use crate::mailbox::waker::{name_of, waker_of};
use crate::reactor::selector::{Ready, Token};
use crate::reactor::uring::{self, Ring};
use crate::task::cancel;
use crate::task::raw::Waiting;

/// Which way the data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    /// Either is enough to try: it was reported ready, or it has ended, which is reported once and stays.
    #[inline]
    const fn ready(self) -> u8 {
        match self {
            Direction::Read => Ready::READ | Ready::READ_END,
            Direction::Write => Ready::WRITE | Ready::WRITE_END,
        }
    }

    #[inline]
    const fn side(self) -> u8 {
        match self {
            Direction::Read => Ready::READ,
            Direction::Write => Ready::WRITE,
        }
    }

    /// Set on a short read or write: it took, or gave, all there was.
    #[inline]
    const fn end(self) -> u8 {
        match self {
            Direction::Read => Ready::READ_END | Ready::URGENT,
            Direction::Write => Ready::WRITE_END,
        }
    }
}

/// Set when the source, or its loop, is closed: nothing is tried any more.
const CLOSED: u8 = 1 << 7;

/// What the table and the source's owner share.
pub(crate) struct SharedSource {
    /// `Ready`'s bits as last known, and `CLOSED`. A new source is taken to be ready: trying tells.
    known: Cell<u8>,
    /// The sides registered with the selector; none without a token.
    pub(super) interest: Cell<u8>,
    pub(super) token: Cell<Option<Token>>,
    /// The ring does its reading and writing; the selector is not asked to watch it.
    pub(super) completes: Cell<bool>,
    reader: Waiter,
    writer: Waiter,
    fd: OwnedFd,
    kernel: Rc<Kernel>,
}

/// The waiters for one direction. Nearly always that is one task of this loop, whose name is enough; further wakers are in
/// a list.
#[derive(Default)]
struct Waiter {
    task: Cell<Option<Name>>,
    /// There are others.
    crowded: Cell<bool>,
    others: RefCell<Vec<Waker>>,
}

impl Waiter {
    /// Registers a waker.
    #[inline]
    fn set(&self, kernel: &Kernel, waker: &Waker) {
        match name_of(waker) {
            Some(name) if self.task.get().is_none_or(|known| known == name) => self.task.set(Some(name)),
            name => self.set_other(kernel, name, waker),
        }
    }

    #[cold]
    fn set_other(&self, kernel: &Kernel, name: Option<Name>, waker: &Waker) {
        if let Some(name) = name {
            // Most likely the task before has dropped its wait, or has ended; if not, it goes on waiting in the list.
            let before = self.task.replace(Some(name));
            if let Some(before) = before.filter(|&before| kernel.find_task(before).is_some()) {
                self.add(kernel, waker_of(before));
            }
        } else {
            self.add(kernel, waker.clone());
        }
    }

    fn add(&self, kernel: &Kernel, waker: Waker) {
        let mut others = self.others.borrow_mut();
        if others.iter().any(|known| known.will_wake(&waker)) {
            return;
        }
        // Before it grows: tasks that have ended meanwhile need no waking. Their wakers are names: nothing is run.
        if others.len() == others.capacity() {
            others.retain(|known| name_of(known).is_none_or(|name| kernel.find_task(name).is_some()));
        }
        others.push(waker);
        self.crowded.set(true);
    }

    #[inline]
    fn is_anybody(&self) -> bool {
        self.task.get().is_some() || self.crowded.get()
    }

    /// Calls `f` with each of this loop's tasks that wait.
    fn each_task(&self, mut f: impl FnMut(Name)) {
        self.task.get().into_iter().for_each(&mut f);
        self.others.borrow().iter().filter_map(name_of).for_each(f);
    }

    /// Moves all waiters to `sink`.
    #[inline]
    fn take(&self, sink: &mut Sink<'_>) {
        if let Some(task) = self.task.take() {
            sink.task(task);
        }
        if self.crowded.get() {
            self.take_others(sink);
        }
    }

    #[cold]
    fn take_others(&self, sink: &mut Sink<'_>) {
        self.crowded.set(false);
        sink.due.extend(self.others.borrow_mut().drain(..).map(Due::Wake));
    }
}

impl AsFd for SharedSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SharedSource {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Notes what the selector found, and moves the waiters to `sink`. Returns the sides that had no waiter.
    #[inline]
    pub(super) fn tell(&self, ready: Ready, sink: &mut Sink<'_>) -> u8 {
        self.known.set(self.known.get() | ready.0);
        let mut unwanted = 0;
        for (side, waiter) in [(Ready::READ, &self.reader), (Ready::WRITE, &self.writer)] {
            if ready.has(side) {
                match waiter.is_anybody() {
                    true => waiter.take(sink),
                    false => unwanted |= side,
                }
            }
        }
        unwanted & self.interest.get()
    }

    /// From now on every operation fails; waiters are woken.
    pub(super) fn close(&self, due: &mut Vec<Due>) {
        self.known.set(self.known.get() | CLOSED);
        let mut sink = Sink { due, kernel: None, woken: 0 };
        self.reader.take(&mut sink);
        self.writer.take(&mut sink);
    }

    /// Calls `f` with each task that waits here, and what for.
    pub(super) fn each_waiting(&self, mut f: impl FnMut(Name, Direction)) {
        self.reader.each_task(|task| f(task, Direction::Read));
        self.writer.each_task(|task| f(task, Direction::Write));
    }

    fn waiter(&self, direction: Direction) -> &Waiter {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }
}

/// The owner's end. Dropped, the descriptor is closed.
pub(crate) struct Source {
    shared: Rc<SharedSource>,
}

impl Source {
    /// Takes a descriptor that does not block.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub(crate) fn new(fd: OwnedFd) -> Source {
        let kernel = current::with(|kernel| kernel.map(Kernel::handle));
        let kernel = kernel.expect("sockets and pipes need a running loop: make them inside run(...)");
        Source {
            shared: Rc::new(SharedSource {
                known: Cell::new(Ready::READ | Ready::WRITE),
                interest: Cell::new(0),
                token: Cell::new(None),
                completes: Cell::new(false),
                reader: Waiter::default(),
                writer: Waiter::default(),
                fd,
                kernel,
            }),
        }
    }

    /// Gives the source to the loop's ring, if it has one, as what `make` makes of it. Everything that is asked for
    /// afterwards must be asked of that.
    pub(crate) fn complete_by<T>(&self, make: impl FnOnce(&Rc<Ring>, uring::Owner, Token) -> T) -> Option<T> {
        let (ring, token) = self.shared.kernel.io.borrow_mut().adopt(&self.shared)?;
        self.shared.known.set(Ready::READ | Ready::WRITE);
        Some(make(&ring, self.shared.clone(), token))
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// Tries `operation` if it may succeed, and waits if it would block.
    #[inline]
    pub(crate) fn poll_io<T>(
        &self,
        cx: &mut PollContext<'_>,
        direction: Direction,
        mut operation: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let shared = &*self.shared;
        loop {
            let known = shared.known.get();
            if known & (direction.ready() | CLOSED) == 0 {
                return self.wait(cx, direction);
            }
            if known & CLOSED != 0 {
                return Poll::Ready(Err(self.closed()));
            }
            if !shared.kernel.io_allowed() {
                return yield_turn(cx);
            }
            match operation(self.fd()) {
                Ok(value) => return Poll::Ready(Ok(value)),
                Err(rustix::io::Errno::AGAIN) => shared.known.set(shared.known.get() & !direction.ready()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// The same for an operation that moves bytes, up to `wanted` of them: fewer means that there is no more for now, and
    /// the next try can be spared. Only for descriptors of which that is true.
    #[inline]
    pub(crate) fn poll_bytes(
        &self,
        cx: &mut PollContext<'_>,
        direction: Direction,
        wanted: usize,
        operation: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let polled = self.poll_io(cx, direction, operation);
        if let Poll::Ready(Ok(count)) = &polled
            && *count < wanted
            && *count > 0
        {
            let known = self.shared.known.get();
            // After the end there are no more edges, and before urgent data a read stops short: neither is drained.
            if known & direction.end() == 0 {
                self.shared.known.set(known & !direction.side());
            }
        }
        polled
    }

    /// From now on a short read does not mean drained: something may lie between two pieces of data.
    pub(crate) fn distrust_short_reads(&self) {
        self.shared.known.set(self.shared.known.get() | Ready::URGENT);
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.shared.kernel
    }

    /// Waits until the direction is worth a try.
    pub(crate) fn poll_ready(&self, cx: &mut PollContext<'_>, direction: Direction) -> Poll<io::Result<()>> {
        match self.shared.known.get() {
            known if known & CLOSED != 0 => Poll::Ready(Err(self.closed())),
            known if known & direction.ready() != 0 => Poll::Ready(Ok(())),
            _ => self.wait(cx, direction),
        }
    }

    /// Forgets that the direction was ready: something else told that it is not.
    pub(crate) fn clear_ready(&self, direction: Direction) {
        self.shared.known.set(self.shared.known.get() & !direction.ready());
    }

    #[inline]
    fn wait<T>(&self, cx: &mut PollContext<'_>, direction: Direction) -> Poll<io::Result<T>> {
        let shared = &self.shared;
        let kernel = &*shared.kernel;
        if !current::is(kernel) {
            return Poll::Ready(Err(elsewhere()));
        }
        shared.waiter(direction).set(kernel, cx.waker());
        if shared.interest.get() & direction.side() == 0
            && let Err(error) = self.arm(direction)
        {
            return Poll::Ready(Err(error));
        }
        if let Some(task) = kernel.current_task() {
            task.wait_for(Waiting::FOREIGN);
        }
        Poll::Pending
    }

    #[cold]
    fn arm(&self, direction: Direction) -> io::Result<()> {
        self.shared.kernel.io.borrow_mut().arm(&self.shared, direction.side())
    }

    #[cold]
    fn closed(&self) -> io::Error {
        if self.shared.kernel.state.get() == RunState::Closed {
            return io::Error::other("the loop this socket or pipe belongs to is closed");
        }
        io::Error::new(io::ErrorKind::NotConnected, "the socket was closed by its own side")
    }

    /// From now on every operation fails, and waiters are woken. The descriptor stays open until the source is dropped: it
    /// may be borrowed.
    pub(crate) fn close(&self) {
        let shared = &self.shared;
        let mut due = Vec::new();
        // Bound to a name, so that it is dropped when the table is no longer lent.
        let registered = shared.kernel.io.borrow_mut().disarm(shared);
        drop(registered);
        shared.close(&mut due);
        shared.kernel.act_on(due.drain(..));
    }
}

/// The task has done enough for this step; it is ready again at once, after the others.
#[cold]
fn yield_turn<T>(cx: &PollContext<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    cancel::wait_for(Waiting::TURN);
    Poll::Pending
}

#[cold]
fn elsewhere() -> io::Error {
    io::Error::other("this socket or pipe belongs to another loop: it can be waited for only where it was made")
}

impl Drop for Source {
    fn drop(&mut self) {
        let shared = &self.shared;
        // Both are dropped and woken when the table is no longer lent.
        let (registered, starved) = shared.kernel.io.borrow_mut().closing(shared);
        drop(registered);
        for waker in starved {
            waker.wake();
        }
    }
}
