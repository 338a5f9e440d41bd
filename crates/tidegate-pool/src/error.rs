//! Errors. One of a submission contains the future that was not started.

use std::any::Any;
use std::fmt;

/// The pool was closed before the task could start. Contains what was submitted.
///
/// ```
/// use tidegate_pool::{Pool, SubmitError};
/// tidegate_loop::run(async {
///     let pool = Pool::new(1);
///     pool.close().await;
///     let Err(SubmitError(future)) = pool.submit(async { 42 }).await else { unreachable!() };
///     assert_eq!(future.await, 42); // run it elsewhere
/// })
/// .unwrap();
/// ```
pub struct SubmitError<F>(pub F);

/// Error of [`Pool::try_submit`](crate::Pool::try_submit). Contains what was submitted.
///
/// ```
/// use std::future::pending;
/// use tidegate_pool::{Pool, TrySubmitError};
/// tidegate_loop::run(async {
///     let pool = Pool::new(1);
///     let running = pool.try_submit(pending::<()>()).unwrap();
///     assert!(matches!(pool.try_submit(async {}), Err(TrySubmitError::Full(_))));
///     # running.cancel();
/// })
/// .unwrap();
/// ```
#[non_exhaustive]
pub enum TrySubmitError<F> {
    /// No slot is free, submitters are in line, or the pool is paused: wait with `submit`, or try later.
    Full(F),
    /// The pool was closed.
    Closed(F),
}

impl<F> TrySubmitError<F> {
    /// Returns what was submitted.
    ///
    /// ```
    /// # use tidegate_pool::TrySubmitError;
    /// assert_eq!(TrySubmitError::Full(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> F {
        match self {
            TrySubmitError::Full(future) | TrySubmitError::Closed(future) => future,
        }
    }
}

/// Why a task has no result.
///
/// ```
/// use tidegate_pool::{JoinError, Pool};
/// tidegate_loop::run(async {
///     let handle = Pool::new(1).submit(std::future::pending::<()>()).await.unwrap();
///     handle.cancel();
///     assert!(matches!(handle.await, Err(JoinError::Cancelled)));
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The task was cancelled.
    Cancelled,
    /// The task panicked.
    Panicked(Panic),
    /// The task awaits its own handle, which would never resolve.
    AwaitsItself,
    /// The task was one of a [`Map`](crate::Map), and the pool was closed before it started.
    NeverStarted,
}

/// The payload of a task's panic.
///
/// ```
/// use tidegate_pool::{JoinError, Pool};
/// # std::panic::set_hook(Box::new(|_| ()));
/// tidegate_loop::run(async {
///     let handle = Pool::new(1).submit(async { panic!("out of paper") }).await.unwrap();
///     let Err(JoinError::Panicked(panic)) = handle.await else { unreachable!() };
///     assert_eq!(panic.to_string(), "out of paper");
/// })
/// .unwrap();
/// ```
pub struct Panic {
    /// In a mutex only to make the error `Sync`; it is never locked.
    payload: std::sync::Mutex<Box<dyn Any + Send>>,
    message: Box<str>,
}

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Panic {
        let message = match payload.downcast_ref::<&str>() {
            Some(text) => *text,
            None => payload.downcast_ref::<String>().map_or("a panic without a message", String::as_str),
        };
        Panic { message: message.into(), payload: std::sync::Mutex::new(payload) }
    }

    /// Continues the panic in the caller.
    ///
    /// ```should_panic
    /// use tidegate_pool::{JoinError, Pool};
    /// tidegate_loop::run(async {
    ///     let handle = Pool::new(1).submit(async { panic!("again") }).await.unwrap();
    ///     if let Err(JoinError::Panicked(panic)) = handle.await {
    ///         panic.resume();
    ///     }
    /// })
    /// .unwrap();
    /// ```
    pub fn resume(self) -> ! {
        std::panic::resume_unwind(self.into_payload())
    }

    /// The payload.
    ///
    /// ```
    /// use tidegate_pool::{JoinError, Pool};
    /// # std::panic::set_hook(Box::new(|_| ()));
    /// tidegate_loop::run(async {
    ///     let handle = Pool::new(1).submit(async { std::panic::panic_any(7) }).await.unwrap();
    ///     let Err(JoinError::Panicked(panic)) = handle.await else { unreachable!() };
    ///     assert_eq!(panic.into_payload().downcast_ref(), Some(&7));
    /// })
    /// .unwrap();
    /// ```
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message).finish()
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => f.write_str("the task was cancelled"),
            JoinError::Panicked(panic) => write!(f, "the task panicked: {panic}"),
            JoinError::AwaitsItself => f.write_str("a task cannot await itself; return instead"),
            JoinError::NeverStarted => f.write_str("the pool was closed before the task could start"),
        }
    }
}

impl<F> fmt::Display for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pool is closed")
    }
}

impl<F> fmt::Display for TrySubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySubmitError::Full(_) => "the pool has no free slot",
            TrySubmitError::Closed(_) => "the pool is closed",
        })
    }
}

// By hand, because futures are seldom `Debug`.
impl<F> fmt::Debug for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubmitError(..)")
    }
}

impl<F> fmt::Debug for TrySubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySubmitError::Full(_) => "Full(..)",
            TrySubmitError::Closed(_) => "Closed(..)",
        })
    }
}

impl std::error::Error for JoinError {}
impl<F> std::error::Error for SubmitError<F> {}
impl<F> std::error::Error for TrySubmitError<F> {}
