//! What a coroutine answers with: where it stands, what a step brought, and what can go wrong.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

#[cfg(doc)]
use super::{Co, Coroutine};

/// Where a [`Coroutine`] stands: `assert_eq!(coroutine.lifecycle(), Lifecycle::Suspended)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// No line of the body has run.
    Created,
    /// The body is running, further up the stack.
    Running,
    /// The body waits in a `yield_`.
    Suspended,
    /// The body returned, failed or was closed; it is gone.
    Closed,
}

/// How far the body came: `Ok(Step::Yielded(1))`, …, `Ok(Step::Returned("done"))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<Y, T> {
    /// It paused and hands this out.
    Yielded(Y),
    /// It ended with this.
    Returned(T),
}

/// What travels into a body through its `yield_`, and out of it when the body does not handle it.
///
/// An `E` becomes one by `?` or `.into()`, so a body can raise its own errors:
///
/// ```
/// # use std::convert::Infallible;
/// # use tidegate_loop::coroutine::{Coroutine, ResumeError, Thrown};
/// let strict: Coroutine<'_, (), Infallible, (), &str> =
///     Coroutine::new(async |_co| Err("not today")?);
/// assert_eq!(strict.resume(), Err(ResumeError::Raised(Thrown::Error("not today"))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Thrown<E = Infallible> {
    /// The coroutine is being closed: tidy up, then pass this on or return. Do not yield.
    Exit,
    /// An error, the caller's or the body's own.
    Error(E),
    /// A delegation went wrong for reasons the child has no error for.
    Child(ChildFault),
}

impl<E> From<E> for Thrown<E> {
    fn from(error: E) -> Self {
        Thrown::Error(error)
    }
}

/// Why a child could not be delegated to; comes out of [`Co::delegate`] in [`Thrown::Child`].
///
/// ```
/// # use tidegate_loop::coroutine::{ChildFault, Coroutine, ResumeError, Thrown};
/// let parent: Coroutine<'_, u8> = Coroutine::new(async |mut co| {
///     let child = Coroutine::new(async |_co| Ok(()));
///     co.delegate(&child).await?;
///     co.delegate(&child).await
/// });
/// let again = Thrown::Child(ChildFault::Finished);
/// assert_eq!(parent.resume(), Err(ResumeError::Raised(again)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChildFault {
    /// It had ended, so there is no return value: make a new one.
    Finished,
    /// It is running: a coroutine cannot delegate to itself or to a coroutine that delegates to it.
    Running,
    /// It was closed and yielded instead of ending; it is still suspended.
    IgnoredExit,
}

/// Why [`resume`](Coroutine::resume), [`send`](Coroutine::send) or [`throw`](Coroutine::throw) got
/// neither a value nor a result. A refusal hands back what was to go in (`V`).
///
/// ```
/// # use tidegate_loop::coroutine::{Coroutine, ResumeError};
/// let sink: Coroutine<'_, (), String> = Coroutine::new(async |mut co| loop {
///     co.yield_(()).await?;
/// });
/// let Err(ResumeError::NotStarted(kept)) = sink.send("kept".into()) else { panic!() };
/// assert!(sink.resume().is_ok() && sink.send(kept).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResumeError<E, V = ()> {
    /// The body did not handle this and has ended: handle it, or pass it on.
    Raised(Thrown<E>),
    /// The body ended before: make a new coroutine.
    Finished(V),
    /// The body has no `yield_` to receive a value yet: `resume` first, then send.
    NotStarted(V),
    /// The body is running and called itself: wait for it to yield.
    Running(V),
}

impl<E, V> ResumeError<E, V> {
    /// The child's refusal as the delegating parent meets it.
    pub(super) fn into_parent(self) -> Thrown<E> {
        match self {
            ResumeError::Raised(thrown) => thrown,
            ResumeError::Finished(_) => Thrown::Child(ChildFault::Finished),
            ResumeError::Running(_) => Thrown::Child(ChildFault::Running),
            ResumeError::NotStarted(_) => unreachable!("a delegation starts its child"),
        }
    }
}

/// Why [`close`](Coroutine::close) did not end in silence.
///
/// ```
/// # use tidegate_loop::coroutine::{CloseError, Coroutine};
/// let stubborn: Coroutine<'_, &str> = Coroutine::new(async |mut co| {
///     let _ = co.yield_("first").await;
///     co.yield_("still here").await?;
///     Ok(())
/// });
/// let _ = stubborn.resume();
/// assert_eq!(stubborn.close(), Err(CloseError::Yielded("still here")));
/// assert_eq!(stubborn.close(), Ok(None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError<Y, E> {
    /// The body yielded this instead of ending, and is suspended: resume it, close it again, or
    /// drop it.
    Yielded(Y),
    /// The body ended with this (never [`Thrown::Exit`]): it is closed all the same.
    Raised(Thrown<E>),
    /// The body is running and tried to close itself: let it return instead.
    Running,
}

impl fmt::Display for ChildFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChildFault::Finished => "delegated to a coroutine that had finished",
            ChildFault::Running => "delegated to a coroutine that is running",
            ChildFault::IgnoredExit => "a child coroutine yielded instead of exiting",
        })
    }
}

impl<E: fmt::Display> fmt::Display for Thrown<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thrown::Exit => f.write_str("the coroutine was asked to exit"),
            Thrown::Error(error) => error.fmt(f),
            Thrown::Child(fault) => fault.fmt(f),
        }
    }
}

impl<E: fmt::Display, V> fmt::Display for ResumeError<E, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResumeError::Raised(thrown) => return thrown.fmt(f),
            ResumeError::Finished(_) => "the coroutine has finished",
            ResumeError::NotStarted(_) => "a value was sent before the first resume",
            ResumeError::Running(_) => "the coroutine is already running",
        })
    }
}

impl<Y, E: fmt::Display> fmt::Display for CloseError<Y, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CloseError::Yielded(_) => "the coroutine yielded instead of exiting",
            CloseError::Raised(thrown) => return thrown.fmt(f),
            CloseError::Running => "the coroutine is already running",
        })
    }
}

impl Error for ChildFault {}
impl<E: Error> Error for Thrown<E> {}
impl<E: Error, V: fmt::Debug> Error for ResumeError<E, V> {}
impl<Y: fmt::Debug, E: Error> Error for CloseError<Y, E> {}
