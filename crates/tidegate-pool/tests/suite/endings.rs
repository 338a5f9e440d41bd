//! However a task ends, nothing leaks, and its handle and promise resolve.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use tidegate_pool::{JoinError, Pool, Promise, SubmitError, TrySubmitError};
use tidegate_sync::Event;

use super::{Ex, Hand, assert_at_rest, pool, run, settle, spawn, stays, until, yield_now};

/// A promise that keeps what it was settled with.
struct Note<T>(Arc<Mutex<Vec<Result<T, JoinError>>>>, Pool<Ex>);

impl<T> Promise<T> for Note<T> {
    fn settle(self, result: Result<T, JoinError>) {
        assert_eq!(self.1.stats().running, 0, "settled before the slot was free");
        self.0.lock().unwrap().push(result);
    }
}

type Notes<T> = Arc<Mutex<Vec<Result<T, JoinError>>>>;

#[test]
fn a_submitter_dropped_in_line_leaves_no_trace() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.submit(stays(&gate)).await.unwrap();
        let polled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&polled);
        let dropped = Hand::waiting(pool.submit(async move { flag.store(true, SeqCst) }));
        let mut next = Hand::waiting(pool.submit(async { 2 }));
        assert_eq!(pool.stats().waiting, 2);
        drop(dropped);
        assert_eq!((pool.stats().waiting, next.wakes()), (1, 0));
        gate.set();
        running.await.unwrap();
        assert_eq!(next.poll().unwrap().unwrap().await.unwrap(), 2);
        assert!(!polled.load(SeqCst));
        assert_at_rest(&pool);
    });
}

#[test]
fn a_submitter_dropped_with_a_slot_kept_for_it_passes_it_on() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.submit(stays(&gate)).await.unwrap();
        let dropped = Hand::waiting(pool.submit(async {}));
        let mut next = Hand::waiting(pool.submit(async { 2 }));
        gate.set();
        running.await.unwrap();
        assert_eq!((dropped.wakes(), next.wakes()), (1, 0));
        drop(dropped);
        assert_eq!(next.wakes(), 1);
        assert_eq!(next.poll().unwrap().unwrap().await.unwrap(), 2);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_submission_that_is_never_polled_costs_nothing() {
    run(|| async {
        let pool = pool(1);
        drop(pool.submit(async {}));
        assert_eq!(pool.stats(), Default::default());
    });
}

#[test]
fn a_panic_reaches_the_handle_and_frees_the_slot() {
    run(|| async {
        let pool = pool(1);
        for round in 0..10 {
            let task = async move {
                if round % 2 == 0 {
                    yield_now().await;
                }
                panic!("out of paper");
            };
            let Err(JoinError::Panicked(panic)) = pool.try_submit(task).unwrap().await else { unreachable!() };
            assert_eq!(panic.to_string(), "out of paper");
            assert_eq!(pool.stats().running, 0);
        }
        assert_eq!(pool.stats().failed, 10);
        assert_at_rest(&pool);
    });
}

#[test]
fn an_err_counts_as_failed_where_that_was_asked_for() {
    run(|| async {
        let pool = pool(1);
        pool.submit(async { Err::<(), _>(1) }).await.unwrap().await.unwrap().unwrap_err();
        pool.submit_fallible(async { Err::<(), _>(1) }).await.unwrap().await.unwrap().unwrap_err();
        pool.submit_fallible(async { Ok::<_, ()>(1) }).await.unwrap().await.unwrap().unwrap();
        assert_eq!((pool.stats().completed, pool.stats().failed), (2, 1));
    });
}

#[test]
fn a_task_whose_handle_is_dropped_goes_on() {
    run(|| async {
        let pool = pool(1);
        let done = Arc::new(AtomicBool::new(false));
        let gate = Arc::new(Event::new());
        let (flag, stay) = (Arc::clone(&done), stays(&gate));
        drop(
            pool.submit(async move {
                stay.await;
                flag.store(true, SeqCst);
            })
            .await
            .unwrap(),
        );
        assert_eq!(pool.stats().running, 1, "it keeps its slot");
        gate.set();
        until(|| done.load(SeqCst)).await;
        pool.close().await;
        assert_eq!(pool.stats().completed, 1);
    });
}

