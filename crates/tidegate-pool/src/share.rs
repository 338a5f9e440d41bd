//! State that a pool shares with its tasks: counted and borrowed on one thread, counted and locked between several.
//! Which of the two is the executor's choice, so nobody pays for atomics on a loop that has one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// A value with several owners, reached by one at a time.
///
/// ```
/// use tidegate_pool::{Share, Threaded};
/// let count = Threaded::new(1);
/// let same = count.clone();
/// same.with(|n| *n += 1);
/// assert_eq!(count.with(|n| *n), 2);
/// ```
pub trait Share<T>: Clone {
    /// The first owner.
    fn new(value: T) -> Self;

    /// Runs `section` with the value. The pool keeps sections short and calls no foreign code in them.
    fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R;

    /// The same, or `None` if somebody is inside: for `Debug`, which must not wait.
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
        // Sections do not panic half-way; a poisoned lock says only that a debug assertion failed.
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
