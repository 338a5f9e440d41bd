//! No request is lost and none reaches another task than the one it was made to, also where one task waits for several things at
//! once. asyncio has no `select!` inside a task, so here the contract is the design's: the request goes to what the
//! task waits for, and comes back.

use std::cell::{Cell, RefCell};
use std::future::{Future as StdFuture, IntoFuture, pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tidegate_loop::{
    Cancelled, EventLoop, JoinError, LoopHandle, Outcome, Task, catch_cancel, explore, sleep, spawn, timeout, yield_now,
};

use crate::support::{Either, Foreign, Log, ms, run_strict, select, strict};

/// Cancels `task` and lets everything run that this makes ready: it must have ended by then.
async fn cancelled_soon(task: &Task) {
    task.cancel();
    for _ in 0..8 {
        yield_now().await;
    }
    assert_eq!(task.outcome(), Some(Outcome::Cancelled), "the request was lost");
}

#[test]
fn a_second_request_arrives_in_the_clean_up_of_the_first() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let told = said.clone();
        let task = spawn(async move {
            assert!(catch_cancel(sleep(ms(1000))).await.is_err());
            told.say("first");
            assert!(catch_cancel(sleep(ms(1000))).await.is_err());
            told.say("second");
            sleep(ms(1000)).await;
        });
        yield_now().await;
        for _ in 0..3 {
            task.cancel();
            yield_now().await;
        }
        assert_eq!(task.task().cancelling(), 3);
        assert!(matches!(task.await, Err(JoinError::Cancelled)));
    });
    log.expect(["first", "second"]);
}

#[test]
fn the_innermost_catch_gets_it_and_propagate_reaches_the_next_one() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let task = spawn(async move {
            let outer = catch_cancel(async {
                let inner: Result<(), Cancelled> = catch_cancel(pending()).await;
                said.say("inner");
                inner.unwrap_err().propagate().await;
            })
            .await;
            said.say(format_args!("outer {outer:?}"));
            "goes on"
        });
        yield_now().await;
        task.cancel();
        assert_eq!(task.await.unwrap(), "goes on");
    });
    log.expect(["inner", "outer Err(Cancelled)"]);
}

#[test]
fn uncancel_before_the_step_takes_the_request_back() {
    run_strict(async {
        let task = spawn(async {
            yield_now().await;
            "value"
        });
        yield_now().await;
        assert!(task.cancel());
        assert_eq!(task.task().uncancel(), 0);
        assert_eq!(task.await.unwrap(), "value");
    });
}

/// What tidegate-sync's primitives are to the loop: it cannot see into them, it can only drop the wait.
#[test]
fn a_foreign_wait_is_dropped() {
    run_strict(async {
        let flag = Foreign::new();
        let awaited = flag.clone();
        let task = spawn(async move { awaited.wait().await });
        yield_now().await;
        cancelled_soon(&task.task()).await;
    });
}

#[test]
fn a_combinator_with_wakers_of_its_own_is_reached() {
    /// Polls its future with a waker of its own and only when that was woken, as `FuturesUnordered` does.
    async fn walled_off<F: StdFuture>(future: F) -> F::Output {
        struct Wall {
            woken: std::sync::atomic::AtomicBool,
            outer: std::sync::Mutex<Option<std::task::Waker>>,
        }
        impl std::task::Wake for Wall {
            fn wake(self: std::sync::Arc<Self>) {
                self.woken.store(true, std::sync::atomic::Ordering::SeqCst);
                if let Some(waker) = self.outer.lock().unwrap().take() {
                    waker.wake();
                }
            }
        }
        let wall = std::sync::Arc::new(Wall {
            woken: std::sync::atomic::AtomicBool::new(true),
            outer: std::sync::Mutex::default(),
        });
        let inside = std::task::Waker::from(wall.clone());
        let mut future = pin!(future);
        poll_fn(|cx| {
            *wall.outer.lock().unwrap() = Some(cx.waker().clone());
            if !wall.woken.swap(false, std::sync::atomic::Ordering::SeqCst) {
                return Poll::Pending;
            }
            future.as_mut().poll(&mut std::task::Context::from_waker(&inside))
        })
        .await
    }
    run_strict(async {
        let task = spawn(walled_off(async {
            let caught = catch_cancel(sleep(ms(1000))).await;
            sleep(ms(1)).await;
            caught
        }));
        yield_now().await;
        task.cancel();
        assert_eq!(task.await.unwrap(), Err(Cancelled));

        let inner = spawn(pending::<()>());
        let inner_task = inner.task();
        let task = spawn(walled_off(async { catch_cancel(inner).await.is_err() }));
        yield_now().await;
        yield_now().await;
        task.cancel();
        assert!(task.await.unwrap());
        assert_eq!(inner_task.outcome(), Some(Outcome::Cancelled));
    });
}

