//! `tidegate-sync` over loom.

#![allow(missing_docs, dead_code, unreachable_pub, reason = "these lints are checked in the crate of the sources")]

/// Stands in for `tidegate-sync/src/shim.rs`.
mod shim {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

    /// loom's mutex in place of the spin lock, whose attempts would multiply the interleavings of every model above it.
    /// The spin lock itself is modelled in `tests/brief.rs`.
    pub(crate) struct Brief<S>(loom::sync::Mutex<S>);

    impl<S> Brief<S> {
        pub(crate) fn new(state: S) -> Self {
            Self(loom::sync::Mutex::new(state))
        }

        pub(crate) fn enter(&self) -> BriefGuard<'_, S> {
            BriefGuard(self.0.lock().unwrap())
        }

        pub(crate) fn try_enter(&self) -> Option<BriefGuard<'_, S>> {
            self.0.try_lock().ok().map(BriefGuard)
        }
    }

    pub(crate) struct BriefGuard<'a, S>(loom::sync::MutexGuard<'a, S>);

    impl<S> BriefGuard<'_, S> {
        pub(crate) fn reach<R>(&mut self, section: impl FnOnce(&mut S) -> R) -> R {
            section(&mut self.0)
        }
    }

    pub(crate) fn pause(_round: u32) {
        loom::thread::yield_now();
    }
}

#[path = "../../tidegate-sync/src/brief.rs"]
pub mod brief;

#[path = "../../tidegate-sync/src/acquire.rs"]
mod acquire;
#[path = "../../tidegate-sync/src/counter.rs"]
mod counter;
#[path = "../../tidegate-sync/src/error.rs"]
mod error;
#[path = "../../tidegate-sync/src/event.rs"]
mod event;
#[path = "../../tidegate-sync/src/list.rs"]
mod list;
#[path = "../../tidegate-sync/src/lock.rs"]
mod lock;
#[path = "../../tidegate-sync/src/permit.rs"]
mod permit;
#[path = "../../tidegate-sync/src/push.rs"]
mod push;
#[path = "../../tidegate-sync/src/queue.rs"]
mod queue;
#[path = "../../tidegate-sync/src/recv.rs"]
mod recv;
#[path = "../../tidegate-sync/src/semaphore.rs"]
mod semaphore;
#[path = "../../tidegate-sync/src/stats.rs"]
mod stats;
#[path = "../../tidegate-sync/src/store.rs"]
mod store;
#[path = "../../tidegate-sync/src/turn.rs"]
mod turn;
#[path = "../../tidegate-sync/src/word.rs"]
mod word;

pub use error::{AcquireError, Closed, PushError, TryAcquireError};
pub use event::Event;
pub use queue::Queue;
pub use semaphore::Semaphore;
