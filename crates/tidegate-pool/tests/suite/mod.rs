//! What holds on every executor. Each test file that includes this supplies an executor (`Ex`, `EX`), `run`, and
//! `spawn` for tasks outside of the pool at hand.

#![allow(unreachable_pub, reason = "the same file under several roots")]

mod bounds;
mod control;
mod endings;
mod results;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use tidegate_pool::Pool;
use tidegate_sync::Event;

pub(crate) use crate::{EX, Ex, run, spawn};

pub fn pool(cap: usize) -> Pool<Ex> {
    Pool::on(EX, cap)
}

/// Lets the other tasks run.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets the others run until something is so.
#[track_caller]
pub fn until(mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        for _ in 0..10_000_000 {
            if so() {
                return;
            }
            yield_now().await;
        }
        panic!("never so, at {place}");
    }
}

/// Lets everything run that can: long enough for whatever is wrong to show.
pub async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// A task that stays until the gate is opened.
pub fn stays(gate: &Arc<Event>) -> impl Future<Output = ()> + use<> {
    let gate = Arc::clone(gate);
    async move { gate.wait().await }
}

/// A future polled by hand, with a waker that counts.
pub struct Hand<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl<F: Future> Hand<F> {
    /// Polled once, and not ready.
    #[track_caller]
    pub fn waiting(future: F) -> Self {
        let mut hand = Hand { future: Box::pin(future), wakes: Arc::default() };
        assert!(hand.poll().is_none(), "ready at once");
        hand
    }

    pub fn poll(&mut self) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// How often it was woken.
    pub fn wakes(&self) -> usize {
        self.wakes.0.load(SeqCst)
    }
}

/// No slot is held, no submitter waits, and every task is accounted for.
#[track_caller]
pub fn assert_at_rest(pool: &Pool<Ex>) {
    let stats = pool.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0), "{stats:?}");
    assert_eq!(stats.submitted, stats.completed + stats.failed + stats.cancelled, "{stats:?}");
}
