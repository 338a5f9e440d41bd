//! The suite on tokio's current-thread runtime.

mod suite;

use tidegate_pool::{JoinHandle, Pool, Tokio};

pub(crate) type Ex = Tokio;
pub(crate) const EX: Ex = Tokio;

pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(main: impl Fn() -> F) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(main());
}

pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T, Ex> {
    Pool::on(EX, 1).try_submit(task).expect("its only task")
}
