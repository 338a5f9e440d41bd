//! Why something was refused. One small type an operation; a refused value comes back.

use std::fmt;

/// The queue or semaphore was closed, so this can never succeed.
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

/// Why [`Semaphore::acquire`](crate::Semaphore::acquire) and its kin gave nothing.
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
    /// More than can ever exist: ask for `ceiling` at most.
    TooMany {
        /// The semaphore's ceiling.
        ceiling: usize,
    },
}

/// Why [`Semaphore::try_acquire`](crate::Semaphore::try_acquire) and its kin gave nothing.
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
    /// Not enough are free, or others were here first: wait with `acquire`, or try later.
    NoPermits,
    /// The semaphore was closed.
    Closed,
    /// More than can ever exist: ask for `ceiling` at most.
    TooMany {
        /// The semaphore's ceiling.
        ceiling: usize,
    },
}

/// Nothing was released: more permits would exist than the semaphore's ceiling allows.
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

/// Nothing was taken away: fewer permits exist than were to go.
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

/// The queue was closed before the value could be pushed; here it is again.
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

/// Why [`Queue::try_push`](crate::Queue::try_push) refused, with the value.
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
    /// No room: wait with `push`, or try later.
    Full(T),
    /// The queue was closed.
    Closed(T),
}

impl<T> TryPushError<T> {
    /// The value that was refused.
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

/// Why [`Queue::try_recv`](crate::Queue::try_recv) had nothing.
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
    /// Nothing inside that is not promised to somebody else: wait with `recv`, or try later.
    Empty,
    /// Closed, and nothing is left inside.
    Closed,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed")
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the semaphore is closed"),
            Self::TooMany { ceiling } => {
                write!(f, "the semaphore never has more than {ceiling} permits")
            }
        }
    }
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermits => f.write_str("no permits to be had at once"),
            Self::Closed => AcquireError::Closed.fmt(f),
            Self::TooMany { ceiling } => AcquireError::TooMany { ceiling: *ceiling }.fmt(f),
        }
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} permits exist, and no more than {} may", self.capacity, self.ceiling)
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
