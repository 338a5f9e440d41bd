//! Descriptors with callbacks: `add_reader` and `add_writer` with asyncio's rules, above a selector.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use crate::context::Snapshot;
use crate::event_loop::LoopHandle;
use crate::selector::{Epoll, Interest, Readiness, Selector, Token};

/// A callback that runs every time its descriptor is ready.
pub(crate) struct IoCallback {
    job: RefCell<Box<dyn FnMut()>>,
    context: Snapshot,
    cancelled: Cell<bool>,
    pub(crate) location: &'static Location<'static>,
}

impl IoCallback {
    pub(crate) fn new(job: Box<dyn FnMut()>, location: &'static Location<'static>) -> IoCallback {
        IoCallback { job: RefCell::new(job), context: Snapshot::current(), cancelled: Cell::new(false), location }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn run(&self) {
        // Busy means that the callback runs the loop's queue inside of itself; it is ready still, and gets its turn.
        if let Ok(mut job) = self.job.try_borrow_mut() {
            self.context.clone().run_detached(&mut *job);
        }
    }
}

/// A descriptor's callbacks; at least one is there while it is registered.
#[derive(Default)]
struct Watched {
    reader: Option<Rc<IoCallback>>,
    writer: Option<Rc<IoCallback>>,
}

impl Watched {
    fn interest(&self) -> Interest {
        Interest { readable: self.reader.is_some(), writable: self.writer.is_some(), edge: false }
    }

