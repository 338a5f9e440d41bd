//! The event: no lost wake-up, and only waiting tasks are woken.

mod support;

use std::sync::Arc;

use loom::future::block_on;
use loom::thread;
use support::{check, poll_once};
use tidegate_models::primitives::Event;

#[test]
fn a_set_reaches_every_waiter() {
    check(|| {
        let event = Arc::new(Event::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let event = Arc::clone(&event);
                thread::spawn(move || block_on(event.wait()))
            })
            .collect();
        event.set();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!((event.stats().total, event.stats().waiting), (2, 0));
    });
}

#[test]
fn a_wait_that_was_ended_stays_ended_though_the_event_is_cleared() {
    check(|| {
        let event = Arc::new(Event::new());
        let mut wait = Box::pin(event.wait());
        assert!(poll_once(wait.as_mut()).is_none());
        let setter = Arc::clone(&event);
        let thread = thread::spawn(move || {
            setter.set();
            setter.clear();
        });
        block_on(wait);
        thread.join().unwrap();
    });
}

#[test]
fn notify_all_wakes_exactly_those_waiting_at_that_moment() {
    check(|| {
        let event = Arc::new(Event::new());
        let mut before = Box::pin(event.wait());
        assert!(poll_once(before.as_mut()).is_none());
        let other = Arc::clone(&event);
        let thread = thread::spawn(move || {
            let mut wait = Box::pin(other.wait());
            assert!(poll_once(wait.as_mut()).is_none());
            poll_once(wait.as_mut()).is_some()
        });
        let woken = event.notify_all();
        let other_went_through = thread.join().unwrap();
        assert!(poll_once(before.as_mut()).is_some());
        // The other one may have come before or after, or may have left again.
        assert!((1..=2).contains(&woken));
        assert!(woken == 2 || !other_went_through);
        assert_eq!(event.notify_all(), 0);
    });
}

#[test]
fn cancelling_beside_a_set_leaves_no_trace() {
    check(|| {
        let event = Arc::new(Event::new());
        let canceller = Arc::clone(&event);
        let thread = thread::spawn(move || {
            let mut wait = Box::pin(canceller.wait());
            let _ = poll_once(wait.as_mut());
        });
        event.set();
        block_on(event.wait());
        thread.join().unwrap();
        assert_eq!(event.stats().waiting, 0);
    });
}
