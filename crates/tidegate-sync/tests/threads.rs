//! Two operating-system threads, a million operations.

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_lite::future::block_on;
use support::{Hand, Rng};
use tidegate_sync::{Event, Queue, Semaphore};

/// A million, but for Miri, which would take days.
const MILLION: usize = if cfg!(miri) { 300 } else { 1_000_000 };

/// Runs `work` on two threads at once.
fn on_two_threads<T: Send>(work: impl Fn(usize) -> T + Sync) -> [T; 2] {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let run = |n| {
            start.wait();
            work(n)
        };
        let other = scope.spawn(move || run(1));
        [run(0), other.join().unwrap()]
    })
}

#[test]
fn a_million_acquisitions_never_exceed_the_cap_and_are_all_counted() {
    let slots = Semaphore::new(1);
    let inside = AtomicUsize::new(0);
    on_two_threads(|_| {
        block_on(async {
            for _ in 0..MILLION / 2 {
                let permit = slots.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, SeqCst), 0);
                inside.fetch_sub(1, SeqCst);
                drop(permit);
            }
        });
    });
    let stats = slots.stats();
    assert_eq!((slots.available(), stats.current, stats.peak), (1, 0, 1));
    assert_eq!((stats.total, stats.waiting), (MILLION as u64, 0));
}

#[test]
fn a_million_signals_are_each_consumed_once() {
    let messages = Semaphore::new(0);
    on_two_threads(|n| {
        if n == 0 {
            for _ in 0..MILLION {
                messages.release(1);
            }
        } else {
            block_on(async {
                for _ in 0..MILLION {
                    messages.acquire().await.unwrap().forget();
                }
            });
        }
    });
    let stats = messages.stats();
    assert_eq!((messages.available(), messages.capacity()), (0, 0));
    assert_eq!((stats.total, stats.current, stats.peak), (MILLION as u64, 0, 1));
}

#[test]
fn a_million_items_arrive_in_order() {
    let queue = Queue::bounded(64);
    on_two_threads(|n| {
        block_on(async {
            for item in 0..MILLION {
                if n == 0 {
                    queue.push(item).await.unwrap();
                } else {
                    assert_eq!(queue.recv().await, Ok(item));
                }
            }
        });
    });
    assert_eq!((queue.len(), queue.stats().total), (0, MILLION as u64));
}

#[test]
fn a_million_items_arrive_in_batches_in_order() {
    let queue = Queue::unbounded();
    on_two_threads(|n| {
        block_on(async {
            let mut next = 0;
            while next < MILLION {
                if n == 0 {
                    queue.push(next).await.unwrap();
                    next += 1;
                } else if next % 2 == 0 {
                    for item in queue.recv_all().await.unwrap() {
                        assert_eq!(item, next);
                        next += 1;
                    }
                } else {
                    for item in queue.recv_up_to(7).await.unwrap() {
                        assert_eq!(item, next);
                        next += 1;
                    }
                }
            }
        });
    });
}

#[test]
fn everything_that_pours_in_before_the_close_arrives_in_order() {
    for capacity in [1_000, usize::MAX] {
        let queue = Queue::bounded(capacity);
        on_two_threads(|n| {
            block_on(async {
                if n == 0 {
                    for item in 0..MILLION / 4 {
                        queue.push(item).await.unwrap();
                    }
                    queue.close();
                } else {
                    let mut next = 0;
                    while let Ok(batch) = queue.recv_all().await {
                        assert!((1..=capacity).contains(&batch.len()));
                        for item in batch {
                            assert_eq!(item, next);
                            next += 1;
                        }
                    }
                    assert_eq!(next, MILLION / 4);
                }
            });
        });
        let stats = queue.stats();
        assert_eq!((stats.current, stats.total, stats.waiting), (0, MILLION as u64 / 4, 0));
        assert!(stats.peak <= capacity);
    }
}

#[test]
fn cancelling_at_random_on_two_threads_leaks_no_permit() {
    let slots = Semaphore::new(3);
    let granted = on_two_threads(|n| {
        let mut rng = Rng(n as u64);
        let mut granted = 0;
        let mut waiting = Vec::new();
        for _ in 0..MILLION / 10 {
            match rng.below(4) {
                0 if waiting.len() < 10 => {
                    waiting.push(Hand::new(slots.acquire_many(1 + rng.below(3))));
                }
                0 | 1 if !waiting.is_empty() => {
                    let at = rng.below(waiting.len());
                    drop(waiting.swap_remove(at));
                }
                _ if !waiting.is_empty() => {
                    let at = rng.below(waiting.len());
                    if let Some(permit) = waiting[at].poll() {
                        granted += 1;
                        drop(waiting.swap_remove(at));
                        drop(permit);
                    }
                }
                _ => {}
            }
        }
        granted
    });
    assert_eq!((slots.available(), slots.waiters(), slots.stats().current), (3, 0, 0));
    assert!(slots.stats().total >= granted.iter().sum::<u64>());
    assert!(slots.stats().peak <= 3);
}

