//! Answers that come after their window has passed: there is nothing left of them to take back.

use std::time::{Duration, SystemTime};

use tidegate_limit::{Cost, Limit, Limits, Moment, Window};

fn at(millis: u64) -> Moment {
    Moment::ZERO + Duration::from_secs(1_000) + Duration::from_millis(millis)
}

fn limits(window: Window) -> Limits {
    Limits::new([Limit::tpm(1_000).window(window)], at(0), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)).unwrap()
}

fn windows() -> [Window; 3] {
    let full = Window::Bucket { per: Duration::from_secs(60), burst: None, start: tidegate_limit::Start::Full };
    [Window::minute(), full, Window::clock_minute()]
}

#[test]
fn an_answer_after_its_window_takes_nothing_off_those_booked_since() {
    for window in windows() {
        let mut limits = limits(window.clone());
        let mut slow = limits.admit(&Cost::tokens(1_000), at(0)).unwrap();
        let fast = limits.admit(&Cost::tokens(1_000), at(61_000)).unwrap();
        limits.settle(&mut slow, Cost::tokens(10), at(62_000));
        let fits = limits.check(&Cost::tokens(900), at(62_000)).is_ok();
        assert!(!fits, "{window:?}: the tokens of one that was sent a second ago are given out again");
        limits.release(slow);
        limits.release(fast);
    }
}

#[test]
fn one_that_left_the_window_a_moment_before_its_neighbour_takes_nothing_off_it() {
    let mut limits = limits(Window::minute());
    let mut first = limits.admit(&Cost::tokens(500), at(0)).unwrap();
    let second = limits.admit(&Cost::tokens(500), at(5)).unwrap();
    // The first has left, the second leaves in 3 ms.
    let third = limits.admit(&Cost::tokens(500), at(60_002)).unwrap();
    limits.refund(&mut first, at(60_002));
    assert!(limits.check(&Cost::tokens(1), at(60_002)).is_err());
    for booking in [first, second, third] {
        limits.release(booking);
    }
}

#[test]
fn one_that_is_sent_after_its_window_counts_once() {
    for window in windows() {
        let mut limits = limits(window.clone());
        let mut late = limits.admit(&Cost::tokens(400), at(0)).unwrap();
        let other = limits.admit(&Cost::tokens(500), at(61_000)).unwrap();
        limits.restamp(&mut late, at(62_000));
        // A bucket has got 16 back in the second since the other.
        assert!(limits.check(&Cost::tokens(100), at(62_000)).is_ok(), "{window:?}");
        assert!(limits.check(&Cost::tokens(117), at(62_000)).is_err(), "{window:?}");
        limits.release(late);
        limits.release(other);
    }
}

#[test]
fn many_that_are_sent_late_empty_no_bucket_by_more_than_they_cost() {
    let window = Window::Bucket { per: Duration::from_secs(60), burst: None, start: tidegate_limit::Start::Full };
    let mut limits = limits(window);
    let mut late: Vec<_> = (0..100).map(|_| limits.admit(&Cost::tokens(1), at(0)).unwrap()).collect();
    for booking in &mut late {
        limits.restamp(booking, at(10_000));
    }
    // A thousand fit, a hundred of them have just gone.
    assert!(limits.check(&Cost::tokens(900), at(10_000)).is_ok());
    assert!(limits.check(&Cost::tokens(901), at(10_000)).is_err());
    for booking in late {
        limits.release(booking);
    }
}

#[test]
fn what_has_flowed_back_already_is_not_given_back_again_after_another_refund() {
    let window = Window::Bucket { per: Duration::from_secs(60), burst: None, start: tidegate_limit::Start::Full };
    let mut limits = limits(window);
    let mut first = limits.admit(&Cost::tokens(500), at(0)).unwrap();
    let mut second = limits.admit(&Cost::tokens(500), at(0)).unwrap();
    limits.refund(&mut first, at(0));
    // Full again since 30 s; all of it goes at 40 s.
    let third = limits.admit(&Cost::tokens(1_000), at(40_000)).unwrap();
    limits.refund(&mut second, at(45_000));
    // Five seconds bring 83.
    assert!(limits.check(&Cost::tokens(83), at(45_000)).is_ok());
    assert!(limits.check(&Cost::tokens(84), at(45_000)).is_err());
    for booking in [first, second, third] {
        limits.release(booking);
    }
}

/// A bucket simulated from its history: each booking and what has become of it.
fn left_of_thousand(history: &[(u64, u64)], now: u64) -> f64 {
    let (mut level, mut last) = (1_000.0_f64, 0);
    for &(when, amount) in history {
        level = (level + (when - last) as f64 / 60.0).min(1_000.0) - amount as f64;
        last = when;
    }
    (level + (now - last) as f64 / 60.0).min(1_000.0)
}

#[test]
fn a_bucket_never_holds_more_than_its_history_says_whatever_is_taken_back() {
    let window = Window::Bucket { per: Duration::from_secs(60), burst: None, start: tidegate_limit::Start::Full };
    let seeds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 20_000_u64 } else { 500 };
    for seed in 1..seeds {
        let mut state = seed;
        let mut random = move |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut limits = limits(window.clone());
        let (mut now, mut open) = (0, Vec::new());
        let mut history: Vec<(u64, u64)> = Vec::new();
        for _ in 0..300 {
            let longest = [40, 4_000][random(2) as usize];
            now += random(longest);
            match random(4) {
                0 if !open.is_empty() => {
                    let (mut booking, index): (_, usize) = open.swap_remove(random(open.len() as u64) as usize);
                    let keep = random(history[index].1 + 1);
                    limits.settle(&mut booking, Cost::tokens(keep), at(now));
                    limits.release(booking);
                    history[index].1 = keep;
                }
                _ => {
                    let amount = 1 + random(300);
                    if let Ok(booking) = limits.admit(&Cost::tokens(amount), at(now)) {
                        open.push((booking, history.len()));
                        history.push((now, amount));
                    }
                }
            }
            let left = left_of_thousand(&history, now);
            let more = (left.max(0.0) + 1.001) as u64 + 1;
            assert!(
                limits.check(&Cost::tokens(more.min(1_000)), at(now)).is_err() || more > 1_000,
                "seed {seed}: {left}"
            );
        }
        for (booking, _) in open {
            limits.release(booking);
        }
    }
}
