//! What one holds: permits that go back when they are dropped.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::semaphore::Semaphore;

/// What a [`Permit`] or [`Acquire`](crate::Acquire) keeps of its semaphore: a reference or an
/// [`Arc`]. Sealed.
///
/// ```
/// use tidegate_sync::{Holder, Permit, Semaphore};
///
/// fn tell(permit: &Permit<impl Holder>) -> usize {
///     permit.count()
/// }
/// assert_eq!(tell(&Semaphore::new(3).try_acquire_many(2)?), 2);
/// # Ok::<(), tidegate_sync::TryAcquireError>(())
/// ```
pub trait Holder: Deref<Target = Semaphore> + sealed::Sealed {}

impl Holder for &Semaphore {}
impl Holder for Arc<Semaphore> {}

mod sealed {
    use super::{Arc, Semaphore};

    /// Others must not implement [`Holder`](super::Holder): waiting relies on its target never
    /// changing.
    pub trait Sealed {}

    impl Sealed for &Semaphore {}
    impl Sealed for Arc<Semaphore> {}
}

/// One or more permits of a [`Semaphore`], given back when this is dropped.
///
/// `Permit<&Semaphore>` borrows the semaphore; `Permit<Arc<Semaphore>>`, or [`OwnedPermit`], keeps
/// it alive and can go to another task or thread.
///
/// ```
/// use tidegate_sync::Semaphore;
///
/// let slots = Semaphore::new(3);
/// {
///     let _permit = slots.try_acquire()?;
///     assert_eq!(slots.available(), 2);
/// }
/// assert_eq!(slots.available(), 3);
/// # Ok::<(), tidegate_sync::TryAcquireError>(())
/// ```
#[must_use = "dropping a Permit gives it back at once"]
pub struct Permit<S: Holder> {
    semaphore: S,
    held: Held,
}

/// How many permits, and how they were come by.
///
/// One word: with padding beside a smaller number, moving a permit about would stall on reading more than was just
/// written.
#[derive(Clone, Copy)]
struct Held(usize);

impl Held {
    /// Some of them came through the line. That is where they most likely go, and the word may not yet count them as
    /// held: they must not go past a line that is there.
    const FROM_LINE: usize = 1;

    #[inline]
    fn new(count: usize, from_line: usize) -> Self {
        Self(count << 1 | from_line)
    }

    #[inline]
    fn count(self) -> usize {
        self.0 >> 1
    }

    #[inline]
    fn line_bit(self) -> usize {
        self.0 & Self::FROM_LINE
    }
}

/// A permit that keeps its semaphore alive.
///
/// ```
/// # use tidegate_sync::{OwnedPermit, Semaphore};
/// # use std::sync::Arc;
/// struct Job {
///     slot: OwnedPermit,
/// }
/// let job = Job { slot: Arc::new(Semaphore::new(1)).try_acquire_owned()? };
/// # drop(job.slot);
/// # Ok::<(), tidegate_sync::TryAcquireError>(())
/// ```
pub type OwnedPermit = Permit<Arc<Semaphore>>;

impl<S: Holder> Permit<S> {
    #[inline]
    pub(super) fn new(semaphore: S, count: u32) -> Self {
        Self { semaphore, held: Held::new(count as usize, 0) }
    }

    #[inline]
    pub(super) fn from_line(semaphore: S, count: u32) -> Self {
        Self { semaphore, held: Held::new(count as usize, Held::FROM_LINE) }
    }

    /// How many permits this is.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(3).try_acquire_many(2)?.count(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn count(&self) -> usize {
        self.held.count()
    }

    /// The semaphore these permits belong to.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(3).try_acquire()?.semaphore().available(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// Takes `n` permits off this one. `None` if it has fewer.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(5);
    /// let mut five = slots.try_acquire_many(5)?;
    /// let two = five.split(2).unwrap();
    /// assert_eq!((five.count(), two.count()), (3, 2));
    /// assert!(five.split(4).is_none());
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn split(&mut self, n: usize) -> Option<Self>
    where
        S: Clone,
    {
        let rest = self.held.count().checked_sub(n)?;
        let part = Self { semaphore: self.semaphore.clone(), held: Held::new(n, self.held.line_bit()) };
        self.held = Held::new(rest, self.held.line_bit());
        Some(part)
    }

    /// Joins `other` to this one.
    ///
    /// # Errors
    /// A permit of another semaphore comes back unchanged.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let (slots, others) = (Semaphore::new(2), Semaphore::new(1));
    /// let mut permit = slots.try_acquire()?;
    /// permit.merge(slots.try_acquire()?).unwrap();
    /// assert_eq!(permit.count(), 2);
    /// assert!(permit.merge(others.try_acquire()?).is_err());
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !std::ptr::eq(self.semaphore(), other.semaphore()) {
            return Err(other);
        }
        let count = self.held.count() + other.take();
        self.held = Held::new(count, self.held.line_bit() | other.held.line_bit());
        Ok(())
    }

    /// Gives nothing back: as many permits as this has cease to exist.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// let slots = Semaphore::new(2);
    /// slots.try_acquire()?.forget();
    /// assert_eq!((slots.available(), slots.capacity()), (1, 1));
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn forget(mut self) {
        let count = self.take();
        self.semaphore.counter().forget(count as u32);
    }

    /// Leaves none.
    fn take(&mut self) -> usize {
        let count = self.held.count();
        self.held = Held::new(0, self.held.line_bit());
        count
    }
}

impl<S: Holder> Drop for Permit<S> {
    #[inline]
    fn drop(&mut self) {
        let count = self.held.count() as u32;
        if count == 0 {
            return;
        }
        if self.held.line_bit() == 0 {
            self.semaphore.counter().give_back(count);
        } else {
            self.semaphore.counter().pass_on(count);
        }
    }
}

impl<S: Holder> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.held.count()).finish_non_exhaustive()
    }
}
