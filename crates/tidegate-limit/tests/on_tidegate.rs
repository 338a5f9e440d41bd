//! The suite on tidegate's loop, in real time.

mod suite;

use tidegate_limit::{Builder, Gate};
use tidegate_loop::{EventLoop, Runner};

pub(crate) fn gate() -> Builder {
    Gate::builder()
}

pub(crate) fn run<F: Future<Output = ()> + 'static>(main: impl Fn() -> F) {
    Runner::new(EventLoop::new().unwrap()).run(main()).unwrap();
}

pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> {
    let task = tidegate_loop::spawn(task);
    async move { task.await.unwrap() }
}
