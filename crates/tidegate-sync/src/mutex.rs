//! The mutex: a semaphore with one permit, and the value that it guards.

use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::acquire::Acquire;
use super::permit::Permit;
use super::semaphore::Semaphore;
use super::stats::Stats;

/// A fair mutex whose guard may be held across `.await`.
///
/// Tasks are served in the order of the first polls of their futures. A panic while the lock is held does not poison it.
/// If the guard is never held across an `.await`, `std::sync::Mutex` is the better choice.
///
/// ```
/// use tidegate_sync::Mutex;
///
/// # futures_lite::future::block_on(async {
/// let log = Mutex::new(Vec::new());
/// log.lock().await.push("started");
/// assert_eq!(log.into_inner(), ["started"]);
/// # });
/// ```
pub struct Mutex<T: ?Sized> {
    turns: Semaphore,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard, and each guard holds the only permit.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// Creates a mutex around `value`.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// assert_eq!(*Mutex::new(1).try_lock().unwrap(), 1);
    /// ```
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { turns: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Returns the value.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// assert_eq!(Mutex::new(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line. If it had been granted the lock already, the next in line gets it.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// # futures_lite::future::block_on(async {
    /// let count = Mutex::new(0);
    /// *count.lock().await += 1;
    /// assert_eq!(*count.lock().await, 1);
    /// # });
    /// ```
    #[inline]
    pub fn lock(&self) -> Locking<'_, T> {
        Locking { acquire: self.turns.acquire(), mutex: self }
    }

    /// Takes the lock if it is free and no task is in line. Returns `None` otherwise.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// let count = Mutex::new(0);
    /// let guard = count.try_lock();
    /// assert!(guard.is_some() && count.try_lock().is_none());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let permit = self.turns.try_acquire().ok()?;
        Some(MutexGuard { mutex: self, _permit: permit })
    }

    /// Returns the value without locking: `&mut self` is exclusive access.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// let mut count = Mutex::new(0);
    /// *count.get_mut() += 1;
    /// assert_eq!(count.into_inner(), 1);
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The mutex's figures.
    ///
    /// ```
    /// # use tidegate_sync::Mutex;
    /// let count = Mutex::new(0);
    /// let guard = count.try_lock();
    /// assert_eq!(count.stats().current, 1);
    /// # drop(guard);
    /// ```
    pub fn stats(&self) -> Stats {
        self.turns.stats()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mutex = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(value) => mutex.field("value", &&*value).finish(),
            None => mutex.field("value", &format_args!("<locked>")).finish(),
        }
    }
}

pin_project! {
    /// The future of [`Mutex::lock`].
    ///
    /// ```
    /// # use tidegate_sync::{Locking, Mutex};
    /// # futures_lite::future::block_on(async {
    /// let count = Mutex::new(0);
    /// let locking: Locking<'_, i32> = count.lock();
    /// *locking.await += 1;
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Locking<'a, T: ?Sized> {
        #[pin]
        acquire: Acquire<&'a Semaphore>,
        mutex: &'a Mutex<T>,
    }
}

impl<'a, T: ?Sized> Future for Locking<'a, T> {
    type Output = MutexGuard<'a, T>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mutex = *this.mutex;
        this.acquire.poll(cx).map(|permit| MutexGuard {
            mutex,
            _permit: permit.expect("one permit of a semaphore that is never closed"),
        })
    }
}

impl<T: ?Sized> fmt::Debug for Locking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locking").finish_non_exhaustive()
    }
}

/// The taken lock, released when this is dropped.
///
/// ```
/// # use tidegate_sync::{Mutex, MutexGuard};
/// let count = Mutex::new(0);
/// let mut guard: MutexGuard<'_, i32> = count.try_lock().unwrap();
/// *guard += 1;
/// ```
#[must_use = "dropping a MutexGuard releases the lock at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    _permit: Permit<&'a Semaphore>,
}

// SAFETY: a shared guard gives shared access to the value alone. The derived bound would be too weak: a `Mutex` is `Sync`
// if its value is `Send`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard has the only permit, so there is no other access to the value.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is mutably borrowed.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
