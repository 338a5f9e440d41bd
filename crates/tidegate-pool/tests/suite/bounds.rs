//! Never one over, always as many as there are, first come first served.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tidegate_pool::TrySubmitError;
use tidegate_sync::Event;

use super::{Hand, assert_at_rest, pool, run, settle, spawn, stays, until, yield_now};

#[test]
fn a_submitter_waits_while_the_pool_is_full_and_goes_on_when_a_task_ends() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let first = pool.submit(stays(&gate)).await.unwrap();
        let begun = Arc::new(AtomicBool::new(false));
        let second = spawn({
            let (pool, begun) = (pool.clone(), Arc::clone(&begun));
            async move { pool.submit(async move { begun.store(true, SeqCst) }).await.unwrap().await.unwrap() }
        });
        until(|| pool.stats().waiting == 1).await;
        settle().await;
        assert!(!begun.load(SeqCst), "it started past the cap");
        gate.set();
        first.await.unwrap();
        second.await.unwrap();
        assert!(begun.load(SeqCst));
        assert_at_rest(&pool);
    });
}

/// The race test: many submit at once, and the concurrency is looked at wherever it can change.
#[test]
fn twenty_submitters_at_once_never_see_more_than_five_running_and_see_five() {
    run(|| async {
        let pool = pool(5);
        let inside = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let submitters: Vec<_> = (0..20)
            .map(|_| {
                let (pool, inside, seen) = (pool.clone(), Arc::clone(&inside), Arc::clone(&seen));
                spawn(async move {
                    let notes = Arc::clone(&seen);
                    let handle = pool.submit(async move {
                        let now = inside.fetch_add(1, SeqCst) + 1;
                        notes.lock().unwrap().push(now);
                        for _ in 0..10 {
                            yield_now().await;
                            notes.lock().unwrap().push(inside.load(SeqCst));
                        }
                        inside.fetch_sub(1, SeqCst);
                    });
                    let handle = handle.await.unwrap();
                    seen.lock().unwrap().push(pool.stats().running);
                    handle.await.unwrap();
                })
            })
            .collect();
        for submitter in submitters {
            submitter.await.unwrap();
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 20 * 12);
        assert!(seen.iter().all(|&count| count <= 5), "{seen:?}");
        assert_eq!(pool.stats().peak, 5);
        assert_at_rest(&pool);
    });
}

