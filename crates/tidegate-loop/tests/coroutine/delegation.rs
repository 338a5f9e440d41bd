//! Delegation: values, errors and the end go through to the child and come back.

use super::*;

type Texts<'a> = Coroutine<'a, &'static str, Infallible, &'static str, Fault>;

#[test]
fn delegating_says_what_a_loop_over_the_child_says() {
    fn child<'a>() -> Plain<'a, String> {
        Coroutine::new(async |mut co| {
            for i in 0..3 {
                co.yield_(format!("[child] {i}")).await?;
            }
            Ok(())
        })
    }
    let looping: Plain<'_, String> = Coroutine::new(async |mut co| {
        for value in child() {
            co.yield_(value).await?;
        }
        Ok(())
    });
    let delegating: Plain<'_, String> = Coroutine::new(async |mut co| co.delegate(&child()).await);
    let values: Vec<_> = delegating.into_iter().collect();
    assert_eq!(values, ["[child] 0", "[child] 1", "[child] 2"]);
    assert_eq!(values, looping.into_iter().collect::<Vec<_>>());
}

#[test]
fn the_childs_return_value_is_the_delegations_value() {
    let log = Log::default();
    let main: Plain<'_, u8> = Coroutine::new(async |mut co| {
        let child = Coroutine::new(async |mut co| co.yield_(1).await.map(|_| 5));
        let result = co.delegate(&child).await?;
        log.say(format!("Result: {result}"));
        Ok(())
    });
    log.show(main.resume());
    log.show(main.resume());
    log.expect("-> 1\nResult: 5\nend ()");
}

fn recovers_from_values(log: &Log) -> Texts<'_> {
    Coroutine::new(async move |mut co| {
        match co.yield_("1").await {
            Err(Thrown::Error(Value(_))) => {
                log.say("child caught a value error");
                co.yield_("recovered").await?;
            }
            other => drop(other?),
        }
        Ok("")
    })
}

fn catches_runtime(log: &Log) -> Texts<'_> {
    Coroutine::new(async move |mut co| match co.delegate(&recovers_from_values(log)).await {
        Err(Thrown::Error(Runtime)) => {
            log.say("parent caught a runtime error");
            Ok("")
        }
        other => other,
    })
}

#[test]
fn an_error_goes_to_the_child_first() {
    let log = Log::default();
    let coro = catches_runtime(&log);
    log.show(coro.resume());
    log.show(coro.throw(Value("")));
    log.show(coro.resume());
    log.expect(
        r#"-> "1"
        child caught a value error
        -> "recovered"
        end """#,
    );
}

#[test]
fn an_error_the_child_leaves_goes_to_the_parent() {
    let log = Log::default();
    let coro = catches_runtime(&log);
    log.show(coro.resume());
    log.show(coro.throw(Runtime));
    log.expect(
        r#"-> "1"
        parent caught a runtime error
        end """#,
    );
}

#[test]
fn an_error_both_leave_goes_to_the_caller() {
    let log = Log::default();
    let coro = catches_runtime(&log);
    log.show(coro.resume());
    log.show(coro.throw(Key("k")));
    log.show(coro.resume());
    log.expect("-> \"1\"\n!! Key(\"k\")\nfinished");
}

/// Echoes what it is sent; recovers from value errors, ends on exit and stop.
fn echo(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
    Coroutine::new(async move |mut co| {
        let mut value = Some("1".to_owned());
        loop {
            match co.yield_(value.clone().unwrap_or_default()).await {
                Ok(sent) => value = sent,
                Err(Thrown::Error(Value(_))) => {
                    log.say("[child] caught a value error");
                    co.yield_("recovered".into()).await?;
                }
                Err(Thrown::Exit) => break log.say("[child] caught the exit"),
                Err(Thrown::Error(Stop)) => break log.say("[child] caught a stop"),
                Err(other) => return Err(other),
            }
        }
        Ok(value)
    })
}

fn delegator(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
    Coroutine::new(async move |mut co| match co.delegate(&echo(log)).await {
        Err(Thrown::Error(Runtime)) => {
            log.say("[parent] caught a runtime error");
            Ok(Some("parent".into()))
        }
        Ok(result) => {
            log.say(format!("[parent] received: {}", result.as_deref().unwrap_or_default()));
            Ok(result)
        }
        other => other,
    })
}

fn started(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
    let coro = delegator(log);
    log.show(coro.resume());
    log.show(coro.send("2".into()));
    coro
}

#[test]
fn case_1_the_parent_handles_what_the_child_does_not() {
    let log = Log::default();
    let coro = started(&log);
    log.show(coro.throw(Runtime));
    assert_eq!(coro.close(), Ok(None));
    log.expect(
        r#"-> "1"
        -> "2"
        [parent] caught a runtime error
        end Some("parent")"#,
    );
}

