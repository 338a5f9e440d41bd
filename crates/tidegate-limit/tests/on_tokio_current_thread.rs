//! The suite on tokio's current-thread runtime.

mod suite;

use tidegate_limit::{Builder, Gate, TokioTimer};

pub(crate) fn gate() -> Builder {
    Gate::builder().timer(TokioTimer::new())
}

pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(main: impl Fn() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::spawn(main()).await.unwrap() });
}

pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send {
    let task = tokio::spawn(task);
    async move { task.await.unwrap() }
}
