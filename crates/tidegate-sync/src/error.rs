//! Errors: one small type per operation. A value that was not pushed is returned in its error.

use std::fmt;

/// The queue was closed and is empty, so this can never succeed.
///
/// ```
/// use tidegate_sync::{Closed, Queue};
///
/// let queue = Queue::<u8>::unbounded();
/// queue.close();
/// # futures_lite::future::block_on(async {
/// assert_eq!(queue.recv().await, Err(Closed));
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Error of [`Semaphore::acquire`](crate::Semaphore::acquire) and its variants.
///
/// ```
/// use tidegate_sync::{AcquireError, Semaphore};
///
/// # futures_lite::future::block_on(async {
/// let gate = Semaphore::new(2).with_ceiling(4);
/// let refused = gate.acquire_many(5).await.unwrap_err();
/// assert_eq!(refused, AcquireError::TooMany { ceiling: 4 });
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The semaphore was closed.
    Closed,
    /// The request was for more permits than can ever exist; ask for at most `ceiling`.
    TooMany {
        /// The semaphore's ceiling.
        ceiling: usize,
    },
}

/// Error of [`Semaphore::try_acquire`](crate::Semaphore::try_acquire) and its variants.
///
/// ```
/// use tidegate_sync::{Semaphore, TryAcquireError};
///
/// let gate = Semaphore::new(1);
/// assert_eq!(gate.try_acquire_many(2).unwrap_err(), TryAcquireError::NoPermits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryAcquireError {
    /// Too few permits are free, or tasks are in line: wait with `acquire`, or try later.
    NoPermits,
    /// The semaphore was closed.
    Closed,
    /// The request was for more permits than can ever exist; ask for at most `ceiling`.
    TooMany {
        /// The semaphore's ceiling.
        ceiling: usize,
    },
}

/// Error of a release: more permits would exist than the semaphore's ceiling allows. Nothing was released.
///
/// ```
/// use tidegate_sync::Semaphore;
///
/// let gate = Semaphore::new(2).with_ceiling(3);
/// let refused = gate.release_confirmed(2).unwrap_err();
/// assert_eq!((refused.capacity, refused.ceiling), (2, 3));
/// assert_eq!(gate.available(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseError {
    /// Permits in existence, held and free.
    pub capacity: usize,
    /// The most that may exist.
    pub ceiling: usize,
}

/// Error of a reduction: fewer permits exist than were to be removed. Nothing was changed.
///
/// ```
/// use tidegate_sync::Semaphore;
///
/// let gate = Semaphore::new(2);
/// assert_eq!(gate.reduce_permits(3).unwrap_err().capacity, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReduceError {
    /// Permits in existence, held and free.
    pub capacity: usize,
}

/// The queue was closed before the value could be pushed. Contains the value.
///
/// ```
/// use tidegate_sync::{PushError, Queue};
///
/// let queue = Queue::unbounded();
/// queue.close();
/// # futures_lite::future::block_on(async {
/// assert_eq!(queue.push("late").await, Err(PushError("late")));
/// # });
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PushError<T>(pub T);

/// Error of [`Queue::try_push`](crate::Queue::try_push), with the value.
///
/// ```
/// use tidegate_sync::{Queue, TryPushError};
///
/// let queue = Queue::bounded(1);
/// queue.try_push("first")?;
/// assert_eq!(queue.try_push("second"), Err(TryPushError::Full("second")));
/// # Ok::<(), TryPushError<&str>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryPushError<T> {
    /// The queue is full: wait with `push`, or try later.
    Full(T),
    /// The queue was closed.
    Closed(T),
}

impl<T> TryPushError<T> {
    /// Returns the value that was not pushed.
    ///
    /// ```
    /// # use tidegate_sync::TryPushError;
    /// assert_eq!(TryPushError::Full(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Closed(value) => value,
        }
    }
}

/// Error of [`Queue::try_recv`](crate::Queue::try_recv).
///
/// ```
/// use tidegate_sync::{Queue, TryRecvError};
///
/// let queue = Queue::<u8>::unbounded();
/// assert_eq!(queue.try_recv(), Err(TryRecvError::Empty));
/// queue.close();
/// assert_eq!(queue.try_recv(), Err(TryRecvError::Closed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryRecvError {
    /// The queue is empty, or its items are reserved for consumers in line: wait with `recv`, or try later.
    Empty,
    /// The queue was closed and is empty.
    Closed,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue is closed")
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the semaphore is closed"),
            Self::TooMany { ceiling } => {
                write!(f, "the semaphore has at most {ceiling} permits")
            }
        }
    }
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermits => f.write_str("not enough permits are available"),
            Self::Closed => AcquireError::Closed.fmt(f),
            Self::TooMany { ceiling } => AcquireError::TooMany { ceiling: *ceiling }.fmt(f),
        }
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} permits exist, and at most {} may exist", self.capacity, self.ceiling)
    }
}

impl fmt::Display for ReduceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "only {} permits exist", self.capacity)
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue is closed")
    }
}

impl<T> fmt::Display for TryPushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the queue is full",
            Self::Closed(_) => "the queue is closed",
        })
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the queue is empty",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

// The values need not be `Debug` for the errors to be.
impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushError(..)")
    }
}

impl<T> fmt::Debug for TryPushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl std::error::Error for Closed {}
impl std::error::Error for AcquireError {}
impl std::error::Error for TryAcquireError {}
impl std::error::Error for ReleaseError {}
impl std::error::Error for ReduceError {}
impl<T> std::error::Error for PushError<T> {}
impl<T> std::error::Error for TryPushError<T> {}
impl std::error::Error for TryRecvError {}
