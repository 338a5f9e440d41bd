//! Memory for tasks: blocks that were freed are kept for the next task of their size. A flood of short tasks then costs
//! a few instructions each instead of a round through the allocator.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

/// Blocks come in multiples of this, and are aligned to it.
const UNIT: usize = 8;
/// Larger ones go straight to the allocator.
const UNITS_MAX: usize = 64;
/// The most that a thread keeps, over all sizes.
const BYTES_KEPT_MAX: usize = 4 << 20;

/// A free block; its first word points to the next one.
struct Free {
    next: *mut Free,
}

struct Kept {
    /// By size, in units.
    lists: [Cell<*mut Free>; UNITS_MAX + 1],
    bytes: Cell<usize>,
}

/// Empties the lists when its thread ends. Apart from them: a thread-local that has something to drop is asked each time
/// whether it is still there, and the lists are used too often for that.
struct AtEnd;

thread_local! {
    static KEPT: Kept =
        const { Kept { lists: [const { Cell::new(ptr::null_mut()) }; UNITS_MAX + 1], bytes: Cell::new(0) } };
    static AT_END: AtEnd = const { AtEnd };
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        KEPT.with(|kept| {
            // From now on nothing is kept.
            kept.bytes.set(BYTES_KEPT_MAX);
            for (units, list) in kept.lists.iter().enumerate() {
                let mut next = list.replace(ptr::null_mut());
                while let Some(block) = NonNull::new(next) {
                    // SAFETY: every block in a list was put there by `give_back`: allocated with this layout, unused since,
                    // and its first word written there.
                    unsafe {
                        next = block.as_ref().next;
                        dealloc(block.as_ptr().cast(), layout(units));
                    }
                }
            }
        });
    }
}

fn layout(units: usize) -> Layout {
    Layout::from_size_align(units * UNIT, UNIT).expect("a few hundred bytes")
}

/// The units a `T` needs, or `None` if it is too large or too strictly aligned to be kept.
const fn units<T>() -> Option<usize> {
    let units = size_of::<T>().div_ceil(UNIT);
    if units <= UNITS_MAX && units > 0 && align_of::<T>() <= UNIT { Some(units) } else { None }
}

/// Makes a value in a block. It is made when the block is there, so that it is written in place and not moved.
#[inline]
pub(crate) fn allocate<T>(make: impl FnOnce() -> T) -> NonNull<T> {
    let Some(units) = (const { units::<T>() }) else {
        return NonNull::from(Box::leak(Box::new(make())));
    };
    let kept = KEPT.with(|kept| {
        let block = NonNull::new(kept.lists[units].get())?;
        // SAFETY: a block in a list is unused and its first word is the next one, see `give_back`.
        kept.lists[units].set(unsafe { block.as_ref() }.next);
        kept.bytes.set(kept.bytes.get() - units * UNIT);
        Some(block)
    });
    let block = match kept {
        Some(block) => block.cast::<T>(),
        None => fresh(units).cast::<T>(),
    };
    // SAFETY: the block is at least as large and as aligned as a `T` (`units`), and in no list any more.
    unsafe { block.write(make()) };
    block
}

#[cold]
fn fresh(units: usize) -> NonNull<u8> {
    // Before any block can come to a list of this thread's; past its end there is nothing to be seen to.
    let _ = AT_END.try_with(|_| ());
    let layout = layout(units);
    // SAFETY: the size is not zero, because `units` is not.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Drops the value and keeps its block.
///
/// # Safety
/// `value` comes from `allocate::<T>` on this thread, and is not used again.
#[inline]
pub(crate) unsafe fn free<T>(value: NonNull<T>) {
    // SAFETY: valid until here by the caller's promise. Dropping may run any code, but not reach the value again.
    unsafe {
        value.drop_in_place();
        give_back(value);
    }
}

/// Keeps the block of a value that was dropped, or has nothing to drop.
///
/// # Safety
/// As for `free`.
#[inline]
pub(crate) unsafe fn give_back<T>(value: NonNull<T>) {
    let Some(units) = (const { units::<T>() }) else {
        // SAFETY: such a value was leaked from a box by `allocate`.
        return drop(unsafe { Box::from_raw(value.as_ptr().cast::<MaybeUninit<T>>()) });
    };
    let block = value.cast::<Free>();
    KEPT.with(|kept| {
        let bytes = kept.bytes.get() + units * UNIT;
        if bytes > BYTES_KEPT_MAX {
            // SAFETY: allocated by `fresh` for as many units.
            return unsafe { discard(block, units) };
        }
        kept.bytes.set(bytes);
        // SAFETY: the block holds at least a unit, which is as large as a `Free`, and is unused (the caller's promise).
        unsafe { block.write(Free { next: kept.lists[units].get() }) };
        kept.lists[units].set(block.as_ptr());
    });
}

#[cold]
unsafe fn discard(block: NonNull<Free>, units: usize) {
    // SAFETY: the caller's promise.
    unsafe { dealloc(block.as_ptr().cast(), layout(units)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_freed_block_is_used_again_by_the_next_of_its_size() {
        let first = allocate(|| [1u64; 5]);
        // SAFETY: allocated above, used once.
        unsafe { free(first) };
        let second = allocate(|| [2u32; 9]);
        assert_eq!(first.addr(), second.addr());
        // SAFETY: allocated above, used once.
        unsafe { free(second) };
    }

    #[test]
    fn values_are_dropped_whatever_their_size_and_alignment() {
        #[repr(align(64))]
        struct Aligned<T>(T);
        let counted = Rc::new(());
        let small = allocate(|| counted.clone());
        let large = allocate(|| (counted.clone(), [0u8; 4096]));
        let aligned = allocate(|| Aligned(counted.clone()));
        // SAFETY: allocated just now.
        assert!(Rc::ptr_eq(&unsafe { aligned.as_ref() }.0, &counted));
        assert_eq!(aligned.as_ptr().addr() % 64, 0);
        assert_eq!(Rc::strong_count(&counted), 4);
        // SAFETY: each allocated above, freed once.
        unsafe {
            free(small);
            free(large);
            free(aligned);
        }
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
