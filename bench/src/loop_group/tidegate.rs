//! tidegate's loop, real time and relaxed polling: the defaults.

pub(crate) mod vocabulary {
    use std::future::Future;
    use std::time::Duration;

    use tidegate_loop::{EventLoop, JoinHandle};
    pub(crate) use tidegate_loop::{sleep, spawn, yield_now};

    pub(crate) fn run<T: 'static>(workload: impl Future<Output = T> + 'static) -> T {
        let event_loop = EventLoop::new().expect("an event loop starts");
        let finished = event_loop.run_until_complete(async { join(spawn(workload)).await });
        finished.expect("the workload runs to its end")
    }

    pub(crate) async fn join<T: 'static>(handle: JoinHandle<T>) -> T {
        handle.await.expect("workloads do not panic")
    }

    pub(crate) fn detach<T>(handle: JoinHandle<T>) {
        drop(handle);
    }

    pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
        tidegate_loop::timeout(limit, future).await.ok()
    }
}

mod primitives {
    pub(crate) mod oneshot {
        use tidegate_loop::{Deferred, LoopHandle};

        /// Carries the way back: every hop uses up one future and makes the next.
        #[derive(Clone)]
        pub(crate) struct Ball(pub(crate) Deferred<Ball>);

        pub(crate) fn channel<T: Clone + 'static>() -> (Deferred<T>, Deferred<T>) {
            let future = LoopHandle::current().create_future();
            (future.clone(), future)
        }

        pub(crate) fn send<T: Clone + 'static>(future: Deferred<T>, value: T) {
            assert!(future.set_result(value).is_ok());
        }

        pub(crate) async fn recv<T: Clone + 'static>(future: Deferred<T>) -> T {
            future.await.expect("the future is set")
        }
    }
}

#[path = "ping_pong.rs"]
pub(crate) mod ping_pong;
#[path = "workloads.rs"]
pub(crate) mod workloads;

/// ns a switch by `sleep(0)`, one task: asyncio's way to yield.
pub(crate) fn sleep_zero(count: u32) -> f64 {
    vocabulary::run(async move {
        let begun = std::time::Instant::now();
        for _ in 0..count {
            vocabulary::sleep(std::time::Duration::ZERO).await;
        }
        super::parts::ns_per(begun.elapsed(), count)
    })
}
