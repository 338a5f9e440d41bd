//! The suite on tokio's LocalSet.

mod suite;

use tidegate_pool::{JoinHandle, Pool, TokioLocal};

pub(crate) type Ex = TokioLocal;
pub(crate) const EX: Ex = TokioLocal;

pub(crate) fn run<F: Future<Output = ()> + 'static>(main: impl Fn() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, main());
}

pub(crate) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T, Ex> {
    Pool::on(EX, 1).try_submit(task).expect("its only task")
}
