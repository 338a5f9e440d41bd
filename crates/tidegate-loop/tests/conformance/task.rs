//! Cases 30–41: tasks, and how they end.

use std::rc::Rc;

use tidegate_loop::{
    EventLoop, JoinError, JoinHandle, LoopHandle, Outcome, RunError, Runner, Task, catch_cancel, sleep, spawn,
    spawn_fallible, yield_now,
};

use crate::support::{Alive, Log, Reports, ms, one_tick, run_strict, strict};

#[test]
fn c30_bodies_start_in_order_and_only_after_their_creator_suspends() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        for line in ["a", "b", "c"] {
            let said = said.clone();
            drop(spawn(async move { said.tick(line) }));
        }
        said.tick("spawned");
        yield_now().await;
        said.tick("goes on");
    });
    log.expect(["1 spawned", "2 a", "2 b", "2 c", "2 goes on"]);
}

#[test]
fn c31_awaiting_what_is_done_does_not_switch() {
    async fn plain() -> u32 {
        3
    }
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let done = LoopHandle::current().create_future();
        done.set_result(1).unwrap();
        let finished = spawn(async { 2 });
        yield_now().await;
        let other = said.clone();
        drop(spawn(async move { other.tick("other task") }));
        said.tick(format_args!("future {}", done.await.unwrap()));
        said.tick(format_args!("task {}", finished.await.unwrap()));
        said.tick(format_args!("async fn {}", plain().await));
        yield_now().await;
    });
    log.expect(["2 future 1", "2 task 2", "2 async fn 3", "3 other task"]);
}

#[test]
fn c32_a_waiter_wakes_before_what_is_queued_after_set_result() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let handle = LoopHandle::current();
        let future = handle.create_future();
        let (awaited, told) = (future.clone(), said.clone());
        drop(spawn(async move {
            awaited.await.unwrap();
            told.tick("waiter");
        }));
        yield_now().await;
        said.tick("set");
        future.set_result(()).unwrap();
        handle.call_soon(said.teller("soon"));
        yield_now().await;
    });
    log.expect(["2 set", "3 waiter", "3 soon"]);
}

#[test]
fn c33_cancelled_before_its_first_step_a_body_never_runs() {
    let (event_loop, alive) = (strict(), Alive::new());
    let kept = alive.clone();
    let task = event_loop.spawn(async move {
        let _kept = kept;
        unreachable!("the body never runs");
    });
    assert!(task.cancel());
    assert!(!task.is_finished(), "it is cancelled by its step, not by the request");
    assert_eq!((task.task().cancelling(), alive.others()), (1, 1));
    one_tick(&event_loop);
    assert_eq!(task.task().outcome(), Some(Outcome::Cancelled));
    assert_eq!(alive.others(), 0, "what it captured is dropped with it");
    assert!(!task.cancel(), "it has ended");
}

#[test]
fn c34_a_result_that_has_come_does_not_win_over_a_cancellation() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let future = LoopHandle::current().create_future();
        let awaited = future.clone();
        let task = spawn(async move {
            let result = catch_cancel(async { awaited.await.unwrap() }).await;
            said.tick(format_args!("{result:?}"));
        });
        yield_now().await;
        future.set_result(1).unwrap();
        assert!(task.cancel());
        task.await.unwrap();
        assert_eq!(future.result().unwrap().unwrap(), 1, "the result is still there");
    });
    log.expect(["3 Err(Cancelled)"]);
}

#[test]
fn c35_a_task_that_cancels_itself_and_returns_is_cancelled() {
    let alive = Alive::new();
    let value = alive.clone();
    run_strict(async move {
        let task = spawn(async move {
            assert!(Task::current().cancel());
            value
        });
        assert!(matches!(task.await, Err(JoinError::Cancelled)));
    });
    assert_eq!(alive.others(), 0, "the value is lost, not kept");
}

/// In asyncio only a *returned* value is lost; an exception is kept, whatever was requested.
#[test]
fn c35_a_task_that_cancels_itself_and_fails_has_failed() {
    run_strict(async {
        let task = spawn_fallible(async {
            Task::current().cancel();
            Err::<(), _>("the reason")
        });
        assert_eq!(task.task().finished().await, Outcome::Failed);
        assert_eq!(task.await.unwrap(), Err("the reason"));
    });
}

#[test]
fn c36_a_caught_cancellation_leaves_the_request_counted() {
    run_strict(async {
        let task = spawn(async {
            assert!(catch_cancel(sleep(ms(1000))).await.is_err());
            "value"
        });
        yield_now().await;
        task.cancel();
        let untyped = task.task();
        assert_eq!(task.await.unwrap(), "value");
        assert_eq!((untyped.outcome(), untyped.cancelling()), (Some(Outcome::Completed), 1));
    });
}

