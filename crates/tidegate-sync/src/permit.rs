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
    /// No more than fit into 32 bits; but with padding beside it, moving a permit about would stall
    /// on reading more than was just written.
    count: usize,
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
        Self { semaphore, count: count as usize }
    }

    /// How many permits this is.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(3).try_acquire_many(2)?.count(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn count(&self) -> usize {
        self.count
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
        if n > self.count {
            return None;
        }
        let part = Self { semaphore: self.semaphore.clone(), count: n };
        self.count -= n;
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
        self.count += std::mem::take(&mut other.count);
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
        self.semaphore.counter().forget(std::mem::take(&mut self.count) as u32);
    }
}

impl<S: Holder> Drop for Permit<S> {
    #[inline]
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.counter().give_back(self.count as u32);
        }
    }
}

impl<S: Holder> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish_non_exhaustive()
    }
}
