//! What moves a connection's bytes: hyper's reading, parsing and writing. Whoever uses the connection drives it in his own
//! step, so a request is on the wire, and an answer with who asked, without a turn of the loop in between. While nobody uses
//! it, a task watches it, so that its end is noticed.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tidegate_loop::{Task, spawn};

type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>;

pub(crate) struct Drive {
    /// Not there while it is polled, and after its end.
    driver: Cell<Option<Driver>>,
    /// Whether there will be nothing to drive any more. True while it is polled as well: a panic ends it.
    ended: Cell<bool>,
    /// Somebody uses the connection and drives it; whoever watches keeps away.
    used: Cell<bool>,
    /// It was last polled by whoever watches, who will hear of what happens.
    watched: Cell<bool>,
    watcher: RefCell<Option<Watcher>>,
}

struct Watcher {
    task: Task,
    /// From its first step on.
    waker: Option<Waker>,
}

impl Drive {
    pub(crate) fn new(driver: impl Future<Output = Result<(), hyper::Error>> + 'static) -> Rc<Drive> {
        Rc::new(Drive {
            driver: Cell::new(Some(Box::pin(driver))),
            ended: Cell::new(false),
            used: Cell::new(true),
            watched: Cell::new(false),
            watcher: RefCell::default(),
        })
    }

    /// Moves what can be moved, and has the task of `cx` woken when there is more. True: it has ended.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> bool {
        // Out of its place: a body is foreign code.
        let Some(mut driver) = self.driver.take() else { return self.ended.get() };
        self.ended.set(true);
        match driver.as_mut().poll(cx) {
            Poll::Pending => {
                self.ended.set(false);
                self.driver.set(Some(driver));
            }
            // The request under way gets the error; an idle connection's is of no interest.
            Poll::Ready(Err(error)) => log::debug!("a connection ended: {error}"),
            Poll::Ready(Ok(())) => {}
        }
        self.ended.get()
    }

    /// Polls `future`, which waits for what this moves.
    pub(crate) fn poll_for<F: Future>(&self, cx: &mut Context<'_>, future: Pin<&mut F>) -> Poll<F::Output> {
        self.poll(cx);
        future.poll(cx)
    }

    /// Moves what can be moved at once, for nobody in particular.
    pub(crate) fn nudge(&self) {
        self.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Somebody uses it from now on, or nobody any more.
    pub(crate) fn set_used(&self, used: bool) {
        self.used.set(used);
        self.watched.set(false);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.get()
    }

    /// Has a task watch it as long as nobody uses it; `end` is told when it has ended.
    pub(crate) fn watch(self: &Rc<Self>, name: impl FnOnce() -> String, end: impl FnOnce() + 'static) {
        let waker = self.watcher.borrow().as_ref().map(|watcher| watcher.waker.clone());
        match waker {
            Some(waker) => waker.into_iter().for_each(Waker::wake),
            None => {
                let drive = Rc::clone(self);
                let task = spawn(async move {
                    poll_fn(|cx| drive.poll_watched(cx)).await;
                    end();
                })
                .task();
                task.set_name(name());
                *self.watcher.borrow_mut() = Some(Watcher { task, waker: None });
            }
        }
    }

    fn poll_watched(&self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(Watcher { waker: waker @ None, .. }) = &mut *self.watcher.borrow_mut() {
            *waker = Some(cx.waker().clone());
        }
        if self.used.get() {
            return Poll::Pending;
        }
        self.watched.set(true);
        if self.poll(cx) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        self.ended.set(true);
        let watcher = self.watcher.take();
        if let Some(watcher) = watcher {
            watcher.task.cancel();
        }
        drop(self.driver.take());
    }
}
