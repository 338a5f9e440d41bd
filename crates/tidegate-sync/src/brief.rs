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
    pub fn enter(&self) -> Inside<'_, S> {
        self.try_enter().unwrap_or_else(|| self.wait())
    }

    /// `None` while somebody is inside.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_, S>> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| Inside(self))
    }

    #[cold]
    fn wait(&self) -> Inside<'_, S> {
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

/// A lock that is taken, by this alone; let go when this is dropped, be it by unwinding.
pub struct Inside<'a, S>(&'a Brief<S>);

impl<S> Inside<'_, S> {
    #[inline]
    pub fn reach<R>(&mut self, section: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: this is the only one there is, and it is borrowed for as long.
        self.0.state.with_mut(|state| section(unsafe { &mut *state }))
    }
}

impl<S> Drop for Inside<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}
