//! A spin lock for sections of a few dozen instructions that call no foreign code.
//!
//! It is not `std::sync::Mutex` because a push or a receive costs little more than its lock. Releasing this one is a plain
//! store; a lock whose waiters sleep needs a second atomic exchange to find out whether to wake one, and costs about twice
//! as much uncontended (docs/figures.md). A thread that finds the lock taken spins for about as long as a section lasts. If
//! it is still taken then, its holder was preempted, and the thread yields its core.

#![allow(unreachable_pub, reason = "the model test in another crate calls it")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::shim::{AtomicBool, UnsafeCell, pause};

/// State behind a spin lock. The lock is the first field, so it shares the first cache line of the state.
#[repr(C)]
pub struct Brief<S> {
    taken: AtomicBool,
    state: UnsafeCell<S>,
}

// SAFETY: only the thread that has set `taken` reaches the state, and one thread at a time can set it.
unsafe impl<S: Send> Sync for Brief<S> {}

impl<S> Brief<S> {
    pub fn new(state: S) -> Self {
        Self { taken: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    #[inline]
    pub fn enter(&self) -> BriefGuard<'_, S> {
        self.try_enter().unwrap_or_else(|| self.wait())
    }

    /// Takes the lock without waiting. Returns `None` if it is taken.
    #[inline]
    pub fn try_enter(&self) -> Option<BriefGuard<'_, S>> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| BriefGuard(self))
    }

    #[cold]
    fn wait(&self) -> BriefGuard<'_, S> {
        let mut round = 0;
        loop {
            pause(round);
            round = round.saturating_add(1);
            if !self.taken.load(Relaxed)
                && let Some(inside) = self.try_enter()
            {
                return inside;
            }
        }
    }
}

/// The taken lock; dropping this releases it, also while unwinding.
pub struct BriefGuard<'a, S>(&'a Brief<S>);

impl<S> BriefGuard<'_, S> {
    #[inline]
    pub fn reach<R>(&mut self, section: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: there is one guard at a time, and it is mutably borrowed while `section` runs.
        self.0.state.with_mut(|state| section(unsafe { &mut *state }))
    }
}

impl<S> Drop for BriefGuard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}
