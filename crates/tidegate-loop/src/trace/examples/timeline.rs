use super::say;
use crate::{Duration, LoopHandle, When, sleep, wait};

async fn func(num: u64) -> u64 {
    say(num);
    sleep(Duration::from_secs(num)).await;
    num
}

pub(super) async fn main() {
    let handle = LoopHandle::current();
    let n1 = handle.task().name("n1").spawn(func(1));
    let n2 = handle.task().name("n2").spawn(func(2));
    let mut tasks = [n1, n2];
    let waited = wait(&tasks, When::All, None).await.unwrap();
    for at in waited.done {
        let result = tasks[at].try_result().unwrap().unwrap();
        say(format_args!("[result] {result}"));
    }
}