#[test]
fn a_cancelled_task_frees_its_slot_before_its_handle_says_so() {
    run(|| async {
        let pool = pool(1);
        for started in [false, true] {
            let handle = pool.try_submit(pending::<()>()).unwrap();
            if started {
                settle().await;
            }
            assert!(handle.cancel());
            assert!(matches!(handle.await, Err(JoinError::Cancelled)));
            assert_eq!(pool.stats().running, 0);
        }
        assert_eq!(pool.stats().cancelled, 2);
        let done = pool.submit(async {}).await.unwrap();
        until(|| done.is_finished()).await;
        assert!(!done.cancel(), "too late");
        assert_at_rest(&pool);
    });
}

#[test]
fn a_refused_future_comes_back_unpolled() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.try_submit(stays(&gate)).unwrap();
        let Err(TrySubmitError::Full(refused)) = pool.try_submit(async { 42 }) else { unreachable!() };
        gate.set();
        running.await.unwrap();
        assert_eq!(pool.submit(refused).await.unwrap().await.unwrap(), 42);
        drop(pool.close());
        let Err(TrySubmitError::Closed(refused)) = pool.try_submit(async { 43 }) else { unreachable!() };
        let Err(SubmitError(refused)) = pool.submit(refused).await else { unreachable!() };
        assert_eq!(refused.await, 43);
        assert_eq!(pool.stats().submitted, 2);
    });
}

#[test]
fn closing_gives_those_in_line_their_futures_back_and_waits_for_the_rest() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.submit(stays(&gate)).await.unwrap();
        let mut waiting = Hand::waiting(pool.submit(async { 7 }));
        let mut drained = Hand::waiting(pool.close());
        assert_eq!(waiting.wakes(), 1);
        let Some(Err(SubmitError(future))) = waiting.poll() else { unreachable!() };
        assert_eq!(future.await, 7);
        assert!(drained.poll().is_none(), "one still runs");
        gate.set();
        running.await.unwrap();
        assert_eq!(drained.wakes(), 1);
        assert!(drained.poll().is_some());
        pool.close().await;
        assert_at_rest(&pool);
    });
}

#[test]
fn closing_takes_back_a_slot_that_was_kept_for_a_submitter() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.submit(stays(&gate)).await.unwrap();
        let mut granted = Hand::waiting(pool.submit(async {}));
        gate.set();
        running.await.unwrap();
        assert_eq!(granted.wakes(), 1);
        pool.close().await;
        assert!(matches!(granted.poll(), Some(Err(SubmitError(_)))));
        assert_eq!(pool.stats().submitted, 1);
        assert_at_rest(&pool);
    });
}

#[test]
fn aborting_cancels_what_runs_and_refuses_what_waits() {
    run(|| async {
        let pool = pool(3);
        let handles: Vec<_> = (0..3).map(|_| pool.try_submit(pending::<()>()).unwrap()).collect();
        let mut waiting = Hand::waiting(pool.submit(async {}));
        settle().await;
        pool.abort().await;
        for handle in handles {
            assert!(matches!(handle.await, Err(JoinError::Cancelled)));
        }
        assert!(matches!(waiting.poll(), Some(Err(SubmitError(_)))));
        assert!(pool.is_closed());
        assert_eq!(pool.stats().cancelled, 3);
        assert_at_rest(&pool);
    });
}

#[test]
fn tasks_outlive_the_last_handle_on_their_pool() {
    run(|| async {
        let pool = pool(1);
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        pool.submit(async move {
            settle().await;
            count.fetch_add(1, SeqCst);
        })
        .await
        .unwrap()
        .detach();
        drop(pool);
        until(|| done.load(SeqCst) == 1).await;
    });
}

