//! The counting semaphore: its public face. How it counts is in `counter.rs`.

use std::fmt;
use std::sync::Arc;

use super::acquire::Acquire;
use super::counter::{Counter, clamp};
use super::error::{ReduceError, ReleaseError, TryAcquireError};
use super::permit::Permit;
use super::stats::Stats;
use super::word::MAX_PERMITS;

/// A fair counting semaphore for any executor.
///
/// Tasks are served in the order of the first polls of their futures. There is no barging: while a task waits,
/// [`try_acquire`](Self::try_acquire) fails, and a permit that becomes free goes to the first in line. One release of one
/// permit wakes one task.
///
/// # Every operation takes effect at once
/// Each call takes effect atomically at one instant between its start and its return, never later. Calls from one thread
/// take effect in program order; a call that begins after another has returned, on any thread, takes effect after it. No
/// call but `.await` blocks for longer than the few instructions of other calls, so all may be made from callbacks and
/// destructors.
///
/// # Large requests
/// A request for many permits stays at the head of the line until enough are free, so it cannot starve. The requests
/// behind it wait meanwhile, although some permits are free; [`with_skip_ahead`](Self::with_skip_ahead) lets a bounded
/// number of smaller requests overtake it.
///
/// A request for more permits than exist waits, because [`release`](Self::release) may create more. With a
/// [ceiling](Self::with_ceiling), a request for more than the ceiling is refused.
///
/// ```
/// use tidegate_sync::Semaphore;
///
/// # futures_lite::future::block_on(async {
/// let slots = Semaphore::new(2);
/// let first = slots.acquire().await?;
/// let second = slots.acquire().await?;
/// assert!(slots.try_acquire().is_err());
///
/// drop(first);
/// assert_eq!(slots.available(), 1);
/// # drop(second);
/// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
/// ```
pub struct Semaphore {
    counter: Counter,
}

/// The effect of a [`Semaphore::release_confirmed`].
///
/// ```
/// # use tidegate_sync::Semaphore;
/// let receipt = Semaphore::new(1).release_confirmed(2).unwrap();
/// assert_eq!((receipt.available, receipt.woken), (3, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Number of permits free after the release and its grants to waiters.
    pub available: usize,
    /// Number of waiters that were granted their permits and woken.
    pub woken: usize,
}

