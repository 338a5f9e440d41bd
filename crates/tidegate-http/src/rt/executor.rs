//! hyper's executor on the loop.

use std::future::Future;

use hyper::rt::Executor;

/// Spawns hyper's futures on the running loop. They need not be `Send`.
///
/// ```
/// use hyper::rt::Executor;
/// use tidegate_http::rt::LoopExecutor;
///
/// tidegate_loop::run(async {
///     let done = tidegate_loop::LoopHandle::current().create_future();
///     let signal = done.clone();
///     LoopExecutor.execute(async move { signal.set_result(5).unwrap() });
///     assert_eq!(done.await.unwrap(), 5);
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopExecutor;

impl<F> Executor<F> for LoopExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        drop(tidegate_loop::spawn(future));
    }
}
