//! Results in the order they come.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future as StdFuture, IntoFuture, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll};

use futures_core::Stream;

use crate::deferred::{Awaiting, Future};
use crate::runtime::event_loop::LoopHandle;
use crate::task::{JoinError, JoinHandle};

/// Yields results as the tasks end, first come first served.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{as_completed, run, sleep, spawn, Duration};
/// run(async {
///     let tasks = [3, 1, 2].map(|n| spawn(async move { sleep(Duration::from_millis(n)).await; n }));
///     let mut results = as_completed(tasks);
///     let mut order = Vec::new();
///     while let Some((_index, result)) = results.next().await {
///         order.push(result.unwrap());
///     }
///     assert_eq!(order, [1, 2, 3]);
/// })
/// .unwrap();
/// ```
pub fn as_completed<T: 'static>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> AsCompleted<T> {
    let handles: Vec<Option<JoinHandle<T>>> = handles.into_iter().map(Some).collect();
    let arrivals = Rc::new(RefCell::new(Arrivals { ended: VecDeque::new(), getter: None }));
    for (at, handle) in handles.iter().enumerate() {
        let arrivals = arrivals.clone();
        let task = handle.as_ref().expect("just made").task();
        task.add_done_callback(move |_| Arrivals::arrived(&arrivals, at));
    }
    AsCompleted { left: handles.len(), handles, arrivals, awaiting: None, loop_handle: LoopHandle::current() }
}

struct Arrivals {
    ended: VecDeque<usize>,
    /// Set to wake whoever waits for the next one.
    getter: Option<Future<()>>,
}

impl Arrivals {
    fn arrived(this: &RefCell<Arrivals>, at: usize) {
        let getter = {
            let mut this = this.borrow_mut();
            this.ended.push_back(at);
            this.getter.take()
        };
        if let Some(getter) = getter {
            drop(getter.set_result(()));
        }
    }
}

/// The stream of [`as_completed`]: (index, result) pairs. Dropped, the tasks that are left go on by themselves.
pub struct AsCompleted<T: 'static> {
    handles: Vec<Option<JoinHandle<T>>>,
    left: usize,
    arrivals: Rc<RefCell<Arrivals>>,
    awaiting: Option<Awaiting<()>>,
    loop_handle: LoopHandle,
}

impl<T: 'static> AsCompleted<T> {
    /// The next result and whose it is; `None` after the last.
    ///
    /// # Cancel safety
    /// Safe: a result that has come stays until it is fetched.
    ///
    /// ```
    /// use tidegate_loop::{as_completed, run, spawn};
    /// run(async {
    ///     let mut results = as_completed([spawn(async { "only" })]);
    ///     assert!(results.next().await.is_some());
    ///     assert!(results.next().await.is_none());
    /// })
    /// .unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<(usize, Result<T, JoinError>)> {
        poll_fn(|cx| self.poll_one(cx)).await
    }

    fn poll_one(&mut self, cx: &mut PollContext<'_>) -> Poll<Option<(usize, Result<T, JoinError>)>> {
        loop {
            if let Some(awaiting) = &mut self.awaiting {
                let _ = std::task::ready!(Pin::new(awaiting).poll(cx));
                self.awaiting = None;
            }
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let arrived = self.arrivals.borrow_mut().ended.pop_front();
            if let Some(at) = arrived {
                self.left -= 1;
                let mut handle = self.handles[at].take().expect("each ends once");
                return Poll::Ready(Some((at, handle.try_result().expect("it has ended"))));
            }
            let getter = self.loop_handle.create_future();
            self.arrivals.borrow_mut().getter = Some(getter.clone());
            self.awaiting = Some(getter.into_future());
        }
    }
}

impl<T: 'static> Stream for AsCompleted<T> {
    type Item = (usize, Result<T, JoinError>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> fmt::Debug for AsCompleted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsCompleted").field("left", &self.left).finish_non_exhaustive()
    }
}
