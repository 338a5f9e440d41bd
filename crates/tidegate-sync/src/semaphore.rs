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
/// Tasks are served strictly in the order in which they came (the order of the first polls of
/// their futures). Nobody barges in: while anybody waits, [`try_acquire`](Self::try_acquire) gives
/// nothing, and a permit that comes free goes to the first in line. One release of one permit wakes
/// one task.
///
/// # Every operation takes effect at once
/// Each call takes effect as a whole at one instant between its start and its return, never later.
/// Calls from one thread take effect in program order; a call that begins after another has
/// returned, on whatever thread, takes effect after it. No call but `.await` waits for anything but
/// other calls' few instructions: it may be made from callbacks and destructors.
///
/// # Large requests
/// A request for many permits keeps its place at the head of the line while they gather, so it
/// cannot starve; those behind it wait although some permits lie idle, until the holders return
/// what is missing. [`with_skip_ahead`](Self::with_skip_ahead) lets a bounded number of small
/// requests pass meanwhile.
///
/// A request for more than exist at present is legitimate, since [`release`](Self::release) may
/// create more, and waits. Where that cannot be, say so: with a
/// [ceiling](Self::with_ceiling) such a request is refused instead.
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

/// What [`Semaphore::release_confirmed`] came to.
///
/// ```
/// # use tidegate_sync::Semaphore;
/// let receipt = Semaphore::new(1).release_confirmed(2).unwrap();
/// assert_eq!((receipt.available, receipt.woken), (3, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Permits free after this release and the wake-ups it led to.
    pub available: usize,
    /// How many waiters it gave their permits to.
    pub woken: usize,
}

impl Semaphore {
    /// A semaphore with `permits` free permits; with none, everybody waits for the first
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
        assert!(permits <= MAX_PERMITS, "a semaphore has {MAX_PERMITS} permits at most, not {permits}");
        Self { counter: Counter::new(permits as u32) }
    }

    /// No more than `ceiling` permits, held and free together, may ever exist: a request for more
    /// is refused with [`TooMany`](crate::AcquireError::TooMany), and so is a release that would
    /// create more.
    ///
    /// # Panics
    /// If there are more already, or if `ceiling` is more than [`MAX_PERMITS`].
    ///
    /// ```
    /// # use tidegate_sync::{Semaphore, TryAcquireError};
    /// let seats = Semaphore::new(4).with_ceiling(4);
    /// assert_eq!(seats.try_acquire_many(5).unwrap_err(), TryAcquireError::TooMany { ceiling: 4 });
    /// ```
    #[must_use]
    pub fn with_ceiling(mut self, ceiling: usize) -> Self {
        assert!(ceiling <= MAX_PERMITS, "a semaphore has {MAX_PERMITS} permits at most, not {ceiling}");
        assert!(self.capacity() <= ceiling, "{} permits exist already", self.capacity());
        self.counter.ceiling = ceiling as u32;
        self
    }

    /// While the first in line needs more than is free, up to `limit` requests among the next
    /// `limit` in line that do fit may be served before it; after that everybody waits for it.
    /// Zero, the default, is strict first come, first served.
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
    /// [`Closed`](crate::AcquireError::Closed) if the semaphore is closed, before or meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaks nothing. It gives up its place in line; if it had
    /// been given a permit already, the next in line gets it.
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

    /// Waits for `n` permits, given all together. None at all (`n` of zero) are given at once,
    /// even past a line.
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

    /// Takes one permit if one is free and nobody is in line.
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

    /// Takes `n` permits if as many are free and nobody is in line.
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

    /// Releases `n` permits that nobody held: a producer's signal that there is something to do.
    /// The consumer [forgets](Permit::forget) the permit it gets for it.
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

    /// As [`release`](Self::release), and tells what became of it. The receipt is true when this
    /// returns, not at some later time.
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

    /// Raises the number of permits by `n`, first against what is owed from
    /// [`reduce_permits`](Self::reduce_permits). The same as [`release`](Self::release), for those
    /// who think of it as resizing.
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

    /// Lowers the number of permits by `n` at once, whether they are free or not. What is held at
    /// that moment is owed: permits given back pay the debt before anybody else gets one, so from
    /// now on nobody is let in while [`capacity`](Self::capacity) or more are held.
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

    /// Permits that are free now. While somebody waits for many of them, they are meant for him.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(7).available(), 7);
    /// ```
    #[inline]
    pub fn available(&self) -> usize {
        self.counter.word().available()
    }

    /// Permits that exist, free and held, less what is owed.
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

    /// How many tasks are in line.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(0).waiters(), 0);
    /// ```
    pub fn waiters(&self) -> usize {
        self.counter.line().quietly(|line| line.waiting().len())
    }

    /// Lets nobody in any more: those in line and those who come later get
    /// [`Closed`](crate::AcquireError::Closed). Permits already given out stay valid.
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

    /// The semaphore's figures. `total` may lag by a few while other threads are acquiring.
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
