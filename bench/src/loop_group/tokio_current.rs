//! tokio's current-thread runtime, everything enabled, tasks by `tokio::spawn`.

pub(crate) mod vocabulary {
    use std::future::Future;
    use std::time::Duration;

    use tokio::runtime::Builder;
    pub(crate) use tokio::task::yield_now;
    pub(crate) use tokio::time::sleep;

    pub(crate) fn run<T: Send + 'static>(workload: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("tokio's current-thread runtime starts");
        runtime.block_on(async { join(spawn(workload)).await })
    }

    pub(crate) fn spawn<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        tokio::spawn(future)
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
