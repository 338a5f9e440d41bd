//! smol's `LocalExecutor` (async-executor) driven by async-io's `block_on`, as `smol::block_on` is.

pub(crate) mod vocabulary {
    use std::cell::RefCell;
    use std::future::Future;
    use std::rc::Rc;
    use std::time::Duration;

    use async_executor::{LocalExecutor, Task};
    use futures_lite::FutureExt;
    pub(crate) use futures_lite::future::yield_now;

    thread_local! {
        /// What `spawn` spawns on: a fresh one for every `run`, as the other runtimes are.
        static EXECUTOR: RefCell<Rc<LocalExecutor<'static>>> = RefCell::default();
    }

    pub(crate) fn run<T: 'static>(workload: impl Future<Output = T> + 'static) -> T {
        let executor = Rc::new(LocalExecutor::new());
        EXECUTOR.set(Rc::clone(&executor));
        let result = async_io::block_on(executor.run(spawn(workload)));
        EXECUTOR.set(Rc::default());
        result
    }

    pub(crate) fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
        EXECUTOR.with_borrow(|executor| executor.spawn(future))
    }

    pub(crate) async fn join<T>(task: Task<T>) -> T {
        task.await
    }

    pub(crate) fn detach<T>(task: Task<T>) {
        task.detach();
    }

    pub(crate) async fn sleep(delay: Duration) {
        async_io::Timer::after(delay).await;
    }

    /// smol has none of its own; its book races the future against a timer.
    pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
        let late = async {
            sleep(limit).await;
            None
        };
        async { Some(future.await) }.or(late).await
    }
}

#[path = "workloads.rs"]
pub(crate) mod workloads;
