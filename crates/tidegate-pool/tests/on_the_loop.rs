//! What tidegate's loop adds: futures that are not `Send`, virtual time, cancellation that can be caught.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;

use tidegate_loop::{
    Duration, EventLoop, FutureError, LoopHandle, Runner, When, catch_cancel, sleep, spawn, wait, yield_now,
};
use tidegate_pool::{JoinError, Pool, as_completed};

const MS: Duration = Duration::from_millis(1);

/// In virtual time, first come first served.
fn run(main: impl Future<Output = ()> + 'static) {
    Runner::new(EventLoop::builder().virtual_time().build().unwrap()).run(main).unwrap();
}

#[test]
fn futures_need_not_be_send() {
    run(async {
        let shared = Rc::new(Cell::new(0));
        let pool = Pool::new(3);
        for n in 0..10 {
            let shared = Rc::clone(&shared);
            pool.submit(async move { shared.set(shared.get() + n) }).await.unwrap().detach();
        }
        pool.close().await;
        assert_eq!(shared.get(), 45);
    });
}

#[test]
fn tasks_of_a_millisecond_take_as_long_as_the_cap_says() {
    run(async {
        let pool = Pool::new(5);
        let begun = LoopHandle::current().time();
        for _ in 0..50 {
            pool.submit(sleep(MS)).await.unwrap().detach();
        }
        pool.close().await;
        assert_eq!(LoopHandle::current().time() - begun, 10 * MS);
    });
}

#[test]
fn time_in_line_is_counted_exactly() {
    run(async {
        let pool = Pool::new(1);
        pool.submit(sleep(3 * MS)).await.unwrap().detach();
        assert_eq!(pool.stats().waited, Duration::ZERO, "a slot was free");
        let gives_up = spawn({
            let pool = pool.clone();
            async move { pool.submit(async {}).await.unwrap().detach() }
        });
        sleep(MS).await;
        gives_up.cancel();
        assert!(gives_up.await.is_err());
        assert_eq!(pool.stats().waited, MS);
        pool.submit(async {}).await.unwrap().detach();
        assert_eq!(pool.stats().waited, 3 * MS, "2 ms more");
    });
}

#[test]
fn a_task_that_catches_its_cancellation_keeps_its_slot_until_it_ends() {
    run(async {
        let pool = Pool::new(1);
        let handle = pool
            .submit(async {
                assert!(catch_cancel(pending::<()>()).await.is_err());
                sleep(MS).await; // cleans up
                "cleaned up"
            })
            .await
            .unwrap();
        yield_now().await;
        handle.cancel();
        yield_now().await;
        yield_now().await;
        assert!(pool.try_submit(async {}).is_err(), "it is still at it");
        assert_eq!(handle.await.unwrap(), "cleaned up");
        assert_eq!((pool.stats().completed, pool.stats().cancelled), (1, 0));
    });
}

#[test]
fn abort_waits_for_those_that_clean_up() {
    run(async {
        let pool = Pool::new(1);
        let cleaned = Rc::new(Cell::new(false));
        let flag = Rc::clone(&cleaned);
        let task = async move {
            let _ = catch_cancel(pending::<()>()).await;
            sleep(MS).await;
            flag.set(true);
        };
        pool.submit(task).await.unwrap().detach();
        yield_now().await;
        pool.abort().await;
        assert!(cleaned.get());
    });
}

#[test]
fn cancelling_a_task_that_awaits_a_handle_cancels_the_task_behind_it() {
    run(async {
        let pool = Pool::new(1);
        let handle = pool.submit(pending::<()>()).await.unwrap();
        let awaiting = spawn(handle);
        yield_now().await;
        awaiting.cancel();
        assert!(matches!(awaiting.await, Err(tidegate_loop::JoinError::Cancelled)));
        assert_eq!((pool.stats().running, pool.stats().cancelled), (0, 1));
    });
}

#[test]
fn cancelling_a_task_that_watches_many_leaves_them_alone() {
    run(async {
        let pool = Pool::new(2);
        let handles = [pool.submit(sleep(MS)).await.unwrap(), pool.submit(sleep(MS)).await.unwrap()];
        let watching = spawn(async move { as_completed(handles).next().await.is_some() });
        yield_now().await;
        yield_now().await;
        watching.cancel();
        assert!(watching.await.is_err());
        pool.close().await;
        assert_eq!((pool.stats().completed, pool.stats().cancelled), (2, 0));
    });
}

#[test]
fn the_loops_own_wait_takes_a_pools_handles() {
    run(async {
        let pool = Pool::new(2);
        let handles = [pool.submit(sleep(2 * MS)).await.unwrap(), pool.submit(sleep(MS)).await.unwrap()];
        let waited = wait(&handles, When::FirstCompleted, None).await.unwrap();
        assert_eq!((waited.done, waited.pending), (vec![1], vec![0]));
    });
}

#[test]
fn a_task_that_awaits_itself_is_told_so() {
    run(async {
        let pool = Pool::new(1);
        let own = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&own);
        let told = Rc::new(Cell::new(false));
        let flag = Rc::clone(&told);
        let task = async move {
            let handle: tidegate_pool::JoinHandle<()> = slot.borrow_mut().take().expect("put there before it runs");
            flag.set(matches!(handle.await, Err(JoinError::AwaitsItself)));
        };
        *own.borrow_mut() = Some(pool.submit(task).await.unwrap());
        pool.close().await;
        assert!(told.get());
    });
}

#[test]
fn a_settable_future_is_set_given_the_panic_or_cancelled() {
    run(async {
        let pool = Pool::new(1);
        let promise = || LoopHandle::current().create_future::<u32>();

        let value = promise();
        pool.submit_to(value.clone(), async { 7 }).await.unwrap().detach();
        assert_eq!(value.await.unwrap(), 7);

        let failed = promise();
        pool.submit_to(failed.clone(), async { panic!("no") }).await.unwrap().detach();
        let Err(FutureError::Failed(error)) = failed.await else { unreachable!() };
        assert_eq!(error.to_string(), "the task panicked: no");

        let cancelled = promise();
        pool.submit_to(cancelled.clone(), pending()).await.unwrap().cancel();
        assert!(matches!(cancelled.await, Err(FutureError::Cancelled)));

        // The caller may have settled the promise meanwhile; the task's result is then dropped.
        let settled = promise();
        let handle = pool.submit_to(settled.clone(), async { 8 }).await.unwrap();
        settled.set_result(9).unwrap();
        handle.await.unwrap();
        assert_eq!(settled.await.unwrap(), 9);
    });
}

#[test]
fn a_loop_that_is_closed_under_a_pool_leaves_no_task_in_it() {
    let pool = Pool::new(2);
    let inside = pool.clone();
    let runner = Runner::new(EventLoop::simulated(1));
    runner
        .run(async move {
            inside.submit(pending::<()>()).await.unwrap().detach();
            inside.submit(pending::<()>()).await.unwrap().detach();
            let waits = inside.clone();
            spawn(async move { waits.submit(async {}).await.is_ok() });
            while inside.stats().waiting == 0 {
                yield_now().await;
            }
            assert_eq!(inside.stats().running, 2);
        })
        .unwrap();
    drop(runner);
    let stats = pool.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0), "{stats:?}");
    // And it serves the next loop.
    Runner::new(EventLoop::simulated(2))
        .run(async move { assert_eq!(pool.submit(async { 1 }).await.unwrap().await.unwrap(), 1) })
        .unwrap();
}
