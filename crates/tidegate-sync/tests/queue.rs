//! The queue, polled by hand.

mod support;

use std::collections::VecDeque;
use std::sync::Arc;

use support::{Hand, now};
use tidegate_sync::{Closed, PushError, Queue, TryPushError, TryRecvError};

fn filled(items: impl IntoIterator<Item = u32>) -> Queue<u32> {
    let queue = Queue::unbounded();
    for item in items {
        queue.try_push(item).unwrap();
    }
    queue
}

#[test]
fn items_come_out_in_the_order_they_went_in() {
    let queue = filled(0..10);
    let received: Vec<_> = (0..10).map(|_| now(queue.recv()).unwrap()).collect();
    assert_eq!(received, (0..10).collect::<Vec<_>>());
}

#[test]
fn one_push_wakes_one_consumer() {
    let queue = Queue::unbounded();
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(queue.recv())).collect();
    queue.try_push(7).unwrap();
    assert_eq!(waiting.iter().map(Hand::wakes).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!(waiting[0].poll(), Some(Ok(7)));
    assert!(waiting[1].poll().is_none());
}

#[test]
fn an_item_promised_to_a_consumer_cannot_be_snatched() {
    let queue = Queue::unbounded();
    let mut waiting = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    assert_eq!(queue.try_recv(), Err(TryRecvError::Empty));
    let mut late = Hand::waiting(queue.recv());
    assert_eq!(queue.len(), 1);
    assert_eq!(waiting.poll(), Some(Ok(1)));
    assert!(late.poll().is_none());
}

#[test]
fn consumers_are_served_in_the_order_in_which_they_came() {
    let queue = Queue::unbounded();
    let mut waiting: Vec<_> = (0..3).map(|_| Hand::waiting(queue.recv())).collect();
    for n in 0..3 {
        queue.try_push(n).unwrap();
        assert_eq!(waiting.iter().map(Hand::wakes).sum::<usize>(), n + 1);
        assert_eq!(waiting[n].wakes(), 1);
    }
    assert!(waiting.iter_mut().all(|hand| hand.poll().unwrap().is_ok()));
}

#[test]
fn cancelled_consumer_loses_nothing_and_keeps_the_order() {
    let queue = Queue::unbounded();
    let first = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    queue.try_push(2).unwrap();
    drop(first);
    assert_eq!(now(queue.recv_all()).unwrap(), [1, 2]);
}

#[test]
fn consumer_cancelled_after_its_wake_up_passes_the_item_on() {
    let queue = Queue::unbounded();
    let first = Hand::waiting(queue.recv());
    let mut second = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    drop(first);
    assert_eq!(second.wakes(), 1);
    assert_eq!(second.poll(), Some(Ok(1)));
}

#[test]
fn bounded_queue_refuses_and_returns_the_value() {
    let queue = Queue::bounded(2);
    queue.try_push("a").unwrap();
    now(queue.push("b")).unwrap();
    assert_eq!(queue.try_push("c"), Err(TryPushError::Full("c")));
    assert_eq!((queue.len(), queue.capacity()), (2, Some(2)));
}

#[test]
fn producers_wait_for_room_and_are_served_in_their_order() {
    let queue = Queue::bounded(1);
    queue.try_push(0).unwrap();
    let mut one = Hand::waiting(queue.push(1));
    let mut two = Hand::waiting(queue.push(2));
    assert_eq!(now(queue.recv()), Ok(0));
    assert_eq!((one.wakes(), two.wakes()), (1, 0));
    // The first one's value is in the queue already, so there is no room in between.
    assert_eq!(queue.try_push(3), Err(TryPushError::Full(3)));
    assert_eq!((one.poll(), two.poll()), (Some(Ok(())), None));
    assert_eq!(now(queue.recv()), Ok(1));
    assert_eq!(two.poll(), Some(Ok(())));
    assert_eq!(now(queue.recv()), Ok(2));
}

#[test]
fn producer_cancelled_while_it_waits_pushes_nothing() {
    let queue = Queue::bounded(1);
    let value = Arc::new(());
    queue.try_push(Arc::clone(&value)).unwrap();
    let cancelled = Hand::waiting(queue.push(Arc::clone(&value)));
    drop(cancelled);
    drop(now(queue.recv()));
    assert_eq!((queue.len(), Arc::strong_count(&value)), (0, 1));
}

#[test]
fn producer_cancelled_after_its_value_went_in_has_pushed_it_once() {
    let queue = Queue::bounded(1);
    queue.try_push(0).unwrap();
    let pushed = Hand::waiting(queue.push(1));
    assert_eq!(now(queue.recv()), Ok(0));
    drop(pushed);
    assert_eq!((now(queue.recv()), queue.len()), (Ok(1), 0));
}