#[test]
fn a_promise_is_settled_whatever_becomes_of_its_task() {
    run(|| async {
        let pool = pool(1);
        let notes: Notes<u32> = Arc::default();
        let note = || Note(Arc::clone(&notes), pool.clone());
        let last = || notes.lock().unwrap().pop();

        pool.submit_to(note(), async { 1 }).await.unwrap().await.unwrap();
        assert!(matches!(last(), Some(Ok(1))));

        pool.submit_to(note(), async { panic!("no") }).await.unwrap().await.unwrap();
        assert!(matches!(last(), Some(Err(JoinError::Panicked(panic))) if panic.to_string() == "no"));

        for started in [false, true] {
            let handle = pool.submit_to(note(), pending()).await.unwrap();
            if started {
                settle().await;
            }
            handle.cancel();
            assert!(matches!(handle.await, Err(JoinError::Cancelled)));
            assert!(matches!(last(), Some(Err(JoinError::Cancelled))), "started: {started}");
        }
        let stats = pool.stats();
        assert_eq!((stats.completed, stats.failed, stats.cancelled), (1, 1, 2));
        assert!(notes.lock().unwrap().is_empty(), "settled twice");
        assert_at_rest(&pool);
    });
}

#[test]
fn a_promise_whose_task_never_starts_is_cancelled_or_handed_back() {
    run(|| async {
        let pool = pool(0);
        let notes: Notes<u32> = Arc::default();
        let note = || Note(Arc::clone(&notes), pool.clone());
        drop(Hand::waiting(pool.submit_to(note(), async { 1 })));
        assert!(matches!(notes.lock().unwrap().pop(), Some(Err(JoinError::Cancelled))));

        let mut waiting = Hand::waiting(pool.submit_to(note(), async { 2 }));
        drop(pool.close());
        let Some(Err(SubmitError((promise, future)))) = waiting.poll() else { unreachable!() };
        drop(waiting);
        assert!(notes.lock().unwrap().is_empty(), "it was handed back, not settled");
        promise.settle(Ok(future.await));
        assert!(matches!(notes.lock().unwrap().pop(), Some(Ok(2))));
    });
}

#[test]
fn cancelled_submitters_among_running_ones_leak_nothing() {
    run(|| async {
        let pool = pool(3);
        let submitters: Vec<_> = (0..60)
            .map(|n| {
                let pool = pool.clone();
                let task = async move {
                    for _ in 0..n % 5 {
                        yield_now().await;
                    }
                };
                spawn(async move { pool.submit(task).await.unwrap().detach() })
            })
            .collect();
        for (n, submitter) in submitters.iter().enumerate() {
            if n % 3 == 1 {
                submitter.cancel();
            }
            if n % 4 == 0 {
                yield_now().await;
            }
        }
        for submitter in submitters {
            let _ = submitter.await;
        }
        until(|| pool.stats().running == 0).await;
        assert_at_rest(&pool);
        for _ in 0..3 {
            pool.try_submit(pending::<()>()).expect("all slots came back").detach();
        }
        pool.abort().await;
    });
}

/// A waker that panics, once.
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        if !self.0.swap(true, SeqCst) {
            std::panic::resume_unwind(Box::new("the waker's own fault"));
        }
    }
}

#[test]
fn a_waker_that_panics_does_not_cost_the_others_their_wake_up() {
    run(|| async {
        let pool = pool(0);
        let panics = Waker::from(Arc::new(Panics(AtomicBool::new(false))));
        let mut first = Box::pin(pool.submit(async {}));
        assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
        let others: Vec<_> = (0..3).map(|_| Hand::waiting(pool.submit(async {}))).collect();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.resize(4)));
        assert!(caught.is_err());
        assert!(others.iter().all(|hand| hand.wakes() == 1));
    });
}

#[test]
fn waits_for_the_last_task_that_are_dropped_leave_no_trace() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let running = pool.submit(stays(&gate)).await.unwrap();
        let waker = Arc::new(Panics(AtomicBool::new(false)));
        for _ in 0..3 {
            let mut drained = Box::pin(pool.close());
            let waker = Waker::from(Arc::clone(&waker));
            assert!(drained.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&waker), 1, "a waker was kept");
        let mut waits = Hand::waiting(pool.close());
        gate.set();
        running.await.unwrap();
        assert_eq!((waits.wakes(), waits.poll()), (1, Some(())));
    });
}
