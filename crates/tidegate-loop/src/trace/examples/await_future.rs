use super::say;
use crate::{Deferred, LoopHandle};

async fn set_after(future: Deferred<&'static str>, value: &'static str) {
    say("Task Running ...");
    future.set_result(value).unwrap();
}

pub(super) async fn main() {
    let handle = LoopHandle::current();
    let future = handle.create_future();
    handle.task().name("Task-set_after").spawn(set_after(future.clone(), "... world"));
    say("hello ...");
    say(future.await.unwrap());
}
