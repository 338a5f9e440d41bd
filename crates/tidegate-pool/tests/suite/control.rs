//! Resizing, watermarks, pausing: in effect when they return.

use std::sync::Arc;

use tidegate_pool::{JoinHandle, Pool, Watermarks};
use tidegate_sync::Event;

use super::{Ex, Hand, assert_at_rest, pool, run, stays};

/// Starts `count` tasks that stay. Returns the event that ends each, and its handle.
async fn fill(pool: &Pool<Ex>, count: usize) -> Vec<(Arc<Event>, JoinHandle<(), Ex>)> {
    let mut running = Vec::new();
    for _ in 0..count {
        let gate = Arc::new(Event::new());
        let handle = pool.submit(stays(&gate)).await.unwrap();
        running.push((gate, handle));
    }
    running
}

async fn end_one(running: &mut Vec<(Arc<Event>, JoinHandle<(), Ex>)>) {
    let (gate, handle) = running.remove(0);
    gate.set();
    handle.await.unwrap();
}

#[test]
fn growing_lets_as_many_more_in_as_there_are_slots() {
    run(|| async {
        let pool = pool(1);
        let mut running = fill(&pool, 1).await;
        let mut waiting: Vec<_> = (0..5).map(|_| Hand::waiting(pool.submit(async {}))).collect();
        pool.resize(4);
        let woken: Vec<_> = waiting.iter().map(Hand::wakes).collect();
        assert_eq!(woken, [1, 1, 1, 0, 0]);
        assert!(waiting[3].poll().is_none());
        for submitter in &mut waiting[..3] {
            submitter.poll().unwrap().unwrap().detach();
        }
        assert_eq!(pool.stats().peak, 4);
        waiting.clear();
        end_one(&mut running).await;
        pool.close().await;
        assert_at_rest(&pool);
    });
}

#[test]
fn shrinking_under_load_is_exact() {
    run(|| async {
        let pool = pool(5);
        let mut running = fill(&pool, 5).await;
        let mut waiting = Hand::waiting(pool.submit(async {}));
        pool.resize(2);
        for left in (2..5).rev() {
            end_one(&mut running).await;
            assert_eq!(pool.stats().running, left);
            assert!(waiting.poll().is_none(), "{left} run, and 2 may");
            assert!(pool.try_submit(async {}).is_err());
        }
        end_one(&mut running).await;
        waiting.poll().expect("one runs, and 2 may").unwrap().await.unwrap();
        end_one(&mut running).await;
        assert_at_rest(&pool);
    });
}

#[test]
fn shrinking_takes_back_a_slot_that_was_not_taken_yet() {
    run(|| async {
        let pool = pool(2);
        let mut running = fill(&pool, 2).await;
        let mut first = Hand::waiting(pool.submit(async { 1 }));
        let mut second = Hand::waiting(pool.submit(async { 2 }));
        end_one(&mut running).await;
        end_one(&mut running).await;
        assert_eq!((first.wakes(), second.wakes()), (1, 1));
        pool.resize(1);
        assert!(second.poll().is_none(), "there is one slot, and it is the first one's");
        let one = first.poll().expect("it is still the first one's").unwrap();
        assert_eq!((one.await.unwrap(), second.wakes()), (1, 2));
        assert_eq!(second.poll().unwrap().unwrap().await.unwrap(), 2);
        assert_eq!(pool.stats().peak, 2);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_pool_without_slots_starts_nothing_until_it_has_some() {
    run(|| async {
        let pool = pool(0);
        let mut waiting = Hand::waiting(pool.submit(async { 1 }));
        assert!(pool.try_submit(async {}).is_err());
        pool.resize(1);
        assert_eq!(waiting.poll().unwrap().unwrap().await.unwrap(), 1);
    });
}

#[test]
fn pausing_stops_all_starts_and_resuming_starts_in_order() {
    run(|| async {
        let pool = pool(2);
        let mut running = fill(&pool, 1).await;
        pool.pause();
        assert!(pool.is_paused());
        let mut first = Hand::waiting(pool.submit(async { 1 }));
        let mut second = Hand::waiting(pool.submit(async { 2 }));
        end_one(&mut running).await;
        assert_eq!((first.wakes(), second.wakes()), (0, 0));
        pool.resize(1);
        pool.resume();
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        pool.pause();
        assert!(first.poll().is_none(), "paused again before it came");
        pool.resume();
        assert_eq!(first.poll().unwrap().unwrap().await.unwrap(), 1);
        assert_eq!(second.poll().unwrap().unwrap().await.unwrap(), 2);
        assert_at_rest(&pool);
    });
}

#[test]
fn above_the_high_watermark_nothing_starts_until_the_low_one() {
    run(|| async {
        let pool = pool(100);
        pool.set_watermarks(Some(Watermarks { high: 5, low: 2 }));
        let mut running = fill(&pool, 5).await;
        // Tasks that stay: another thread may run them before they are counted here.
        let gate = Arc::new(Event::new());
        let mut waiting: Vec<_> = (0..5).map(|_| Hand::waiting(pool.submit(stays(&gate)))).collect();
        for left in [4, 3] {
            end_one(&mut running).await;
            assert_eq!(pool.stats().running, left);
            assert!(waiting.iter().all(|submitter| submitter.wakes() == 0), "{left} run");
            assert!(pool.try_submit(async {}).is_err(), "{left} run");
        }
        end_one(&mut running).await; // two are left: the low mark
        let woken: Vec<_> = waiting.iter().map(Hand::wakes).collect();
        assert_eq!(woken, [1, 1, 1, 0, 0], "as many as fit below the high mark");
        for submitter in &mut waiting[..2] {
            submitter.poll().unwrap().unwrap().detach();
        }
        assert_eq!(pool.stats().running, 4, "below the high mark starts go on");
        waiting.clear();
        gate.set();
        while !running.is_empty() {
            end_one(&mut running).await;
        }
        pool.close().await;
        assert_eq!(pool.stats().peak, 5);
        assert_at_rest(&pool);
    });
}

#[test]
fn watermarks_set_under_load_hold_at_once_and_may_be_lifted() {
    run(|| async {
        let pool = pool(10);
        let mut running = fill(&pool, 4).await;
        pool.set_watermarks(Some(Watermarks { high: 3, low: 1 }));
        assert_eq!(pool.watermarks(), Some(Watermarks { high: 3, low: 1 }));
        let mut waiting = Hand::waiting(pool.submit(async {}));
        end_one(&mut running).await;
        end_one(&mut running).await;
        assert_eq!((pool.stats().running, waiting.wakes()), (2, 0));
        pool.set_watermarks(None);
        waiting.poll().expect("there is no mark any more").unwrap().detach();
        while !running.is_empty() {
            end_one(&mut running).await;
        }
        pool.close().await;
        assert_at_rest(&pool);
    });
}

#[test]
fn a_high_mark_above_the_cap_changes_nothing() {
    run(|| async {
        let pool = pool(2);
        pool.set_watermarks(Some(Watermarks { high: 3, low: 0 }));
        let mut running = fill(&pool, 2).await;
        let mut waiting = Hand::waiting(pool.submit(async {}));
        end_one(&mut running).await;
        waiting.poll().expect("the cap alone decides").unwrap().await.unwrap();
        end_one(&mut running).await;
    });
}

#[test]
#[should_panic(expected = "must be less than")]
fn a_low_mark_that_is_not_below_the_high_one_is_refused() {
    pool(2).set_watermarks(Some(Watermarks { high: 3, low: 3 }));
}
