//! The atomics and cells that the rest of this crate is built from.
//!
//! The model tests (`tidegate-models`) compile this crate's sources over another version of this file, with loom's types
//! in it. So no other file may name a type of `std::sync::atomic` or `std::cell::UnsafeCell`.

use std::thread;
use std::time::Duration;

pub(crate) use super::brief::{Brief, BriefGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// `std::cell::UnsafeCell` with loom's interface: each access is a closure, so that loom can check that accesses do not
/// overlap.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }
}

impl<T: ?Sized> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Waits between two attempts to take a [`Brief`] lock; `round` counts the attempts so far.
///
/// Each attempt takes the lock's cache line away from the thread that holds it, so the waits grow.
pub(crate) fn pause(round: u32) {
    match round {
        0..4 => (0..8 << round).for_each(|_| std::hint::spin_loop()),
        4..64 => thread::yield_now(),
        // A thread of lower priority does not run while this one yields, but does while it sleeps.
        _ => thread::sleep(Duration::from_micros(50)),
    }
}
