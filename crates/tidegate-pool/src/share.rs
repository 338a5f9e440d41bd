//! The state that a pool shares with its tasks: behind `Rc` and `RefCell` on one thread, behind `Arc` and `Mutex` between
//! several. The executor chooses, so a pool on a single-threaded loop uses no atomics.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// A value with several owners, of which one at a time has access.
///
/// ```
/// use tidegate_pool::{Share, Threaded};
/// let count = Threaded::new(1);
/// let same = count.clone();
/// same.with(|n| *n += 1);
/// assert_eq!(count.with(|n| *n), 2);
/// ```
pub trait Share<T>: Clone {
    /// Creates the first owner.
    fn new(value: T) -> Self;

    /// Runs `section` with the value. The pool's sections are short and call no foreign code.
    fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R;

    /// As [`with`](Self::with), but returns `None` if the value is in use. For `Debug`, which must not wait.
    fn try_with<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// Shared on one thread: no atomics.
///
/// ```
/// use tidegate_pool::{Share, Unthreaded};
/// assert_eq!(Unthreaded::new(1).with(|n| *n), 1);
/// ```
pub struct Unthreaded<T>(Rc<RefCell<T>>);

impl<T> Share<T> for Unthreaded<T> {
    fn new(value: T) -> Self {
        Unthreaded(Rc::new(RefCell::new(value)))
    }

    #[inline]
    fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        section(&mut self.0.borrow_mut())
    }

    fn try_with<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_borrow_mut().ok().map(|mut value| section(&mut value))
    }
}

impl<T> Clone for Unthreaded<T> {
    #[inline]
    fn clone(&self) -> Self {
        Unthreaded(Rc::clone(&self.0))
    }
}

/// Shared between threads.
///
/// ```
/// use tidegate_pool::{Share, Threaded};
/// let count = Threaded::new(0);
/// let same = count.clone();
/// std::thread::spawn(move || same.with(|n| *n += 1)).join().unwrap();
/// assert_eq!(count.with(|n| *n), 1);
/// ```
pub struct Threaded<T>(Arc<Mutex<T>>);

impl<T> Share<T> for Threaded<T> {
    fn new(value: T) -> Self {
        Threaded(Arc::new(Mutex::new(value)))
    }

    #[inline]
    fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        // Sections panic only in debug assertions, so a poisoned lock does not mean inconsistent state.
        section(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_with<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.0.try_lock() {
            Ok(mut value) => Some(section(&mut value)),
            Err(TryLockError::Poisoned(poisoned)) => Some(section(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Clone for Threaded<T> {
    #[inline]
    fn clone(&self) -> Self {
        Threaded(Arc::clone(&self.0))
    }
}