#[test]
fn resizing_under_load_ends_exact() {
    let slots = Semaphore::new(4);
    on_two_threads(|n| {
        if n == 0 {
            for _ in 0..MILLION / 20 {
                slots.reduce_permits(3).unwrap();
                slots.add_permits(3);
            }
        } else {
            block_on(async {
                for n in 0..MILLION / 20 {
                    drop(slots.acquire_many(1 + n % 4).await.unwrap());
                }
            });
        }
    });
    assert_eq!((slots.available(), slots.capacity(), slots.stats().current), (4, 4, 0));
    assert!(slots.stats().peak <= 4);
}

#[test]
fn cancelled_receivers_on_two_threads_lose_no_item() {
    const ITEMS: usize = MILLION / 5;
    let queue = Queue::bounded(4);
    on_two_threads(|n| {
        block_on(async {
            let mut next = 0;
            while next < ITEMS {
                if n == 0 {
                    queue.push(next).await.unwrap();
                    next += 1;
                    continue;
                }
                let mut impatient = Hand::new(queue.recv());
                let received = match impatient.poll() {
                    Some(received) => received,
                    None => {
                        drop(impatient);
                        queue.recv().await
                    }
                };
                assert_eq!(received, Ok(next));
                next += 1;
            }
        });
    });
}

/// Runs `work` on a thread of its own and fails, instead of hanging, if a lost wake-up keeps it from ending.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(Duration::from_secs(120)).expect("the work panicked, or it still waits after two minutes")
}

#[test]
fn no_set_of_an_event_is_missed() {
    const ROUNDS: usize = MILLION / 50;
    let [ping, pong] = ends(|| {
        let (ping, pong) = (Event::new(), Event::new());
        on_two_threads(|n| {
            block_on(async {
                for _ in 0..ROUNDS {
                    if n == 0 {
                        ping.set();
                        pong.wait().await;
                        pong.clear();
                    } else {
                        ping.wait().await;
                        ping.clear();
                        pong.set();
                    }
                }
            });
        });
        [ping, pong].map(|event| (event.is_set(), event.stats()))
    });
    for (set, stats) in [ping, pong] {
        assert!(!set);
        assert_eq!((stats.total, stats.waiting), (ROUNDS as u64, 0), "each set ended one wait");
        assert!(stats.peak <= 1);
    }
}

#[test]
fn operations_take_effect_in_the_order_in_which_they_are_posted() {
    // The threads post alternately, so the order of the posts is known, and items must come out in it. The threads wait
    // for nothing but their turn to post.
    const POSTS: usize = MILLION / 50;
    let queue = Queue::unbounded();
    let semaphore = Semaphore::new(0);
    let turn = AtomicUsize::new(0);
    on_two_threads(|n| {
        for post in (n..POSTS).step_by(2) {
            while turn.load(SeqCst) != post {
                thread::yield_now();
            }
            queue.try_push(post).unwrap();
            // In effect when the call returns, not some time later.
            let receipt = semaphore.release_confirmed(1).unwrap();
            assert_eq!((receipt.available, semaphore.available()), (post + 1, post + 1));
            turn.store(post + 1, SeqCst);
        }
    });
    assert_eq!(block_on(queue.recv_all()).unwrap(), (0..POSTS).collect::<Vec<_>>());
}

#[test]
fn what_one_thread_posts_keeps_its_order_while_another_posts_too() {
    const EACH: usize = MILLION / 10;
    let queue = Queue::unbounded();
    on_two_threads(|n| {
        for post in 0..EACH {
            queue.try_push((n, post)).unwrap();
        }
    });
    let mut next = [0; 2];
    for (n, post) in block_on(queue.recv_all()).unwrap() {
        assert_eq!(post, next[n]);
        next[n] += 1;
    }
    assert_eq!(next, [EACH; 2]);
}

/// A waker that does not return before it is allowed to.
struct Stuck {
    entered: Barrier,
    leave: Barrier,
}

impl Wake for Stuck {
    fn wake(self: Arc<Self>) {
        self.entered.wait();
        self.leave.wait();
    }
}

#[test]
fn a_poster_is_not_held_up_by_a_waker_another_poster_is_stuck_in() {
    let semaphore = Semaphore::new(0);
    let stuck = Arc::new(Stuck { entered: Barrier::new(2), leave: Barrier::new(2) });
    let mut waiting = pin!(semaphore.acquire());
    let waker = Waker::from(Arc::clone(&stuck));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|scope| {
        scope.spawn(|| semaphore.release(1));
        stuck.entered.wait();
        // The other thread is inside the waker now. All of this returns meanwhile.
        assert_eq!(semaphore.release_confirmed(2).unwrap().available, 2);
        assert!(semaphore.try_acquire().is_ok());
        semaphore.reduce_permits(1).unwrap();
        assert_eq!(semaphore.stats().total, 2);
        stuck.leave.wait();
    });
}
