//! Values sent in are what the yield evaluates to.

use super::*;

fn accumulator<'a>() -> Coroutine<'a, i32, i32> {
    Coroutine::new(async |mut co| {
        let mut total = 0;
        while let Some(value) = co.yield_(total).await? {
            total += value;
        }
        Ok(())
    })
}

#[test]
fn accumulator_adds_what_it_is_sent_until_it_is_sent_nothing() {
    let sum = accumulator();
    assert_eq!(sum.resume(), Ok(Yielded(0)));
    assert_eq!(sum.send(10), Ok(Yielded(10)));
    assert_eq!(sum.send(20), Ok(Yielded(30)));
    assert_eq!(sum.resume(), Ok(Returned(())));
    assert_eq!(sum.send(1), Err(ResumeError::Finished(1)));
}

#[test]
fn the_first_send_must_be_no_value_and_a_refused_one_changes_nothing() {
    let sum = accumulator();
    assert_eq!(sum.send(1), Err(ResumeError::NotStarted(1)));
    assert_eq!(sum.lifecycle(), Created);
    assert_eq!(sum.resume(), Ok(Yielded(0)));
    assert_eq!(sum.send(4), Ok(Yielded(4)));
}

#[test]
fn the_last_yield_has_nothing_to_answer_a_send_with() {
    let counter: Coroutine<'_, u32, &str> = Coroutine::new(async |mut co| {
        for i in 0..3 {
            co.yield_(i).await?;
        }
        Ok(())
    });
    assert_eq!(counter.resume(), Ok(Yielded(0)));
    assert_eq!(counter.send("n0"), Ok(Yielded(1)));
    assert_eq!(counter.send("n1"), Ok(Yielded(2)));
    assert_eq!(counter.send("n2"), Ok(Returned(())));
    assert_eq!(counter.send("n3"), Err(ResumeError::Finished("n3")));
}

#[test]
fn receiver_only_takes() {
    let log = Log::default();
    let receiver: Coroutine<'_, (), i32> = Coroutine::new(async |mut co| {
        log.say("Ready to receive");
        loop {
            let x = co.yield_(()).await?;
            log.say(format!("Received: {x:?}"));
        }
    });
    assert_eq!(receiver.resume(), Ok(Yielded(())));
    assert_eq!(receiver.send(10), Ok(Yielded(())));
    log.expect("Ready to receive\nReceived: Some(10)");
}

#[test]
fn no_line_of_the_body_runs_before_the_first_resume() {
    let log = Log::default();
    let body = |mut co: Co<()>| {
        log.say("synchronous part");
        async move { co.yield_(()).await.map(drop) }
    };
    let lazy: Plain<'_, ()> = Coroutine::new(body);
    log.expect("");
    let _ = lazy.resume();
    log.expect("synchronous part");
}
