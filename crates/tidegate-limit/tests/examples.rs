//! The examples run, and what they assert holds.

#[path = "../examples/llm_limits.rs"]
mod llm_limits;
#[path = "../examples/llm_limits_tokio.rs"]
mod llm_limits_tokio;
#[allow(dead_code, reason = "a program of its own, of which only the race is run here")]
#[path = "../examples/strict_server.rs"]
mod strict_server;

use std::time::Duration;

#[test]
fn five_minutes_of_pages_keep_every_limit() {
    llm_limits::run();
}

#[test]
fn the_same_gate_works_on_tokio() {
    llm_limits_tokio::run();
}

#[test]
fn a_strict_server_serves_every_request_that_the_gate_admits() {
    let setting = strict_server::Race {
        amount: 20,
        window: Duration::from_millis(100),
        windows: 2,
        workers: 4,
        wire_max: Duration::ZERO,
    };
    for score in strict_server::run(setting).unwrap() {
        assert!(score.served >= setting.amount, "the first window is free for all: {score:?}");
    }
}
