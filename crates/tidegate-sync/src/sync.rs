//! The few primitives everything else is built from.
//!
//! The model tests compile the sources of this crate over another version of this file, one that
//! hands out loom's types: nothing else here may name `std::sync::atomic` types or `UnsafeCell`.

use std::thread;
use std::time::Duration;

pub(crate) use super::brief::{Brief, Inside};
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

/// As many items for one visit to a queue mean that more are coming, and soon.
pub(crate) const FLOW_MIN: usize = 8;

/// Lets about five microseconds pass: many times what a visit to a queue costs the producer on another core, so that the
/// visits become a small part of his work, and a fraction of what going to sleep and being woken costs both.
pub(crate) fn moment() {
    (0..200).for_each(|_| std::hint::spin_loop());
}

/// A number that no other thread has now.
pub(crate) fn here() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Tells the processor that what lies a few cache lines behind `last` will be written. These lines are often in another
/// core's cache still, and asked for only when they are needed, each would hold up a push with the lock in its hands.
#[inline(always)]
pub(crate) fn expect_writes_behind<T>(last: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let ahead = std::ptr::from_ref(last).addr().wrapping_add(256);
        // SAFETY: a hint. It changes neither memory nor registers nor flags, any address will do, mapped or not, and
        // where the processor does not know it, it does nothing.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) ahead, options(nomem, nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = last;
}
