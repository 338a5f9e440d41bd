//! The few primitives everything else is built from.
//!
//! The model tests compile the sources of this crate over another version of this file, one that
//! hands out loom's types: nothing else here may name `std::sync::atomic` types or `UnsafeCell`.

use std::thread;
use std::time::Duration;

pub(crate) use super::brief::Brief;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// `std::cell::UnsafeCell` with loom's interface: access is a scope, so that a model can check it.
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

/// What to do in the `round`th while of waiting for a lock that is only ever held briefly.
///
/// Each look at the lock takes its cache line from whoever holds it and slows him down, so the looks become rarer.
pub(crate) fn pause(round: u32) {
    match round {
        0..4 => (0..8 << round).for_each(|_| std::hint::spin_loop()),
        4..64 => thread::yield_now(),
        // Yielding does not help a holder of lower priority; sleeping does.
        _ => thread::sleep(Duration::from_micros(50)),
    }
}
