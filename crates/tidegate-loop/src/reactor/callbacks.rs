//! Descriptors with callbacks: `add_reader` and `add_writer` with asyncio's rules. Level-triggered with every selector:
//! a callback runs for as long as its descriptor is ready.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::panic::Location;
use std::rc::Rc;

use crate::context::Snapshot;
use crate::reactor::selector::Interest;
use crate::runtime::event_loop::LoopHandle;

/// A callback that runs every time its descriptor is ready, or its signal has come.
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

    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
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
pub(super) struct Watched {
    pub(super) reader: Option<Rc<IoCallback>>,
    pub(super) writer: Option<Rc<IoCallback>>,
}

impl Watched {
    pub(super) fn interest(&self) -> Interest {
        Interest { readable: self.reader.is_some(), writable: self.writer.is_some(), edge: false }
    }

    pub(super) fn side(&mut self, side: Side) -> &mut Option<Rc<IoCallback>> {
        match side {
            Side::Read => &mut self.reader,
            Side::Write => &mut self.writer,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Side {
    Read,
    Write,
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
