//! A connection's driver: hyper's future that reads, parses and writes. The task that uses the connection polls it, so a
//! request is sent and an answer received within that task's own steps, without a switch to another task. While the
//! connection is idle, a watching task polls the driver to notice the connection's end.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tidegate_loop::{Task, spawn};

type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>;

pub(crate) struct Drive {
    /// `None` while it is polled, and after its end.
    driver: Cell<Option<Driver>>,
    /// Whether the driver has ended. Also set while it is polled, so that a panic ends it.
    ended: Cell<bool>,
    /// Set while a request uses the connection and polls the driver; the watching task does not poll it then.
    used: Cell<bool>,
    /// Set if the watching task polled the driver last, so that its waker is registered.
    watched: Cell<bool>,
    watcher: RefCell<Option<DriveWatcher>>,
}

struct DriveWatcher {
    task: Task,
    /// Set in the task's first step.
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

    /// Reads and writes as far as possible, and registers the waker of `cx`. Returns `true` if the driver has ended.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> bool {
        // Taken out while it is polled, because it polls a body, which is foreign code.
        let Some(mut driver) = self.driver.take() else { return self.ended.get() };
        self.ended.set(true);
        match driver.as_mut().poll(cx) {
            Poll::Pending => {
                self.ended.set(false);
                self.driver.set(Some(driver));
            }
            // A request in flight gets the error from hyper; an idle connection's error is only logged.
            Poll::Ready(Err(error)) => log::debug!("a connection ended: {error}"),
            Poll::Ready(Ok(())) => {}
        }
        self.ended.get()
    }

    /// Polls the driver, then `future`, which depends on it.
    pub(crate) fn poll_for<F: Future>(&self, cx: &mut Context<'_>, future: Pin<&mut F>) -> Poll<F::Output> {
        self.poll(cx);
        future.poll(cx)
    }

    /// Reads and writes as far as possible without registering a waker.
    pub(crate) fn nudge(&self) {
        self.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Sets whether a request uses the connection.
    pub(crate) fn set_used(&self, used: bool) {
        self.used.set(used);
        self.watched.set(false);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.get()
    }

    /// Starts or wakes the task that watches the connection while no request uses it. `end` is called when the connection
    /// has ended.
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
                *self.watcher.borrow_mut() = Some(DriveWatcher { task, waker: None });
            }
        }
    }

    fn poll_watched(&self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(DriveWatcher { waker: waker @ None, .. }) = &mut *self.watcher.borrow_mut() {
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
