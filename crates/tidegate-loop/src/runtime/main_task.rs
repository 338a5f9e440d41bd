//! The main task of a run: what it returns is not lost, and when it fails the seed is printed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use pin_project_lite::pin_project;

use crate::task::cancel;

pin_project! {
    /// The main future of a run. A task that returns while a cancellation is pending loses its output to that; what main
    /// returns may be an error, and must not be lost.
    pub(crate) struct MainFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F> MainFuture<F> {
    pub(crate) fn new(future: F) -> MainFuture<F> {
        MainFuture { future }
    }
}

impl<F: Future> Future for MainFuture<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<F::Output> {
        let polled = self.project().future.poll(cx);
        if polled.is_ready() {
            cancel::drop_pending();
        }
        polled
    }
}

/// Prints which seed replays a run, when the run fails or panics.
pub(crate) struct SeedNotice {
    seed: Option<u64>,
}

impl SeedNotice {
    pub(crate) fn new(seed: Option<u64>) -> SeedNotice {
        SeedNotice { seed }
    }
}

impl Drop for SeedNotice {
    fn drop(&mut self) {
        if let Some(seed) = self.seed {
            eprintln!("tidegate: this run was simulated; EventLoop::simulated({seed}) replays it");
        }
    }
}
