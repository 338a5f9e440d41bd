//! The coroutine protocol: a function that pauses in the middle, hands a value out, and goes on
//! when its caller sends a value or an error in. `send`, `throw`, `close` and delegation behave as
//! Python's generators do (PEP 342 and PEP 380), which is what event loops were first built from.
//!
//! For programs that want a generator, a two-way pipe or a scheduler driven by hand. It stands by
//! itself: nothing in it needs an event loop.
//!
//! The body is an `async` closure that owns a [`Co`]; its only `await`s are on that `Co`. The caller
//! holds the [`Coroutine`] and decides when the body runs. Nothing runs before the first
//! [`resume`](Coroutine::resume).
//!
//! ```text
//!            resume                 yield
//!  Created ─────────▶ Running ◀──────────────▶ Suspended
//!     │                  │   resume/send/throw     │
//!     │ throw, close     │ return, error, panic    │ close, drop
//!     └────────────────▶ Closed ◀──────────────────┘
//! ```
//!
//! | Python | here |
//! |---|---|
//! | `next(g)`, `g.send(None)` | [`resume`](Coroutine::resume) |
//! | `g.send(v)` | [`send`](Coroutine::send) |
//! | `g.throw(e)`, `g.close()`, `del g` | [`throw`](Coroutine::throw), [`close`](Coroutine::close), drop |
//! | `x = yield v` | `let x = co.yield_(v).await?` |
//! | `r = yield from child` | `let r = co.delegate(&child).await?` |
//! | `except GeneratorExit` | `Err(`[`Thrown::Exit`]`)` out of an `await` |
//! | `raise StopIteration(r)` (the end) | [`Step::Returned`], and [`ResumeError::Finished`] ever after |
//!
//! Where it departs from Python: the end of a body is a value, so a thrown error can never be
//! mistaken for it; `throw` at a closed coroutine answers `Finished` and hands the error back
//! instead of raising it; a delegation to a finished child has no value to give and is a
//! [`ChildFault`].
//!
//! Left out: bodies that wait for I/O or timers (awaiting anything that is not ready panics: there
//! is no loop to wake the body up), threads (nothing here is `Send`), and delegation to plain
//! iterators (`for v in iter { co.yield_(v).await?; }` says the same). Each step passes through
//! every delegating parent, so a chain of `n` costs `n` polls a step.

mod outcome;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::iter::{self, FusedIterator};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;

pub use outcome::{ChildFault, CloseError, Lifecycle, ResumeError, Step, Thrown};

/// What a suspended body is woken with: a value, no value, or something thrown.
type Input<S, E> = Result<Option<S>, Thrown<E>>;
/// Shared by the two ends; never borrowed across a call into foreign code.
type Exchange<Y, S, E> = Rc<RefCell<Transfer<Y, S, E>>>;
type Body<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, Thrown<E>>> + 'a>>;

/// A function that can pause: yields `Y`s, is sent `S`s, returns a `T`, fails with an `E`.
///
/// With the defaults it is a plain generator, which is sent nothing and cannot fail. All methods
/// take `&self`, so a coroutine can be shared in an `Rc`; one that resumes itself while it runs is
/// told so. (A body should hold itself by a `Weak`, or neither is ever freed.)
///
/// Dropping a suspended coroutine closes it, as [`close`](Self::close) would; whatever it answers is
/// ignored, and a body that yields even then is dropped where it stands. Its destructors run in
/// every case; while the thread unwinds from a panic they are all that runs.
///
/// ```
/// use std::convert::Infallible;
/// use tidegate_loop::coroutine::{Coroutine, ResumeError, Step};
///
/// // Yields the running total of what it is sent; ends when it is resumed with nothing.
/// let sum: Coroutine<'_, i32, i32, &str, Infallible> = Coroutine::new(async |mut co| {
///     let mut total = 0;
///     while let Some(more) = co.yield_(total).await? {
///         total += more;
///     }
///     Ok("done")
/// });
/// assert_eq!(sum.resume(), Ok(Step::Yielded(0)));
/// assert_eq!(sum.send(10), Ok(Step::Yielded(10)));
/// assert_eq!(sum.send(20), Ok(Step::Yielded(30)));
/// assert_eq!(sum.resume(), Ok(Step::Returned("done")));
/// assert_eq!(sum.resume(), Err(ResumeError::Finished(())));
/// ```
#[must_use = "a coroutine does nothing until it is resumed"]
pub struct Coroutine<'a, Y, S = Infallible, T = (), E = Infallible> {
    slot: RefCell<CoroutineSlot<'a, T, E>>,
    exchange: Exchange<Y, S, E>,
}

