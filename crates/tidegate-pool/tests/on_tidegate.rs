//! The suite on tidegate's loop, in real time.

mod suite;

use tidegate_loop::{EventLoop, Runner};
use tidegate_pool::{JoinHandle, Pool, TidegateLoop};

pub(crate) type Ex = TidegateLoop;
pub(crate) const EX: Ex = TidegateLoop;

pub(crate) fn run<F: Future<Output = ()> + 'static>(main: impl Fn() -> F) {
    Runner::new(EventLoop::new().unwrap()).run(main()).unwrap();
}

pub(crate) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T, Ex> {
    Pool::on(EX, 1).try_submit(task).expect("its only task")
}
