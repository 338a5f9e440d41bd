use super::say;
use crate::LoopHandle;

async fn func() -> u32 {
    1
}

async fn intermediate() -> u32 {
    let task = LoopHandle::current().task().name("Task-func").spawn(func());
    task.await.unwrap()
}

pub(super) async fn main() {
    // No task is made for intermediate(): it runs as part of main's own steps.
    let result = intermediate().await;
    say(format_args!("Result: {result}"));
}