#[test]
fn producers_and_consumers_can_wait_at_the_same_time() {
    let queue = Queue::bounded(1);
    let mut first = Hand::waiting(queue.recv());
    let mut second = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    // Full of what the first was promised: a producer waits although a consumer does too.
    let mut producer = Hand::waiting(queue.push(2));
    assert!(second.poll().is_none());
    assert_eq!(first.poll(), Some(Ok(1)));
    assert_eq!((producer.poll(), second.poll()), (Some(Ok(())), Some(Ok(2))));
}

#[test]
fn recv_all_waits_for_one_and_takes_everything() {
    let queue = Queue::unbounded();
    let mut all = Hand::waiting(queue.recv_all());
    for n in 0..5 {
        queue.try_push(n).unwrap();
    }
    assert_eq!(all.wakes(), 1);
    assert_eq!(all.poll().unwrap().unwrap(), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty());
}

#[test]
fn recv_all_leaves_what_others_were_promised() {
    let queue = Queue::unbounded();
    let mut one = Hand::waiting(queue.recv());
    let mut all = Hand::waiting(queue.recv_all());
    for n in 0..4 {
        queue.try_push(n).unwrap();
    }
    assert_eq!(all.poll().unwrap().unwrap(), [0, 1, 2]);
    assert_eq!(one.poll(), Some(Ok(3)));
}

#[test]
fn recv_all_makes_room_for_every_waiting_producer() {
    let queue = Queue::bounded(20);
    for n in 0..20 {
        queue.try_push(n).unwrap();
    }
    let mut producers: Vec<_> = (20..50).map(|n| Hand::waiting(queue.push(n))).collect();
    assert_eq!(now(queue.recv_all()).unwrap().len(), 20);
    assert_eq!(producers.iter().filter(|hand| hand.wakes() == 1).count(), 20);
    assert_eq!(now(queue.recv_all()).unwrap(), (20..40).collect::<Vec<_>>());
    assert!(producers.iter_mut().all(|hand| hand.poll() == Some(Ok(()))));
    assert_eq!(queue.len(), 10);
}

#[test]
fn recv_all_into_puts_everything_behind_what_is_there() {
    let queue = filled(2..4);
    let mut batch = VecDeque::from([1]);
    assert_eq!(now(queue.recv_all_into(&mut batch)), Ok(2));
    assert_eq!(batch, [1, 2, 3]);
    let mut waiting = Hand::waiting(queue.recv_all_into(&mut batch));
    queue.try_push(4).unwrap();
    queue.try_push(5).unwrap();
    assert_eq!((waiting.wakes(), waiting.poll()), (1, Some(Ok(2))));
    drop(waiting);
    assert_eq!(batch, [1, 2, 3, 4, 5]);
    assert_eq!((queue.len(), queue.stats().total, queue.stats().peak), (0, 4, 2));
}

#[test]
fn recv_all_into_leaves_what_others_were_promised() {
    let queue = Queue::unbounded();
    let mut one = Hand::waiting(queue.recv());
    for n in 0..4 {
        queue.try_push(n).unwrap();
    }
    let mut batch = VecDeque::new();
    assert_eq!(now(queue.recv_all_into(&mut batch)), Ok(3));
    assert_eq!((batch, one.poll()), (VecDeque::from([0, 1, 2]), Some(Ok(3))));
}

#[test]
fn recv_all_into_allocates_nothing_once_the_buffers_have_grown() {
    let queue = Queue::unbounded();
    let mut batch = VecDeque::new();
    let mut memory = Vec::new();
    for round in 0..6 {
        for item in 0..1_000 {
            queue.try_push(item).unwrap();
        }
        assert_eq!(now(queue.recv_all_into(&mut batch)), Ok(1_000));
        assert!(batch.iter().copied().eq(0..1_000));
        batch.clear();
        if round >= 2 {
            memory.push((batch.as_slices().0.as_ptr(), batch.capacity()));
        }
    }
    assert_eq!(memory[..2], memory[2..], "two buffers take turns");
}

#[test]
fn a_buffer_brought_by_the_consumer_does_not_raise_the_bound() {
    let queue = Queue::bounded(3);
    let mut batch = VecDeque::with_capacity(100);
    for _ in 0..4 {
        for item in 0..3 {
            queue.try_push(item).unwrap();
        }
        let mut producer = Hand::waiting(queue.push(3));
        assert_eq!(queue.try_push(4), Err(TryPushError::Full(4)));
        assert_eq!(now(queue.recv_all_into(&mut batch)), Ok(3));
        assert_eq!(producer.poll(), Some(Ok(())));
        assert_eq!(now(queue.recv_all_into(&mut batch)), Ok(1));
        assert!(batch.drain(..).eq(0..4));
    }
}

