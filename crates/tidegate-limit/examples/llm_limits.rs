//! The limits of an LLM API on tidegate's loop: files with their own slots, a global cap, requests and tokens per minute,
//! requests per day, in one decision. In virtual time, so that an hour passes in milliseconds.
//!
//! `cargo run -p tidegate-limit --example llm_limits`

use std::time::Duration;

use tidegate_limit::{Cost, Gate, Limit};
use tidegate_loop::{EventLoop, LoopHandle, gather_all, sleep, spawn};

/// Asks for one page, and pays what the answer says it cost.
async fn explain(gate: &Gate, file: &tidegate_limit::Scope, page: u64) {
    // The most that the request may cost: the prompt and the longest possible answer.
    let mut lease = gate.enter(file, Cost::tokens(9_000)).await.expect("within every limit");
    lease.sent();
    sleep(Duration::from_millis(1_500 + page * 37 % 2_000)).await; // the model thinks
    lease.answered();
    lease.settle(Cost::tokens(4_000 + page * 53 % 2_000));
}

pub(crate) fn run() {
    let event_loop = EventLoop::simulated(7);
    let (stats, took) = event_loop
        .run_until_complete(async {
            let gate = Gate::builder()
                .limit(Limit::concurrency("global", 200))
                .limit(Limit::rpm(150))
                .limit(Limit::tpm(1_000_000))
                .limit(Limit::rpd(10_000, "America/Los_Angeles"))
                .build()
                .expect("limits that can be");
            let began = LoopHandle::current().time();
            let files = (0..4).map(|number| {
                let gate = gate.clone();
                spawn(async move {
                    let file = gate.scope(format!("report-{number}.pdf"), 50);
                    let pages: Vec<_> = (0..200)
                        .map(|page| {
                            let (gate, file) = (gate.clone(), file.clone());
                            spawn(async move { explain(&gate, &file, page).await })
                        })
                        .collect();
                    for page in pages {
                        page.await.expect("pages do not panic");
                    }
                })
            });
            let outcomes = gather_all(files.collect::<Vec<_>>()).await;
            assert!(outcomes.iter().all(Result::is_ok));
            (gate.stats(), LoopHandle::current().time() - began)
        })
        .expect("it runs to its end");

    println!("800 pages took {took:?} of virtual time, at most {} at once", stats.peak);
    for limit in &stats.limits {
        println!(
            "{:>7}: {:>8} of {:>8} used, held others up for {:?}",
            limit.name, limit.used, limit.amount, limit.blocked_for
        );
    }
    assert_eq!((stats.granted, stats.current, stats.idle_alarms), (800, 0, 0));
    // 150 a minute: the last fifty begin when five minutes have passed, and take their time.
    assert!(took >= Duration::from_secs(300) && took < Duration::from_secs(305), "{took:?}");
}

#[allow(dead_code, reason = "the tests run `run`")]
fn main() {
    run();
}