/// Where the body is. `Running` means a caller further up the stack has it.
enum CoroutineSlot<'a, T, E> {
    Created(Body<'a, T, E>),
    Running,
    Suspended(Body<'a, T, E>),
    Closed,
}

impl<'a, Y, S, T, E> Coroutine<'a, Y, S, T, E> {
    /// Makes a coroutine of an `async` closure or function; no line of it runs yet.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Co, Coroutine, Lifecycle, Thrown};
    /// async fn letters(mut co: Co<char>) -> Result<(), Thrown> {
    ///     co.yield_('a').await?;
    ///     co.yield_('b').await?;
    ///     Ok(())
    /// }
    /// let letters = Coroutine::new(letters);
    /// assert_eq!(letters.lifecycle(), Lifecycle::Created);
    /// assert_eq!(letters.into_iter().collect::<String>(), "ab");
    /// ```
    pub fn new(body: impl AsyncFnOnce(Co<Y, S, E>) -> Result<T, Thrown<E>> + 'a) -> Self
    where
        Y: 'a,
        S: 'a,
        T: 'a,
        E: 'a,
    {
        let exchange = Rc::new(RefCell::new(Transfer::Parked));
        let co = Co { exchange: Rc::clone(&exchange) };
        // Called within the block, so that even the closure's synchronous part waits for a start.
        let body = Box::pin(async move { body(co).await });
        Coroutine { slot: RefCell::new(CoroutineSlot::Created(body)), exchange }
    }

    /// Starts the body, or wakes its `yield_` with no value, and runs it to its next pause.
    ///
    /// # Panics
    ///
    /// Like every call that runs the body: when the body panics, or awaits something that is not
    /// ready and not its own [`Co`]. The coroutine is closed then.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, ResumeError, Step};
    /// let nothing: Coroutine<'_, u8> = Coroutine::new(async |_co| Ok(()));
    /// assert_eq!(nothing.resume(), Ok(Step::Returned(())));
    /// assert_eq!(nothing.resume(), Err(ResumeError::Finished(())));
    /// ```
    pub fn resume(&self) -> Result<Step<Y, T>, ResumeError<E>> {
        self.enter((), |()| Ok(None))
    }

    /// Wakes the body's `yield_` with `value` and runs it to its next pause.
    ///
    /// A body that has not started has no `yield_` to receive the value: that is
    /// [`ResumeError::NotStarted`], and the coroutine stays as it was.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, ResumeError, Step};
    /// let length: Coroutine<'_, usize, &str> = Coroutine::new(async |mut co| {
    ///     let mut heard = None;
    ///     loop {
    ///         heard = co.yield_(heard.map_or(0, str::len)).await?;
    ///     }
    /// });
    /// assert_eq!(length.send("too early"), Err(ResumeError::NotStarted("too early")));
    /// assert_eq!(length.resume(), Ok(Step::Yielded(0)));
    /// assert_eq!(length.send("hello"), Ok(Step::Yielded(5)));
    /// ```
    pub fn send(&self, value: S) -> Result<Step<Y, T>, ResumeError<E, S>> {
        if self.lifecycle() == Lifecycle::Created {
            return Err(ResumeError::NotStarted(value));
        }
        self.enter(value, |value| Ok(Some(value)))
    }

    /// Makes the body's `yield_` fail with `error` and runs it to its next pause.
    ///
    /// The body may handle it and yield or return; unhandled it comes back as
    /// [`ResumeError::Raised`]. Thrown into a body that has not started, it comes straight back and
    /// the body never runs.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, ResumeError, Step, Thrown};
    /// let steady: Coroutine<'_, &str, (), (), u32> = Coroutine::new(async |mut co| {
    ///     while co.yield_("ready").await != Err(Thrown::Error(404)) {}
    ///     co.yield_("not found, never mind").await?;
    ///     Ok(())
    /// });
    /// assert_eq!(steady.resume(), Ok(Step::Yielded("ready")));
    /// assert_eq!(steady.throw(404), Ok(Step::Yielded("not found, never mind")));
    /// assert_eq!(steady.throw(500), Err(ResumeError::Raised(Thrown::Error(500))));
    /// assert_eq!(steady.throw(404), Err(ResumeError::Finished(Thrown::Error(404))));
    /// ```
    pub fn throw(&self, error: impl Into<Thrown<E>>) -> Result<Step<Y, T>, ResumeError<E, Thrown<E>>> {
        self.enter(error.into(), Err)
    }

    /// Ends the coroutine: its `yield_` fails with [`Thrown::Exit`], which the body passes on or
    /// answers by returning. `Some` is what it returned; a body that passed `Exit` on, had not
    /// started or was closed before has nothing to return.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, Step, Thrown};
    /// let tidy: Coroutine<'_, u8, (), &str> = Coroutine::new(async |mut co| {
    ///     while co.yield_(1).await != Err(Thrown::Exit) {}
    ///     Ok("tidied up")
    /// });
    /// assert_eq!(tidy.resume(), Ok(Step::Yielded(1)));
    /// assert_eq!(tidy.close(), Ok(Some("tidied up")));
    /// assert_eq!(tidy.close(), Ok(None));
    /// ```
    pub fn close(&self) -> Result<Option<T>, CloseError<Y, E>> {
        match self.throw(Thrown::Exit) {
            Ok(Step::Returned(value)) => Ok(Some(value)),
            Ok(Step::Yielded(value)) => Err(CloseError::Yielded(value)),
            Err(ResumeError::Running(_)) => Err(CloseError::Running),
            Err(ResumeError::Raised(Thrown::Exit)) => Ok(None),
            Err(ResumeError::Raised(error)) => Err(CloseError::Raised(error)),
            Err(ResumeError::Finished(_) | ResumeError::NotStarted(_)) => Ok(None),
        }
    }

    /// Where the coroutine stands in its life; never runs the body.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, Lifecycle};
    /// let unused: Coroutine<'_, ()> = Coroutine::new(async |_co| Ok(()));
    /// assert_eq!(unused.lifecycle(), Lifecycle::Created);
    /// assert_eq!(unused.close(), Ok(None));
    /// assert_eq!(unused.lifecycle(), Lifecycle::Closed);
    /// ```
    #[must_use]
    pub fn lifecycle(&self) -> Lifecycle {
        match *self.slot.borrow() {
            CoroutineSlot::Created(_) => Lifecycle::Created,
            CoroutineSlot::Running => Lifecycle::Running,
            CoroutineSlot::Suspended(_) => Lifecycle::Suspended,
            CoroutineSlot::Closed => Lifecycle::Closed,
        }
    }

    /// The values still to come, each fetched by [`resume`](Self::resume), up to and including the
    /// first error. Stopping early leaves the coroutine suspended, to be gone on with.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, ResumeError};
    /// let parse: Coroutine<'_, i32, (), (), std::num::ParseIntError> =
    ///     Coroutine::new(async |mut co| {
    ///         for word in "1 2 x 4".split(' ') {
    ///             co.yield_(word.parse()?).await?;
    ///         }
    ///         Ok(())
    ///     });
    /// let values: Vec<_> = parse.iter().collect();
    /// assert!(matches!(values[..], [Ok(1), Ok(2), Err(ResumeError::Raised(_))]));
    /// ```
    pub fn iter(&self) -> impl FusedIterator<Item = Result<Y, ResumeError<E>>> {
        let mut live = Some(self);
        let next = move || {
            let item = match live?.resume() {
                Ok(Step::Yielded(value)) => return Some(Ok(value)),
                Ok(Step::Returned(_)) | Err(ResumeError::Finished(())) => None,
                Err(error) => Some(Err(error)),
            };
            live = None;
            item
        };
        iter::from_fn(next).fuse()
    }

    /// The one transition function: decides whether `given` may go in, and runs the body if so.
    fn enter<V>(&self, given: V, into_input: impl FnOnce(V) -> Input<S, E>) -> Result<Step<Y, T>, ResumeError<E, V>> {
        let (body, transfer) = match self.slot.replace(CoroutineSlot::Running) {
            CoroutineSlot::Running => return Err(ResumeError::Running(given)),
            CoroutineSlot::Closed => {
                self.slot.replace(CoroutineSlot::Closed);
                return Err(ResumeError::Finished(given));
            }
            CoroutineSlot::Suspended(body) => (body, Transfer::Resumed(into_input(given))),
            CoroutineSlot::Created(body) => match into_input(given) {
                Ok(_) => (body, Transfer::Running),
                Err(thrown) => {
                    // Before the body is dropped: its captures' destructors may look at us.
                    self.slot.replace(CoroutineSlot::Closed);
                    drop(body);
                    return Err(ResumeError::Raised(thrown));
                }
            },
        };
        self.run(body, transfer).map_err(ResumeError::Raised)
    }

    fn run(&self, mut body: Body<'a, T, E>, transfer: Transfer<Y, S, E>) -> Result<Step<Y, T>, Thrown<E>> {
        /// Also on the way out of a panic, so that a broken body is closed and not "running".
        struct Leave<'c, 'a, Y, S, T, E> {
            coroutine: &'c Coroutine<'a, Y, S, T, E>,
            next: CoroutineSlot<'a, T, E>,
        }
        impl<Y, S, T, E> Drop for Leave<'_, '_, Y, S, T, E> {
            fn drop(&mut self) {
                self.coroutine.exchange.replace(Transfer::Parked);
                self.coroutine.slot.replace(mem::replace(&mut self.next, CoroutineSlot::Closed));
            }
        }
        let mut leave = Leave { coroutine: self, next: CoroutineSlot::Closed };

        self.exchange.replace(transfer);
        let polled = body.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let transfer = self.exchange.replace(Transfer::Parked);
        match (polled, transfer) {
            (Poll::Ready(result), _) => result.map(Step::Returned),
            (Poll::Pending, Transfer::Yielded(value)) => {
                leave.next = CoroutineSlot::Suspended(body);
                Ok(Step::Yielded(value))
            }
            (Poll::Pending, _) => panic!(
                "a coroutine's body awaited something that was not ready and not its own Co: \
                 nothing would ever wake it"
            ),
        }
    }
}

impl<Y, S, T, E> Drop for Coroutine<'_, Y, S, T, E> {
    fn drop(&mut self) {
        // A body that never started has nothing to clean up, and an error that it raises now has no
        // receiver. A body that panicked during an unwinding would abort the process.
        if self.lifecycle() == Lifecycle::Suspended && !thread::panicking() {
            let _ = self.close();
        }
    }
}

impl<Y, S, T, E> fmt::Debug for Coroutine<'_, Y, S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coroutine").field("lifecycle", &self.lifecycle()).finish_non_exhaustive()
    }
}

