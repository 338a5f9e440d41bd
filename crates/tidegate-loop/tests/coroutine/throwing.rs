//! Errors thrown in: where they arrive, what may catch them, what becomes of the rest.

use super::*;

/// Counts up; can be set by `send`, is reset by a value error, ended by a stop.
fn robust(log: &Log) -> Coroutine<'_, i32, i32, &'static str, Fault> {
    Coroutine::new(async move |mut co| {
        let mut value = 0;
        loop {
            let received = co.yield_(value).await;
            let mut end = None;
            match received {
                Ok(Some(received)) => value = received,
                Ok(None) => value += 1,
                Err(Thrown::Error(Value(why))) => {
                    log.say(format!("caught a value error: {why}, back to 0"));
                    value = 0;
                }
                Err(Thrown::Error(Type)) => log.say("caught a type error, round skipped"),
                Err(Thrown::Error(Stop)) => {
                    log.say("caught a stop, ending in order");
                    end = Some(Ok("stopped"));
                }
                Err(Thrown::Error(other)) => log.say(format!("caught {other:?}, going on")),
                Err(exit) => end = Some(Err(exit)),
            }
            log.say(format!("current value: {value}"));
            if let Some(end) = end {
                return end;
            }
        }
    })
}

#[test]
fn robust_generator_survives_every_error_but_the_stop() {
    let log = Log::default();
    let line = || log.say("---");
    let coro = robust(&log);
    log.show(coro.resume());
    line();
    log.show(coro.send(10));
    line();
    log.show(coro.throw(Value("bad value")));
    line();
    log.show(coro.throw(Type));
    line();
    log.show(coro.resume());
    line();
    log.show(coro.throw(Key("odd")));
    line();
    log.show(coro.throw(Stop));
    line();
    log.show(coro.resume());
    log.expect(
        r#"-> 0
        ---
        current value: 10
        -> 10
        ---
        caught a value error: bad value, back to 0
        current value: 0
        -> 0
        ---
        caught a type error, round skipped
        current value: 0
        -> 0
        ---
        current value: 1
        -> 1
        ---
        caught Key("odd"), going on
        current value: 1
        -> 1
        ---
        caught a stop, ending in order
        current value: 1
        end "stopped"
        ---
        finished"#,
    );
}

#[test]
fn robust_generator_still_tidies_up_when_it_is_closed() {
    let log = Log::default();
    let coro = robust(&log);
    log.show(coro.resume());
    assert_eq!(coro.close(), Ok(None));
    log.expect("-> 0\ncurrent value: 0");
}

fn one_and_done<'a>() -> Coroutine<'a, u8, u8, (), Fault> {
    Coroutine::new(async |mut co| co.yield_(1).await.map(drop))
}

#[test]
fn an_uncaught_throw_comes_back_to_the_caller_and_closes() {
    let coro = one_and_done();
    let _ = coro.resume();
    assert_eq!(coro.throw(Type), Err(ResumeError::Raised(Thrown::Error(Type))));
    assert_eq!(coro.lifecycle(), Closed);
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
}

#[test]
fn a_body_may_answer_one_error_with_another() {
    let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async |mut co| {
        co.yield_(1).await.map_err(|_| Key("other"))?;
        Ok(())
    });
    let _ = coro.resume();
    let other = ResumeError::Raised(Thrown::Error(Key("other")));
    assert_eq!(coro.throw(Value("v")), Err(other));
}

#[test]
fn returning_while_handling_an_error_is_a_normal_end() {
    let coro: Coroutine<'_, u8, u8, &str, Fault> =
        Coroutine::new(async |mut co| Ok(if co.yield_(1).await.is_err() { "handled" } else { "untouched" }));
    let _ = coro.resume();
    assert_eq!(coro.throw(Runtime), Ok(Returned("handled")));
    assert_eq!(coro.throw(Runtime), Err(ResumeError::Finished(Runtime.into())));
}

#[test]
fn a_throw_before_the_start_never_runs_the_body_and_finishes_it() {
    let log = Log::default();
    let kept = Finally(&log, "capture dropped");
    let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async move |mut co| {
        log_is_untouched(&kept);
        co.yield_(1).await.map(drop)
    });
    log.show(coro.throw(Value("v")));
    assert_eq!(coro.lifecycle(), Closed);
    log.show(coro.resume());
    log.expect("capture dropped\n!! Value(\"v\")\nfinished");
}

fn log_is_untouched(_: &Finally<'_>) {
    unreachable!("the body ran");
}

#[test]
fn an_error_of_the_bodys_own_comes_out_of_resume_and_closes() {
    let log = Log::default();
    let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async |mut co| {
        co.yield_(1).await?;
        Err(Value("own"))?
    });
    log.show(coro.resume());
    log.show(coro.resume());
    log.show(coro.resume());
    log.expect("-> 1\n!! Value(\"own\")\nfinished");
    assert_eq!(coro.close(), Ok(None));
}

#[test]
fn unlike_python_a_throw_after_the_end_is_refused_and_handed_back() {
    let coro = one_and_done();
    assert_eq!(coro.close(), Ok(None));
    assert_eq!(coro.throw(Type), Err(ResumeError::Finished(Thrown::Error(Type))));
}

#[test]
fn a_thrown_exit_is_like_close_but_reaches_the_caller() {
    let coro = one_and_done();
    let _ = coro.resume();
    assert_eq!(coro.throw(Thrown::Exit), Err(ResumeError::Raised(Thrown::Exit)));
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
}

#[test]
fn an_exit_raised_unasked_reaches_the_caller() {
    let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
        co.yield_(1).await?;
        Err(Thrown::Exit)
    });
    let _ = coro.resume();
    assert_eq!(coro.resume(), Err(ResumeError::Raised(Thrown::Exit)));
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
}
