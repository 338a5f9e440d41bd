//! The event, polled by hand.

mod support;

use support::{Hand, now};
use tidegate_sync::Event;

#[test]
fn a_set_event_ends_every_wait_until_it_is_cleared() {
    let event = Event::new();
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(event.wait())).collect();
    event.set();
    assert!(waiting.iter_mut().all(|hand| hand.wakes() == 1 && hand.poll().is_some()));
    now(event.wait());
    event.clear();
    Hand::waiting(event.wait());
}

#[test]
fn who_was_let_through_stays_so_though_the_event_is_cleared_before_it_runs() {
    let event = Event::new();
    let mut waiting = Hand::waiting(event.wait());
    event.set();
    event.clear();
    assert!(waiting.poll().is_some());
}

#[test]
fn notify_all_wakes_exactly_those_waiting_now() {
    let event = Event::new();
    let mut before: Vec<_> = (0..3).map(|_| Hand::waiting(event.wait())).collect();
    assert_eq!(event.notify_all(), 3);
    let mut after = Hand::waiting(event.wait());
    assert!(before.iter_mut().all(|hand| hand.poll().is_some()));
    assert_eq!(after.wakes(), 0);
    assert!(after.poll().is_none());
    assert_eq!((event.notify_all(), event.notify_all()), (1, 0));
    assert!(!event.is_set());
}

#[test]
fn a_crowd_larger_than_one_batch_of_wakers_is_woken_whole_and_in_order() {
    let event = Event::new();
    let mut waiting: Vec<_> = (0..100).map(|_| Hand::waiting(event.wait())).collect();
    assert_eq!(event.notify_all(), 100);
    assert!(waiting.iter_mut().all(|hand| hand.wakes() == 1 && hand.poll().is_some()));
}

#[test]
fn cancelled_waiter_leaves_no_trace() {
    let event = Event::new();
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(event.wait())).collect();
    drop(waiting.remove(1));
    assert_eq!(event.stats().waiting, 2);
    assert_eq!(event.notify_all(), 2);
    drop(waiting);
    assert_eq!(event.stats().waiting, 0);
}

#[test]
fn stats_count_current_peak_total_blocked_and_waiting() {
    let event = Event::new();
    let waiting: Vec<_> = (0..3).map(|_| Hand::waiting(event.wait())).collect();
    assert_eq!((event.stats().current, event.stats().waiting), (3, 3));
    event.set();
    now(event.wait());
    let stats = event.stats();
    assert_eq!((stats.current, stats.peak, stats.total, stats.blocked), (0, 3, 4, 3));
    drop(waiting);
}

#[test]
fn debug_shows_the_state() {
    assert_eq!(format!("{:?}", Event::new()), "Event { set: false, waiting: Some(0) }");
}