/// The body's end of the exchange: yields values, and delegates to other coroutines.
///
/// Its methods take `&mut self`, so that two of them cannot run at once; lend it to helper
/// functions as `&mut Co`.
///
/// ```
/// # use tidegate_loop::coroutine::{Co, Coroutine, Thrown};
/// async fn twice(co: &mut Co<u8>, value: u8) -> Result<(), Thrown> {
///     co.yield_(value).await?;
///     co.yield_(value).await?;
///     Ok(())
/// }
/// let pairs: Coroutine<'_, u8> = Coroutine::new(async |mut co| {
///     twice(&mut co, 1).await?;
///     twice(&mut co, 2).await
/// });
/// assert_eq!(pairs.into_iter().collect::<Vec<_>>(), [1, 1, 2, 2]);
/// ```
pub struct Co<Y, S = Infallible, E = Infallible> {
    exchange: Exchange<Y, S, E>,
}

/// What lies between the two ends.
enum Transfer<Y, S, E> {
    /// The body is not being run: a `Co` that yields now has left its body.
    Parked,
    /// The body runs and has taken its input.
    Running,
    Resumed(Input<S, E>),
    Yielded(Y),
}

impl<Y, S, E> Co<Y, S, E> {
    /// Hands `value` to the caller and pauses until the caller goes on: `Ok(Some(_))` after a
    /// [`send`](Coroutine::send), `Ok(None)` after a [`resume`](Coroutine::resume), `Err` after a
    /// [`throw`](Coroutine::throw) or a [`close`](Coroutine::close).
    ///
    /// # Cancel safety
    ///
    /// Dropped before the caller saw `value`, it was never yielded; dropped later, what the caller
    /// sent is lost with it.
    ///
    /// # Panics
    ///
    /// When it is polled anywhere but in the body this `Co` was made for.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, Step};
    /// let greet: Coroutine<'_, &str, &str, String> = Coroutine::new(async |mut co| {
    ///     let name = co.yield_("who?").await?.unwrap_or("nobody");
    ///     Ok(format!("hello {name}"))
    /// });
    /// assert_eq!(greet.resume(), Ok(Step::Yielded("who?")));
    /// assert_eq!(greet.send("Ada"), Ok(Step::Returned("hello Ada".into())));
    /// ```
    ///
    /// Where an error was thrown in there is no sent value, and the compiler knows it:
    ///
    /// ```compile_fail,E0381
    /// # use tidegate_loop::coroutine::Coroutine;
    /// # let _: Coroutine<'_, u8, u8> = Coroutine::new(async |mut co| {
    /// let sent;
    /// match co.yield_(1).await { Ok(value) => sent = value, Err(_) => drop(sent) }
    /// # Ok(()) });
    /// ```
    pub async fn yield_(&mut self, value: Y) -> Result<Option<S>, Thrown<E>> {
        let mut offer = Some(value);
        poll_fn(|_| {
            assert!(
                !matches!(*self.exchange.borrow(), Transfer::Parked),
                "a Co was used outside of the coroutine it was made for"
            );
            // An offer replaces whatever an abandoned `yield_` left behind.
            let between = self.exchange.replace(Transfer::Running);
            let (left, polled) = match (offer.take(), between) {
                (Some(value), _) => (Transfer::Yielded(value), Poll::Pending),
                (None, Transfer::Resumed(input)) => return Poll::Ready(input),
                (None, unchanged) => (unchanged, Poll::Pending),
            };
            self.exchange.replace(left);
            polled
        })
        .await
    }