#[test]
fn case_2_the_child_ends_on_a_stop_and_the_parent_gets_its_value() {
    let log = Log::default();
    let coro = started(&log);
    log.show(coro.throw(Stop));
    assert_eq!(coro.close(), Ok(None));
    log.expect(
        r#"-> "1"
        -> "2"
        [child] caught a stop
        [parent] received: 2
        end Some("2")"#,
    );
}

#[test]
fn case_3_the_child_recovers_and_is_closed_before_the_parent() {
    let log = Log::default();
    let coro = started(&log);
    log.show(coro.throw(Value("")));
    log.show(coro.resume());
    assert_eq!(coro.close(), Ok(None));
    log.expect(
        r#"-> "1"
        -> "2"
        [child] caught a value error
        -> "recovered"
        -> "2"
        [child] caught the exit"#,
    );
}

#[test]
fn the_first_send_to_a_delegating_parent_must_be_no_value_too() {
    let log = Log::default();
    let coro = delegator(&log);
    assert_eq!(coro.send("3".into()), Err(ResumeError::NotStarted("3".into())));
    log.show(coro.resume());
    log.expect("-> \"1\"");
}

#[derive(Clone, Copy, PartialEq)]
enum OnExit {
    Pass,
    Return,
    Yield,
    Fail,
}

fn child(log: &Log, on_exit: OnExit) -> Texts<'_> {
    Coroutine::new(async move |mut co| {
        let Err(exit) = co.yield_("1").await else { return Ok("resumed") };
        log.say("child exit");
        match on_exit {
            OnExit::Pass => Err(exit),
            OnExit::Return => Ok("9"),
            OnExit::Yield => co.yield_("2").await.map(|_| ""),
            OnExit::Fail => Err(Value("child broke"))?,
        }
    })
}

fn parent(log: &Log, on_exit: OnExit) -> Texts<'_> {
    Coroutine::new(async move |mut co| {
        let result = co.delegate(&child(log, on_exit)).await;
        log.say(format!("parent {result:?}"));
        result
    })
}

#[test]
fn close_reaches_the_child_first_and_then_the_parent() {
    for on_exit in [OnExit::Pass, OnExit::Return] {
        let log = Log::default();
        let coro = parent(&log, on_exit);
        let _ = coro.resume();
        assert_eq!(coro.close(), Ok(None));
        log.expect("child exit\nparent Err(Exit)");
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }
}

#[test]
fn dropping_the_parent_closes_the_child_first() {
    let log = Log::default();
    let coro = parent(&log, OnExit::Pass);
    let _ = coro.resume();
    drop(coro);
    log.expect("child exit\nparent Err(Exit)");
}

#[test]
fn a_child_that_ignores_the_exit_is_the_parents_error() {
    let log = Log::default();
    let coro = parent(&log, OnExit::Yield);
    let _ = coro.resume();
    let ignored = Thrown::Child(ChildFault::IgnoredExit);
    assert_eq!(coro.close(), Err(CloseError::Raised(ignored)));
    assert_eq!(coro.lifecycle(), Closed);
    // The child is dropped with the parent's frame, still suspended: a second exit.
    log.expect("child exit\nparent Err(Child(IgnoredExit))");
}

#[test]
fn a_child_that_fails_on_the_exit_is_the_parents_error() {
    let log = Log::default();
    let coro = parent(&log, OnExit::Fail);
    let _ = coro.resume();
    assert_eq!(coro.close(), Err(CloseError::Raised(Value("child broke").into())));
    log.expect("child exit\nparent Err(Error(Value(\"child broke\")))");
}

#[test]
fn a_parent_may_swallow_the_childs_failure_but_must_not_yield() {
    let log = Log::default();
    let coro: Texts<'_> = Coroutine::new(async |mut co| {
        if co.delegate(&child(&log, OnExit::Fail)).await.is_err() {
            log.say("swallowed");
            co.yield_("more").await?;
        }
        Ok("over")
    });
    let _ = coro.resume();
    assert_eq!(coro.close(), Err(CloseError::Yielded("more")));
    assert_eq!(coro.lifecycle(), Suspended);
    assert_eq!(coro.resume(), Ok(Returned("over")));
    log.expect("child exit\nswallowed");
}

#[test]
fn a_thrown_exit_closes_the_child_and_the_parent_may_go_on() {
    let log = Log::default();
    let coro: Texts<'_> = Coroutine::new(async |mut co| {
        let result = co.delegate(&child(&log, OnExit::Return)).await;
        log.say(format!("parent {result:?}"));
        co.yield_("still").await.map(|_| "over")
    });
    let _ = coro.resume();
    assert_eq!(coro.throw(Thrown::Exit), Ok(Yielded("still")));
    assert_eq!(coro.resume(), Ok(Returned("over")));
    log.expect("child exit\nparent Err(Exit)");
}

