//! A pool's figures.

use std::time::Duration;

/// A pool's figures at one instant. At every instant `submitted = running + completed + failed + cancelled`.
///
/// ```
/// use tidegate_pool::Pool;
///
/// tidegate_loop::run(async {
///     let pool = Pool::new(2);
///     pool.submit(async {}).await.unwrap().await.unwrap();
///     let stats = pool.stats();
///     assert_eq!((stats.submitted, stats.completed, stats.running, stats.peak), (1, 1, 0, 1));
/// })
/// .unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks that hold a slot.
    pub running: usize,
    /// The most tasks that ever held a slot at once.
    pub peak: usize,
    /// Tasks that have got a slot so far.
    pub submitted: u64,
    /// Tasks that returned a value.
    pub completed: u64,
    /// Tasks that panicked, and those of [`submit_fallible`](crate::Pool::submit_fallible) that returned an `Err`.
    pub failed: u64,
    /// Tasks that were dropped before they were done.
    pub cancelled: u64,
    /// Submitters in line now.
    pub waiting: usize,
    /// Total time that submitters have spent in line, without those still in line; cancelled ones included.
    pub waited: Duration,
}
