//! One suite, several executors: an adaptor each.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// What the suite needs of an executor.
pub trait Executor {
    /// Runs `main` to its end, and what it spawns meanwhile.
    fn run(main: impl Future<Output = ()> + Send + 'static);

    /// Starts a task; called inside `run`.
    fn spawn(task: impl Future<Output = ()> + Send + 'static);
}

/// Starts a task whose result can be awaited.
pub fn spawn<E: Executor, T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let slot: Arc<Mutex<(Option<T>, Option<Waker>)>> = Arc::new(Mutex::new((None, None)));
    let result = Arc::clone(&slot);
    E::spawn(async move {
        let output = task.await;
        let waker = {
            let mut slot = slot.lock().unwrap();
            slot.0 = Some(output);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    std::future::poll_fn(move |cx| {
        let mut slot = result.lock().unwrap();
        match slot.0.take() {
            Some(output) => Poll::Ready(output),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
}

/// Makes each generic test a test of every executor.
#[macro_export]
macro_rules! on_every_executor {
    ($($test:ident),* $(,)?) => {
        $crate::on_every_executor!(@ tokio_current_thread TokioCurrentThread $($test)*);
        $crate::on_every_executor!(@ tokio_multi_thread TokioMultiThread $($test)*);
        $crate::on_every_executor!(@ tidegate_loop TidegateLoop $($test)*);
        $crate::on_every_executor!(@ tiny Tiny $($test)*);
    };
    (@ $module:ident $executor:ident $($test:ident)*) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test::<$crate::support::executor::$executor>();
                }
            )*
        }
    };
}

pub struct TokioCurrentThread;

impl Executor for TokioCurrentThread {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(main);
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(task));
    }
}

pub struct TokioMultiThread;

impl Executor for TokioMultiThread {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap().block_on(async {
            tokio::spawn(main).await.unwrap();
        });
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(task));
    }
}

pub struct TidegateLoop;

impl Executor for TidegateLoop {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        tidegate_loop::EventLoop::new().unwrap().run_until_complete(main).unwrap();
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        drop(tidegate_loop::spawn(task));
    }
}

/// The least an executor can be: a run queue, on one thread, woken from any.
pub struct Tiny;

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Ready {
    tasks: Mutex<VecDeque<Arc<Task>>>,
    arrived: Condvar,
}

struct Task {
    future: Mutex<Option<Boxed>>,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, SeqCst) {
            let ready = Arc::clone(&self.ready);
            ready.tasks.lock().unwrap().push_back(self);
            ready.arrived.notify_one();
        }
    }
}

thread_local! {
    static READY: RefCell<Option<Arc<Ready>>> = const { RefCell::new(None) };
}

impl Executor for Tiny {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        let ready = Arc::new(Ready::default());
        READY.set(Some(Arc::clone(&ready)));
        let done = Arc::new(AtomicBool::new(false));
        let finished = Arc::clone(&done);
        Self::spawn(async move {
            main.await;
            finished.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            let waiting = ready.tasks.lock().unwrap();
            let task = ready.arrived.wait_while(waiting, |tasks| tasks.is_empty()).unwrap().pop_front().unwrap();
            task.queued.store(false, SeqCst);
            let waker = Waker::from(Arc::clone(&task));
            let mut future = task.future.lock().unwrap();
            if let Some(running) = future.as_mut()
                && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *future = None;
            }
        }
        READY.set(None);
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        let ready = READY.with_borrow(|ready| ready.clone()).expect("inside `run`");
        let task = Task { future: Mutex::new(Some(Box::pin(task))), queued: AtomicBool::new(false), ready };
        Arc::new(task).wake();
    }
}
