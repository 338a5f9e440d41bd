use super::say;
use crate::{Duration, sleep};

pub(super) async fn main() {
    say("good night");
    sleep(Duration::from_secs(1)).await;
    say("good morning");
}
