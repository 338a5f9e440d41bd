//! Cases 42–51: `wait`, `gather`, `shield`, time-outs, groups.

use std::future::pending;

use tidegate_loop::{
    Deadline, Duration, Elapsed, EmptyWait, GatherError, GroupFailure, JoinError, LoopHandle, Outcome, Task, TaskGroup,
    Waited, When, as_completed, catch_cancel, gather, gather_all, shield, sleep, spawn, spawn_fallible, timeout, wait,
    wait_for, yield_now,
};

use crate::support::{Log, Reports, ms, run_strict, strict};

#[test]
fn c42_two_that_end_in_one_tick_are_both_done() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let tasks = [spawn(yield_now()), spawn(yield_now()), spawn(sleep(ms(1)))];
        let waited = wait(&tasks, When::FirstCompleted, None).await.unwrap();
        assert_eq!(waited, Waited { done: vec![0, 1], pending: vec![2] });
        said.tick("waited");
    });
    // 2: they start, 3: they end, 4: the callbacks run, 5: the waiter.
    log.expect(["5 waited"]);
}

#[test]
fn c43_first_exception_is_an_error_and_not_a_cancellation() {
    run_strict(async {
        let tasks = [
            spawn_fallible(async { pending().await }),
            spawn_fallible(async {
                sleep(ms(2)).await;
                Err::<(), _>("failed")
            }),
            spawn_fallible(async { pending().await }),
        ];
        yield_now().await;
        tasks[0].cancel();
        let waited = wait(&tasks, When::FirstException, None).await.unwrap();
        assert_eq!(waited, Waited { done: vec![0, 1], pending: vec![2] });

        // A panic is an error as well; without one it waits for all.
        let tasks = [spawn(async { panic!("boom") }), spawn(pending::<()>())];
        let waited = wait(&tasks, When::FirstException, None).await.unwrap();
        assert_eq!(waited, Waited { done: vec![0], pending: vec![1] });
        let tasks = [spawn(pending()), spawn(sleep(ms(3)))];
        tasks[0].cancel();
        let waited = wait(&tasks, When::FirstException, None).await.unwrap();
        assert_eq!(waited, Waited { done: vec![0, 1], pending: vec![] });
    });
}

#[test]
fn c44_a_wait_that_times_out_cancels_nothing() {
    run_strict(async {
        let started = LoopHandle::current().time();
        let tasks = [spawn(sleep(ms(1))), spawn(sleep(ms(10)))];
        let waited = wait(&tasks, When::All, Some(ms(5))).await.unwrap();
        assert_eq!(waited, Waited { done: vec![0], pending: vec![1] });
        assert_eq!(LoopHandle::current().time() - started, ms(5));
        let [_, slow] = tasks;
        assert_eq!(slow.task().cancelling(), 0);
        slow.await.unwrap();
        assert_eq!(LoopHandle::current().time() - started, ms(10));
        assert_eq!(wait(&[] as &[Task], When::All, None).await, Err(EmptyWait));
    });
}

#[test]
fn c44_a_cancelled_wait_leaves_its_tasks_alone() {
    run_strict(async {
        let slow = spawn(async {
            sleep(ms(10)).await;
            "value"
        });
        let task = slow.task();
        let waiter = spawn(async move { wait(&[task], When::All, None).await });
        yield_now().await;
        yield_now().await;
        waiter.cancel();
        assert!(matches!(waiter.await, Err(JoinError::Cancelled)));
        assert_eq!(slow.await.unwrap(), "value");
    });
}

#[test]
fn c45_gather_yields_results_in_argument_order() {
    run_strict(async {
        let tasks = [3, 1, 2].map(|n| {
            spawn(async move {
                sleep(ms(n)).await;
                n
            })
        });
        assert_eq!(gather(tasks).await.unwrap(), [3, 1, 2]);
    });
}

#[test]
fn c45_the_first_error_ends_a_gather_and_the_siblings_go_on() {
    let log = Log::new();
    let said = log.clone();
    let event_loop = strict();
    let reports = Reports::of(&event_loop);
    event_loop
        .run_until_complete(async move {
            let told = said.clone();
            let slow = spawn_fallible(async move {
                sleep(ms(5)).await;
                told.say("sibling ends");
                Ok(1)
            });
            let also_fails = spawn_fallible(async {
                sleep(ms(3)).await;
                Err("second")
            });
            let fails = spawn_fallible(async {
                sleep(ms(2)).await;
                Err("first")
            });
            let sibling = slow.task();
            let GatherError { index, result } = gather([slow, also_fails, fails]).await.unwrap_err();
            assert_eq!((index, result.unwrap()), (2, Err("first")));
            said.say("gather failed");
            assert_eq!(sibling.finished().await, Outcome::Completed);
        })
        .unwrap();
    log.expect(["gather failed", "sibling ends"]);
    drop(event_loop);
    reports.expect([]);
}

