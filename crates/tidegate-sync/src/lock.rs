//! The lock behind every primitive, and the wakers collected under it.
//!
//! A waker is foreign code: waking, cloning or dropping one may run anything, this crate included. So a section only
//! collects wakers, and they are woken after the lock has been released.

use std::task::Waker;

use arrayvec::ArrayVec;

use super::shim::{Brief, BriefGuard};

/// State that is only touched in sections under the lock. A section may wake [any number](Lock::with) of waiters, [at most
/// one](Lock::hand_over), or [none](Lock::quietly).
pub(super) struct Lock<S>(Brief<S>);

impl<S> Lock<S> {
    pub(super) fn new(state: S) -> Self {
        Self(Brief::new(state))
    }

    /// Runs `section` under the lock, then releases the lock and wakes the wakers that it collected.
    #[inline]
    pub(super) fn with<R>(&self, section: impl FnOnce(&mut S, &mut Wakes) -> R) -> R {
        waking(self.0.enter(), section)
    }

    /// Takes the lock for a section that seldom wakes a waiter; one that does continues with [`waking`].
    #[inline]
    pub(super) fn enter(&self) -> BriefGuard<'_, S> {
        self.0.enter()
    }

    /// Runs `section` under the lock, then releases the lock and wakes the waker that it returned. Returns `false` if it
    /// returned none.
    #[inline]
    pub(super) fn hand_over(&self, section: impl FnOnce(&mut S) -> Option<Waker>) -> bool {
        let next = self.quietly(section);
        let handed = next.is_some();
        if let Some(waker) = next {
            waker.wake();
        }
        handed
    }

    /// Runs `section`, which wakes no waiter, under the lock.
    #[inline]
    pub(super) fn quietly<R>(&self, section: impl FnOnce(&mut S) -> R) -> R {
        self.0.enter().reach(section)
    }

    /// Reads the state without waiting, for `Debug`. Returns `None` if the lock is taken.
    pub(super) fn try_peek<R>(&self, look: impl FnOnce(&S) -> R) -> Option<R> {
        self.0.try_enter().map(|mut inside| inside.reach(|state| look(state)))
    }
}

/// Runs `section` under a lock that is already taken, then releases it and wakes the wakers that were collected.
#[inline]
pub(super) fn waking<S, R>(inside: BriefGuard<'_, S>, section: impl FnOnce(&mut S, &mut Wakes) -> R) -> R {
    // Declared before `inside`, so dropped after it, also while unwinding: the wakers are woken without the lock.
    let mut wakes = Wakes::new();
    let mut inside = inside;
    inside.reach(|state| section(state, &mut wakes))
}

/// Repeats `section` until it returns `false`. If a waker panics in it, the remaining rounds run before the panic goes on,
/// so that no other waiter loses its wake-up.
#[inline]
pub(super) fn while_more(section: impl FnMut() -> bool) {
    struct Rest<F: FnMut() -> bool>(F);

    impl<F: FnMut() -> bool> Rest<F> {
        #[inline]
        fn run(&mut self) {
            while (self.0)() {}
        }
    }

    impl<F: FnMut() -> bool> Drop for Rest<F> {
        fn drop(&mut self) {
            self.run();
        }
    }

    let mut rest = Rest(section);
    rest.run();
    std::mem::forget(rest);
}

/// Wakers taken under a lock, woken in their order when this is dropped.
///
/// The bound keeps a section short: no allocation, and a large number of waiters is woken in several sections. A section
/// stops when this [is full](Wakes::is_full), and its caller runs it again.
pub(super) struct Wakes(ArrayVec<Waker, 16>);

impl Wakes {
    #[inline]
    fn new() -> Self {
        Self(ArrayVec::new())
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// # Panics
    /// If it is full.
    #[inline]
    pub(super) fn push(&mut self, waker: Waker) {
        self.0.push(waker);
    }

    #[inline(never)]
    fn wake_all(&mut self) {
        let mut wakers = self.0.drain(..);
        while_more(|| wakers.next().map(Waker::wake).is_some());
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.wake_all();
        }
    }
}