#[test]
fn c37_the_inner_task_unwinds_first_then_the_outer_over_two_ticks() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let (in_log, out_log) = (said.clone(), said.clone());
        let inner = spawn(async move {
            if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                in_log.tick("inner");
                cancelled.propagate().await;
            }
        });
        let inner_task = inner.task();
        let outer = spawn(async move {
            if let Err(cancelled) = catch_cancel(inner).await {
                out_log.tick("outer");
                cancelled.propagate().await;
            }
        });
        yield_now().await;
        yield_now().await;
        said.tick("cancel");
        assert!(outer.cancel());
        assert_eq!((outer.task().cancelling(), inner_task.cancelling()), (1, 1), "the request was passed on");
        assert!(matches!(outer.await, Err(JoinError::Cancelled)));
        assert_eq!(inner_task.outcome(), Some(Outcome::Cancelled));
        said.tick("both cancelled");
    });
    log.expect(["3 cancel", "4 inner", "5 outer", "6 both cancelled"]);
}

#[test]
fn c37_an_inner_task_that_catches_gives_the_outer_a_value() {
    run_strict(async {
        let inner = spawn(async {
            let _ = catch_cancel(sleep(ms(1000))).await;
            "caught inside"
        });
        let outer = spawn(async move { inner.await.unwrap() });
        yield_now().await;
        yield_now().await;
        outer.cancel();
        assert_eq!(outer.await.unwrap(), "caught inside");
    });
}

/// CPython says so one turn later, with a `RuntimeError`.
#[test]
fn c38_a_task_that_awaits_itself_is_told_so() {
    let slot: Rc<std::cell::RefCell<Option<JoinHandle<bool>>>> = Rc::default();
    let own = slot.clone();
    let event_loop = strict();
    let task = event_loop.spawn(async move {
        let itself = own.take().unwrap();
        matches!(itself.await, Err(JoinError::AwaitsItself))
    });
    let watched = task.task();
    *slot.borrow_mut() = Some(task);
    event_loop.run_until_idle().unwrap();
    assert_eq!(watched.outcome(), Some(Outcome::Completed));
    assert_eq!(JoinError::AwaitsItself.to_string(), "a task cannot await itself; return instead");
}

#[test]
fn c39_an_eager_task_runs_inline_up_to_its_first_suspension() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let parent = Task::current();
        let told = said.clone();
        said.tick("before");
        let child = LoopHandle::current().task().name("child").eager().spawn(async move {
            told.tick(format_args!("{} starts", Task::current().name()));
            yield_now().await;
            told.tick("goes on");
        });
        assert_eq!(Task::current(), parent, "back in the one that spawned it");
        said.tick("after");
        child.await.unwrap();
        let ready = LoopHandle::current().task().eager().spawn(async { 5 });
        assert!(ready.is_finished());
        said.tick(format_args!("without a switch {}", ready.await.unwrap()));
    });
    log.expect(["1 before", "1 child starts", "1 after", "2 goes on", "3 without a switch 5"]);
}

#[test]
fn c40_run_until_complete_stopped_early_is_an_error() {
    let (event_loop, log) = (strict(), Log::new());
    let (handle, said) = (event_loop.handle(), log.clone());
    event_loop.call_soon(move || handle.stop());
    let result = event_loop.run_until_complete(async move {
        said.tick("starts");
        yield_now().await;
        said.tick("goes on");
    });
    assert!(matches!(result, Err(RunError::Stopped)));
    log.expect(["1 starts"]);
    event_loop.run_until_idle().unwrap();
    log.expect(["1 starts", "2 goes on"]);
}

#[test]
fn c41_leaving_the_runner_cancels_what_is_left_and_lets_it_clean_up() {
    let log = Log::new();
    let runner = Runner::new(strict());
    let reports = Reports::of(runner.event_loop());
    let said = log.clone();
    let result = runner.run(async move {
        let told = said.clone();
        drop(spawn(async move {
            if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                told.say("cleans up");
                sleep(ms(5)).await;
                told.say("cleaned up");
                cancelled.propagate().await;
            }
        }));
        let guard = said.guard("dropped");
        drop(spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
        drop(spawn(async {
            let _ = catch_cancel(sleep(ms(1000))).await;
            panic!("in the clean-up");
        }));
        yield_now().await;
        "done"
    });
    assert_eq!(result.unwrap(), "done");
    log.expect([]);
    let handle = runner.event_loop().handle();
    drop(runner);
    log.expect(["cleans up", "dropped", "cleaned up"]);
    assert!(handle.is_closed());
    assert_eq!(handle.all_tasks().len(), 0);
    assert_eq!(reports.all().len(), 1);
    assert_eq!(reports.all()[0].message(), "in the clean-up");
}

#[test]
fn c41_a_task_that_never_ends_does_not_keep_the_runner() {
    let log = Log::new();
    let runner = Runner::new(EventLoop::simulated(1));
    let guard = log.guard("dropped when the loop closed");
    runner
        .run(async move {
            drop(spawn(async move {
                let _guard = guard;
                while catch_cancel(std::future::pending::<()>()).await.is_err() {}
            }));
            yield_now().await;
        })
        .unwrap();
    drop(runner);
    log.expect(["dropped when the loop closed"]);
}