    /// Runs `child` in this body's place until it ends, and is worth what it returns.
    ///
    /// The child is started if need be; its values go to the caller, and what the caller sends or
    /// throws goes to the child. An error the child does not handle comes out here, so that this
    /// body may; after that the caller. On `close` the child is closed first, then this body sees
    /// [`Thrown::Exit`], or the error that the child's closing raised instead.
    ///
    /// ```
    /// # use tidegate_loop::coroutine::{Coroutine, Step};
    /// let parent: Coroutine<'_, u8, (), u8> = Coroutine::new(async |mut co| {
    ///     let child = Coroutine::new(async |mut co| {
    ///         co.yield_(1).await?;
    ///         Ok(5)
    ///     });
    ///     Ok(co.delegate(&child).await? + 100)
    /// });
    /// assert_eq!(parent.resume(), Ok(Step::Yielded(1)));
    /// assert_eq!(parent.resume(), Ok(Step::Returned(105)));
    /// ```
    pub async fn delegate<T>(&mut self, child: &Coroutine<'_, Y, S, T, E>) -> Result<T, Thrown<E>> {
        let mut step = child.resume().map_err(ResumeError::into_parent);
        loop {
            let value = match step? {
                Step::Returned(value) => return Ok(value),
                Step::Yielded(value) => value,
            };
            step = match self.yield_(value).await {
                Ok(None) => child.resume().map_err(ResumeError::into_parent),
                Ok(Some(sent)) => child.send(sent).map_err(ResumeError::into_parent),
                Err(Thrown::Exit) => match child.close() {
                    Ok(_) => Err(Thrown::Exit),
                    Err(CloseError::Raised(error)) => Err(error),
                    Err(CloseError::Running) => Err(Thrown::Child(ChildFault::Running)),
                    Err(CloseError::Yielded(_)) => Err(Thrown::Child(ChildFault::IgnoredExit)),
                },
                Err(thrown) => match child.throw(thrown) {
                    // Other code ended the child meanwhile: the error is ours to handle.
                    Err(ResumeError::Finished(thrown)) => Err(thrown),
                    other => other.map_err(ResumeError::into_parent),
                },
            };
        }
    }
}

