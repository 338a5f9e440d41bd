//! Waiting for permits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::counter::{Line, clamp};
use super::error::AcquireError;
use super::list::{List, Verdict};
use super::lock::Lock;
use super::permit::{Holder, Permit};
use super::turn::{Home, Left, Turn};

pin_project! {
    /// The future of [`Semaphore::acquire`](crate::Semaphore::acquire) and its kin.
    ///
    /// It takes its place in line when it is first polled. Nothing is allocated for it: while it
    /// waits, the semaphore's line runs through it.
    ///
    /// ```
    /// use tidegate_sync::{Acquire, Semaphore};
    ///
    /// # futures_lite::future::block_on(async {
    /// let slots = Semaphore::new(1);
    /// let turn: Acquire<&Semaphore> = slots.acquire();
    /// assert_eq!(slots.available(), 1);
    /// let _permit = turn.await?;
    /// assert_eq!(slots.available(), 0);
    /// # Ok::<(), tidegate_sync::AcquireError>(()) }).unwrap();
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Acquire<S: Holder> {
        #[pin]
        turn: Turn<InLine<S>>,
    }
}

impl<S: Holder> Acquire<S> {
    #[inline]
    pub(super) fn new(semaphore: S, need: usize) -> Self {
        Self { turn: Turn::new(InLine(semaphore), clamp(need)) }
    }
}

impl<S: Holder> Future for Acquire<S> {
    type Output = Result<Permit<S>, AcquireError>;

    // A call would cost as much again: the caller copies what it returns through memory.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut turn = self.project().turn;
        if !turn.is_idle() {
            return resume(turn, cx);
        }
        let need = turn.as_mut().payload(|need| *need);
        if turn.home().0.counter().try_take(need) {
            return Poll::Ready(Ok(Permit::new(turn.finish().0, need)));
        }
        join(turn, cx)
    }
}

type Polled<S> = Poll<Result<Permit<S>, AcquireError>>;

/// Into the line. Apart, as the next one is, so that the fast path is small enough to be inlined.
#[inline(never)]
fn join<S: Holder>(mut turn: Pin<&mut Turn<InLine<S>>>, cx: &mut Context<'_>) -> Polled<S> {
    match turn.as_mut().arrive(cx, |home, line, need| home.0.counter().admit(line, *need)) {
        None => Poll::Pending,
        Some(Err(refused)) => Poll::Ready(Err(refused)),
        Some(Ok(())) => {
            let need = turn.as_mut().payload(|need| *need);
            Poll::Ready(Ok(Permit::new(turn.finish().0, need)))
        }
    }
}

/// Out of the line, if it is so far.
#[inline(never)]
fn resume<S: Holder>(mut turn: Pin<&mut Turn<InLine<S>>>, cx: &mut Context<'_>) -> Polled<S> {
    if ready!(turn.as_mut().poll_served(cx)) == Verdict::Refused {
        return Poll::Ready(Err(AcquireError::Closed));
    }
    let need = turn.as_mut().payload(|need| *need);
    Poll::Ready(Ok(Permit::from_line(turn.finish().0, need)))
}

/// The semaphore's line as a place to wait.
struct InLine<S>(S);

// SAFETY: `Holder` is sealed: a reference or an `Arc`, and both lead to one and the same semaphore
// as long as they live, wherever they are moved. The list stays in its counter.
unsafe impl<S: Holder> Home for InLine<S> {
    type State = Line;
    type Payload = u32;

    #[inline]
    fn lock(&self) -> &Lock<Line> {
        self.0.counter().line()
    }

    #[inline]
    fn list(line: &mut Line) -> &mut List<u32> {
        line.waiting()
    }

    fn left(&self, need: &mut u32, left: Left) {
        match left {
            Left::InLine => self.0.counter().left_line(),
            Left::Granted => self.0.counter().pass_on(*need),
        }
    }
}

impl<S: Holder> fmt::Debug for Acquire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