#[test]
fn c45_an_empty_gather_is_done_without_a_switch() {
    run_strict(async {
        let ticks = || LoopHandle::current().metrics().ticks;
        let before = ticks();
        assert_eq!(gather::<u32>([]).await.unwrap(), []);
        assert_eq!(gather_all::<u32>([]).await.len(), 0);
        assert_eq!(ticks(), before);
    });
}

#[test]
fn c46_a_cancelled_gather_cancels_its_children_even_when_it_collects_errors() {
    for collects in [false, true] {
        let log = Log::new();
        let said = log.clone();
        run_strict(async move {
            let children: Vec<_> = ["a", "b"]
                .map(|name| {
                    let told = said.clone();
                    spawn(async move {
                        if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                            told.tick(name);
                            cancelled.propagate().await;
                        }
                    })
                })
                .into();
            let tasks: Vec<Task> = children.iter().map(|child| child.task()).collect();
            let told = said.clone();
            let outer = spawn(async move {
                let caught = if collects {
                    catch_cancel(gather_all(children)).await.err()
                } else {
                    catch_cancel(gather(children)).await.err()
                };
                told.tick("outer");
                caught.expect("cancelled").propagate().await;
            });
            yield_now().await;
            yield_now().await;
            outer.cancel();
            assert!(matches!(outer.await, Err(JoinError::Cancelled)));
            for task in tasks {
                assert_eq!(task.outcome(), Some(Outcome::Cancelled));
            }
        });
        // 4: the children unwind, 5: their callbacks, 6: the one who gathered.
        log.expect(["4 a", "4 b", "6 outer"]);
    }
}

/// asyncio: the request is remembered, so the gathering task is cancelled although every child came back with a value.
#[test]
fn c46_children_that_catch_do_not_save_the_one_who_gathers() {
    run_strict(async {
        let children = [1, 2].map(|n| {
            spawn(async move {
                let _ = catch_cancel(sleep(ms(1000))).await;
                n
            })
        });
        let outer = spawn(gather_all(children));
        yield_now().await;
        yield_now().await;
        outer.cancel();
        assert!(matches!(outer.await, Err(JoinError::Cancelled)));
    });
}

#[test]
fn c47_a_cancelled_shield_lets_the_inner_task_go_on() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let told = said.clone();
        let inner = spawn(async move {
            sleep(ms(10)).await;
            told.say("inner ends");
        });
        let task = inner.task();
        let told = said.clone();
        let outer = spawn(async move {
            let mut inner = inner;
            let caught = catch_cancel(shield(&mut inner)).await;
            told.say(format_args!("outer {}", caught.is_err()));
        });
        yield_now().await;
        yield_now().await;
        outer.cancel();
        outer.await.unwrap();
        assert_eq!((task.outcome(), task.cancelling()), (None, 0));
        assert_eq!(task.finished().await, Outcome::Completed);
    });
    log.expect(["outer true", "inner ends"]);
}

#[test]
fn c48_a_timeout_of_zero_fires_at_the_first_suspension() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let told = said.clone();
        let result = timeout(Duration::ZERO, async move {
            told.tick("before the first suspension");
            yield_now().await;
            unreachable!("cancelled there");
        })
        .await;
        assert_eq!(result, Err(Elapsed));
        said.tick(format_args!("requests {}", Task::current().cancelling()));
        assert_eq!(timeout(Duration::ZERO, async { "never waits" }).await, Ok("never waits"));
        // Nothing is left behind that could hit a later wait.
        sleep(ms(1)).await;
        assert_eq!(Task::current().cancelling(), 0);
    });
    log.expect(["1 before the first suspension", "2 requests 0"]);
}

#[test]
fn c49_of_nested_timeouts_only_the_earlier_outer_one_fires() {
    run_strict(async {
        let (outer, inner) = (Deadline::after(ms(1)), Deadline::after(ms(2)));
        let within = inner.clone();
        let result = outer
            .scope(async move {
                let _: Result<(), Elapsed> = within.scope(pending()).await;
                unreachable!("the inner one is not what ran out");
            })
            .await;
        assert_eq!(result, Err::<(), _>(Elapsed));
        assert!(outer.expired() && !inner.expired());
        assert_eq!(Task::current().cancelling(), 0);

        // The other way round the inner one fires and the outer one does not notice.
        let result = timeout(ms(2), async { timeout(ms(1), pending::<()>()).await }).await;
        assert_eq!(result, Ok(Err(Elapsed)));
        // Both at once: the request of one more than the inner one's own is left, so it is the outer one's.
        let result = timeout(ms(1), async { timeout(ms(1), pending::<()>()).await }).await;
        assert_eq!(result, Err(Elapsed));
        assert_eq!(Task::current().cancelling(), 0);
    });
}