#[test]
fn a_cancelled_recv_all_into_leaves_its_buffer_alone_and_loses_nothing() {
    let queue = Queue::unbounded();
    let mut batch = VecDeque::from([7]);
    let waiting = Hand::waiting(queue.recv_all_into(&mut batch));
    let mut next = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    assert_eq!((waiting.wakes(), next.wakes()), (1, 0));
    drop(waiting);
    assert_eq!(next.poll(), Some(Ok(1)));
    queue.close();
    assert_eq!(now(queue.recv_all_into(&mut batch)), Err(Closed));
    assert_eq!(batch, [7]);
}

#[test]
fn recv_up_to_takes_no_more_than_asked_for() {
    let queue = filled(0..5);
    assert_eq!(now(queue.recv_up_to(3)).unwrap(), [0, 1, 2]);
    assert!(now(queue.recv_up_to(0)).unwrap().is_empty());
    assert_eq!(now(queue.recv_up_to(usize::MAX)).unwrap(), [3, 4]);
    assert!(now(queue.recv_up_to(0)).unwrap().is_empty());
    let mut waiting = Hand::waiting(queue.recv_up_to(2));
    queue.try_push(9).unwrap();
    assert_eq!(waiting.poll().unwrap().unwrap(), [9]);
}

#[test]
fn cancelled_recv_all_and_recv_up_to_lose_nothing() {
    let queue = Queue::unbounded();
    let all = Hand::waiting(queue.recv_all());
    let some = Hand::waiting(queue.recv_up_to(2));
    let mut last = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    drop(all);
    drop(some);
    assert_eq!(last.poll(), Some(Ok(1)));
}

#[test]
fn closed_queue_refuses_pushes_and_drains() {
    let queue = filled([1, 2]);
    queue.close();
    assert!(queue.is_closed());
    assert_eq!(queue.try_push(3), Err(TryPushError::Closed(3)));
    assert_eq!(now(queue.push(3)), Err(PushError(3)));
    assert_eq!((now(queue.recv()), queue.try_recv()), (Ok(1), Ok(2)));
    assert_eq!((now(queue.recv()), queue.try_recv()), (Err(Closed), Err(TryRecvError::Closed)));
    assert_eq!(now(queue.recv_all()), Err(Closed));
    assert_eq!(now(queue.recv_up_to(1)), Err(Closed));
}

#[test]
fn close_wakes_every_waiting_consumer() {
    let queue = Queue::<u32>::unbounded();
    let mut waiting: Vec<_> = (0..40).map(|_| Hand::waiting(queue.recv())).collect();
    queue.close();
    assert!(waiting.iter_mut().all(|hand| hand.wakes() == 1 && hand.poll() == Some(Err(Closed))));
}

#[test]
fn close_gives_waiting_producers_their_values_back() {
    let queue = Queue::bounded(1);
    queue.try_push(0).unwrap();
    let mut waiting: Vec<_> = (1..40).map(|n| (n, Hand::waiting(queue.push(n)))).collect();
    queue.close();
    assert!(waiting.iter_mut().all(|(n, hand)| hand.poll() == Some(Err(PushError(*n)))));
    assert_eq!((now(queue.recv()), now(queue.recv())), (Ok(0), Err(Closed)));
}

#[test]
fn consumer_promised_an_item_before_the_close_gets_it() {
    let queue = Queue::unbounded();
    let mut waiting = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    queue.close();
    assert_eq!(waiting.poll(), Some(Ok(1)));
}

#[test]
fn item_promised_to_a_consumer_dropped_after_the_close_can_still_be_received() {
    let queue = Queue::unbounded();
    let waiting = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    queue.close();
    drop(waiting);
    assert_eq!((now(queue.recv()), now(queue.recv())), (Ok(1), Err(Closed)));
}

#[test]
#[should_panic(expected = "capacity 0")]
fn a_queue_that_could_hold_nothing_is_refused() {
    let _ = Queue::<()>::bounded(0);
}

