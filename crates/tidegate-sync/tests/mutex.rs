//! The mutex, polled by hand.

mod support;

use support::{Hand, now};
use tidegate_sync::Mutex;

#[test]
fn one_at_a_time_in_the_order_in_which_they_came() {
    let mutex = Mutex::new(Vec::new());
    let mut guard = now(mutex.lock());
    guard.push(0);
    let mut first = Hand::waiting(mutex.lock());
    let mut second = Hand::waiting(mutex.lock());
    assert!(mutex.try_lock().is_none());
    drop(guard);
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    // The lock was handed over: no other task gets it before the first one runs.
    assert!(mutex.try_lock().is_none());
    first.poll().unwrap().push(1);
    second.poll().unwrap().push(2);
    drop((first, second));
    assert_eq!(mutex.into_inner(), [0, 1, 2]);
}

#[test]
fn cancelled_waiter_passes_the_lock_on() {
    let mutex = Mutex::new(());
    let guard = now(mutex.lock());
    let first = Hand::waiting(mutex.lock());
    let mut second = Hand::waiting(mutex.lock());
    drop(guard);
    drop(first);
    assert!(second.poll().is_some());
}

#[test]
fn a_panic_while_it_is_held_does_not_poison_it() {
    let mutex = Mutex::new(1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = now(mutex.lock());
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(caught.is_err());
    assert_eq!(*now(mutex.lock()), 1);
}

#[test]
fn an_unsized_value_can_be_guarded() {
    let mut mutex: Box<Mutex<[u8]>> = Box::new(Mutex::new([1, 2, 3]));
    now(mutex.lock())[0] = 9;
    assert_eq!(mutex.get_mut(), [9, 2, 3]);
}

#[test]
fn debug_shows_the_value_unless_it_is_locked() {
    let mutex = Mutex::new(1);
    assert_eq!(format!("{mutex:?}"), "Mutex { value: 1 }");
    let guard = now(mutex.lock());
    assert_eq!(format!("{mutex:?} {guard:?}"), "Mutex { value: <locked> } 1");
}

#[test]
fn stats_are_those_of_its_line() {
    let mutex = Mutex::new(());
    let guard = now(mutex.lock());
    let waiting = Hand::waiting(mutex.lock());
    let stats = mutex.stats();
    assert_eq!((stats.current, stats.peak, stats.total, stats.blocked, stats.waiting), (1, 1, 1, 1, 1));
    drop((waiting, guard));
}