/// A done-callback, or another waiter, was registered before the join handle; the request goes the same way.
#[test]
fn a_request_is_passed_on_to_a_task_that_others_watch_too() {
    for others in 0..3 {
        let log = Log::new();
        let said = log.clone();
        run_strict(async move {
            let told = said.clone();
            let inner = spawn(async move {
                if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                    told.say("inner");
                    cancelled.propagate().await;
                }
            });
            let inner_task = inner.task();
            match others {
                1 => drop(inner_task.add_done_callback(|_| ())),
                2 => drop(spawn(inner_task.finished())),
                _ => {}
            }
            yield_now().await;
            let outer = spawn(async move {
                if let Err(cancelled) = catch_cancel(inner).await {
                    said.say("outer");
                    cancelled.propagate().await;
                }
            });
            yield_now().await;
            outer.cancel();
            assert!(matches!(outer.await, Err(JoinError::Cancelled)));
            assert_eq!(inner_task.outcome(), Some(Outcome::Cancelled));
        });
        log.expect(["inner", "outer"]);
    }
}

#[test]
fn a_request_does_not_follow_a_wait_for_a_task_that_is_over() {
    run_strict(async {
        let bystander = spawn(async {
            sleep(ms(10)).await;
            "value"
        });
        let mut handle = Some(bystander);
        let back = Rc::new(RefCell::new(None));
        let slot = back.clone();
        let task = spawn(async move {
            let mut bystander = handle.take().unwrap();
            // Asks once whether it is done, and goes on to wait for something the loop knows nothing of.
            poll_fn(|cx| {
                assert!(std::pin::Pin::new(&mut bystander).poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            *slot.borrow_mut() = Some(bystander);
            Foreign::new().wait().await;
        });
        yield_now().await;
        cancelled_soon(&task.task()).await;
        let bystander = back.take().unwrap();
        assert_eq!(bystander.await.unwrap(), "value", "no request was made to this one");
    });
}

#[test]
fn a_request_does_not_follow_a_wait_for_a_future_that_is_over() {
    run_strict(async {
        let shared = LoopHandle::current().create_future::<u32>();
        let looked_at = shared.clone();
        let task = spawn(async move {
            let mut awaiting = looked_at.into_future();
            poll_fn(|cx| {
                assert!(std::pin::Pin::new(&mut awaiting).poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(awaiting);
            pending::<()>().await;
        });
        yield_now().await;
        cancelled_soon(&task.task()).await;
        assert!(!shared.is_cancelled(), "no task waits for it any more");
    });
}

#[test]
fn a_request_passed_on_comes_back_when_the_task_turns_to_something_else() {
    run_strict(async {
        let (flag, stubborn) = (
            Foreign::new(),
            spawn(async {
                // Catches, and takes its time.
                let _ = catch_cancel(pending::<()>()).await;
                sleep(ms(1_000_000)).await;
            }),
        );
        let turned = flag.clone();
        let task = spawn(async move {
            select(turned.wait(), stubborn).await;
            pending::<()>().await;
        });
        let watched = task.task();
        yield_now().await;
        yield_now().await;
        assert!(watched.cancel());
        yield_now().await;
        assert_eq!(watched.outcome(), None, "the request is with the one it waits for");
        flag.set();
        for _ in 0..8 {
            yield_now().await;
        }
        assert_eq!(watched.outcome(), Some(Outcome::Cancelled), "the request was lost");
    });
}

/// A request is a cancellation, not a value that one of the two happens to come back with.
#[test]
fn of_two_futures_awaited_at_once_the_cancelled_one_brings_the_request_back() {
    run_strict(async {
        let (a, b) = (LoopHandle::current().create_future::<u32>(), LoopHandle::current().create_future::<u32>());
        let task = spawn(async move {
            let _ = select(a.into_future(), b.into_future()).await;
            pending::<()>().await;
        });
        yield_now().await;
        cancelled_soon(&task.task()).await;
    });
}

#[test]
fn a_marked_catch_that_is_dropped_passes_the_request_on() {
    run_strict(async {
        let flag = Foreign::new();
        let turned = flag.clone();
        let task = spawn(async move {
            // In the step that brings the request the other side is ready, and the catch goes without being polled.
            let Either::First(()) = select(turned.wait(), catch_cancel(pending::<()>())).await else {
                unreachable!("polled first");
            };
            pending::<()>().await;
        });
        yield_now().await;
        flag.set();
        cancelled_soon(&task.task()).await;
    });
}

#[test]
fn a_catch_that_is_kept_but_not_awaited_does_not_swallow_the_request() {
    run_strict(async {
        let task = spawn(async {
            let mut kept = Box::pin(catch_cancel(pending::<()>()));
            poll_fn(|cx| {
                assert!(kept.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            pending::<()>().await;
            drop(kept);
        });
        yield_now().await;
        cancelled_soon(&task.task()).await;
    });
}

/// The time-out's own request must go when the time-out goes, wherever it had been passed on to.
#[test]
fn a_timeout_that_is_dropped_takes_its_request_with_it() {
    run_strict(async {
        let handle = LoopHandle::current();
        let (flag, shared) = (Foreign::new(), handle.create_future::<u32>());
        let (turned, awaited) = (flag.clone(), shared.clone());
        let task = spawn(async move {
            let chosen = select(turned.wait(), timeout(ms(5), awaited.into_future())).await;
            assert!(matches!(chosen, Either::First(())));
            sleep(ms(1)).await;
            "went on"
        });
        yield_now().await;
        // Due in the same tick as the time-out, before the task's next step.
        handle.call_later(ms(5), move || flag.set());
        let untyped = task.task();
        assert_eq!(task.await.unwrap(), "went on", "cancelled by a request that had been taken back");
        assert_eq!(untyped.cancelling(), 0);
    });
}

/// The same where an earlier request was caught and is still counted: it has had its effect and must have no second.
#[test]
fn a_timeout_that_is_dropped_does_not_revive_a_request_that_was_caught() {
    for on_a_future in [false, true] {
        run_strict(async move {
            let handle = LoopHandle::current();
            let (flag, shared) = (Foreign::new(), handle.create_future::<u32>());
            let turned = flag.clone();
            let task = spawn(async move {
                assert!(catch_cancel(sleep(ms(1000))).await.is_err());
                let waits = async move { if on_a_future { drop(shared.await) } else { pending().await } };
                let chosen = select(turned.wait(), timeout(ms(5), waits)).await;
                assert!(matches!(chosen, Either::First(())));
                sleep(ms(1)).await;
                Task::current().cancelling()
            });
            yield_now().await;
            task.cancel();
            yield_now().await;
            handle.call_later(ms(5), move || flag.set());
            assert_eq!(task.await.expect("no second request was made"), 1);
        });
    }
}

#[test]
fn a_timeout_inside_a_select_leaves_nothing_behind() {
    run_strict(async {
        for _ in 0..3 {
            let chosen = select(sleep(ms(1)), timeout(ms(1), pending::<()>())).await;
            assert!(matches!(chosen, Either::First(()) | Either::Second(Err(_))));
            assert_eq!(Task::current().cancelling(), 0);
            sleep(ms(5)).await;
        }
    });
}

/// Two tasks that wait for each other never end by themselves; a request to one of them must not run in circles.
/// CPython raises `RecursionError` here; in Rust that would be the end of the process.
#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_circle_of_waiting_tasks_can_be_cancelled() {
    if std::env::var_os("CIRCLE").is_none() {
        let name = "cancellation::a_circle_of_waiting_tasks_can_be_cancelled";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env("CIRCLE", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
        return;
    }
    let event_loop = strict();
    let other: Rc<RefCell<Option<Task>>> = Rc::default();
    let first = {
        let other = other.clone();
        event_loop.spawn(async move {
            yield_now().await;
            let second = other.borrow().clone().unwrap();
            second.finished().await;
        })
    };
    let awaited = first.task();
    *other.borrow_mut() = Some(event_loop.spawn(async move { awaited.finished().await }).task());
    event_loop.run_until_idle().unwrap();
    first.cancel();
    event_loop.run_until_idle().unwrap();
    assert_eq!(first.task().outcome(), Some(Outcome::Cancelled));
}

/// A long line of tasks that wait for each other: the request travels along it without a stack frame for each.
#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_request_travels_along_any_number_of_tasks() {
    if std::env::var_os("CHAIN").is_none() {
        let name = "cancellation::a_request_travels_along_any_number_of_tasks";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env("CHAIN", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
        return;
    }
    let event_loop = strict();
    let mut last = event_loop.spawn(pending::<()>());
    for _ in 0..100_000 {
        let before = last;
        last = event_loop.spawn(async move { before.await.unwrap() });
    }
    event_loop.run_until_idle().unwrap();
    last.cancel();
    event_loop.run_until_idle().unwrap();
    assert_eq!(event_loop.metrics().tasks, 0);
}

/// Whatever the order of equally ready tasks, a request that comes at any point of a wait arrives exactly once.
#[test]
#[cfg_attr(miri, ignore = "too long for Miri")]
fn a_request_arrives_exactly_once_in_every_interleaving() {
    explore(0..300, |seed| async move {
        let handle = LoopHandle::current();
        let arrived = Rc::new(Cell::new(0));
        let future = handle.create_future::<u32>();
        let inner = spawn({
            let future = future.clone();
            async move { future.await.unwrap_or(0) }
        });
        let count = arrived.clone();
        let outer = spawn(async move {
            let waited = catch_cancel(timeout(ms(2), inner)).await;
            count.set(count.get() + u32::from(waited.is_err()));
            // If it went to the time-out or came too late to matter, it shows here or not at all.
            if catch_cancel(sleep(ms(10))).await.is_err() {
                count.set(count.get() + 1);
            }
        });
        let setter = spawn({
            let future = future.clone();
            async move {
                sleep(ms(seed % 4)).await;
                let _ = future.set_result(1);
            }
        });
        let canceller = {
            let target = outer.task();
            spawn(async move {
                sleep(ms(seed / 4 % 4)).await;
                target.cancel()
            })
        };
        let requested = canceller.await.unwrap();
        setter.await.unwrap();
        outer.await.unwrap();
        assert_eq!((requested, arrived.get()), (true, 1));
    });
}

#[test]
fn a_self_cancelled_task_is_told_at_its_next_wait_whatever_that_is() {
    let event_loop: EventLoop = strict();
    let done = event_loop.create_future::<u32>();
    done.set_result(1).unwrap();
    let never = event_loop.create_future::<u32>();
    let shared = never.clone();
    event_loop
        .run_until_complete(async move {
            for kind in 0..5 {
                let (done, never) = (done.clone(), LoopHandle::current().create_future::<u32>());
                let task = spawn(async move {
                    Task::current().cancel();
                    // No wait, no delivery.
                    done.await.unwrap();
                    match kind {
                        0 => yield_now().await,
                        1 => sleep(ms(1)).await,
                        2 => drop(never.await),
                        3 => drop(spawn(pending::<()>()).await),
                        _ => pending().await,
                    }
                    unreachable!("it was to end at that wait");
                });
                assert!(matches!(task.await, Err::<(), _>(JoinError::Cancelled)), "kind {kind}");
            }
        })
        .unwrap();
    assert!(!shared.is_done());
}
