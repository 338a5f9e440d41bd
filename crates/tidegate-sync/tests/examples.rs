//! The examples run, and what they assert holds.

#[allow(dead_code, reason = "a program of its own, of which only `run` is called here")]
#[path = "../examples/batches.rs"]
mod batches;

#[test]
fn every_reading_arrives_once_in_order_and_the_queue_never_holds_more_than_it_may() {
    batches::run(5_000);
    batches::run(0);
}
