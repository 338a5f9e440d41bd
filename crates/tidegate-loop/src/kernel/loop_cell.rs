//! A cell for the loop's hottest state: a `RefCell` in debug builds, without the bookkeeping in release builds.

use std::cell::UnsafeCell;

/// State that only the loop's thread touches, and only for moments in which nothing else runs.
pub(crate) struct Local<T> {
    value: UnsafeCell<T>,
    #[cfg(debug_assertions)]
    busy: std::cell::Cell<bool>,
}

impl<T> Local<T> {
    pub(crate) fn new(value: T) -> Local<T> {
        Local {
            value: UnsafeCell::new(value),
            #[cfg(debug_assertions)]
            busy: std::cell::Cell::new(false),
        }
    }

    /// Lends the value to `f`.
    ///
    /// # Safety
    /// `f` must not come back to this cell: it calls no foreign code (wakers, futures, callbacks, destructors of what
    /// the user gave us) and no function of this crate that uses the cell. Debug builds, and so all tests, check it.
    #[inline(always)]
    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(debug_assertions)]
        assert!(!self.busy.replace(true), "the loop's state was entered twice");
        // SAFETY: not shared between threads (`UnsafeCell` is not `Sync`), and by the contract above not lent twice.
        let result = f(unsafe { &mut *self.value.get() });
        #[cfg(debug_assertions)]
        self.busy.set(false);
        result
    }
}
