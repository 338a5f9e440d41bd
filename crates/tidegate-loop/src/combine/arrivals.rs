//! Tasks in the order in which they end: behind `as_completed` and `JoinSet`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll};

use crate::deferred::{Awaiting, Deferred};
use crate::runtime::event_loop::LoopHandle;
use crate::task::Task;

/// The keys of tasks that have ended, in the order they did.
pub(super) struct Arrivals<K> {
    queue: Rc<RefCell<ArrivalQueue<K>>>,
    awaiting: Option<Awaiting<()>>,
}

struct ArrivalQueue<K> {
    ended: VecDeque<K>,
    /// Set when the next task ends, while `ended` is empty and awaited.
    getter: Option<Deferred<()>>,
}

impl<K: 'static> Arrivals<K> {
    pub(super) fn new() -> Arrivals<K> {
        Arrivals { queue: Rc::new(RefCell::new(ArrivalQueue { ended: VecDeque::new(), getter: None })), awaiting: None }
    }

    /// Adds `key` when `task` ends.
    #[track_caller]
    pub(super) fn watch(&self, task: &Task, key: K) {
        let queue = self.queue.clone();
        task.add_done_callback(move |_| {
            let getter = {
                let mut queue = queue.borrow_mut();
                queue.ended.push_back(key);
                queue.getter.take()
            };
            if let Some(getter) = getter {
                drop(getter.set_result(()));
            }
        });
    }

    pub(super) fn pop(&mut self) -> Option<K> {
        self.queue.borrow_mut().ended.pop_front()
    }

    pub(super) fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<K> {
        loop {
            if let Some(awaiting) = &mut self.awaiting {
                let _ = std::task::ready!(Pin::new(awaiting).poll(cx));
                self.awaiting = None;
            }
            if let Some(key) = self.pop() {
                return Poll::Ready(key);
            }
            let getter = LoopHandle::current().create_future();
            self.queue.borrow_mut().getter = Some(getter.clone());
            self.awaiting = Some(getter.into_future());
        }
    }
}
