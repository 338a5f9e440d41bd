//! A lock for brief sections: a few dozen instructions that run nobody else's code.
//!
//! That is why it is not `std`'s. Letting go of it is a plain store, where a lock that others may
//! sleep on needs a second atomic exchange; and a push or a receive is little more than its lock.
//! Whoever finds it taken spins for about as long as a section lasts. If it is still taken then, its
//! holder has lost the processor, and the best one can do is to give up one's own.

#![allow(unreachable_pub, reason = "its model test reaches it from outside")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::sync::{AtomicBool, UnsafeCell, pause};

/// State that one thread at a time reaches, briefly. The lock lies before the state, and so in its first cache line.
#[repr(C)]
pub struct Brief<S> {
    taken: AtomicBool,
    state: UnsafeCell<S>,
}

// SAFETY: whoever reaches the state has set `taken`, and only one at a time can.
unsafe impl<S: Send> Sync for Brief<S> {}

impl<S> Brief<S> {
    pub fn new(state: S) -> Self {
        Self { taken: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    #[inline]
    pub fn with<R>(&self, section: impl FnOnce(&mut S) -> R) -> R {
        let _held = self.try_take().unwrap_or_else(|| self.wait());
        // SAFETY: `_held` is the only one there is.
        self.state.with_mut(|state| section(unsafe { &mut *state }))
    }

    /// `None` while somebody is inside.
    pub fn try_with<R>(&self, section: impl FnOnce(&mut S) -> R) -> Option<R> {
        let _held = self.try_take()?;
        // SAFETY: as above.
        Some(self.state.with_mut(|state| section(unsafe { &mut *state })))
    }

    #[inline]
    fn try_take(&self) -> Option<Held<'_>> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| Held(&self.taken))
    }

    #[cold]
    fn wait(&self) -> Held<'_> {
        let mut round = 0;
        loop {
            pause(round);
            round = round.saturating_add(1);
            if !self.taken.load(Relaxed)
                && let Some(held) = self.try_take()
            {
                return held;
            }
        }
    }
}

/// A lock that is taken; let go when this is dropped, be it by unwinding.
struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}
