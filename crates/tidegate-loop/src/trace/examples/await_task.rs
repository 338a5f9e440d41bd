use super::say;
use crate::LoopHandle;

async fn func() -> u32 {
    1
}

pub(super) async fn main() {
    let task = LoopHandle::current().task().name("Task-func").spawn(func());
    let result = task.await.unwrap();
    say(format_args!("Result: {result}"));
}