#[test]
fn values_that_are_not_clone_or_debug_pass_through_and_are_dropped_once() {
    let value = Arc::new(());
    let queue = Queue::bounded(2);
    queue.try_push(Box::new(Arc::clone(&value))).unwrap();
    queue.try_push(Box::new(Arc::clone(&value))).unwrap();
    drop(queue.try_push(Box::new(Arc::clone(&value))).unwrap_err());
    drop(now(queue.recv()));
    assert_eq!(Arc::strong_count(&value), 2);
    drop(queue);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn stats_count_current_peak_total_blocked_and_waiting() {
    let queue = Queue::bounded(2);
    let waiting = Hand::waiting(queue.recv());
    queue.try_push(1).unwrap();
    queue.try_push(2).unwrap();
    let producer = Hand::waiting(queue.push(3));
    let stats = queue.stats();
    assert_eq!((stats.current, stats.peak, stats.total), (2, 2, 2));
    assert_eq!((stats.blocked, stats.waiting), (2, 1));
    drop((waiting, producer));
    assert_eq!(now(queue.recv_all()).unwrap(), [1, 2]);
    let stats = queue.stats();
    assert_eq!((stats.current, stats.peak, stats.total, stats.waiting), (0, 2, 2, 0));
}

#[test]
fn peak_and_total_include_items_not_taken_yet() {
    let queue = filled(0..3);
    assert_eq!((queue.stats().peak, queue.stats().total), (3, 3));
    assert_eq!(queue.try_recv(), Ok(0));
    for item in 3..7 {
        queue.try_push(item).unwrap();
    }
    assert_eq!((queue.stats().current, queue.stats().peak, queue.stats().total), (6, 6, 7));
    assert_eq!(now(queue.recv_up_to(2)).unwrap(), [1, 2]);
    assert_eq!(now(queue.recv_all()).unwrap(), [3, 4, 5, 6]);
    queue.try_push(7).unwrap();
    assert_eq!((queue.stats().current, queue.stats().peak, queue.stats().total), (1, 6, 8));
}

#[test]
fn a_buffer_larger_than_the_bound_does_not_raise_it() {
    for capacity in [1, 3, 5, 100, 1_000] {
        let queue = Queue::bounded(capacity);
        for _ in 0..3 {
            for item in 0..capacity {
                queue.try_push(item).unwrap();
            }
            assert_eq!(queue.try_push(0), Err(TryPushError::Full(0)));
            assert_eq!(now(queue.recv_all()).unwrap().len(), capacity);
        }
        assert_eq!(queue.stats().peak, capacity);
    }
}

#[test]
fn a_waiting_consumer_is_woken_by_the_next_push_after_pushes_on_the_fast_path() {
    let queue = Queue::unbounded();
    for round in 0..20 {
        for item in 0..round {
            queue.try_push(item).unwrap();
            assert_eq!(queue.try_recv(), Ok(item));
        }
        let gone = Hand::waiting(queue.recv());
        let mut waiting = Hand::waiting(queue.recv_all());
        drop(gone);
        queue.try_push(round).unwrap();
        assert_eq!(waiting.wakes(), 1);
        queue.try_push(round + 1).unwrap();
        assert_eq!(queue.try_recv(), Ok(round), "the first is the first's, the promise is for one of the two");
        assert_eq!(waiting.poll().unwrap().unwrap(), [round + 1]);
    }
}

#[test]
fn a_close_refuses_what_would_have_gone_in_easily() {
    let queue = filled(0..3);
    queue.close();
    assert_eq!(queue.try_push(3), Err(TryPushError::Closed(3)));
    assert_eq!(now(queue.push(3)), Err(PushError(3)));
    assert_eq!(now(queue.recv_all()).unwrap(), [0, 1, 2]);
    assert_eq!(queue.stats().total, 3);
}

#[test]
fn len_follows_every_push_and_every_receive() {
    let queue = Queue::unbounded();
    for len in 1..=20 {
        assert!(if len % 2 == 0 { now(queue.push(len)).is_ok() } else { queue.try_push(len).is_ok() });
        assert_eq!(queue.len(), len);
    }
    for len in (0..20).rev() {
        assert!(if len % 2 == 0 { now(queue.recv()).is_ok() } else { queue.try_recv().is_ok() });
        assert_eq!(queue.len(), len);
    }
    assert!(queue.is_empty());
}

#[test]
#[should_panic(expected = "polled after completion")]
fn a_push_that_went_in_at_once_is_over() {
    let queue = Queue::unbounded();
    let mut push = Hand::new(queue.push(1));
    assert_eq!(push.poll(), Some(Ok(())));
    push.poll();
}

#[test]
#[should_panic(expected = "polled after completion")]
fn a_recv_that_found_an_item_is_over() {
    let queue = filled(0..2);
    let mut recv = Hand::new(queue.recv());
    assert_eq!(recv.poll(), Some(Ok(0)));
    recv.poll();
}

#[test]
fn debug_shows_the_state() {
    assert_eq!(format!("{:?}", filled([1])), "Queue { len: 1, capacity: None, closed: Some(false) }");
}
