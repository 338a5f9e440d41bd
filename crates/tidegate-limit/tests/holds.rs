//! Limits that are held, and those that a cost does not touch.

use std::time::{Duration, SystemTime};

use tidegate_limit::{Cost, Gate, Limit, Limits, Moment, Oversize, ThreadTimer, TryEnterError, Until};

fn at(secs: u64) -> Moment {
    Moment::ZERO + Duration::from_secs(secs)
}

fn limits(limits: impl IntoIterator<Item = Limit>) -> Limits {
    Limits::new(limits, at(0), SystemTime::UNIX_EPOCH).unwrap()
}

#[test]
fn a_limit_that_is_held_holds_up_only_what_costs_something_there() {
    let mut limits = limits([Limit::rpm(100), Limit::tpm(1_000)]);
    let tpm = limits.find("tpm").unwrap();
    limits.pause(tpm, at(10));
    assert!(limits.check(&Cost::request(), at(0)).is_ok(), "it takes no tokens");
    assert_eq!(limits.check(&Cost::tokens(1), at(0)).unwrap_err().until, Until::At(at(10)));
    limits.shut(tpm, "no credit left");
    assert!(limits.check(&Cost::request(), at(0)).is_ok());
    assert_eq!(limits.check(&Cost::tokens(1), at(20)).unwrap_err().until, Until::Shut);
}

#[test]
fn a_parked_limit_lets_one_through_at_a_time_whatever_else_passes_by() {
    let mut limits = limits([Limit::rpm(100), Limit::tpm(1_000)]);
    limits.park(limits.find("tpm").unwrap(), at(1_000), Some(Duration::from_secs(100)), at(0));
    for second in [0, 50, 100, 101] {
        let booking = limits.admit(&Cost::request(), at(second)).unwrap();
        limits.release(booking);
    }
    let probe = limits.admit(&Cost::tokens(1), at(101)).unwrap();
    assert_eq!(limits.check(&Cost::tokens(1), at(101)).unwrap_err().until, Until::At(at(201)));
    limits.release(probe);
}

#[test]
fn a_held_concurrency_blocks_all() {
    let mut limits = limits([Limit::concurrency("slots", 5)]);
    limits.pause(limits.find("slots").unwrap(), at(10));
    assert_eq!(limits.check(&Cost::nothing(), at(0)).unwrap_err().until, Until::At(at(10)));
    assert!(limits.check(&Cost::nothing(), at(10)).is_ok());
}

#[test]
fn a_limit_of_nothing_cannot_be_drained() {
    let mut limits = limits([Limit::tpm(1_000).oversize(Oversize::Drain)]);
    limits.set_amount(limits.find("tpm").unwrap(), 0, at(0));
    assert_eq!(limits.check(&Cost::tokens(1), at(0)).unwrap_err().until, Until::TooLarge);
}

#[test]
fn requests_that_take_nothing_of_a_blocked_limit_are_admitted() {
    let gate =
        Gate::builder().limit(Limit::rpm(100)).limit(Limit::tpm(1_000)).timer(ThreadTimer::default()).build().unwrap();
    gate.shut("tpm", "no credit left").unwrap();
    assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_ok());
    assert!(matches!(gate.try_enter(gate.unscoped(), Cost::tokens(1)), Err(TryEnterError::Never(_))));
}

#[test]
fn totals_follow_what_is_settled_and_peaks_stay() {
    tidegate_loop::EventLoop::simulated(1)
        .run_until_complete(async {
            let gate = Gate::builder().limit(Limit::concurrency("global", 1)).limit(Limit::tpm(1_000)).build().unwrap();
            let mut lease = gate.enter(gate.unscoped(), Cost::tokens(900)).await.unwrap();
            lease.sent();
            lease.settle(Cost::tokens(400));
            drop(lease);
            drop(gate.enter(gate.unscoped(), Cost::tokens(100)).await.unwrap());
            let tpm = gate.stats().limit("tpm").unwrap().clone();
            assert_eq!((tpm.total, tpm.peak, tpm.pauses), (400, 900, 0), "one that was never sent counts nothing");
            let global = gate.stats().limit("global").unwrap().clone();
            assert_eq!((global.total, global.peak), (2, 1));
            gate.pause("tpm", Duration::from_secs(7)).unwrap();
            assert_eq!(gate.stats().limit("tpm").unwrap().pauses, 1);
            assert_eq!(gate.stats().next_admission, None, "none waits");
            let (waiting, before) = (gate.clone(), gate.stats().at);
            let _next =
                tidegate_loop::spawn(async move { waiting.enter(waiting.unscoped(), Cost::tokens(1)).await.map(drop) });
            // The order within a tick is drawn; after the second tick the entry is in line.
            tidegate_loop::yield_now().await;
            tidegate_loop::yield_now().await;
            let at = gate.stats().next_admission.expect("one waits for an instant");
            assert_eq!(at.duration_since(before).unwrap(), Duration::from_secs(7));
        })
        .unwrap();
}
