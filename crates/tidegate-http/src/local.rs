//! Handlers whose futures are not `Send`.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_loop::OnLoop;

/// Wraps a future that is not `Send` for use as an axum handler. axum requires `Send`, although on the loop a handler's
/// future never leaves its thread. `future` stays with the loop, and the returned stand-in is `Send`, so a handler can use a
/// [`Client`](crate::Client), a pool or an `Rc`:
///
/// ```
/// use axum::{Router, routing::get};
/// use std::{cell::Cell, rc::Rc, sync::Arc};
/// use tidegate_http::local;
/// use tidegate_loop::{OnLoop, run, yield_now};
///
/// run(async {
///     let visits = Arc::new(OnLoop::new(Rc::new(Cell::new(0))));
///     let count = move || {
///         let visits = visits.with(Rc::clone).expect("served on the loop it was made on");
///         local(async move {
///             yield_now().await;
///             visits.set(visits.get() + 1);
///             visits.get().to_string()
///         })
///     };
///     let router: Router = Router::new().route("/", get(count));
/// })
/// .unwrap();
/// ```
///
/// # Cancel safety
/// Dropping the stand-in, on any thread, drops `future` on its loop.
///
/// # Panics
/// If called outside of a running loop, or polled on another one.
pub fn local<F: Future + 'static>(future: F) -> Local<F> {
    Local { stand_in: OnLoop::new(RefCell::new(Box::pin(future))) }
}

/// The future of [`local`].
#[must_use = "futures do nothing unless polled"]
pub struct Local<F> {
    stand_in: OnLoop<RefCell<Pin<Box<F>>>>,
}

impl<F: Future + 'static> Future for Local<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.stand_in
            .with(|future| future.borrow_mut().as_mut().poll(cx))
            .expect("a local future is polled on the loop it was made on")
    }
}

impl<F> fmt::Debug for Local<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}
