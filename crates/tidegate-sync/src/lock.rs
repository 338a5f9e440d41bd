//! The lock behind every primitive, and the wakers collected under it.
//!
//! A waker is foreign code: waking, cloning or dropping one may run anything, this crate included.
//! So a section hands out what it has collected, and it is woken after the lock has been let go.

use std::mem::MaybeUninit;
use std::task::Waker;

use super::sync::{Brief, Inside};

/// State that is only touched in a section: [`with`](Lock::with) wakers to wake, with [one](Lock::hand_over) at most, or
/// with [none](Lock::quietly).
pub(super) struct Lock<S>(Brief<S>);

impl<S> Lock<S> {
    pub(super) fn new(state: S) -> Self {
        Self(Brief::new(state))
    }

    /// Runs `section` alone with the state, then, unlocked, wakes whom it collected.
    #[inline]
    pub(super) fn with<R>(&self, section: impl FnOnce(&mut S, &mut Wakes) -> R) -> R {
        waking(self.0.enter(), section)
    }

    /// For sections that seldom have to wake anybody: inside, to go on with [`waking`] if need be.
    #[inline]
    pub(super) fn enter(&self) -> Inside<'_, S> {
        self.0.enter()
    }

    /// Runs `section` alone with the state, then, unlocked, wakes whom it returned. False if that was nobody.
    #[inline]
    pub(super) fn hand_over(&self, section: impl FnOnce(&mut S) -> Option<Waker>) -> bool {
        let next = self.quietly(section);
        let handed = next.is_some();
        if let Some(waker) = next {
            waker.wake();
        }
        handed
    }

    /// Runs `section` alone with the state.
    #[inline]
    pub(super) fn quietly<R>(&self, section: impl FnOnce(&mut S) -> R) -> R {
        self.0.enter().reach(section)
    }

    /// For `Debug`, which must not wait: `None` while somebody is inside.
    pub(super) fn try_peek<R>(&self, look: impl FnOnce(&S) -> R) -> Option<R> {
        self.0.try_enter().map(|mut inside| inside.reach(|state| look(state)))
    }
}

/// Runs `section` where one is inside, then, unlocked, wakes whom it collected.
#[inline]
pub(super) fn waking<S, R>(inside: Inside<'_, S>, section: impl FnOnce(&mut S, &mut Wakes) -> R) -> R {
    // Dropped, and thereby woken, after the lock is let go, even when unwinding: what is declared last goes first.
    let mut wakes = Wakes::new();
    let mut inside = inside;
    inside.reach(|state| section(state, &mut wakes))
}

/// Repeats `section` while it says that there is more to do, even past wakers that panic: each of
/// them costs nobody but itself the wake-up.
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

/// Wakers taken under a lock, woken when this is dropped.
///
/// Bounded, so that collecting never allocates and a crowd is woken in several short sections
/// instead of one long one: whoever collects stops when it [is full](Wakes::is_full) and comes back.
pub(super) struct Wakes {
    /// The first `len` are initialised.
    wakers: [MaybeUninit<Waker>; Wakes::MAX],
    len: usize,
}

impl Wakes {
    pub(super) const MAX: usize = 16;

    #[inline]
    fn new() -> Self {
        Self { wakers: [const { MaybeUninit::uninit() }; Self::MAX], len: 0 }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == Self::MAX
    }

    /// # Panics
    /// If it is full.
    #[inline]
    pub(super) fn push(&mut self, waker: Waker) {
        self.wakers[self.len].write(waker);
        self.len += 1;
    }

    #[inline(never)]
    fn wake_all(&mut self) {
        let len = std::mem::take(&mut self.len);
        let mut rest = Rest { wakers: &self.wakers[..len] };
        rest.wake_all();
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        match self.len {
            0 => {}
            // SAFETY: the first is initialised, and read this once.
            1 => unsafe { self.wakers[0].assume_init_read() }.wake(),
            _ => self.wake_all(),
        }
    }
}

/// Initialised wakers that are still to be woken; those behind a waker that panics are woken too.
struct Rest<'a> {
    wakers: &'a [MaybeUninit<Waker>],
}

impl Rest<'_> {
    #[inline]
    fn wake_all(&mut self) {
        while let [first, rest @ ..] = self.wakers {
            self.wakers = rest;
            // SAFETY: `Wakes` handed over initialised wakers and forgot them; the line above takes
            // each out of the slice before it is read, so none is read twice.
            unsafe { first.assume_init_read() }.wake();
        }
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.wake_all();
    }
}
