//! Signals: listeners that are awaited, handlers that are called, on any number of loops in any threads.
//!
//! ```
//! use tidegate_loop::{run, signal::{SignalKind, signal}};
//!
//! run(async {
//!     let mut hangup = signal(SignalKind::HANGUP).unwrap();
//!     std::process::Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status().unwrap();
//!     assert_eq!(hangup.recv().await, 1);
//! })
//! .unwrap();
//! ```
//!
//! While there is a listener or handler, a signal does not have its usual effect; a handler that the program had installed before is
//! still called. When the last listener has gone, the previous disposition is put back. SIGCHLD is never taken unless
//! a program asks for it: [`process`](crate::process) waits for its children by other means.
//!
//! Several signals of one kind may be told as one: the system itself keeps no count of those that are pending, and a
//! listener receives how many have come since it last asked.

mod disposition;
mod kind;
mod table;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context as PollContext, Poll};

use futures_core::Stream;

use crate::kernel::Kernel;
use crate::runtime::event_loop::LoopHandle;
pub use kind::SignalKind;
use table::Listener;
pub(crate) use table::SignalTable;

/// Takes Ctrl-C for runners that are about to begin. `None`: the program sees to SIGINT itself.
pub(crate) fn hold_interrupts() -> Option<impl Drop> {
    disposition::Use::runner()
}

/// Listens for a signal on the running loop, from now on. Any number of listeners may, and each receives it.
///
/// # Errors
/// When the signal cannot be handled (SIGKILL, SIGSEGV, …) or is none.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{run, signal::{SignalKind, signal}};
/// run(async {
///     assert!(signal(SignalKind::TERMINATE).is_ok());
///     let refused = signal(SignalKind::KILL).unwrap_err();
///     assert!(refused.to_string().contains("SIGKILL cannot be handled"));
/// })
/// .unwrap();
/// ```
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    let handle = LoopHandle::current();
    let listener = handle.kernel.listen(kind)?;
    Ok(Signal { listener, kernel: handle.kernel.weak() })
}

/// A listener for one signal. Belongs to the loop it was made on; dropped, it stops listening.
///
/// As a stream it yields what [`recv`](Self::recv) does and never ends.
///
/// ```
/// use tidegate_loop::{run, signal::{SignalKind, signal}};
/// run(async {
///     let usr1 = signal(SignalKind::USER1).unwrap();
///     assert_eq!(usr1.kind(), SignalKind::USER1);
/// })
/// .unwrap();
/// ```
pub struct Signal {
    listener: Rc<Listener>,
    kernel: Weak<Kernel>,
}

impl Signal {
    /// Waits for the signal. How often it has come since it was last told of, or since the listener was made: at least
    /// once. (The system merges signals of one kind that arrive before the first of them could be handled.)
    ///
    /// # Cancel safety
    /// Safe: nothing is taken before it is ready.
    ///
    /// ```
    /// use tidegate_loop::{run, signal::{SignalKind, signal}};
    /// run(async {
    ///     let mut usr1 = signal(SignalKind::USER1).unwrap();
    ///     std::process::Command::new("kill").args(["-USR1", &std::process::id().to_string()]).status().unwrap();
    ///     assert!(usr1.recv().await >= 1);
    /// })
    /// .unwrap();
    /// ```
    pub async fn recv(&mut self) -> u64 {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// How often the signal has come since it was last told of, without waiting: perhaps not at all.
    ///
    /// ```
    /// use tidegate_loop::{run, signal::{SignalKind, signal}};
    /// run(async { assert_eq!(signal(SignalKind::USER1).unwrap().try_recv(), 0) }).unwrap();
    /// ```
    pub fn try_recv(&mut self) -> u64 {
        let total = disposition::total(self.listener.signal);
        total - self.listener.seen.replace(total)
    }

    /// [`recv`](Self::recv), for futures written by hand.
    ///
    /// ```
    /// use std::task::{Context, Poll, Waker};
    /// use tidegate_loop::{run, signal::{SignalKind, signal}};
    /// run(async {
    ///     let mut usr1 = signal(SignalKind::USER1).unwrap();
    ///     assert_eq!(usr1.poll_recv(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    /// })
    /// .unwrap();
    /// ```
    pub fn poll_recv(&mut self, cx: &mut PollContext<'_>) -> Poll<u64> {
        match self.try_recv() {
            // What comes from now on makes the loop look around, and that wakes us.
            0 => {
                let before = self.listener.waker.replace(Some(cx.waker().clone()));
                drop(before);
                Poll::Pending
            }
            count => Poll::Ready(count),
        }
    }

    /// Which signal.
    ///
    /// ```
    /// use tidegate_loop::{run, signal::{SignalKind, signal}};
    /// run(async { assert_eq!(signal(SignalKind::QUIT).unwrap().kind(), SignalKind::QUIT) }).unwrap();
    /// ```
    pub fn kind(&self) -> SignalKind {
        self.listener.signal
    }
}

impl Stream for Signal {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Option<u64>> {
        self.get_mut().poll_recv(cx).map(Some)
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if let Some(kernel) = self.kernel.upgrade() {
            kernel.stop_listening(&self.listener);
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("kind", &self.listener.signal).finish_non_exhaustive()
    }
}
