//! Concurrency: scopes inside limits, first come first served, nothing lost.

use tidegate_limit::{Cost, EnterError, Limit, TryEnterError};

use super::{Hand, gate, run, spawn, until};

#[test]
fn one_release_lets_one_in_and_in_the_order_they_came() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).build().unwrap();
        let enter = || gate.enter(gate.unscoped(), Cost::request());
        let held = enter().await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(enter())).collect();
        drop(held);
        assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 0, 0]);
        assert!(waiting[1].poll().is_none() && waiting[2].poll().is_none());
        let first = waiting[0].poll().unwrap().unwrap();
        assert!(matches!(gate.try_enter(gate.unscoped(), Cost::request()), Err(TryEnterError::Behind { waiting: 2 })));
        drop(first);
        assert_eq!(waiting[1].wakes(), 1);
    });
}

#[test]
fn a_full_scope_holds_up_no_other_scope() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 3)).build().unwrap();
        let (small, large) = (gate.scope("small", 1), gate.scope("large", 9));
        let held = gate.enter(&small, Cost::request()).await.unwrap();
        let mut behind = Hand::waiting(gate.enter(&small, Cost::request()));
        let passing = gate.enter(&large, Cost::request()).await.unwrap();
        assert_eq!(gate.stats().blocked_by.as_deref(), Some("scopes"));
        drop(held);
        assert_eq!(behind.wakes(), 1);
        drop(behind.poll().unwrap().unwrap());
        drop(passing);
    });
}

#[test]
fn who_gives_up_leaves_no_trace_and_a_lease_not_fetched_goes_to_the_next() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).limit(Limit::rpm(100)).build().unwrap();
        let enter = || gate.enter(gate.unscoped(), Cost::request());
        let mut held = enter().await.unwrap();
        held.sent();
        let (first, second, mut third) = (Hand::waiting(enter()), Hand::waiting(enter()), Hand::waiting(enter()));
        drop(second);
        drop(held);
        assert_eq!(first.wakes(), 1);
        drop(first);
        assert_eq!(third.wakes(), 1);
        drop(third.poll().unwrap().unwrap());
        let stats = gate.stats();
        assert_eq!((stats.current, stats.waiting, stats.abandoned), (0, 0, 2));
        assert_eq!(stats.limit("rpm").unwrap().used, 1, "only what was sent counts");
    });
}

#[test]
fn a_future_that_is_kept_but_not_polled_blocks_only_its_own_lease() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 2)).build().unwrap();
        let enter = || gate.enter(gate.unscoped(), Cost::request());
        let (a, b) = (enter().await.unwrap(), enter().await.unwrap());
        let (sleeper, mut next) = (Hand::waiting(enter()), Hand::waiting(enter()));
        drop((a, b));
        assert!(next.poll().unwrap().is_ok());
        drop(sleeper);
        assert_eq!(gate.stats().current, 0);
    });
}

#[test]
fn as_many_wait_as_may() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).max_waiting(1).build().unwrap();
        let enter = || gate.enter(gate.unscoped(), Cost::request());
        let held = enter().await.unwrap();
        let waiting = Hand::waiting(enter());
        assert_eq!(enter().await.unwrap_err(), EnterError::Crowded { waiting_max: 1 });
        drop((held, waiting));
        assert!(enter().await.is_ok());
    });
}

#[test]
fn closing_ends_every_wait_and_leases_go_on() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).build().unwrap();
        let held = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
        let waiting = spawn({
            let gate = gate.clone();
            async move {
                let error = gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err();
                assert_eq!(error, EnterError::Closed);
            }
        });
        until(|| gate.stats().waiting == 1).await;
        gate.close();
        waiting.await;
        assert_eq!(gate.stats().current, 1);
        drop(held);
        assert_eq!(gate.stats().current, 0);
    });
}

#[test]
fn a_concurrency_of_zero_blocks_all_until_it_is_raised() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).build().unwrap();
        gate.set("slots", 0).unwrap();
        let mut waiting = Hand::waiting(gate.enter(gate.unscoped(), Cost::nothing()));
        assert!(waiting.poll().is_none());
        gate.set("slots", 1).unwrap();
        assert_eq!(waiting.wakes(), 1);
        assert!(waiting.poll().unwrap().is_ok());
    });
}

#[test]
fn what_is_shut_refuses_those_in_line_with_the_reason() {
    run(|| async {
        let gate = gate().limit(Limit::concurrency("slots", 1)).limit(Limit::rpd(9, "UTC")).build().unwrap();
        let enter = || gate.enter(gate.unscoped(), Cost::request());
        let held = enter().await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(enter())).collect();
        gate.shut("rpd", "no credit left").unwrap();
        for hand in &mut waiting {
            assert_eq!(hand.wakes(), 1);
            let error = hand.poll().unwrap().unwrap_err();
            assert_eq!(error, EnterError::Shut { limit: "rpd".into(), reason: "no credit left".into() });
        }
        gate.resume("rpd").unwrap();
        drop(held);
        assert!(enter().await.is_ok());
    });
}
