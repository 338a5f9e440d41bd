//! The primitives among real tasks, on every executor we have an adaptor for.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use support::executor::{Executor, spawn};
use support::yield_now;
use tidegate_sync::{Closed, Event, Mutex, Queue, Semaphore};

on_every_executor!(
    acquire_and_release_work,
    one_release_wakes_one_waiter,
    initial_count_lets_as_many_in,
    batch_release_lets_as_many_in,
    try_acquire_takes_what_is_free,
    ten_consumers_share_a_hundred_messages,
    producers_and_consumers_under_stress,
    never_more_than_the_cap_inside,
    cancelled_waiters_leak_nothing_among_running_ones,
    event_ends_every_wait,
    queue_delivers_every_item_once,
    bounded_queue_holds_its_producers_back,
    recv_all_drains_a_burst,
    closing_ends_consumers_after_the_last_item,
    mutex_counts_without_losing_one,
);

fn acquire_and_release_work<E: Executor>() {
    E::run(async {
        let semaphore = Arc::new(Semaphore::new(0));
        let inner = Arc::clone(&semaphore);
        let acquired = spawn::<E, _>(async move { inner.acquire().await.map(|p| p.forget()) });
        semaphore.release(1);
        acquired.await.unwrap();
        assert_eq!(semaphore.available(), 0);
    });
}

fn one_release_wakes_one_waiter<E: Executor>() {
    E::run(async {
        let semaphore = Arc::new(Semaphore::new(0));
        let served = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (semaphore, served) = (Arc::clone(&semaphore), Arc::clone(&served));
                spawn::<E, _>(async move {
                    semaphore.acquire().await.unwrap().forget();
                    served.fetch_add(1, SeqCst);
                })
            })
            .collect();
        while semaphore.waiters() < 3 {
            yield_now().await;
        }
        for released in 1..=3 {
            let receipt = semaphore.release_confirmed(1).unwrap();
            assert_eq!((receipt.woken, receipt.available), (1, 0));
            while served.load(SeqCst) < released {
                yield_now().await;
            }
            assert_eq!(semaphore.waiters(), 3 - released);
        }
        for task in tasks {
            task.await;
        }
    });
}

fn initial_count_lets_as_many_in<E: Executor>() {
    E::run(async {
        let semaphore = Arc::new(Semaphore::new(3));
        for _ in 0..3 {
            semaphore.acquire().await.unwrap().forget();
        }
        assert!(semaphore.try_acquire().is_err());
    });
}

fn batch_release_lets_as_many_in<E: Executor>() {
    E::run(async {
        let semaphore = Arc::new(Semaphore::new(0));
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let semaphore = Arc::clone(&semaphore);
                spawn::<E, _>(async move { semaphore.acquire().await.unwrap().forget() })
            })
            .collect();
        semaphore.release(5);
        for task in tasks {
            task.await;
        }
        assert_eq!(semaphore.available(), 0);
    });
}

fn try_acquire_takes_what_is_free<E: Executor>() {
    E::run(async {
        let semaphore = Semaphore::new(1);
        let permit = semaphore.try_acquire().unwrap();
        assert!(semaphore.try_acquire().is_err());
        drop(permit);
        assert!(semaphore.try_acquire().is_ok());
    });
}

