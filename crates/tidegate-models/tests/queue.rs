//! The queue: no lost wake-up, no lost item, first in, first out.

mod support;

use std::collections::VecDeque;
use std::sync::Arc;

use loom::future::block_on;
use loom::thread;
use support::{check, poll_once};
use tidegate_models::primitives::{Closed, PushError, Queue};

#[test]
fn a_push_reaches_the_consumer() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let producer = Arc::clone(&queue);
        let thread = thread::spawn(move || producer.try_push(1).unwrap());
        assert_eq!(block_on(queue.recv()), Ok(1));
        thread.join().unwrap();
    });
}

#[test]
fn a_producer_that_waited_for_room_pushes_in_order() {
    check(|| {
        let queue = Arc::new(Queue::bounded(1));
        let producer = Arc::clone(&queue);
        let thread = thread::spawn(move || {
            for item in 0..3 {
                block_on(producer.push(item)).unwrap();
            }
        });
        for item in 0..3 {
            assert_eq!(block_on(queue.recv()), Ok(item));
        }
        thread.join().unwrap();
        assert_eq!(queue.stats().peak, 1);
    });
}

#[test]
fn two_consumers_get_one_item_each() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || block_on(queue.recv()).unwrap())
            })
            .collect();
        queue.try_push(1).unwrap();
        queue.try_push(2).unwrap();
        let sum: i32 = consumers.into_iter().map(|consumer| consumer.join().unwrap()).sum();
        assert_eq!((sum, queue.len()), (3, 0));
    });
}

#[test]
fn a_cancelled_consumer_passes_its_item_on() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let canceller = Arc::clone(&queue);
        let cancel = thread::spawn(move || {
            let mut recv = Box::pin(canceller.recv());
            poll_once(recv.as_mut()).is_some()
        });
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || {
            producer.try_push(1).unwrap();
            producer.try_push(2).unwrap();
        });
        // Two items: this consumer gets one of them, whether or not the other one is cancelled in time.
        assert!(block_on(queue.recv()).is_ok());
        push.join().unwrap();
        let taken = usize::from(cancel.join().unwrap());
        assert_eq!(queue.len(), 1 - taken);
        assert_eq!(queue.try_recv().is_ok(), taken == 0);
    });
}

#[test]
fn recv_all_and_recv_share_the_items() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || {
            for item in 0..3 {
                producer.try_push(item).unwrap();
            }
        });
        let mut received = vec![block_on(queue.recv()).unwrap()];
        while received.len() < 3 {
            received.extend(block_on(queue.recv_all()).unwrap());
        }
        push.join().unwrap();
        assert_eq!(received, [0, 1, 2]);
    });
}

#[test]
fn buffers_that_change_places_keep_the_order() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || {
            for item in 0..3 {
                producer.try_push(item).unwrap();
            }
        });
        let (mut received, mut batch) = (Vec::new(), VecDeque::with_capacity(2));
        while received.len() < 3 {
            assert_eq!(block_on(queue.recv_all_into(&mut batch)), Ok(batch.len()));
            received.extend(batch.drain(..));
        }
        push.join().unwrap();
        assert_eq!(received, [0, 1, 2]);
        assert_eq!((queue.len(), queue.stats().total), (0, 3));
    });
}

#[test]
fn items_pushed_before_the_close_arrive_in_batches_and_in_order() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || {
            for item in 0..4 {
                producer.try_push(item).unwrap();
            }
            producer.close();
        });
        let mut received = Vec::new();
        while let Ok(batch) = block_on(queue.recv_all()) {
            assert!(!batch.is_empty());
            received.extend(batch);
        }
        push.join().unwrap();
        assert_eq!(received, [0, 1, 2, 3]);
        assert_eq!((queue.len(), queue.stats().total), (0, 4));
    });
}

#[test]
fn two_consumers_of_batches_share_the_items_and_the_figures_add_up() {
    check(|| {
        let queue = Arc::new(Queue::unbounded());
        let other = Arc::clone(&queue);
        let consumer = thread::spawn(move || block_on(other.recv_all()).unwrap());
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || {
            for item in 0..3 {
                producer.try_push(item).unwrap();
            }
        });
        push.join().unwrap();
        let theirs = consumer.join().unwrap();
        let left = poll_once(Box::pin(queue.recv_all()).as_mut()).map_or(0, |batch| batch.unwrap().len());
        assert_eq!(theirs.len() + left, 3);
        assert!(theirs.iter().copied().eq(0..theirs.len()));
        let stats = queue.stats();
        assert_eq!((stats.current, stats.total), (0, 3));
        assert!(stats.peak >= left.max(theirs.len()) && stats.peak <= 3);
    });
}

#[test]
fn close_ends_every_wait_and_returns_the_value() {
    check(|| {
        let queue = Arc::new(Queue::bounded(1));
        queue.try_push(1).unwrap();
        let producer = Arc::clone(&queue);
        let push = thread::spawn(move || block_on(producer.push(2)));
        let closer = Arc::clone(&queue);
        let close = thread::spawn(move || closer.close());
        let mut received = Vec::new();
        while let Ok(item) = block_on(queue.recv()) {
            received.push(item);
        }
        close.join().unwrap();
        match push.join().unwrap() {
            Ok(()) => assert_eq!(received, [1, 2]),
            Err(PushError(value)) => assert_eq!((value, received), (2, vec![1])),
        }
        assert_eq!(block_on(queue.recv()), Err(Closed));
    });
}
