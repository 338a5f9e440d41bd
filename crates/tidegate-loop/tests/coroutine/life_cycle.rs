//! Created, running, suspended, closed: when each, and what each allows.

use super::*;

#[test]
fn created_running_suspended_closed() {
    let seen = RefCell::new(Vec::new());
    let me = Rc::new_cyclic(|me: &Weak<Plain<'_, ()>>| {
        let (me, seen) = (me.clone(), &seen);
        Coroutine::new(async move |mut co| {
            seen.borrow_mut().push(me.upgrade().unwrap().lifecycle());
            co.yield_(()).await.map(drop)
        })
    });
    seen.borrow_mut().push(me.lifecycle());
    let _ = me.resume();
    seen.borrow_mut().push(me.lifecycle());
    let _ = me.resume();
    seen.borrow_mut().push(me.lifecycle());
    assert_eq!(*seen.borrow(), [Created, Running, Suspended, Closed]);
}

#[test]
fn debug_tells_the_stage_and_nothing_of_the_body() {
    assert_eq!(format!("{:?}", count_up_to(1)), "Coroutine { lifecycle: Created, .. }");
}

#[test]
fn a_running_coroutine_refuses_itself_and_goes_on() {
    type Selfish = Coroutine<'static, u8, u8, (), Fault>;
    let me = Rc::new_cyclic(|me: &Weak<Selfish>| {
        let me = me.clone();
        Coroutine::new(async move |mut co| {
            let me = me.upgrade().unwrap();
            assert_eq!(me.resume(), Err(ResumeError::Running(())));
            assert_eq!(me.send(5), Err(ResumeError::Running(5)));
            assert_eq!(me.throw(Type), Err(ResumeError::Running(Type.into())));
            assert_eq!(me.close(), Err(CloseError::Running));
            assert_eq!(me.lifecycle(), Running);
            // Not held across the yield: it would keep itself alive.
            drop(me);
            co.yield_(1).await.map(drop)
        })
    });
    assert_eq!(me.resume(), Ok(Yielded(1)));
    assert_eq!(me.resume(), Ok(Returned(())));
}

fn exits(log: &Log) -> Plain<'_, u8> {
    Coroutine::new(async move |mut co| {
        let _finally = Finally(log, "finally");
        let ended = co.yield_(1).await;
        log.say(format!("{ended:?}"));
        ended.map(drop)
    })
}

#[test]
fn dropping_a_suspended_coroutine_closes_it() {
    let log = Log::default();
    let coro = exits(&log);
    let _ = coro.resume();
    drop(coro);
    log.say("after the drop");
    log.expect("Err(Exit)\nfinally\nafter the drop");
}

#[test]
fn the_last_of_several_owners_closes_it() {
    let log = Log::default();
    let coro = Rc::new(exits(&log));
    let other = Rc::clone(&coro);
    let _ = coro.resume();
    drop(coro);
    log.say("one owner left");
    drop(other);
    log.expect("one owner left\nErr(Exit)\nfinally");
}

#[test]
fn leaving_a_for_loop_early_closes_it() {
    let log = Log::default();
    for value in exits(&log) {
        if value == 1 {
            break;
        }
    }
    log.say("after the loop");
    log.expect("Err(Exit)\nfinally\nafter the loop");
}

#[test]
fn dropping_one_that_never_started_does_not_run_it() {
    let log = Log::default();
    drop(exits(&log));
    log.expect("");
}

#[test]
fn unlike_python_dropping_one_that_yields_even_then_still_runs_its_destructors() {
    let log = Log::default();
    let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
        let _finally = Finally(&log, "finally");
        loop {
            let answer = co.yield_(1).await;
            log.say(format!("{answer:?}"));
        }
    });
    let _ = coro.resume();
    drop(coro);
    log.expect("Err(Exit)\nfinally");
}

#[test]
fn a_drop_during_an_unwinding_runs_the_destructors_alone() {
    let log = Log::default();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let coro = exits(&log);
        let _ = coro.resume();
        panic!("elsewhere");
    }));
    assert!(unwound.is_err());
    log.expect("finally");
}

#[test]
fn a_panic_in_the_body_reaches_the_caller_and_closes() {
    let log = Log::default();
    let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
        let _finally = Finally(&log, "finally");
        co.yield_(1).await?;
        panic!("broken body");
    });
    let _ = coro.resume();
    let panic = catch_unwind(AssertUnwindSafe(|| coro.resume())).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"broken body"));
    log.expect("finally");
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
}
