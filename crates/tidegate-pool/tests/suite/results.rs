//! Results by completion, in order, and until something fails.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

use futures_core::Stream;
use tidegate_pool::{JoinError, as_completed};
use tidegate_sync::Event;

use super::{Hand, assert_at_rest, pool, run, settle, spawn, stays, until, yield_now};

#[test]
fn as_completed_yields_results_in_the_order_tasks_end() {
    run(|| async {
        let pool = pool(4);
        let gates: Vec<_> = (0..4).map(|_| Arc::new(Event::new())).collect();
        let mut handles = Vec::new();
        for gate in &gates {
            handles.push(pool.submit(stays(gate)).await.unwrap());
        }
        let mut results = as_completed(handles);
        for index in [2, 0, 3, 1] {
            gates[index].set();
            let (at, result) = results.next().await.unwrap();
            assert_eq!((at, result.unwrap()), (index, ()));
        }
        assert!(results.next().await.is_none());
        assert!(results.next().await.is_none(), "and stays so");
    });
}

#[test]
fn as_completed_yields_panics_and_cancellations_too() {
    run(|| async {
        let pool = pool(3);
        let panics = pool.try_submit(async { panic!("no") }).unwrap();
        let cancelled = pool.try_submit(pending()).unwrap();
        let (mut panicked, mut gone) = (0, 0);
        cancelled.cancel();
        let mut results = as_completed([panics, cancelled]);
        while let Some((_, result)) = results.next().await {
            let result: Result<(), _> = result;
            match result {
                Err(JoinError::Panicked(_)) => panicked += 1,
                Err(JoinError::Cancelled) => gone += 1,
                other => unreachable!("{other:?}"),
            }
        }
        assert_eq!((panicked, gone), (1, 1));
    });
}

#[test]
fn as_completed_polled_from_two_tasks_in_turn_wakes_the_latter() {
    run(|| async {
        let gate = Arc::new(Event::new());
        let mut results = as_completed([pool(1).try_submit(stays(&gate)).unwrap()]);
        drop(Hand::waiting(results.next()));
        let waits = spawn(async move { results.next().await.is_some() });
        settle().await;
        gate.set();
        assert!(waits.await.unwrap());
    });
}

#[test]
fn map_runs_every_item_within_the_cap() {
    run(|| async {
        let pool = pool(5);
        let items = Arc::new(AtomicUsize::new(0));
        let drawn = Arc::clone(&items);
        let numbers = (0..1_000).inspect(move |_| _ = drawn.fetch_add(1, SeqCst));
        let mut squares = pool.map(numbers, |n: u64| async move {
            for _ in 0..n % 3 {
                yield_now().await;
            }
            n * n
        });
        assert_eq!(items.load(SeqCst), 0, "nothing before results are asked for");
        let mut seen = vec![false; 1_000];
        let mut fetched = 0;
        while let Some((index, square)) = squares.next().await {
            fetched += 1;
            assert!(items.load(SeqCst) <= fetched + 10, "drawn ahead of a caller that does not fetch");
            assert_eq!(square.unwrap(), (index * index) as u64);
            assert!(!std::mem::replace(&mut seen[index], true));
        }
        assert!(seen.into_iter().all(|seen| seen));
        assert_eq!(pool.stats().peak, 5);
        until(|| pool.stats().running == 0).await;
        assert_at_rest(&pool);
    });
}

#[test]
fn map_ordered_keeps_the_order_of_the_items() {
    run(|| async {
        let pool = pool(8);
        let squares = pool.map_ordered(0..500u64, |n| async move {
            for _ in 0..(n * 7919) % 13 {
                yield_now().await;
            }
            n * n
        });
        let expected: Vec<_> = (0..500).map(|n| n * n).collect();
        assert_eq!(squares.collect().await.unwrap(), expected);
        assert_eq!(pool.stats().peak, 8);
    });
}

#[test]
fn map_yields_every_failure_and_goes_on() {
    run(|| async {
        let pool = pool(2);
        let mut results = pool.map(0..9, |n| async move {
            assert!(n % 3 != 1, "panics on purpose");
            n
        });
        let (mut good, mut bad) = (0, 0);
        while let Some((_, result)) = results.next().await {
            match result {
                Ok(_) => good += 1,
                Err(JoinError::Panicked(_)) => bad += 1,
                Err(other) => unreachable!("{other:?}"),
            }
        }
        assert_eq!((good, bad), (6, 3));
        assert_eq!((pool.stats().completed, pool.stats().failed), (6, 3));
    });
}

#[test]
fn map_stops_at_the_first_error_if_asked_to() {
    run(|| async {
        let pool = pool(2);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let mut results = pool
            .map(0.., move |n| {
                count.fetch_add(1, SeqCst);
                async move {
                    if n == 1 {
                        pending::<()>().await;
                    }
                    if n == 5 { Err("five") } else { Ok(n) }
                }
            })
            .stop_on_error();
        let mut last = None;
        while let Some((index, result)) = results.next().await {
            last = Some((index, result.unwrap()));
        }
        assert_eq!(last, Some((5, Err("five"))));
        assert!(begun.load(SeqCst) <= 5 + 1 + 4, "{} were begun", begun.load(SeqCst));
        assert!(results.next().await.is_none());
        until(|| pool.stats().running == 0).await; // the one that hung was cancelled
        assert!(pool.stats().cancelled >= 1);
        assert_at_rest(&pool);
    });
}