#[test]
fn c49_a_deadline_can_be_moved_while_it_runs() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let start = LoopHandle::current().time();
        let now = move || LoopHandle::current().time() - start;
        // Later, then not at all, then into the past: due with the next tick.
        let deadline = Deadline::after(ms(5));
        let (inside, told) = (deadline.clone(), said.clone());
        let result = deadline
            .scope(async move {
                inside.reschedule(Some(start + ms(20)));
                sleep(ms(10)).await;
                told.say(format_args!("past the first at {:?}", now()));
                inside.reschedule(None);
                sleep(ms(20)).await;
                told.say(format_args!("past the second at {:?}", now()));
                inside.reschedule(Some(start));
                pending::<()>().await;
            })
            .await;
        assert_eq!((result, deadline.expired()), (Err(Elapsed), true));
        said.say(format_args!("expired at {:?}", now()));
        deadline.reschedule(None);
        assert!(deadline.expired(), "too late to move it");
        assert_eq!(Task::current().cancelling(), 0);
    });
    log.expect(["past the first at 10ms", "past the second at 30ms", "expired at 30ms"]);
}

#[test]
fn c45_as_completed_yields_by_completion_and_survives_a_cancellation() {
    run_strict(async {
        let tasks = [3, 1, 2].map(|n| {
            spawn(async move {
                sleep(ms(n)).await;
                n
            })
        });
        let consumer = spawn(async move {
            let mut results = as_completed(tasks);
            let mut seen = Vec::new();
            loop {
                match catch_cancel(results.next()).await {
                    Ok(Some((index, result))) => seen.push((index, result.unwrap())),
                    Ok(None) => return seen,
                    // Nothing is lost: the next one is still to come.
                    Err(_) => seen.push((99, 0)),
                }
            }
        });
        yield_now().await;
        yield_now().await;
        consumer.cancel();
        assert_eq!(consumer.await.unwrap(), [(99, 0), (1, 1), (2, 2), (0, 3)]);
    });
}

#[test]
fn c50_wait_for_waits_for_the_clean_up_and_then_fails() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let started = LoopHandle::current().time();
        let told = said.clone();
        let task = spawn(async move {
            if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                sleep(ms(5)).await;
                told.say("cleaned up");
                cancelled.propagate().await;
            }
        });
        assert!(matches!(wait_for(ms(1), task).await, Err(Elapsed)));
        said.say(format_args!("failed after {:?}", LoopHandle::current().time() - started));

        let never = spawn(async { unreachable!("with 0 the body never starts") });
        let untyped = never.task();
        assert!(matches!(wait_for::<()>(Duration::ZERO, never).await, Err(Elapsed)));
        assert_eq!(untyped.outcome(), Some(Outcome::Cancelled));

        let done = spawn(async { 7 });
        yield_now().await;
        assert_eq!(wait_for(Duration::ZERO, done).await.unwrap().unwrap(), 7);
    });
    log.expect(["cleaned up", "failed after 6ms"]);
}

#[test]
fn c51_a_failing_child_cancels_the_siblings_then_the_parent() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let told = said.clone();
        let result = TaskGroup::scope(async |group| {
            for name in ["sibling a", "sibling b"] {
                let told = told.clone();
                let child = async move {
                    if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                        told.tick(name);
                        cancelled.propagate().await;
                    }
                    Ok(())
                };
                drop(group.spawn(child).unwrap());
            }
            let failing = told.clone();
            let child = async move {
                yield_now().await;
                failing.tick("fails");
                Err::<(), _>("the reason")
            };
            drop(group.spawn(child).unwrap());
            if let Err(cancelled) = catch_cancel(sleep(ms(1000))).await {
                told.tick("parent");
                assert!(group.spawn(async { Ok(()) }).is_err(), "a group that shuts down takes no more");
                cancelled.propagate().await;
            }
            Ok(())
        })
        .await;
        let failures = result.unwrap_err().failures;
        assert!(matches!(failures[..], [GroupFailure::Failed("the reason")]), "{failures:?}");
        said.tick(format_args!("group failed, requests {}", Task::current().cancelling()));
        sleep(ms(1)).await;
    });
    // 3: it fails, 4: the group's callback cancels, 5: they unwind, 6: the group's callbacks, 7: the parent goes on.
    log.expect(["3 fails", "5 sibling a", "5 sibling b", "5 parent", "7 group failed, requests 0"]);
}

#[test]
fn c51_a_cancelled_group_cancels_its_children_and_goes_on_unwinding() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let told = said.clone();
        let parent = spawn(async move {
            let _: Result<(), _> = TaskGroup::<()>::scope(async |group| {
                let guard = told.guard("child dropped");
                let child = async move {
                    let _guard = guard;
                    pending().await
                };
                drop(group.spawn::<()>(child).unwrap());
                pending().await
            })
            .await;
            unreachable!("the cancellation goes on");
        });
        yield_now().await;
        yield_now().await;
        parent.cancel();
        assert!(matches!(parent.await, Err::<(), _>(JoinError::Cancelled)));
        said.say("parent cancelled");
    });
    log.expect(["child dropped", "parent cancelled"]);
}
