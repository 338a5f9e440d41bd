//! The semaphore: no lost wake-up, no leaked permit, first come, first served.
//!
//! A lost wake-up shows as a deadlock: loom reports a `block_on` that no thread can end.

mod support;

use std::sync::Arc;

use loom::future::block_on;
use loom::thread;
use support::{check, poll_once};
use tidegate_models::primitives::{AcquireError, Semaphore};

#[test]
fn a_release_reaches_the_waiter() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let releaser = Arc::clone(&semaphore);
        let thread = thread::spawn(move || releaser.release(1));
        block_on(semaphore.acquire()).unwrap().forget();
        thread.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.capacity()), (0, 0));
    });
}

#[test]
fn one_permit_is_never_held_twice_and_both_tasks_get_it() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let enter = |semaphore: &Semaphore| {
            let permit = block_on(semaphore.acquire()).unwrap();
            assert_eq!(semaphore.stats().current, 1);
            drop(permit);
        };
        let other = Arc::clone(&semaphore);
        let thread = thread::spawn(move || enter(&other));
        enter(&semaphore);
        thread.join().unwrap();
        let stats = semaphore.stats();
        assert_eq!((semaphore.available(), stats.total, stats.peak), (1, 2, 1));
    });
}

#[test]
fn three_threads_share_one_permit() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let semaphore = Arc::clone(&semaphore);
                thread::spawn(move || drop(block_on(semaphore.acquire()).unwrap()))
            })
            .collect();
        drop(block_on(semaphore.acquire()).unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((semaphore.available(), semaphore.waiters()), (1, 0));
    });
}

#[test]
fn a_cancelled_waiter_passes_its_permit_on() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let mut cancelled = Box::pin(semaphore.acquire_owned());
        assert!(poll_once(cancelled.as_mut()).is_none());
        let releaser = Arc::clone(&semaphore);
        let release = thread::spawn(move || releaser.release(1));
        let cancel = thread::spawn(move || drop(cancelled));
        // This task is behind the cancelled one in line, and must get the permit.
        block_on(semaphore.acquire()).unwrap().forget();
        release.join().unwrap();
        cancel.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.waiters()), (0, 0));
    });
}

#[test]
fn cancelling_the_head_lets_those_behind_it_through() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let mut head = Box::pin(semaphore.acquire_many_owned(2));
        assert!(poll_once(head.as_mut()).is_none());
        let thread = thread::spawn(move || drop(head));
        drop(block_on(semaphore.acquire()).unwrap());
        thread.join().unwrap();
        assert_eq!(semaphore.available(), 1);
        assert!(semaphore.try_acquire().is_ok());
    });
}

#[test]
fn a_large_request_gathers_what_two_threads_release() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let semaphore = Arc::clone(&semaphore);
                thread::spawn(move || semaphore.release(1))
            })
            .collect();
        assert_eq!(block_on(semaphore.acquire_many(2)).unwrap().count(), 2);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(semaphore.available(), 2);
    });
}

#[test]
fn first_come_first_served() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let mut first = Box::pin(semaphore.acquire());
        assert!(poll_once(first.as_mut()).is_none());
        let other = Arc::clone(&semaphore);
        let second = thread::spawn(move || {
            // This is always the second request, so the one permit is not for it.
            assert!(other.try_acquire().is_err());
            let mut second = Box::pin(other.acquire());
            assert!(poll_once(second.as_mut()).is_none());
        });
        semaphore.release(1);
        second.join().unwrap();
        poll_once(first.as_mut()).expect("the first one's permit").unwrap().forget();
    });
}

#[test]
fn close_ends_every_wait() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let closer = Arc::clone(&semaphore);
        let close = thread::spawn(move || closer.close());
        let releaser = Arc::clone(&semaphore);
        let release = thread::spawn(move || releaser.release(1));
        match block_on(semaphore.acquire()) {
            Ok(permit) => drop(permit),
            Err(refused) => assert_eq!(refused, AcquireError::Closed),
        }
        close.join().unwrap();
        release.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.waiters()), (1, 0));
        assert!(semaphore.try_acquire().is_err());
    });
}

#[test]
fn reduction_is_exact_against_every_other_operation() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let reducer = Arc::clone(&semaphore);
        let reduce = thread::spawn(move || reducer.reduce_permits(1).unwrap());
        let other = Arc::clone(&semaphore);
        let acquire = thread::spawn(move || drop(block_on(other.acquire()).unwrap()));
        drop(block_on(semaphore.acquire()).unwrap());
        reduce.join().unwrap();
        acquire.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.capacity()), (1, 1));
    });
}

#[test]
fn reduction_while_a_task_is_in_line_leaks_nothing() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let permit = semaphore.try_acquire_owned().unwrap();
        let give_back = thread::spawn(move || drop(permit));
        let reducer = Arc::clone(&semaphore);
        let resize = thread::spawn(move || {
            reducer.reduce_permits(1).unwrap();
            reducer.add_permits(1);
        });
        drop(block_on(semaphore.acquire()).unwrap());
        give_back.join().unwrap();
        resize.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.capacity()), (1, 1));
    });
}

#[test]
fn forgetting_beside_a_grant_keeps_the_count() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let forgotten = semaphore.try_acquire_owned().unwrap();
        let given_back = semaphore.try_acquire_owned().unwrap();
        let forget = thread::spawn(move || forgotten.forget());
        let give_back = thread::spawn(move || drop(given_back));
        drop(block_on(semaphore.acquire()).unwrap());
        forget.join().unwrap();
        give_back.join().unwrap();
        let stats = semaphore.stats();
        assert_eq!((semaphore.available(), semaphore.capacity(), stats.current), (1, 1, 0));
    });
}

#[test]
fn a_waker_replaced_while_its_permit_comes_is_the_one_that_is_woken() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let mut acquire = Box::pin(semaphore.acquire());
        assert!(poll_once(acquire.as_mut()).is_none());
        let releaser = Arc::clone(&semaphore);
        let thread = thread::spawn(move || releaser.release(1));
        // First polled with a waker that does nothing; `block_on` brings its own.
        block_on(acquire).unwrap().forget();
        thread.join().unwrap();
    });
}

#[test]
fn the_numbers_agree_at_every_instant_though_a_permit_is_back_before_it_is_counted() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let mut waiting = Box::pin(semaphore.acquire_owned());
        assert!(poll_once(waiting.as_mut()).is_none());
        // One thread grants the permit and another gives it back, perhaps before the first has counted it as held.
        let releaser = Arc::clone(&semaphore);
        let release = thread::spawn(move || releaser.release(1));
        let give_back = thread::spawn(move || drop(block_on(waiting).unwrap()));
        assert!(semaphore.capacity() <= 1 && semaphore.available() <= 1);
        release.join().unwrap();
        give_back.join().unwrap();
        assert_eq!((semaphore.available(), semaphore.capacity(), semaphore.stats().total), (1, 1, 1));
    });
}
