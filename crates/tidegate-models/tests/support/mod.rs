//! What the models share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Runs `model` through every interleaving with at most three involuntary switches: few are enough to find such faults,
/// and the limit keeps the whole suite under a minute.
pub fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
