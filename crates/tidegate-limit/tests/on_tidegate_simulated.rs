//! The suite on tidegate's loop in virtual time, with equally ready tasks in many orders.

mod suite;

use tidegate_limit::{Builder, Gate};
use tidegate_loop::explore;

pub(crate) fn gate() -> Builder {
    Gate::builder()
}

pub(crate) fn run<F: Future<Output = ()> + 'static>(main: impl Fn() -> F) {
    explore(0..25, |_seed| main());
}

pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> {
    let task = tidegate_loop::spawn(task);
    async move { task.await.unwrap() }
}
