//! The examples run, and what they assert holds.

#[allow(dead_code, reason = "a program of its own, of which only `main` is run here")]
#[path = "../examples/backpressure.rs"]
mod backpressure;
#[allow(dead_code, reason = "as above")]
#[path = "../examples/crawler.rs"]
mod crawler;

#[test]
fn the_producer_is_held_back_to_the_pace_of_its_consumers() {
    backpressure::run();
}

#[test]
fn the_crawler_sees_every_page_once_and_never_asks_for_too_many() {
    crawler::run(200, 10).unwrap();
    crawler::run(40, 1).unwrap();
}