#[test]
fn map_in_order_yields_what_comes_before_the_first_error() {
    run(|| async {
        let pool = pool(4);
        let gate = Arc::new(Event::new());
        let opens = Arc::clone(&gate);
        let results = pool
            .map_ordered(0..100, move |n| {
                let gate = Arc::clone(&opens);
                async move {
                    match n {
                        0 | 1 => gate.wait().await,
                        2 => return Err("two"),
                        _ => pending().await,
                    }
                    Ok(n)
                }
            })
            .stop_on_error();
        let mut results = results;
        assert!(Hand::waiting(results.next()).poll().is_none());
        settle().await;
        assert!(Hand::waiting(results.next()).poll().is_none(), "those before it still run");
        gate.set();
        let mut yielded = Vec::new();
        while let Some((index, result)) = results.next().await {
            yielded.push((index, result.unwrap()));
        }
        assert_eq!(yielded, [(0, Ok(0)), (1, Ok(1)), (2, Err("two"))]);
        until(|| pool.stats().running == 0).await;
        assert_at_rest(&pool);
    });
}

#[test]
fn a_map_that_is_dropped_cancels_its_tasks_and_leaves_the_line() {
    run(|| async {
        let pool = pool(2);
        let mut results = pool.map(0.., |_| pending::<()>());
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut results).poll_next(cx).is_ready()));
        assert!(!polled.await);
        settle().await;
        assert_eq!((pool.stats().running, pool.stats().waiting), (2, 1));
        drop(results);
        until(|| pool.stats().running == 0).await;
        assert_eq!(pool.stats().cancelled, 2);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_map_says_so_if_its_pool_is_closed_under_it() {
    run(|| async {
        let pool = pool(2);
        let gate = Arc::new(Event::new());
        let opens = Arc::clone(&gate);
        let mut results = pool.map(0..10, move |_| stays(&opens));
        drop(Hand::waiting(results.next()));
        drop(pool.close());
        gate.set();
        let (mut done, mut never) = (0, 0);
        while let Some((_, result)) = results.next().await {
            match result {
                Ok(()) => done += 1,
                Err(JoinError::NeverStarted) => never += 1,
                Err(other) => unreachable!("{other:?}"),
            }
        }
        assert_eq!((done, never), (2, 1));
    });
}

#[test]
fn two_maps_share_a_pool_and_both_end() {
    run(|| async {
        let pool = pool(3);
        let one = spawn(pool_sum(&pool, 300));
        let two = spawn(pool_sum(&pool, 300));
        assert_eq!((one.await.unwrap(), two.await.unwrap()), (44_850, 44_850));
        assert!(pool.stats().peak <= 3);
    });
}

fn pool_sum(pool: &tidegate_pool::Pool<super::Ex>, count: u64) -> impl Future<Output = u64> + use<> {
    let pool = pool.clone();
    async move {
        let values = pool.map(0..count, |n| async move {
            yield_now().await;
            n
        });
        values.collect().await.unwrap().into_iter().sum()
    }
}

#[test]
fn a_stream_of_items_is_drawn_as_slots_come_free() {
    run(|| async {
        let pool = pool(2);
        let firsts = pool.map(0..50u64, |n| async move { n });
        let doubled = super::pool(3).map_stream(firsts, |(_, n)| async move { n.unwrap() * 2 });
        let sum: u64 = doubled.collect().await.unwrap().into_iter().sum();
        assert_eq!(sum, 2_450);
    });
}

/// The caller may use the same pool between two results. A map that stayed in line without being polled would get a slot
/// and keep it for ever.
#[test]
fn a_map_between_two_results_keeps_no_slot() {
    run(|| async {
        let pool = pool(1);
        let mut results = pool.map(0..5, |n| async move { n }).window(4);
        let mut sum = 0;
        while let Some((_, n)) = results.next().await {
            // Let the running tasks end, so that their slots go to the first in line.
            settle().await;
            sum += pool.submit(async move { n.unwrap() }).await.unwrap().await.unwrap();
        }
        assert_eq!(sum, 10);
        assert_at_rest(&pool);
    });
}

#[test]
fn a_map_whose_next_result_is_no_longer_awaited_keeps_no_slot() {
    run(|| async {
        let pool = pool(1);
        let gate = Arc::new(Event::new());
        let held = pool.submit(stays(&gate)).await.unwrap();
        let mut results = pool.map(0..3, |n| async move { n });
        drop(Hand::waiting(results.next()));
        assert_eq!(pool.stats().waiting, 0, "it would keep a slot without being polled");
        let late = spawn({
            let pool = pool.clone();
            async move { pool.submit(async {}).await.unwrap().await.unwrap() }
        });
        gate.set();
        held.await.unwrap();
        late.await.unwrap();
        assert_eq!(results.collect().await.unwrap(), [0, 1, 2]);
    });
}