    fn side(&mut self, side: Side) -> &mut Option<Rc<IoCallback>> {
        match side {
            Side::Read => &mut self.reader,
            Side::Write => &mut self.writer,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Read,
    Write,
}

pub(crate) struct IoTable {
    selector: Box<dyn Selector>,
    watched: HashMap<RawFd, Watched>,
    ready: Vec<Readiness>,
}

/// Descriptors are small numbers; this is none of them.
const BELL: Token = Token(u64::MAX - 1);

impl IoTable {
    pub(crate) fn new(bell: &OwnedFd) -> io::Result<IoTable> {
        let mut selector: Box<dyn Selector> = Box::new(Epoll::new()?);
        // Edge-triggered and never read: a ring while nobody sleeps costs one early return, not a system call.
        selector.register(bell.as_fd(), BELL, Interest { readable: true, writable: false, edge: true })?;
        Ok(IoTable { selector, watched: HashMap::new(), ready: Vec::new() })
    }

    pub(crate) fn has_watchers(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Watches `fd` on one side; a callback that was there before comes back, cancelled.
    pub(crate) fn add(
        &mut self,
        fd: BorrowedFd<'_>,
        side: Side,
        callback: Rc<IoCallback>,
    ) -> io::Result<Option<Rc<IoCallback>>> {
        let raw = fd.as_raw_fd();
        let token = Token(raw as u64);
        let known = self.watched.contains_key(&raw);
        let watched = self.watched.entry(raw).or_default();
        let before = watched.side(side).replace(callback);
        let interest = watched.interest();
        let registered = if !known {
            self.selector.register(fd, token, interest)
        } else if before.is_none() {
            self.selector.modify(fd, token, interest)
        } else {
            Ok(())
        };
        if let Err(error) = registered {
            let watched = self.watched.get_mut(&raw).expect("entered above");
            *watched.side(side) = before;
            if !known {
                self.watched.remove(&raw);
            }
            return Err(error);
        }
        if let Some(before) = &before {
            before.cancelled.set(true);
        }
        Ok(before)
    }

    /// Stops watching one side. The callback comes back cancelled: it does not run even if it is ready already.
    pub(crate) fn remove(&mut self, fd: BorrowedFd<'_>, side: Side) -> Option<Rc<IoCallback>> {
        let raw = fd.as_raw_fd();
        let watched = self.watched.get_mut(&raw)?;
        let removed = watched.side(side).take()?;
        removed.cancelled.set(true);
        let interest = watched.interest();
        // Refused means that the descriptor was closed, and with it the registration.
        let _ = if interest.readable || interest.writable {
            self.selector.modify(fd, Token(raw as u64), interest)
        } else {
            self.watched.remove(&raw);
            self.selector.deregister(fd)
        };
        Some(removed)
    }

    /// Waits, and hands out the callbacks of what is ready; how many there were.
    pub(crate) fn poll(&mut self, timeout: Option<Duration>, mut found: impl FnMut(Rc<IoCallback>)) -> usize {
        let mut count = 0;
        self.ready.clear();
        if let Err(error) = self.selector.wait(timeout, &mut self.ready) {
            // The selector is ours and so are its arguments: a refusal is a fault of this program, not of its input.
            panic!("the selector refused to wait: {error}");
        }
        for event in &self.ready {
            let Some(watched) = self.watched.get(&(event.token.0 as RawFd)).filter(|_| event.token != BELL) else {
                continue;
            };
            if event.readable
                && let Some(reader) = &watched.reader
            {
                found(reader.clone());
                count += 1;
            }
            if event.writable
                && let Some(writer) = &watched.writer
            {
                found(writer.clone());
                count += 1;
            }
        }
        count
    }

    /// Everything that was watched, for the caller to drop.
    pub(crate) fn clear(&mut self) -> Vec<Rc<IoCallback>> {
        let watched = std::mem::take(&mut self.watched);
        watched.into_values().flat_map(|watched| watched.reader.into_iter().chain(watched.writer)).collect()
    }
}

impl LoopHandle {
    /// Runs `callback` in every tick in which `fd` can be read. A reader that was there before is replaced.
    ///
    /// The descriptor must stay open until [`remove_reader`](Self::remove_reader).
    ///
    /// # Errors
    /// When the descriptor cannot be watched (a regular file) or is closed.
    ///
    /// ```
    /// use std::io::Write;
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    /// let handle = event_loop.handle();
    /// event_loop.add_reader(&near, move || handle.stop()).unwrap();
    /// far.write_all(b"x").unwrap();
    /// event_loop.run_forever().unwrap();
    /// assert!(event_loop.remove_reader(&near));
    /// ```
    #[track_caller]
    pub fn add_reader(&self, fd: &impl AsFd, callback: impl FnMut() + 'static) -> io::Result<()> {
        self.watch(fd, Side::Read, callback, Location::caller())
    }

    /// The same for writing.
    ///
    /// # Errors
    /// As [`add_reader`](Self::add_reader).
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    /// let handle = event_loop.handle();
    /// event_loop.add_writer(&near, move || handle.stop()).unwrap();
    /// event_loop.run_forever().unwrap();
    /// assert!(event_loop.remove_writer(&near));
    /// ```
    #[track_caller]
    pub fn add_writer(&self, fd: &impl AsFd, callback: impl FnMut() + 'static) -> io::Result<()> {
        self.watch(fd, Side::Write, callback, Location::caller())
    }

    fn watch(
        &self,
        fd: &impl AsFd,
        side: Side,
        callback: impl FnMut() + 'static,
        location: &'static Location<'static>,
    ) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::Error::other("the loop is closed; make a new one"));
        }
        let callback = Rc::new(IoCallback::new(Box::new(callback), location));
        let before = self.kernel.io.borrow_mut().add(fd.as_fd(), side, callback)?;
        drop(before);
        Ok(())
    }

    /// Stops reading: the callback does not run again, even if it is ready in this tick. False if there was none.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.remove_reader(&std::io::stdin()));
    /// ```
    pub fn remove_reader(&self, fd: &impl AsFd) -> bool {
        let removed = self.kernel.io.borrow_mut().remove(fd.as_fd(), Side::Read);
        removed.is_some()
    }

    /// The same for writing.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// assert!(!event_loop.remove_writer(&std::io::stdin()));
    /// ```
    pub fn remove_writer(&self, fd: &impl AsFd) -> bool {
        let removed = self.kernel.io.borrow_mut().remove(fd.as_fd(), Side::Write);
        removed.is_some()
    }
}
