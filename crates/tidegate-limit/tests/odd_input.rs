//! Odd input: a clear error or a documented meaning, never a hang, never too much.

use std::time::{Duration, SystemTime};

use tidegate_limit::journal::{Journal, Receipt, Reservation};
use tidegate_limit::{ConfigError, Cost, Dimension, EnterError, Gate, Limit, Limits, Moment, Until, Window};
use tidegate_loop::EventLoop;

fn refused(limit: Limit) -> ConfigError {
    Gate::builder().limit(limit).build().unwrap_err()
}

#[test]
fn limits_that_cannot_be_are_told_when_the_gate_is_made() {
    let requests = |window| Limit::rate("r", Dimension::REQUESTS, 1, window);
    assert!(matches!(refused(Limit::concurrency("slots", 0)), ConfigError::Zero { .. }));
    assert!(matches!(refused(Limit::tpm(0)), ConfigError::Zero { .. }));
    assert!(matches!(refused(requests(Window::strict(Duration::ZERO))), ConfigError::Window { .. }));
    assert!(matches!(refused(requests(Window::strict(Duration::MAX))), ConfigError::Window { .. }));
    assert!(matches!(refused(requests(Window::Aligned(Duration::ZERO))), ConfigError::Window { .. }));
    assert!(matches!(refused(Limit::rpd(1, "Middle-earth/Shire")), ConfigError::Zone { .. }));
    assert!(matches!(refused(Limit::rpd(1, "")), ConfigError::Zone { .. }));
    assert!(matches!(refused(Limit::rpm(1).journaled(1)), ConfigError::NoJournal { .. }));
    let many = (0..1_001).map(|n| Limit::concurrency(format!("{n}"), 1));
    assert_eq!(Gate::builder().limits(many).build().unwrap_err(), ConfigError::TooMany);
}

#[test]
fn a_clock_that_goes_back_gives_nothing_back() {
    let day = Limit::rpd(5, "UTC");
    let mut limits = Limits::new([Limit::rpm(3), day], Moment::ZERO, SystemTime::UNIX_EPOCH).unwrap();
    let at = |secs| Moment::ZERO + Duration::from_secs(secs);
    for _ in 0..3 {
        drop(limits.admit(&Cost::request(), at(100)).unwrap());
    }
    // An earlier instant counts as the latest: the answer is that of 100 s.
    let denied = limits.admit(&Cost::request(), at(1)).unwrap_err();
    assert_eq!(denied.until, Until::At(at(160)));
    drop(limits.admit(&Cost::request(), at(160)).unwrap());
    drop(limits.admit(&Cost::request(), at(20)).unwrap());
    // The wall clock jumps back over midnight and ahead again: the day's five are gone either way.
    limits.set_wall(at(160), SystemTime::UNIX_EPOCH - Duration::from_secs(3_600));
    assert!(limits.check(&Cost::request(), at(300)).is_err());
    limits.set_wall(at(300), SystemTime::UNIX_EPOCH + Duration::from_secs(300));
    let denied = limits.check(&Cost::request(), at(300)).unwrap_err();
    assert_eq!((limits.name(denied.limit), denied.until), ("rpd", Until::At(at(86_400))));
}

#[test]
fn absurd_amounts_and_costs_neither_overflow_nor_pass() {
    let windows = [
        Window::strict(Duration::from_secs(1)),
        Window::bucket(Duration::from_secs(1)),
        Window::Aligned(Duration::from_secs(1)),
        Window::day("UTC"),
    ];
    for window in windows {
        let limit = Limit::rate("all", Dimension::TOKENS, u64::MAX, window);
        let mut limits = Limits::new([limit], Moment::ZERO, SystemTime::now()).unwrap();
        let later = Moment::ZERO + Duration::from_secs(3_000_000);
        let mut booking = limits.admit(&Cost::tokens(u64::MAX), later).unwrap();
        assert!(limits.admit(&Cost::tokens(1), later).is_err());
        limits.settle(&mut booking, Cost::tokens(0), later);
        limits.settle(&mut booking, Cost::tokens(u64::MAX), later);
        limits.settle(&mut booking, Cost::tokens(u64::MAX), later);
        assert!(limits.check(&Cost::tokens(u64::MAX), later).is_err());
        let _ = limits.check(&Cost::tokens(1), Moment::NEVER);
        limits.release(booking);
    }
}

#[test]
fn a_cost_of_nothing_passes_rates_that_are_used_up_and_still_takes_a_slot() {
    let gate = Gate::builder().limit(Limit::rpm(1)).limit(Limit::concurrency("slots", 2)).build().unwrap();
    gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
    assert!(gate.try_enter(gate.unscoped(), Cost::request()).is_err());
    let held: Vec<_> = (0..2).map(|_| gate.try_enter(gate.unscoped(), Cost::nothing()).unwrap()).collect();
    assert!(gate.try_enter(gate.unscoped(), Cost::nothing()).is_err());
    drop(held);
}

/// A disk that is full.
struct Full;

impl Journal for Full {
    fn write(&self, _: Reservation, receipt: Receipt) {
        receipt.failed("no space left on device");
    }
}

/// One that forgets.
struct Forgetful;

impl Journal for Forgetful {
    fn write(&self, _: Reservation, _: Receipt) {}
}

#[test]
fn a_journal_that_cannot_write_admits_nothing_and_says_why() {
    for (limit, why) in [(true, "no space left on device"), (false, "the journal dropped the reservation")] {
        EventLoop::simulated(1)
            .run_until_complete(async move {
                let builder = Gate::builder().limit(Limit::rpm(60).journaled(10));
                let builder = if limit { builder.journal(Full) } else { builder.journal(Forgetful) };
                let gate = builder.build().unwrap();
                for _ in 0..2 {
                    let error = gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err();
                    assert_eq!(error, EnterError::Journal { limit: "rpm".into(), reason: why.into() });
                }
                assert_eq!(gate.stats().limit("rpm").unwrap().used, 0);
            })
            .unwrap();
    }
}
