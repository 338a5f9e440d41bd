//! Waiting for permits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::counter::{CounterLine, clamp};
use super::error::AcquireError;
use super::list::{List, Verdict};
use super::lock::Lock;
use super::permit::{Holder, Permit};
use super::turn::{Home, Left, Turn};

pin_project! {
    /// The future of [`Semaphore::acquire`](crate::Semaphore::acquire) and its kin.
    ///
    /// It joins the line when it is first polled. Waiting allocates nothing: the line is linked through this future.
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
        turn: Turn<AcquireHome<S>>,
    }
}

impl<S: Holder> Acquire<S> {
    #[inline]
    pub(super) fn new(semaphore: S, need: usize) -> Self {
        Self { turn: Turn::new(AcquireHome(semaphore), clamp(need)) }
    }
}

impl<S: Holder> Future for Acquire<S> {
    type Output = Result<Permit<S>, AcquireError>;

    // Inlined because a call would double the cost: its result would be copied through memory.
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

/// Joins the line, or takes permits that have become free meanwhile. `#[inline(never)]`, like [`resume`], keeps the fast
/// path small enough to be inlined.
#[inline(never)]
fn join<S: Holder>(mut turn: Pin<&mut Turn<AcquireHome<S>>>, cx: &mut Context<'_>) -> Polled<S> {
    match turn.as_mut().arrive(cx, |home, line, need| home.0.counter().admit(line, *need)) {
        None => Poll::Pending,
        Some(Err(refused)) => Poll::Ready(Err(refused)),
        Some(Ok(())) => {
            let need = turn.as_mut().payload(|need| *need);
            Poll::Ready(Ok(Permit::new(turn.finish().0, need)))
        }
    }
}

/// Polls a future that is in line.
#[inline(never)]
fn resume<S: Holder>(mut turn: Pin<&mut Turn<AcquireHome<S>>>, cx: &mut Context<'_>) -> Polled<S> {
    if ready!(turn.as_mut().poll_served(cx)) == Verdict::Refused {
        return Poll::Ready(Err(AcquireError::Closed));
    }
    let need = turn.as_mut().payload(|need| *need);
    Poll::Ready(Ok(Permit::from_line(turn.finish().0, need)))
}

/// A semaphore's line, for [`Turn`].
struct AcquireHome<S>(S);

// SAFETY: `Holder` is sealed: it is a reference or an `Arc`, which leads to the same semaphore as long as it lives,
// wherever it is moved. The list stays in that semaphore's counter.
unsafe impl<S: Holder> Home for AcquireHome<S> {
    type State = CounterLine;
    type Payload = u32;

    #[inline]
    fn lock(&self) -> &Lock<CounterLine> {
        self.0.counter().line()
    }

    #[inline]
    fn list(line: &mut CounterLine) -> &mut List<u32> {
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
