//! Guards for permits, which are given back when the guard is dropped.

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
/// fn count(permit: &Permit<impl Holder>) -> usize {
///     permit.count()
/// }
/// assert_eq!(count(&Semaphore::new(3).try_acquire_many(2)?), 2);
/// # Ok::<(), tidegate_sync::TryAcquireError>(())
/// ```
pub trait Holder: Deref<Target = Semaphore> + sealed::Sealed {}

impl Holder for &Semaphore {}
impl Holder for Arc<Semaphore> {}

mod sealed {
    use super::{Arc, Semaphore};

    /// Keeps other crates from implementing [`Holder`](super::Holder): waiting relies on its target never changing.
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
    bits: PermitBits,
}

/// The number of permits, and [`FROM_LINE`](Self::FROM_LINE) in the lowest bit.
///
/// In one word without padding: a move of the permit then reads exactly what was written just before. A `u32` and a
/// `bool` are written separately and read together, and the processor stalls on that.
#[derive(Clone, Copy)]
struct PermitBits(usize);

impl PermitBits {
    /// Set if some of the permits were granted in line; kept by `split` and `merge`. The word may not yet count such
    /// permits as held, so they are given back by [`pass_on`](super::counter::Counter::pass_on).
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
        Self { semaphore, bits: PermitBits::new(count as usize, 0) }
    }

    #[inline]
    pub(super) fn from_line(semaphore: S, count: u32) -> Self {
        Self { semaphore, bits: PermitBits::new(count as usize, PermitBits::FROM_LINE) }
    }

    /// Number of permits.
    ///
    /// ```
    /// # use tidegate_sync::Semaphore;
    /// assert_eq!(Semaphore::new(3).try_acquire_many(2)?.count(), 2);
    /// # Ok::<(), tidegate_sync::TryAcquireError>(())
    /// ```
    pub fn count(&self) -> usize {
        self.bits.count()
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

    /// Splits off `n` permits. Returns `None` if there are fewer.
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
        let rest = self.bits.count().checked_sub(n)?;
        let part = Self { semaphore: self.semaphore.clone(), bits: PermitBits::new(n, self.bits.line_bit()) };
        self.bits = PermitBits::new(rest, self.bits.line_bit());
        Some(part)
    }

    /// Adds the permits of `other` to this one.
    ///
    /// # Errors
    /// If `other` belongs to another semaphore; it is returned unchanged.
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
        let count = self.bits.count() + other.take();
        self.bits = PermitBits::new(count, self.bits.line_bit() | other.bits.line_bit());
        Ok(())
    }

    /// Removes these permits from existence instead of giving them back.
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

    /// Empties this permit and returns the count that it had.
    fn take(&mut self) -> usize {
        let count = self.bits.count();
        self.bits = PermitBits::new(0, self.bits.line_bit());
        count
    }
}

impl<S: Holder> Drop for Permit<S> {
    #[inline]
    fn drop(&mut self) {
        let count = self.bits.count() as u32;
        if count == 0 {
            return;
        }
        if self.bits.line_bit() == 0 {
            self.semaphore.counter().give_back(count);
        } else {
            self.semaphore.counter().pass_on(count);
        }
    }
}

impl<S: Holder> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.bits.count()).finish_non_exhaustive()
    }
}
