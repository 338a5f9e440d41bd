//! Many interleavings of one program.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::runtime::event_loop::EventLoop;
use crate::runtime::runner::Runner;

/// Runs the program that `make` yields once for each seed, in virtual time, each time in another order of equally ready
/// tasks. If a run panics, stalls or is cancelled, its seed is printed and the panic goes on.
///
/// With `TIDEGATE_SEED` set only that seed is run: the way to replay a failure.
///
/// # Panics
/// When a run fails.
///
/// ```
/// use tidegate_loop::{explore, spawn, yield_now};
/// explore(0..100, |_seed| async {
///     let (a, b) = (spawn(async { yield_now().await; 1 }), spawn(async { 2 }));
///     assert_eq!(a.await.unwrap() + b.await.unwrap(), 3); // in every order
/// });
/// ```
pub fn explore<F>(seeds: impl IntoIterator<Item = u64>, make: impl Fn(u64) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let only = std::env::var("TIDEGATE_SEED").ok().map(|seed| {
        seed.parse::<u64>().unwrap_or_else(|_| panic!("TIDEGATE_SEED must be a whole number, not {seed:?}"))
    });
    let one = |seed| {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let runner = Runner::new(EventLoop::simulated(seed));
            if let Err(error) = runner.run(make(seed)) {
                panic!("{error}");
            }
        }));
        if let Err(panic) = ran {
            eprintln!("tidegate: failed with seed {seed}; replay it with TIDEGATE_SEED={seed}");
            resume_unwind(panic);
        }
    };
    match only {
        Some(seed) => one(seed),
        None => seeds.into_iter().for_each(one),
    }
}