impl Semaphore {
    /// Creates a semaphore with `permits` free permits. With zero, every request waits for the first
    /// [`release`](Self::release).
    ///
    /// # Panics
    /// If `permits` is more than [`MAX_PERMITS`].
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(3).available(), 3);
    /// ```
    #[must_use]
    pub fn new(permits: usize) -> Self {
        assert!(permits <= MAX_PERMITS, "a semaphore can have at most {MAX_PERMITS} permits, not {permits}");
        Self { counter: Counter::new(permits as u32) }
    }

    /// Limits the number of permits that may exist, held and free together, to `ceiling`. A request for more fails with
    /// [`TooMany`](crate::AcquireError::TooMany), and a release that would create more fails too.
    ///
    /// # Panics
    /// If more exist already, or if `ceiling` is more than [`MAX_PERMITS`].
    ///
    /// ```
    /// # use tidegate_sync::{Semaphore, TryAcquireError};
    /// let seats = Semaphore::new(4).with_ceiling(4);
    /// assert_eq!(seats.try_acquire_many(5).unwrap_err(), TryAcquireError::TooMany { ceiling: 4 });
    /// ```
    #[must_use]
    pub fn with_ceiling(mut self, ceiling: usize) -> Self {
        assert!(ceiling <= MAX_PERMITS, "a semaphore can have at most {MAX_PERMITS} permits, not {ceiling}");
        assert!(self.capacity() <= ceiling, "{} permits exist already, more than {ceiling}", self.capacity());
        self.counter.ceiling = ceiling as u32;
        self
    }

    /// Lets smaller requests overtake a large one: while the first in line needs more permits than are free, up to `limit`
    /// requests that fit, among the next `limit` in line, are served before it. After that, all wait for it. Default: 0,
    /// strictly first come, first served.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let gate = Semaphore::new(10).with_skip_ahead(8);
    /// # drop(gate);
    /// ```
    #[must_use]
    pub fn with_skip_ahead(mut self, limit: usize) -> Self {
        self.counter.skip_ahead = limit.min(u32::MAX as usize) as u32;
        self
    }

    /// Waits for one permit.
    ///
    /// # Errors
    /// [`Closed`](crate::AcquireError::Closed) if the semaphore is closed, before the call or during the wait.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line and leaks nothing. If it had been granted a permit already, the next in line
    /// gets that.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # futures_lite::future::block_on(async {
    /// let slots = Semaphore::new(1);
    /// let permit = slots.acquire().await?;
    /// assert_eq!(permit.count(), 1);
    /// # drop(permit);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire(&self) -> Acquire<&Self> {
        Acquire::new(self, 1)
    }

    /// Waits for `n` permits, which are granted together. With an `n` of zero it returns at once, even if tasks are in
    /// line.
    ///
    /// # Errors
    /// [`TooMany`](crate::AcquireError::TooMany) if `n` exceeds the [ceiling](Self::with_ceiling),
    /// otherwise as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # futures_lite::future::block_on(async {
    /// let slots = Semaphore::new(5);
    /// let three = slots.acquire_many(3).await?;
    /// assert_eq!((three.count(), slots.available()), (3, 2));
    /// # drop(three);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire_many(&self, n: usize) -> Acquire<&Self> {
        Acquire::new(self, n)
    }

    /// As [`acquire`](Self::acquire), with a permit that keeps the semaphore alive.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # use std::sync::Arc;
    /// # futures_lite::future::block_on(async {
    /// let slots = Arc::new(Semaphore::new(1));
    /// let permit = slots.acquire_owned().await?;
    /// std::thread::spawn(move || drop(permit)).join().unwrap();
    /// assert_eq!(slots.available(), 1);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire_owned(self: &Arc<Self>) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), 1)
    }

    /// As [`acquire_many`](Self::acquire_many), with permits that keep the semaphore alive.
    ///
    /// # Errors
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # use std::sync::Arc;
    /// # futures_lite::future::block_on(async {
    /// let slots = Arc::new(Semaphore::new(2));
    /// assert_eq!(slots.acquire_many_owned(2).await?.count(), 2);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire_many_owned(self: &Arc<Self>, n: usize) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), n)
    }

    /// Takes one permit if one is free and no task is in line.
    ///
    /// # Errors
    /// See [`TryAcquireError`].
    ///
    /// ```
    /// # use tidegate_sync::{Semaphore, TryAcquireError};
    /// let slots = Semaphore::new(1);
    /// let permit = slots.try_acquire()?;
    /// assert_eq!(slots.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    /// # drop(permit);
    /// # Ok::<(), TryAcquireError>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<&Self>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes `n` permits if that many are free and no task is in line.
    ///
    /// # Errors
    /// See [`TryAcquireError`].
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(3);
    /// assert_eq!(slots.try_acquire_many(2)?.count(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    #[inline]
    pub fn try_acquire_many(&self, n: usize) -> Result<Permit<&Self>, TryAcquireError> {
        let n = clamp(n);
        self.try_take(n).map(|()| Permit::new(self, n))
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that keeps the semaphore alive.
    ///
    /// # Errors
    /// See [`TryAcquireError`].
    ///
    /// ```
    /// # use tidegate_sync::{OwnedPermit, Semaphore};
    /// # use std::sync::Arc;
    /// let permit: OwnedPermit = Arc::new(Semaphore::new(1)).try_acquire_owned()?;
    /// # drop(permit);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    #[inline]
    pub fn try_acquire_owned(self: &Arc<Self>) -> Result<Permit<Arc<Self>>, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// As [`try_acquire_many`](Self::try_acquire_many), with permits that keep the semaphore alive.
    ///
    /// # Errors
    /// See [`TryAcquireError`].
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # use std::sync::Arc;
    /// let slots = Arc::new(Semaphore::new(2));
    /// assert_eq!(slots.try_acquire_many_owned(2)?.count(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn try_acquire_many_owned(self: &Arc<Self>, n: usize) -> Result<Permit<Arc<Self>>, TryAcquireError> {
        let n = clamp(n);
        self.try_take(n).map(|()| Permit::new(Arc::clone(self), n))
    }

    /// Creates `n` free permits, for example as a producer's signal that there are `n` more items. The consumer
    /// [forgets](Permit::forget) each permit that it acquires.
    ///
    /// # Panics
    /// If more than the [ceiling](Self::with_ceiling) (without one: [`MAX_PERMITS`]) would exist.
    /// [`release_confirmed`](Self::release_confirmed) returns an error instead.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// # futures_lite::future::block_on(async {
    /// let messages = Semaphore::new(0);
    /// messages.release(2);
    /// messages.acquire().await?.forget();
    /// assert_eq!(messages.available(), 1);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn release(&self, n: usize) {
        if let Err(refused) = self.release_confirmed(n) {
            panic!("releasing {n} permits: {refused}");
        }
    }

    /// As [`release`](Self::release), and returns the effect as a [`Receipt`]. The release and its grants have taken place
    /// when this returns.
    ///
    /// # Errors
    /// If more than the [ceiling](Self::with_ceiling) would exist; then nothing was released.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let messages = Semaphore::new(0);
    /// let receipt = messages.release_confirmed(3)?;
    /// assert_eq!((receipt.available, receipt.woken), (3, 0));
    /// # Ok::<(), tidegate_sync::ReleaseError>(())
    /// ```
    #[inline]
    pub fn release_confirmed(&self, n: usize) -> Result<Receipt, ReleaseError> {
        self.counter.release(clamp(n))
    }

    /// Raises the number of permits by `n`; permits owed after [`reduce_permits`](Self::reduce_permits) are paid first.
    /// Another name for [`release`](Self::release), for code that resizes.
    ///
    /// # Panics
    /// As [`release`](Self::release).
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(1);
    /// slots.add_permits(2);
    /// assert_eq!(slots.capacity(), 3);
    /// ```
    pub fn add_permits(&self, n: usize) {
        self.release(n);
    }

    /// Lowers the number of permits by `n` at once. Permits that are not free are owed: each one given back pays the debt
    /// first, so no request is granted while [`capacity`](Self::capacity) or more permits are held.
    ///
    /// # Errors
    /// If fewer than `n` exist; then nothing is changed.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(3);
    /// let held = slots.try_acquire_many(3)?;
    /// slots.reduce_permits(2)?;
    /// assert_eq!(slots.capacity(), 1);
    /// drop(held);
    /// assert_eq!(slots.available(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reduce_permits(&self, n: usize) -> Result<(), ReduceError> {
        self.counter.reduce(clamp(n))
    }

    /// Number of free permits. They may be reserved: while a large request is first in line,
    /// [`try_acquire`](Self::try_acquire) fails even if this is not zero.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(7).available(), 7);
    /// ```
    #[inline]
    pub fn available(&self) -> usize {
        self.counter.word().available()
    }

    /// Number of permits that exist, free and held, less those owed.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(2);
    /// let permit = slots.try_acquire()?;
    /// assert_eq!(slots.capacity(), 2);
    /// permit.forget();
    /// assert_eq!(slots.capacity(), 1);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    #[inline]
    pub fn capacity(&self) -> usize {
        self.counter.word().capacity() as usize
    }

    /// Number of tasks in line.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(0).waiters(), 0);
    /// ```
    pub fn waiters(&self) -> usize {
        self.counter.line().quietly(|line| line.waiting().len())
    }

    /// Closes the semaphore: requests in line and later ones fail with [`Closed`](crate::AcquireError::Closed). Permits
    /// already granted stay valid.
    ///
    /// ```
    /// # use tidegate_sync::{AcquireError, Semaphore};
    /// # futures_lite::future::block_on(async {
    /// let slots = Semaphore::new(1);
    /// slots.close();
    /// assert_eq!(slots.acquire().await.unwrap_err(), AcquireError::Closed);
    /// # });
    /// ```
    pub fn close(&self) {
        self.counter.close();
    }

    /// Whether [`close`](Self::close) was called.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert!(!Semaphore::new(0).is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.counter.word().is_closed()
    }

    /// The semaphore's figures. `total` may be a few too small while other threads acquire.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(2);
    /// let permit = slots.try_acquire()?;
    /// assert_eq!((slots.stats().current, slots.stats().total), (1, 1));
    /// # drop(permit);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.counter.stats()
    }

    #[inline]
    fn try_take(&self, n: u32) -> Result<(), TryAcquireError> {
        if self.counter.try_take(n) { Ok(()) } else { self.counter.not_taken(n) }
    }

    #[inline]
    pub(super) fn counter(&self) -> &Counter {
        &self.counter
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.counter.word();
        f.debug_struct("Semaphore")
            .field("available", &word.available())
            .field("held", &word.held())
            .field("capacity", &word.capacity())
            .field("closed", &word.is_closed())
            .field("waiters", &self.counter.try_waiters())
            .finish()
    }
}
