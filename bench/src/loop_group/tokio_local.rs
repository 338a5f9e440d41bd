//! tokio's `LocalRuntime`, everything enabled, tasks by `spawn_local`.

pub(crate) mod vocabulary {
    use std::future::Future;
    use std::time::Duration;

    use tokio::runtime::{Builder, LocalOptions};
    pub(crate) use tokio::task::yield_now;
    pub(crate) use tokio::time::sleep;

    pub(crate) fn run<T: 'static>(workload: impl Future<Output = T> + 'static) -> T {
        let options = LocalOptions::default();
        let runtime = Builder::new_current_thread().enable_all().build_local(options);
        let runtime = runtime.expect("tokio's local runtime starts");
        runtime.block_on(async { join(spawn(workload)).await })
    }

    pub(crate) fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> tokio::task::JoinHandle<T> {
        tokio::task::spawn_local(future)
    }

    pub(crate) async fn join<T>(handle: tokio::task::JoinHandle<T>) -> T {
        handle.await.expect("workloads do not panic")
    }

    pub(crate) fn detach<T>(handle: tokio::task::JoinHandle<T>) {
        drop(handle);
    }

    pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(limit, future).await.ok()
    }
}

#[path = "tokio_primitives.rs"]
mod primitives;

#[path = "ping_pong.rs"]
pub(crate) mod ping_pong;
#[path = "workloads.rs"]
pub(crate) mod workloads;
