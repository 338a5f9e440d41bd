//! How other threads reach a loop.

use std::fmt;
use std::panic::Location;

use crate::context::Carried;
use crate::kernel::Kernel;
use crate::mailbox::{Mailbox, Message};
use crate::runtime::error::LoopClosed;

/// A loop, for other threads.
///
/// ```
/// use tidegate_loop::{EventLoop, LoopHandle};
///
/// let event_loop = EventLoop::new().unwrap();
/// let remote = event_loop.remote();
/// std::thread::spawn(move || {
///     remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
/// });
/// event_loop.run_forever().unwrap();
/// ```
#[derive(Clone)]
pub struct RemoteHandle {
    mailbox: &'static Mailbox,
    /// Mailboxes are reused by later loops; this tells whose it was meant to be.
    serial: u32,
}

impl RemoteHandle {
    pub(crate) fn new(kernel: &Kernel) -> RemoteHandle {
        RemoteHandle { mailbox: kernel.registration.mailbox, serial: kernel.registration.serial }
    }

    /// Makes the loop look around, should it sleep.
    pub(crate) fn nudge(&self) {
        self.mailbox.nudge();
    }

    /// Queues `callback` on the loop and wakes it up if it sleeps. Calls from one thread run in their order. The
    /// callback runs in a copy of the calling thread's context; see [`ContextVar`](crate::ContextVar) for what travels.
    ///
    /// # Errors
    /// [`LoopClosed`]; the callback is dropped here.
    ///
    /// ```
    /// # let event_loop = tidegate_loop::EventLoop::new().unwrap();
    /// let remote = event_loop.remote();
    /// drop(event_loop);
    /// assert!(remote.call_soon_threadsafe(|| ()).is_err());
    /// ```
    #[track_caller]
    pub fn call_soon_threadsafe(&self, callback: impl FnOnce() + Send + 'static) -> Result<(), LoopClosed> {
        let context = Carried::current();
        let callback: Box<dyn FnOnce() + Send> =
            if context.is_empty() { Box::new(callback) } else { Box::new(move || context.run(callback)) };
        self.mailbox.post(Some(self.serial), Message::Call(callback, Location::caller())).map_err(|_refused| LoopClosed)
    }
}

impl fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteHandle").finish_non_exhaustive()
    }
}
