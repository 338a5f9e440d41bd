//! The process's allocator: the system's, plus a count of the live bytes while somebody asks.
//!
//! Outside [`counting`] it costs one relaxed load a call, so the timed lines see the allocator that
//! every program has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
/// Bytes allocated minus bytes freed while [`ON`]; negative when older blocks were freed.
static LIVE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Runs `f` with the count switched on. Every thread is counted; lines run one at a time.
pub(crate) fn counting<T>(f: impl FnOnce() -> T) -> T {
    ON.store(true, Relaxed);
    let result = f();
    ON.store(false, Relaxed);
    result
}

/// Live bytes as requested (without the allocator's own headers). Only differences taken within
/// one [`counting`] mean anything.
pub(crate) fn live_bytes() -> i64 {
    LIVE.load(Relaxed)
}

fn count(bytes: i64) {
    if ON.load(Relaxed) {
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every method passes its arguments to `System` unchanged and returns what `System`
// returned; counting touches atomics only and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; `ptr` came from `System` by way of this allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_bytes_follow_growth_and_release() {
        counting(|| {
            let before = live_bytes();
            let mut bytes: Vec<u8> = Vec::with_capacity(1 << 20);
            bytes.reserve_exact(1 << 21);
            let held = live_bytes() - before;
            // Other tests of this process may allocate a little meanwhile.
            assert!((held - (1 << 21)).abs() < 1 << 18, "{held}");
            drop(bytes);
            assert!((live_bytes() - before).abs() < 1 << 18);
        });
    }
}
