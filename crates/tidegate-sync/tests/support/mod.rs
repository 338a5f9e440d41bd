//! What the tests share: polling by hand, and one suite on several executors.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

pub mod executor;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

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
    pub fn new(future: F) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    /// A future that has been polled once and did not finish.
    #[track_caller]
    pub fn waiting(future: F) -> Self {
        let mut hand = Self::new(future);
        assert!(hand.poll().is_none(), "finished at once");
        hand
    }

    pub fn poll(&mut self) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Polls with a waker that is not the one of the other polls.
    pub fn poll_as_another_task(&mut self) -> Option<F::Output> {
        self.wakes = Arc::default();
        self.poll()
    }

    /// How often the waker of the last poll was woken.
    pub fn wakes(&self) -> usize {
        self.wakes.0.load(SeqCst)
    }
}

/// The output of a future that must finish at its first poll.
#[track_caller]
pub fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Lets the other tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// SplitMix64: small, seeded, and the same everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
