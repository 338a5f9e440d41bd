//! Two futures at once inside one task, without tasks of their own: `race` and `zip`, and the macros for more than two.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use pin_project_lite::pin_project;

/// The output of whichever of two futures was ready first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Either<A, B> {
    /// The first one's.
    Left(A),
    /// The second one's.
    Right(B),
}

impl<A, B> Either<A, B> {
    /// Returns the first one's output, if it was ready first.
    ///
    /// ```
    /// use tidegate_loop::Either;
    /// assert_eq!(Either::<u32, u32>::Left(1).left(), Some(1));
    /// ```
    pub fn left(self) -> Option<A> {
        match self {
            Either::Left(output) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// Returns the second one's output, if it was ready first.
    ///
    /// ```
    /// use tidegate_loop::Either;
    /// assert_eq!(Either::<u32, u32>::Left(1).right(), None);
    /// ```
    pub fn right(self) -> Option<B> {
        match self {
            Either::Left(_) => None,
            Either::Right(output) => Some(output),
        }
    }
}

impl<T> Either<T, T> {
    /// Returns the output of whichever was ready first.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let page = tidegate_loop::race(async { "cached" }, std::future::pending()).await.into_inner();
    /// assert_eq!(page, "cached");
    /// # }).unwrap();
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            Either::Left(output) | Either::Right(output) => output,
        }
    }
}

/// Awaits two futures and returns the output of the first that is ready; the other one is dropped. They are polled in
/// the order of the arguments, so the first wins if both are ready.
///
/// Neither is a task: both run inside the current one, and dropping the loser is all that happens to it. Unlike
/// [`timeout`](crate::timeout), `race(future, sleep(limit))` makes no cancellation request, and so works around any
/// future. With more than two, use [`select!`](crate::select).
///
/// # Cancel safety
/// Dropped, it drops both. As a loser is dropped at any of its waits, each should be safe to drop there.
///
/// ```
/// use tidegate_loop::{Duration, Either, race, run, sleep};
/// run(async {
///     let answer = async { 42 };
///     assert_eq!(race(answer, sleep(Duration::from_secs(60))).await, Either::Left(42));
/// })
/// .unwrap();
/// ```
pub fn race<A: IntoFuture, B: IntoFuture>(first: A, second: B) -> Race<A::IntoFuture, B::IntoFuture> {
    Race { first: first.into_future(), second: second.into_future() }
}

pin_project! {
    /// The future of [`race`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Race<A, B> {
        #[pin]
        first: A,
        #[pin]
        second: B,
    }
}

impl<A: Future, B: Future> Future for Race<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.first.poll(cx) {
            return Poll::Ready(Either::Left(output));
        }
        this.second.poll(cx).map(Either::Right)
    }
}

impl<A, B> fmt::Debug for Race<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Race").finish_non_exhaustive()
    }
}

/// Awaits two futures at the same time and returns both outputs. They are polled in the order of the arguments, inside
/// the current task. With more than two, use [`join!`](crate::join).
///
/// # Cancel safety
/// Dropped, it drops both, and an output that was there already.
///
/// ```
/// use tidegate_loop::{Duration, run, sleep, zip};
/// run(async {
///     let pages = zip(async { "one" }, async { sleep(Duration::from_millis(1)).await; "two" });
///     assert_eq!(pages.await, ("one", "two"));
/// })
/// .unwrap();
/// ```
pub fn zip<A: IntoFuture, B: IntoFuture>(first: A, second: B) -> Zip<A::IntoFuture, B::IntoFuture> {
    Zip {
        first: MaybeDone::Waiting { future: first.into_future() },
        second: MaybeDone::Waiting { future: second.into_future() },
    }
}

