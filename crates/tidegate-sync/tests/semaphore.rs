//! The semaphore, polled by hand: each step is chosen, so each claim is exact.

mod support;

use std::sync::Arc;

use support::{Hand, now};
use tidegate_sync::{AcquireError, MAX_PERMITS, OwnedPermit, Semaphore, TryAcquireError};

#[test]
fn initial_count_can_be_taken_at_once_and_no_more() {
    let semaphore = Semaphore::new(3);
    let permits: Vec<_> = (0..3).map(|_| now(semaphore.acquire()).unwrap()).collect();
    assert_eq!(semaphore.available(), 0);
    let waiting = Hand::waiting(semaphore.acquire());
    drop(waiting);
    drop(permits);
    assert_eq!(semaphore.available(), 3);
}

#[test]
fn one_release_wakes_exactly_one_waiter() {
    let semaphore = Semaphore::new(0);
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(semaphore.acquire())).collect();
    semaphore.release(1);
    assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(waiting[1].poll().is_none() && waiting[2].poll().is_none());
    let permit = waiting[0].poll().unwrap().unwrap();
    assert_eq!((semaphore.available(), semaphore.waiters()), (0, 2));
    drop(permit);
    assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn batch_release_wakes_as_many_as_it_pays_for_and_keeps_the_rest() {
    let semaphore = Semaphore::new(0);
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(semaphore.acquire())).collect();
    semaphore.release(2);
    assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    semaphore.release(5);
    assert_eq!(semaphore.available(), 4);
    let permits: Vec<_> = waiting.iter_mut().map(|hand| hand.poll().unwrap().unwrap()).collect();
    drop(permits);
    assert_eq!(semaphore.available(), 7);
}

#[test]
fn a_crowd_larger_than_one_batch_of_wakers_is_served_by_one_release() {
    let semaphore = Semaphore::new(0);
    let mut waiting: Vec<_> = (0..100).map(|_| Hand::waiting(semaphore.acquire())).collect();
    let receipt = semaphore.release_confirmed(103).unwrap();
    assert_eq!((receipt.woken, receipt.available), (100, 3));
    assert!(waiting.iter().all(|hand| hand.wakes() == 1));
    assert!(waiting.iter_mut().all(|hand| hand.poll().unwrap().is_ok()));
}

#[test]
fn receipt_counts_woken_waiters_and_free_permits() {
    let semaphore = Semaphore::new(0);
    assert_eq!(semaphore.release_confirmed(1).unwrap().available, 1);
    let permit = now(semaphore.acquire()).unwrap();
    let _one = Hand::waiting(semaphore.acquire());
    let _two = Hand::waiting(semaphore.acquire_many(2));
    let receipt = semaphore.release_confirmed(2).unwrap();
    assert_eq!((receipt.woken, receipt.available), (1, 1));
    let receipt = semaphore.release_confirmed(1).unwrap();
    assert_eq!((receipt.woken, receipt.available), (1, 0));
    let receipt = semaphore.release_confirmed(0).unwrap();
    assert_eq!((receipt.woken, receipt.available), (0, 0));
    drop(permit);
}

#[test]
fn try_acquire_takes_what_is_free_and_never_waits() {
    let semaphore = Semaphore::new(2);
    let two = semaphore.try_acquire_many(2).unwrap();
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    drop(two);
    assert!(semaphore.try_acquire().is_ok());
}

#[test]
fn no_request_barges_past_the_line() {
    let semaphore = Semaphore::new(1);
    let permit = now(semaphore.acquire()).unwrap();
    let mut large = Hand::waiting(semaphore.acquire_many(2));
    drop(permit);
    // One permit is free now, and it is kept for the one in line.
    assert_eq!(semaphore.available(), 1);
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    let mut late = Hand::waiting(semaphore.acquire());
    semaphore.release(1);
    assert_eq!((large.wakes(), late.wakes()), (1, 0));
    drop(large.poll().unwrap().unwrap());
    assert!(late.poll().unwrap().is_ok());
}

