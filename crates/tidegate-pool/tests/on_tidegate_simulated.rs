//! The suite on tidegate's loop in virtual time, with equally ready tasks in many orders.

mod suite;

use tidegate_loop::explore;
use tidegate_pool::{JoinHandle, Pool, TidegateLoop};

pub(crate) type Ex = TidegateLoop;
pub(crate) const EX: Ex = TidegateLoop;

pub(crate) fn run<F: Future<Output = ()> + 'static>(main: impl Fn() -> F) {
    explore(0..25, |_seed| main());
}

pub(crate) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T, Ex> {
    Pool::on(EX, 1).try_submit(task).expect("its only task")
}