pin_project! {
    /// A future, and then its output.
    #[project = MaybeDoneProjection]
    enum MaybeDone<F: Future> {
        Waiting { #[pin] future: F },
        Done { output: Option<F::Output> },
    }
}

impl<F: Future> MaybeDone<F> {
    /// Returns `true` if the output is there.
    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> bool {
        let MaybeDoneProjection::Waiting { future } = self.as_mut().project() else { return true };
        let Poll::Ready(output) = future.poll(cx) else { return false };
        self.set(MaybeDone::Done { output: Some(output) });
        true
    }

    fn take(self: Pin<&mut Self>) -> F::Output {
        let output = match self.project() {
            MaybeDoneProjection::Done { output } => output.take(),
            MaybeDoneProjection::Waiting { .. } => None,
        };
        output.expect("Zip polled after it was ready")
    }
}

pin_project! {
    /// The future of [`zip`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Zip<A: Future, B: Future> {
        #[pin]
        first: MaybeDone<A>,
        #[pin]
        second: MaybeDone<B>,
    }
}

impl<A: Future, B: Future> Future for Zip<A, B> {
    type Output = (A::Output, B::Output);

    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (first, second) = (this.first.as_mut().poll(cx), this.second.as_mut().poll(cx));
        if first && second { Poll::Ready((this.first.take(), this.second.take())) } else { Poll::Pending }
    }
}

impl<A: Future, B: Future> fmt::Debug for Zip<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zip").finish_non_exhaustive()
    }
}

/// Awaits several futures at the same time, inside the current task, and evaluates to the tuple of their outputs.
///
/// # Cancel safety
/// As for [`zip`](crate::zip).
///
/// ```
/// use tidegate_loop::{join, run};
/// run(async {
///     let (one, two, three) = join!(async { 1 }, async { "two" }, async { 3.0 });
///     assert_eq!((one, two, three), (1, "two", 3.0));
/// })
/// .unwrap();
/// ```
#[macro_export]
macro_rules! join {
    (@zip $future:expr) => { $future };
    (@zip $future:expr, $($rest:expr),+) => { $crate::zip($future, $crate::join!(@zip $($rest),+)) };
    // Takes the nested pairs apart: each level names its value anew, and macro hygiene keeps the names apart.
    (@flatten $outputs:expr, ($($done:ident)*) $future:expr) => {{
        let value = $outputs;
        ($($done,)* value,)
    }};
    (@flatten $outputs:expr, ($($done:ident)*) $future:expr, $($rest:expr),+) => {{
        let (value, rest) = $outputs;
        $crate::join!(@flatten rest, ($($done)* value) $($rest),+)
    }};
    ($($future:expr),+ $(,)?) => {
        $crate::join!(@flatten $crate::join!(@zip $($future),+).await, () $($future),+)
    };
}

/// Awaits several futures inside the current task, and runs the arm of the first that is ready; the others are dropped.
/// They are polled from top to bottom at every wake-up, so an earlier arm wins if several are ready: the same run under
/// the same seed takes the same arm. Arms are not `async` blocks of their own: they may `await`, `break` and `return`.
///
/// # Cancel safety
/// The losers are dropped at the wait where they are; use futures that lose nothing by that. The documentation of each
/// async function says so.
///
/// ```
/// use tidegate_loop::{Duration, run, select, sleep};
/// run(async {
///     let outcome = select! {
///         line = async { "a line" } => format!("read {line}"),
///         () = sleep(Duration::from_secs(60)) => "timed out".to_owned(),
///         () = std::future::pending() => unreachable!(),
///     };
///     assert_eq!(outcome, "read a line");
/// })
/// .unwrap();
/// ```
#[macro_export]
macro_rules! select {
    (@race $future:expr) => { $future };
    (@race $future:expr, $($rest:expr),+) => { $crate::race($future, $crate::select!(@race $($rest),+)) };
    // One arm after the other: either it is the left one of the pair, or the rest is looked at.
    (@arms $outcome:expr, $pattern:pat => $arm:expr) => {
        match $outcome { $pattern => $arm }
    };
    (@arms $outcome:expr, $pattern:pat => $arm:expr, $($patterns:pat => $arms:expr),+) => {
        match $outcome {
            $crate::Either::Left($pattern) => $arm,
            $crate::Either::Right(rest) => $crate::select!(@arms rest, $($patterns => $arms),+),
        }
    };
    ($($pattern:pat = $future:expr => $arm:expr),+ $(,)?) => {{
        // Bound first: the futures and what they borrow are gone before an arm runs.
        let outcome = $crate::select!(@race $($future),+).await;
        $crate::select!(@arms outcome, $($pattern => $arm),+)
    }};
}
