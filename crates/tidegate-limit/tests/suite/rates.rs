//! Rates: waited for with the gate's one timer, whether or not a waiting future is polled.

use std::time::Duration;

use tidegate_limit::{Cost, Dimension, EnterError, Limit, Oversize, Start, Window};

use super::{Hand, gate, run, spawn, until};

const WINDOW: Duration = Duration::from_millis(20);

fn requests(amount: u64) -> Limit {
    requests_in(WINDOW, amount)
}

fn requests_in(window: Duration, amount: u64) -> Limit {
    Limit::rate("requests", Dimension::REQUESTS, amount, Window::strict(window))
}

#[test]
fn the_timer_is_the_gates_and_lets_the_next_in_though_the_first_is_not_polled() {
    run(|| async {
        // On a busy machine a window may be over before the third entry waits for its end: then a longer one is tried.
        let mut window = WINDOW;
        while !the_next_passes_a_waiter_that_is_not_polled(window).await {
            window *= 2;
            assert!(window <= 100 * WINDOW, "ready at once");
        }
    });
}

/// `false`: the window was over too early.
async fn the_next_passes_a_waiter_that_is_not_polled(window: Duration) -> bool {
    let gate = gate().limit(requests_in(window, 2)).build().unwrap();
    let enter = || gate.enter(gate.unscoped(), Cost::request());
    for _ in 0..2 {
        enter().await.unwrap().sent();
    }
    let mut neglected = Hand::new(enter());
    if neglected.poll().is_some() {
        return false;
    }
    // Its task waits for the same alarm, and goes though the one before it is never polled.
    let next = spawn({
        let gate = gate.clone();
        async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() }
    });
    next.await;
    assert_eq!(neglected.wakes(), 1);
    neglected.poll().unwrap().unwrap().sent();
    true
}

#[test]
fn every_waiter_is_admitted_with_at_most_one_alarm_each() {
    run(|| async {
        let gate = gate().limit(requests(3)).limit(Limit::concurrency("slots", 2)).build().unwrap();
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let gate = gate.clone();
                spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        let stats = gate.stats();
        assert_eq!((stats.granted, stats.current, stats.waiting), (12, 0, 0));
        // A lease restamped when it is sent may move the instant once more.
        assert!(stats.alarms <= 2 * stats.blocked, "{stats:?}");
    });
}

#[test]
fn a_cost_above_the_limit_is_refused_at_once_even_with_others_in_line() {
    run(|| async {
        let gate = gate().limit(Limit::tpm(100)).limit(Limit::concurrency("slots", 1)).build().unwrap();
        let held = gate.enter(gate.unscoped(), Cost::tokens(1)).await.unwrap();
        let waiting = Hand::waiting(gate.enter(gate.unscoped(), Cost::tokens(1)));
        let error = gate.enter(gate.unscoped(), Cost::tokens(101)).await.unwrap_err();
        assert_eq!(error, EnterError::TooLarge { limit: "tpm".into(), cost: 101, capacity: 100 });
        drop((held, waiting));
    });
}

#[test]
fn a_limit_lowered_below_the_cost_of_those_in_line_refuses_them() {
    run(|| async {
        let gate = gate().limit(Limit::tpm(100)).build().unwrap();
        gate.enter(gate.unscoped(), Cost::tokens(90)).await.unwrap().sent();
        let mut large = Hand::waiting(gate.enter(gate.unscoped(), Cost::tokens(80)));
        let mut small = Hand::waiting(gate.enter(gate.unscoped(), Cost::tokens(20)));
        gate.set("tpm", 50).unwrap();
        assert!(matches!(large.poll(), Some(Err(EnterError::TooLarge { capacity: 50, .. }))));
        assert!(small.poll().is_none());
        gate.set("tpm", 0).unwrap();
        assert!(matches!(small.poll(), Some(Err(EnterError::TooLarge { capacity: 0, .. }))));
        assert!(gate.enter(gate.unscoped(), Cost::nothing()).await.is_ok(), "what costs nothing passes");
    });
}

#[test]
fn a_limit_that_may_be_drained_lets_a_large_one_through_when_all_is_free() {
    run(|| async {
        let bucket = Window::Bucket { per: WINDOW, burst: None, start: Start::Full };
        let limit = Limit::rate("tokens", Dimension::TOKENS, 10, bucket).oversize(Oversize::Drain);
        let gate = gate().limit(limit).build().unwrap();
        gate.enter(gate.unscoped(), Cost::tokens(1_000)).await.unwrap().sent();
        // It waits for the whole bucket.
        gate.enter(gate.unscoped(), Cost::tokens(1_000)).await.unwrap().sent();
        assert_eq!((gate.stats().granted, gate.stats().blocked), (2, 1));
    });
}

#[test]
fn settling_less_lets_the_next_in_at_once() {
    run(|| async {
        let gate = gate().limit(Limit::tpm(100)).build().unwrap();
        let mut lease = gate.enter(gate.unscoped(), Cost::tokens(100)).await.unwrap();
        lease.sent();
        let mut waiting = Hand::waiting(gate.enter(gate.unscoped(), Cost::tokens(60)));
        lease.settle(Cost::tokens(41));
        assert!(waiting.poll().is_none());
        lease.settle(Cost::tokens(40));
        assert_eq!(waiting.wakes(), 1);
        waiting.poll().unwrap().unwrap().sent();
        lease.settle(Cost::tokens(70));
        let tpm = gate.stats().limit("tpm").cloned().unwrap();
        assert_eq!((tpm.used, tpm.overdrawn), (130, 30), "more than declared is booked, and told");
    });
}

#[test]
fn a_pause_blocks_all_while_it_lasts_and_feedback_only_tightens() {
    run(|| async {
        let gate = gate().limit(Limit::rpm(50)).build().unwrap();
        gate.pause("rpm", WINDOW).unwrap();
        let waiting = spawn({
            let gate = gate.clone();
            async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() }
        });
        until(|| gate.stats().waiting == 1 || gate.stats().granted == 1).await;
        waiting.await;
        gate.tighten("rpm", 10, Duration::from_secs(30)).unwrap();
        assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 10);
        gate.tighten("rpm", 40, Duration::from_secs(30)).unwrap();
        assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 10);
    });
}