#[test]
fn closing_a_parent_that_never_started_runs_neither() {
    let log = Log::default();
    let coro = parent(&log, OnExit::Pass);
    assert_eq!(coro.close(), Ok(None));
    log.expect("");
}

#[test]
fn the_childs_own_error_comes_out_at_the_delegation() {
    let log = Log::default();
    let coro: Texts<'_> = Coroutine::new(async |mut co| {
        let failing = Coroutine::new(async |mut co| {
            co.yield_("1").await?;
            Err::<(), _>(Value("own"))?;
            Ok(())
        });
        if let Err(Thrown::Error(error)) = co.delegate(&failing).await {
            log.say(format!("parent handles {error:?}"));
            co.yield_("fallback").await?;
        }
        Ok("done")
    });
    for _ in 0..4 {
        log.show(coro.resume());
    }
    log.expect(
        r#"-> "1"
        parent handles Value("own")
        -> "fallback"
        end "done"
        finished"#,
    );
}

#[test]
fn values_and_results_pass_through_three_levels() {
    type Collector<'a> = Coroutine<'a, usize, &'static str, Vec<&'static str>>;
    fn level(log: &Log, depth: u32) -> Collector<'_> {
        Coroutine::new(async move |mut co| {
            if depth == 3 {
                let mut got = Vec::new();
                while let Some(x) = co.yield_(got.len()).await? {
                    got.push(x);
                }
                return Ok(got);
            }
            let mut got = co.delegate(&level(log, depth + 1)).await?;
            log.say(format!("level {depth} {got:?}"));
            got.push(if depth == 2 { "l2" } else { "l1" });
            Ok(got)
        })
    }
    let log = Log::default();
    let coro = level(&log, 1);
    log.show(coro.resume());
    log.show(coro.send("a"));
    log.show(coro.send("b"));
    log.show(coro.resume());
    log.expect(
        r#"-> 0
        -> 1
        -> 2
        level 2 ["a", "b"]
        level 1 ["a", "b", "l2"]
        end ["a", "b", "l2", "l1"]"#,
    );
}

#[test]
fn a_recursive_walk_is_delegation_to_oneself_anew() {
    struct Tree(i32, Vec<Tree>);
    fn walk(tree: &Tree) -> Plain<'_, i32> {
        Coroutine::new(async move |mut co| {
            co.yield_(tree.0).await?;
            for branch in &tree.1 {
                co.delegate(&walk(branch)).await?;
            }
            Ok(())
        })
    }
    let tree = Tree(1, vec![Tree(2, vec![Tree(3, vec![])]), Tree(4, vec![])]);
    assert_eq!(walk(&tree).into_iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn a_child_already_under_way_goes_on_where_it_was() {
    let child = count_up_to(3);
    assert_eq!(child.resume(), Ok(Yielded(0)));
    let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
    assert_eq!(coro.iter().collect::<Vec<_>>(), [Ok(1), Ok(2)]);
    drop(coro);
    assert_eq!(child.lifecycle(), Closed);
}

#[test]
fn unlike_python_a_finished_child_is_a_fault() {
    let child = count_up_to(0);
    let _ = child.resume();
    let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
    let fault = Thrown::Child(ChildFault::Finished);
    assert_eq!(coro.resume(), Err(ResumeError::Raised(fault)));
}

#[test]
fn a_child_ended_behind_the_parents_back_is_a_fault_at_the_next_step() {
    let child = count_up_to(3);
    let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
    let _ = coro.resume();
    assert_eq!(child.close(), Ok(None));
    let fault = Thrown::Child(ChildFault::Finished);
    assert_eq!(coro.resume(), Err(ResumeError::Raised(fault)));
}

#[test]
fn an_error_thrown_after_the_child_ended_behind_the_parents_back_is_the_parents() {
    let child: Texts<'_> = Coroutine::new(async |mut co| co.yield_("1").await.map(|_| ""));
    let coro: Texts<'_> = Coroutine::new(async |mut co| co.delegate(&child).await);
    let _ = coro.resume();
    assert_eq!(child.close(), Ok(None));
    assert_eq!(coro.throw(Key("k")), Err(ResumeError::Raised(Key("k").into())));
}

#[test]
fn delegating_to_oneself_is_a_fault_one_can_handle() {
    let me = Rc::new_cyclic(|me: &Weak<Plain<'static, &str>>| {
        let me = me.clone();
        Coroutine::new(async move |mut co| {
            let own = me.upgrade().unwrap();
            let result = co.delegate(&own).await;
            drop(own);
            assert_eq!(result, Err(Thrown::Child(ChildFault::Running)));
            co.yield_("ok").await.map(drop)
        })
    });
    assert_eq!(me.resume(), Ok(Yielded("ok")));
}