#[test]
fn a_granted_permit_is_not_up_for_grabs_before_its_owner_runs() {
    let semaphore = Semaphore::new(1);
    let permit = now(semaphore.acquire()).unwrap();
    let mut first = Hand::waiting(semaphore.acquire());
    drop(permit);
    assert_eq!(semaphore.available(), 0);
    assert!(semaphore.try_acquire().is_err());
    assert!(first.poll().unwrap().is_ok());
}

#[test]
fn waiters_are_served_in_the_order_of_their_first_poll() {
    let semaphore = Semaphore::new(0);
    let mut created_first = Hand::new(semaphore.acquire());
    let mut polled_first = Hand::waiting(semaphore.acquire());
    assert!(created_first.poll().is_none());
    semaphore.release(1);
    assert!(created_first.poll().is_none());
    assert!(polled_first.poll().unwrap().is_ok());
}

#[test]
fn cancelled_waiter_leaves_no_trace() {
    let semaphore = Semaphore::new(0);
    let mut waiting: Vec<_> = (0..5).map(|_| Hand::waiting(semaphore.acquire())).collect();
    // From the middle, the front and the back of the line.
    drop(waiting.remove(2));
    drop(waiting.remove(0));
    drop(waiting.pop());
    assert_eq!(semaphore.waiters(), 2);
    semaphore.release(3);
    assert!(waiting.iter_mut().all(|hand| hand.wakes() == 1));
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn cancelled_waiter_passes_its_permit_on() {
    let semaphore = Semaphore::new(0);
    let first = Hand::waiting(semaphore.acquire());
    let mut second = Hand::waiting(semaphore.acquire());
    semaphore.release(1);
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    drop(first);
    assert_eq!(second.wakes(), 1);
    assert!(second.poll().unwrap().is_ok());
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn cancelled_head_lets_through_the_waiters_that_fit_without_it() {
    let semaphore = Semaphore::new(2);
    let head = Hand::waiting(semaphore.acquire_many(3));
    let mut behind: Vec<_> = (0..3).map(|_| Hand::waiting(semaphore.acquire())).collect();
    drop(head);
    assert_eq!(behind.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    assert!(behind[0].poll().is_some() && behind[1].poll().is_some());
}

#[test]
fn last_waiter_to_leave_opens_the_fast_path_again() {
    let semaphore = Semaphore::new(1);
    let large = Hand::waiting(semaphore.acquire_many(2));
    assert!(semaphore.try_acquire().is_err());
    drop(large);
    assert!(semaphore.try_acquire().is_ok());
}

#[test]
fn a_future_that_was_never_polled_takes_nothing() {
    let semaphore = Arc::new(Semaphore::new(1));
    drop(semaphore.acquire());
    drop(semaphore.acquire_owned());
    assert_eq!((semaphore.available(), Arc::strong_count(&semaphore)), (1, 1));
}

#[test]
fn a_task_that_moves_is_woken_by_its_latest_waker() {
    let semaphore = Semaphore::new(0);
    let mut waiting = Hand::waiting(semaphore.acquire());
    assert!(waiting.poll_as_another_task().is_none());
    assert!(waiting.poll().is_none());
    semaphore.release(1);
    assert_eq!(waiting.wakes(), 1);
}

#[test]
fn large_request_gathers_permits_and_does_not_starve() {
    let semaphore = Semaphore::new(3);
    let mut held: Vec<_> = (0..3).map(|_| now(semaphore.acquire()).unwrap()).collect();
    let mut large = Hand::waiting(semaphore.acquire_many(3));
    let mut small: Vec<_> = (0..10).map(|_| Hand::waiting(semaphore.acquire())).collect();
    for _ in 0..3 {
        assert!(large.poll().is_none());
        held.pop();
    }
    let three = large.poll().unwrap().unwrap();
    assert!(small.iter_mut().all(|hand| hand.poll().is_none()));
    drop(three);
    assert_eq!(small.iter().map(Hand::wakes).sum::<usize>(), 3);
}

#[test]
fn skip_ahead_uses_idle_capacity_but_no_further_than_its_limit() {
    let semaphore = Semaphore::new(4).with_skip_ahead(2);
    let held = now(semaphore.acquire_many(3)).unwrap();
    let mut large = Hand::waiting(semaphore.acquire_many(4));
    // One permit is free. Two requests may take it before the head.
    drop(now(semaphore.acquire()).unwrap());
    let second = now(semaphore.acquire()).unwrap();
    let mut third = Hand::waiting(semaphore.acquire());
    drop(second);
    assert!(third.poll().is_none());
    assert_eq!(semaphore.available(), 1);
    drop(held);
    drop(large.poll().unwrap().unwrap());
    assert!(third.poll().unwrap().is_ok());
}

#[test]
fn skip_ahead_serves_the_waiters_that_fit_in_their_order() {
    let semaphore = Semaphore::new(0).with_skip_ahead(3);
    let mut head = Hand::waiting(semaphore.acquire_many(10));
    let mut large = Hand::waiting(semaphore.acquire_many(5));
    let mut small: Vec<_> = (0..3).map(|_| Hand::waiting(semaphore.acquire())).collect();
    // Looks at three places behind the head: the other large one and two of the small ones.
    semaphore.release(3);
    assert_eq!(small.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(semaphore.available(), 1);
    let two: Vec<_> = small[..2].iter_mut().map(|hand| hand.poll().unwrap().unwrap()).collect();
    // A new head has a fresh limit.
    drop(head.poll());
    drop(head);
    assert_eq!(small[2].wakes(), 1);
    drop(two);
    assert!(large.poll().is_none());
    assert!(small[2].poll().unwrap().is_ok());
}

#[test]
fn close_refuses_requests_in_line_and_later_ones() {
    let semaphore = Semaphore::new(1);
    let permit = now(semaphore.acquire()).unwrap();
    let mut waiting: Vec<_> = (0..40).map(|_| Hand::waiting(semaphore.acquire())).collect();
    semaphore.close();
    assert!(semaphore.is_closed());
    assert!(waiting.iter_mut().all(|hand| hand.wakes() == 1));
    assert!(waiting.iter_mut().all(|hand| hand.poll().unwrap().unwrap_err() == AcquireError::Closed));
    assert_eq!(now(semaphore.acquire()).unwrap_err(), AcquireError::Closed);
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
    drop(permit);
    semaphore.release(1);
    semaphore.close();
    assert_eq!(semaphore.available(), 2);
}

#[test]
fn waiter_granted_before_the_close_keeps_its_permit() {
    let semaphore = Semaphore::new(0);
    let mut waiting = Hand::waiting(semaphore.acquire());
    semaphore.release(1);
    semaphore.close();
    assert!(waiting.poll().unwrap().is_ok());
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn waiter_refused_by_the_close_may_be_dropped_unseen() {
    let semaphore = Semaphore::new(0);
    let waiting = Hand::waiting(semaphore.acquire());
    semaphore.close();
    drop(waiting);
    assert_eq!((semaphore.waiters(), semaphore.available()), (0, 0));
}

#[test]
fn reduction_is_exact_at_once_under_load() {
    let semaphore = Semaphore::new(5);
    let mut held: Vec<_> = (0..5).map(|_| now(semaphore.acquire()).unwrap()).collect();
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(semaphore.acquire())).collect();
    semaphore.reduce_permits(3).unwrap();
    assert_eq!((semaphore.capacity(), semaphore.available()), (2, 0));
    // Three are given back and pay the debt; no waiter is served.
    for _ in 0..3 {
        held.pop();
        assert!(waiting.iter_mut().all(|hand| hand.poll().is_none()));
    }
    held.pop();
    assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 0, 0]);
    drop(waiting);
    drop(held);
    assert_eq!((semaphore.capacity(), semaphore.available()), (2, 2));
}

#[test]
fn adding_pays_the_debt_first() {
    let semaphore = Semaphore::new(2);
    let held = now(semaphore.acquire_many(2)).unwrap();
    semaphore.reduce_permits(2).unwrap();
    let mut waiting = Hand::waiting(semaphore.acquire());
    semaphore.add_permits(2);
    assert!(waiting.poll().is_none());
    semaphore.add_permits(1);
    assert!(waiting.poll().unwrap().is_ok());
    drop(held);
    assert_eq!((semaphore.capacity(), semaphore.available()), (3, 3));
}

#[test]
fn forgetting_more_than_is_left_after_a_debt_leaves_nothing_owed() {
    let semaphore = Semaphore::new(5);
    let held = now(semaphore.acquire_many(5)).unwrap();
    semaphore.reduce_permits(2).unwrap();
    held.forget();
    assert_eq!((semaphore.capacity(), semaphore.available()), (0, 0));
    semaphore.release(1);
    assert_eq!((semaphore.capacity(), semaphore.available()), (1, 1));
}

#[test]
fn nothing_that_does_not_exist_can_be_reduced() {
    let semaphore = Semaphore::new(2);
    assert_eq!(semaphore.reduce_permits(3).unwrap_err().capacity, 2);
    assert_eq!(semaphore.reduce_permits(usize::MAX).unwrap_err().capacity, 2);
    semaphore.reduce_permits(2).unwrap();
    assert_eq!(semaphore.capacity(), 0);
}

#[test]
fn asking_for_none_is_granted_at_once_even_past_a_line() {
    let semaphore = Semaphore::new(0);
    let _waiting = Hand::waiting(semaphore.acquire());
    assert_eq!(now(semaphore.acquire_many(0)).unwrap().count(), 0);
    assert_eq!(semaphore.try_acquire_many(0).unwrap().count(), 0);
    semaphore.close();
    assert_eq!(now(semaphore.acquire_many(0)).unwrap_err(), AcquireError::Closed);
}

#[test]
fn asking_for_more_than_can_ever_exist_is_refused_at_once() {
    let semaphore = Semaphore::new(1);
    let ceiling = MAX_PERMITS;
    for n in [MAX_PERMITS + 1, u32::MAX as usize, usize::MAX] {
        assert_eq!(now(semaphore.acquire_many(n)).unwrap_err(), AcquireError::TooMany { ceiling });
        assert_eq!(semaphore.try_acquire_many(n).unwrap_err(), TryAcquireError::TooMany { ceiling });
    }
    let fixed = Semaphore::new(2).with_ceiling(2);
    let _waiting = {
        let _held = now(fixed.acquire()).unwrap();
        Hand::waiting(fixed.acquire_many(2))
    };
    assert_eq!(now(fixed.acquire_many(3)).unwrap_err(), AcquireError::TooMany { ceiling: 2 });
}

#[test]
fn the_count_cannot_overflow() {
    let semaphore = Semaphore::new(MAX_PERMITS);
    assert_eq!(semaphore.release_confirmed(1).unwrap_err().ceiling, MAX_PERMITS);
    assert!(semaphore.release_confirmed(usize::MAX).is_err());
    let all = now(semaphore.acquire_many(MAX_PERMITS)).unwrap();
    // Held permits exist too.
    assert_eq!(semaphore.release_confirmed(1).unwrap_err().capacity, MAX_PERMITS);
    let waiting = Hand::waiting(semaphore.acquire());
    assert!(semaphore.release_confirmed(1).is_err());
    semaphore.reduce_permits(MAX_PERMITS).unwrap();
    assert_eq!(semaphore.capacity(), 0);
    drop(waiting);
    drop(all);
    assert_eq!((semaphore.available(), semaphore.capacity()), (0, 0));
}

#[test]
#[should_panic(expected = "releasing 2 permits: 1 permits exist, and at most 2 may exist")]
fn release_past_the_ceiling_panics() {
    Semaphore::new(1).with_ceiling(2).release(2);
}

#[test]
#[should_panic(expected = "at most")]
fn a_semaphore_of_too_many_permits_is_refused() {
    let _ = Semaphore::new(MAX_PERMITS + 1);
}

#[test]
fn permits_split_merge_and_forget_exactly() {
    let semaphore = Arc::new(Semaphore::new(6));
    let mut six: OwnedPermit = now(semaphore.acquire_many_owned(6)).unwrap();
    let mut two = six.split(2).unwrap();
    let none = six.split(0).unwrap();
    assert_eq!((six.count(), two.count(), none.count()), (4, 2, 0));
    assert!(two.split(3).is_none());
    two.merge(six.split(1).unwrap()).unwrap();
    drop(two);
    assert_eq!(semaphore.available(), 3);
    six.forget();
    assert_eq!((semaphore.available(), semaphore.capacity()), (3, 3));
    drop(none);

    let other = Arc::new(Semaphore::new(1));
    let mut permit = now(semaphore.acquire_owned()).unwrap();
    let foreign = permit.merge(now(other.acquire_owned()).unwrap()).unwrap_err();
    drop(foreign);
    assert_eq!((permit.count(), other.available()), (1, 1));
}

#[test]
fn owned_permits_and_futures_keep_the_semaphore_alive() {
    let semaphore = Arc::new(Semaphore::new(1));
    let weak = Arc::downgrade(&semaphore);
    let permit = now(semaphore.acquire_owned()).unwrap();
    let mut waiting = Hand::waiting(semaphore.acquire_owned());
    drop(semaphore);
    drop(permit);
    let permit = waiting.poll().unwrap().unwrap();
    drop(waiting);
    assert_eq!(weak.strong_count(), 1);
    drop(permit);
    assert_eq!(weak.strong_count(), 0);
}

#[test]
fn stats_count_current_peak_total_blocked_and_waiting() {
    let semaphore = Semaphore::new(2);
    let first = now(semaphore.acquire()).unwrap();
    let second = now(semaphore.acquire()).unwrap();
    let mut third = Hand::waiting(semaphore.acquire());
    let cancelled = Hand::waiting(semaphore.acquire());
    let stats = semaphore.stats();
    assert_eq!((stats.current, stats.peak, stats.total), (2, 2, 2));
    assert_eq!((stats.blocked, stats.waiting), (2, 2));
    drop(cancelled);
    drop(first);
    let third = third.poll().unwrap().unwrap();
    drop((second, third));
    let stats = semaphore.stats();
    assert_eq!((stats.current, stats.peak, stats.total), (0, 2, 3));
    assert_eq!((stats.blocked, stats.waiting), (2, 0));
}

#[test]
fn total_is_exact_beyond_the_bits_the_word_has_for_it() {
    let semaphore = Semaphore::new(3);
    for n in 0..1000 {
        assert_eq!(semaphore.stats().total, n);
        drop(now(semaphore.acquire()).unwrap());
    }
}

#[test]
fn debug_shows_the_state() {
    let semaphore = Semaphore::new(2);
    let permit = now(semaphore.acquire()).unwrap();
    assert_eq!(
        format!("{semaphore:?} {permit:?}"),
        "Semaphore { available: 1, held: 1, capacity: 2, closed: false, waiters: Some(0) } Permit { count: 1, .. }"
    );
}

#[test]
#[should_panic(expected = "polled after completion")]
fn polling_after_completion_panics() {
    let semaphore = Semaphore::new(2);
    let mut hand = Hand::new(semaphore.acquire());
    drop(hand.poll());
    drop(hand.poll());
}