fn ten_consumers_share_a_hundred_messages<E: Executor>() {
    E::run(async {
        let messages = Arc::new(Semaphore::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let consumed = Arc::new(AtomicUsize::new(0));
        let consumers: Vec<_> = (0..10)
            .map(|_| {
                let (messages, stop, consumed) = (Arc::clone(&messages), Arc::clone(&stop), Arc::clone(&consumed));
                spawn::<E, _>(async move {
                    while let Ok(message) = messages.acquire().await {
                        message.forget();
                        if stop.load(SeqCst) {
                            break;
                        }
                        consumed.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            messages.release(1);
        }
        while consumed.load(SeqCst) < 100 {
            yield_now().await;
        }
        assert_eq!((consumed.load(SeqCst), messages.available()), (100, 0));
        stop.store(true, SeqCst);
        messages.release(10);
        for consumer in consumers {
            consumer.await;
        }
        assert_eq!((consumed.load(SeqCst), messages.available()), (100, 0));
    });
}

fn producers_and_consumers_under_stress<E: Executor>() {
    const PRODUCERS: usize = 4;
    const EACH: usize = 2_000;
    E::run(async {
        let messages = Arc::new(Semaphore::new(0));
        let consumers: Vec<_> = (0..PRODUCERS * 2)
            .map(|_| {
                let messages = Arc::clone(&messages);
                spawn::<E, _>(async move {
                    for _ in 0..EACH / 2 {
                        messages.acquire().await.unwrap().forget();
                    }
                })
            })
            .collect();
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|_| {
                let messages = Arc::clone(&messages);
                spawn::<E, _>(async move {
                    for n in 0..EACH {
                        messages.release(1);
                        if n % 7 == 0 {
                            yield_now().await;
                        }
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await;
        }
        for consumer in consumers {
            consumer.await;
        }
        let stats = messages.stats();
        assert_eq!((messages.available(), stats.waiting), (0, 0));
        assert_eq!(stats.total, (PRODUCERS * EACH) as u64);
    });
}

fn never_more_than_the_cap_inside<E: Executor>() {
    const CAP: usize = 3;
    E::run(async {
        let slots = Arc::new(Semaphore::new(CAP));
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let (slots, inside) = (Arc::clone(&slots), Arc::clone(&inside));
                spawn::<E, _>(async move {
                    for _ in 0..50 {
                        let need = 1 + n % CAP;
                        let permit = slots.acquire_many(need).await.unwrap();
                        let now = inside.fetch_add(need, SeqCst) + need;
                        assert!(now <= CAP, "{now} inside");
                        yield_now().await;
                        inside.fetch_sub(need, SeqCst);
                        drop(permit);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!((slots.available(), slots.stats().peak), (CAP, CAP));
    });
}

fn cancelled_waiters_leak_nothing_among_running_ones<E: Executor>() {
    E::run(async {
        let slots = Arc::new(Semaphore::new(2));
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let slots = Arc::clone(&slots);
                spawn::<E, _>(async move {
                    for round in 0..100 {
                        if (n + round) % 3 == 0 {
                            // Polled once, perhaps granted before it is dropped.
                            let mut acquire = Box::pin(slots.acquire());
                            let polled =
                                std::future::poll_fn(|cx| std::task::Poll::Ready(acquire.as_mut().poll(cx).is_ready()));
                            polled.await;
                            yield_now().await;
                        } else {
                            let permit = slots.acquire().await.unwrap();
                            yield_now().await;
                            drop(permit);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!((slots.available(), slots.waiters(), slots.stats().current), (2, 0, 0));
    });
}

fn event_ends_every_wait<E: Executor>() {
    E::run(async {
        let ready = Arc::new(Event::new());
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let ready = Arc::clone(&ready);
                spawn::<E, _>(async move { ready.wait().await })
            })
            .collect();
        while ready.stats().waiting < 10 {
            yield_now().await;
        }
        ready.set();
        for task in tasks {
            task.await;
        }
    });
}

fn queue_delivers_every_item_once<E: Executor>() {
    const PRODUCERS: usize = 3;
    const EACH: usize = 1_000;
    E::run(async {
        let queue = Arc::new(Queue::bounded(8));
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                spawn::<E, _>(async move {
                    let mut received = Vec::new();
                    while let Ok(item) = queue.recv().await {
                        received.push(item);
                    }
                    received
                })
            })
            .collect();
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let queue = Arc::clone(&queue);
                spawn::<E, _>(async move {
                    for n in 0..EACH {
                        queue.push((producer, n)).await.unwrap();
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await;
        }
        queue.close();
        let mut all = Vec::new();
        for consumer in consumers {
            let received = consumer.await;
            for producer in 0..PRODUCERS {
                let own = received.iter().filter(|item| item.0 == producer);
                assert!(own.is_sorted(), "a producer's items came out of order");
            }
            all.extend(received);
        }
        all.sort_unstable();
        let expected: Vec<_> = (0..PRODUCERS).flat_map(|producer| (0..EACH).map(move |n| (producer, n))).collect();
        assert_eq!(all, expected);
        assert!(queue.stats().peak <= 8);
    });
}

fn bounded_queue_holds_its_producers_back<E: Executor>() {
    E::run(async {
        let queue = Arc::new(Queue::bounded(2));
        let inner = Arc::clone(&queue);
        let producer = spawn::<E, _>(async move {
            for n in 0..5 {
                inner.push(n).await.unwrap();
            }
        });
        while queue.stats().waiting == 0 {
            yield_now().await;
        }
        assert_eq!(queue.len(), 2);
        for n in 0..5 {
            assert_eq!(queue.recv().await, Ok(n));
        }
        producer.await;
    });
}

fn recv_all_drains_a_burst<E: Executor>() {
    E::run(async {
        let queue = Arc::new(Queue::unbounded());
        let inner = Arc::clone(&queue);
        let consumer = spawn::<E, _>(async move {
            let mut received = Vec::new();
            while let Ok(batch) = inner.recv_all().await {
                received.extend(batch);
            }
            received
        });
        for n in 0..1_000 {
            queue.try_push(n).unwrap();
            if n % 100 == 0 {
                yield_now().await;
            }
        }
        queue.close();
        assert_eq!(consumer.await, (0..1_000).collect::<Vec<_>>());
    });
}

fn closing_ends_consumers_after_the_last_item<E: Executor>() {
    E::run(async {
        let queue = Arc::new(Queue::unbounded());
        queue.try_push(1).unwrap();
        queue.close();
        assert_eq!((queue.recv().await, queue.recv().await), (Ok(1), Err(Closed)));
    });
}

fn mutex_counts_without_losing_one<E: Executor>() {
    E::run(async {
        let count = Arc::new(Mutex::new(0));
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let count = Arc::clone(&count);
                spawn::<E, _>(async move {
                    for _ in 0..100 {
                        let mut count = count.lock().await;
                        let before = *count;
                        yield_now().await;
                        *count = before + 1;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(*count.lock().await, 1_000);
    });
}