impl<Y, S, E> fmt::Debug for Co<Y, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Co").finish_non_exhaustive()
    }
}

/// The values of a coroutine that cannot fail; made by its `into_iter`, that is, by `for`.
///
/// # Panics
///
/// When the body ends with a [`Thrown::Exit`] or [`Thrown::Child`] that was not thrown in.
///
/// ```
/// # use tidegate_loop::coroutine::Coroutine;
/// let squares: Coroutine<'_, u32> = Coroutine::new(async |mut co| {
///     for n in 1.. {
///         co.yield_(n * n).await?;
///     }
///     Ok(())
/// });
/// assert_eq!(squares.into_iter().take(4).collect::<Vec<_>>(), [1, 4, 9, 16]);
/// ```
#[derive(Debug)]
pub struct IntoIter<'a, Y, S, T>(Coroutine<'a, Y, S, T, Infallible>);

impl<Y, S, T> Iterator for IntoIter<'_, Y, S, T> {
    type Item = Y;

    fn next(&mut self) -> Option<Y> {
        let item = self.0.iter().next()?;
        Some(item.unwrap_or_else(|error| panic!("a coroutine without errors failed: {error}")))
    }
}

impl<Y, S, T> FusedIterator for IntoIter<'_, Y, S, T> {}

impl<'a, Y, S, T> IntoIterator for Coroutine<'a, Y, S, T, Infallible> {
    type Item = Y;
    type IntoIter = IntoIter<'a, Y, S, T>;

    fn into_iter(self) -> IntoIter<'a, Y, S, T> {
        IntoIter(self)
    }
}
