//! Closing: what runs, what is reported, and what may not be done any more.

use super::*;

type Closable<'a> = Coroutine<'a, &'static str, u8, &'static str, Fault>;

fn after_close_everything_is_finished(coro: &Closable<'_>) {
    assert_eq!(coro.lifecycle(), Closed);
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    assert_eq!(coro.send(1), Err(ResumeError::Finished(1)));
    assert_eq!(coro.throw(Key("k")), Err(ResumeError::Finished(Key("k").into())));
    assert_eq!(coro.close(), Ok(None));
}

#[test]
fn a_body_that_catches_the_exit_and_returns_closes_and_hands_its_value_over() {
    let log = Log::default();
    let coro: Closable<'_> = Coroutine::new(async |mut co| {
        while co.yield_("").await != Err(Thrown::Exit) {}
        log.say("closed!");
        Ok("bye")
    });
    let _ = coro.resume();
    assert_eq!(coro.close(), Ok(Some("bye")));
    log.expect("closed!");
    after_close_everything_is_finished(&coro);
}

#[test]
fn a_body_that_does_not_catch_the_exit_closes_in_silence() {
    let log = Log::default();
    let coro: Closable<'_> = Coroutine::new(async |mut co| {
        let _finally = Finally(&log, "finally");
        loop {
            let got = co.yield_("").await?;
            log.say(format!("got {got:?}"));
        }
    });
    let _ = coro.resume();
    let _ = coro.send(3);
    assert_eq!(coro.close(), Ok(None));
    log.expect("got Some(3)\nfinally");
    after_close_everything_is_finished(&coro);
}

#[test]
fn a_body_that_yields_after_the_exit_is_an_error_and_stays_suspended() {
    let coro: Closable<'_> = Coroutine::new(async |mut co| {
        if co.yield_("").await == Err(Thrown::Exit) {
            co.yield_("must not").await?;
            co.yield_("again").await?;
        }
        Ok("")
    });
    let _ = coro.resume();
    assert_eq!(coro.close(), Err(CloseError::Yielded("must not")));
    assert_eq!(coro.lifecycle(), Suspended);
    assert_eq!(coro.resume(), Ok(Yielded("again")));
    assert_eq!(coro.throw(Key("k")), Err(ResumeError::Raised(Key("k").into())));
    after_close_everything_is_finished(&coro);
}

#[test]
fn a_body_that_fails_on_the_exit_tells_the_closer_and_is_closed() {
    let coro: Closable<'_> = Coroutine::new(async |mut co| {
        co.yield_("").await.map_err(|_| Value("in close"))?;
        Ok("")
    });
    let _ = coro.resume();
    assert_eq!(coro.close(), Err(CloseError::Raised(Value("in close").into())));
    after_close_everything_is_finished(&coro);
}

#[test]
fn close_before_the_start_never_runs_the_body() {
    let coro: Closable<'_> = Coroutine::new(async |_co| unreachable!("the body ran"));
    assert_eq!(coro.close(), Ok(None));
    after_close_everything_is_finished(&coro);
}

#[test]
fn close_after_the_end_is_nothing() {
    let coro: Closable<'_> = Coroutine::new(async |_co| Ok("over"));
    assert_eq!(coro.resume(), Ok(Returned("over")));
    assert_eq!(coro.close(), Ok(None));
}

#[test]
fn captures_that_look_at_the_coroutine_while_it_is_closed_find_it_closed() {
    struct Peek(Weak<Plain<'static, u8>>, Rc<Cell<Option<Lifecycle>>>);
    impl Drop for Peek {
        fn drop(&mut self) {
            self.1.set(self.0.upgrade().map(|coroutine| coroutine.lifecycle()));
        }
    }
    for started in [false, true] {
        let seen = Rc::new(Cell::new(None));
        let coroutine = Rc::new_cyclic(|me| {
            let peek = Peek(Weak::clone(me), Rc::clone(&seen));
            Coroutine::new(move |mut co: Co<u8>| async move {
                let result = co.yield_(1).await.map(drop);
                let _kept_to_the_end = &peek;
                result
            })
        });
        if started {
            let _ = coroutine.resume();
        }
        assert_eq!(coroutine.close(), Ok(None));
        // A local of a body that is still returning sees it running, as in any generator.
        assert_eq!(seen.get(), Some(if started { Running } else { Closed }));
    }
}
