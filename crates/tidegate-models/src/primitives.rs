//! `tidegate-sync` over loom.

#![allow(missing_docs, dead_code, unreachable_pub, reason = "these are said where the sources live")]

/// Stands in for `tidegate-sync/src/sync.rs`.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

    /// A spinning lock would multiply the interleavings of everything above it, so that has loom's
    /// mutex instead, and the lock itself a model of its own.
    pub(crate) struct Brief<S>(loom::sync::Mutex<S>);

    impl<S> Brief<S> {
        pub(crate) fn new(state: S) -> Self {
            Self(loom::sync::Mutex::new(state))
        }

        pub(crate) fn enter(&self) -> Inside<'_, S> {
            Inside(self.0.lock().unwrap())
        }

        pub(crate) fn try_enter(&self) -> Option<Inside<'_, S>> {
            self.0.try_lock().ok().map(Inside)
        }
    }

    pub(crate) struct Inside<'a, S>(loom::sync::MutexGuard<'a, S>);

    impl<S> Inside<'_, S> {
        pub(crate) fn reach<R>(&mut self, section: impl FnOnce(&mut S) -> R) -> R {
            section(&mut self.0)
        }
    }

    pub(crate) fn pause(_round: u32) {
        loom::thread::yield_now();
    }

    /// Two items are a flood here.
    pub(crate) const FLOW_MIN: usize = 2;

    pub(crate) fn moment() {
        loom::thread::yield_now();
    }

    /// Never the same twice: every wake-up counts as another thread's.
    pub(crate) fn here() -> usize {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
        NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn expect_writes_behind<T>(_last: &T) {}
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
