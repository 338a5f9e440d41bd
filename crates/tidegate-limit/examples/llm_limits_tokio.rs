//! The limits of an LLM API on tokio's multi-thread runtime: the same gate, another timer. With windows of a second, so
//! that one need not wait for minutes.
//!
//! `cargo run -p tidegate-limit --features tokio --example llm_limits_tokio`

use std::time::Duration;

use tidegate_limit::{Cost, Dimension, Gate, Limit, TokioTimer, Window};

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("tokio starts").block_on(async {
        let second = || Window::strict(Duration::from_millis(200));
        let gate = Gate::builder()
            .limit(Limit::concurrency("global", 20))
            .limit(Limit::rate("rps", Dimension::REQUESTS, 50, second()))
            .limit(Limit::rate("tps", Dimension::TOKENS, 20_000, second()))
            .timer(TokioTimer::new())
            .build()
            .expect("limits that can be");
        let file = gate.scope("report.pdf", 10);
        let pages: Vec<_> = (0..120_u64)
            .map(|page| {
                let (gate, file) = (gate.clone(), file.clone());
                tokio::spawn(async move {
                    let mut lease = gate.enter(&file, Cost::tokens(300)).await.expect("within every limit");
                    lease.sent();
                    tokio::time::sleep(Duration::from_millis(1 + page % 5)).await; // the model thinks
                    lease.answered();
                    lease.settle(Cost::tokens(200));
                })
            })
            .collect();
        for page in pages {
            page.await.expect("pages do not panic");
        }
        let stats = gate.stats();
        println!("120 pages, at most {} at once, {} had to wait, margin {:?}", stats.peak, stats.blocked, stats.margin);
        assert_eq!((stats.granted, stats.current), (120, 0));
        assert!(stats.peak <= 10);
    });
}

#[allow(dead_code, reason = "the tests run `run`")]
fn main() {
    run();
}