#[test]
fn every_slot_is_taken_whenever_there_is_work() {
    run(|| async {
        let pool = pool(5);
        let gates: Vec<_> = (0..20).map(|_| Arc::new(Event::new())).collect();
        let producer = spawn({
            let (pool, gates) = (pool.clone(), gates.clone());
            async move {
                for gate in &gates {
                    pool.submit(stays(gate)).await.unwrap().detach();
                }
            }
        });
        for (ended, gate) in gates.iter().enumerate() {
            let left = 20 - ended;
            until(|| pool.stats().running == left.min(5)).await;
            gate.set();
            until(|| pool.stats().completed == ended as u64 + 1).await;
        }
        producer.await.unwrap();
        assert_eq!(pool.stats().peak, 5);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_hundred_tasks_all_return_what_they_should() {
    run(|| async {
        let pool = pool(10);
        let mut handles = Vec::new();
        for n in 0..100 {
            let task = async move {
                for _ in 0..n % 7 {
                    yield_now().await;
                }
                n * n
            };
            handles.push(pool.submit(task).await.unwrap());
        }
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.await.unwrap(), n * n);
        }
        assert_eq!(pool.stats().completed, 100);
        assert_at_rest(&pool);
    });
}

#[test]
fn many_producers_lose_no_task_and_pass_no_bound() {
    const PRODUCERS: usize = 8;
    const EACH: usize = 2_000;
    run(|| async {
        let pool = pool(7);
        let (inside, worst, done) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let pool = pool.clone();
                let (inside, worst, done) = (Arc::clone(&inside), Arc::clone(&worst), Arc::clone(&done));
                spawn(async move {
                    for n in 0..EACH {
                        let (inside, worst, done) = (Arc::clone(&inside), Arc::clone(&worst), Arc::clone(&done));
                        let task = async move {
                            worst.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                            if (n + producer) % 3 == 0 {
                                yield_now().await;
                            }
                            done.fetch_add(1, SeqCst);
                            inside.fetch_sub(1, SeqCst);
                        };
                        pool.submit(task).await.unwrap().detach();
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await.unwrap();
        }
        pool.close().await;
        assert_eq!(done.load(SeqCst), PRODUCERS * EACH);
        assert!(worst.load(SeqCst) <= 7, "{} at once", worst.load(SeqCst));
        assert_eq!(pool.stats().peak, 7);
        assert_at_rest(&pool);
    });
}

#[test]
fn slots_are_given_in_the_order_in_which_submitters_came() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let blocker = pool.submit(stays(&gate)).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let submitters: Vec<_> = (0..20)
            .map(|n| {
                let order = Arc::clone(&order);
                Hand::waiting(pool.submit(async move { order.lock().unwrap().push(n) }))
            })
            .collect();
        gate.set();
        blocker.await.unwrap();
        for (n, mut submitter) in submitters.into_iter().enumerate() {
            until(|| pool.stats().running == 0).await;
            assert_eq!(submitter.wakes(), 1, "submitter {n}");
            submitter.poll().unwrap().unwrap().await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert_at_rest(&pool);
    });
}

#[test]
fn no_submitter_gets_past_the_line() {
    run(|| async {
        let pool = pool(2);
        let gate = Arc::new(Event::new());
        let handles = [pool.submit(stays(&gate)).await.unwrap(), pool.submit(stays(&gate)).await.unwrap()];
        let mut first = Hand::waiting(pool.submit(async {}));
        let mut second = Hand::waiting(pool.submit(async {}));
        assert!(second.poll().is_none(), "asking again does not help");
        gate.set();
        for handle in handles {
            handle.await.unwrap();
        }
        // Both slots are free, and kept for the two in line.
        assert!(matches!(pool.try_submit(async {}), Err(TrySubmitError::Full(_))));
        let newcomer = Hand::waiting(pool.submit(async {}));
        second.poll().unwrap().unwrap().await.unwrap();
        assert_eq!(newcomer.wakes(), 1, "the freed slot goes to the newcomer");
        first.poll().unwrap().unwrap().detach();
        drop(newcomer);
        pool.close().await;
        assert_at_rest(&pool);
    });
}

#[test]
fn the_slot_is_free_before_the_handle_resolves() {
    run(|| async {
        let pool = pool(1);
        for n in 0..1_000 {
            let handle = pool.try_submit(async move { n }).expect("the slot was free before the last handle resolved");
            assert_eq!(handle.await.unwrap(), n);
        }
        assert_at_rest(&pool);
    });
}

#[test]
fn what_a_task_holds_is_gone_before_its_slot_is_free() {
    struct Held(tidegate_pool::Pool<super::Ex>, Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            assert_eq!(self.0.stats().running, 1, "another task may have its slot already");
            self.1.fetch_add(1, SeqCst);
        }
    }
    /// Lets go of what it holds when it is dropped, not when it returns.
    struct Keeps(Held);
    impl Future for Keeps {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
            let _still_held = &self.0;
            Poll::Ready(())
        }
    }
    run(|| async {
        let pool = pool(1);
        let dropped = Arc::new(AtomicUsize::new(0));
        let held = || Held(pool.clone(), Arc::clone(&dropped));
        let returns = held();
        pool.submit(async move { drop(returns) }).await.unwrap().await.unwrap();
        let stays = held();
        let cancelled = pool.submit(async move { (std::future::pending::<()>().await, drop(stays)).0 }).await.unwrap();
        settle().await;
        cancelled.cancel();
        assert!(cancelled.await.is_err());
        let kept = held();
        let task = async move {
            let _kept = kept;
            yield_now().await;
        };
        pool.submit(task).await.unwrap().await.unwrap();
        pool.submit(Keeps(held())).await.unwrap().await.unwrap();
        assert_eq!(dropped.load(SeqCst), 4);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_task_makes_progress_though_its_submitter_is_busy() {
    run(|| async {
        let pool = pool(1);
        let done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&done);
        let handle = pool
            .submit(async move {
                settle().await;
                flag.store(true, SeqCst);
            })
            .await
            .unwrap();
        until(|| done.load(SeqCst)).await; // the handle is not polled meanwhile
        handle.await.unwrap();
    });
}

#[test]
fn a_submitter_in_line_is_woken_once_and_not_before_its_turn() {
    run(|| async {
        let pool = pool(2);
        let gates = [Arc::new(Event::new()), Arc::new(Event::new())];
        let handles = [pool.submit(stays(&gates[0])).await.unwrap(), pool.submit(stays(&gates[1])).await.unwrap()];
        let (mut first, mut second) = (Hand::waiting(pool.submit(async {})), Hand::waiting(pool.submit(async {})));
        settle().await;
        assert_eq!((first.wakes(), second.wakes()), (0, 0));
        let [one, two] = handles;
        gates[0].set();
        one.await.unwrap();
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        gates[1].set();
        two.await.unwrap();
        assert_eq!((first.wakes(), second.wakes()), (1, 1));
        first.poll().unwrap().unwrap().await.unwrap();
        second.poll().unwrap().unwrap().await.unwrap();
        assert_eq!((first.wakes(), second.wakes()), (1, 1));
    });
}
