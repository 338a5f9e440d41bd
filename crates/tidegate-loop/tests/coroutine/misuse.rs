//! What has no counterpart in Python: panics, foreign futures, use after the end.

use super::*;

#[test]
fn awaiting_what_is_ready_is_allowed() {
    let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
        let value = ready(7).await;
        co.yield_(value).await.map(drop)
    });
    assert_eq!(coro.resume(), Ok(Yielded(7)));
}

#[test]
#[should_panic(expected = "awaited something that was not ready and not its own Co")]
fn awaiting_something_foreign_panics_instead_of_hanging() {
    let coro: Plain<'_, u8> = Coroutine::new(async |_co| pending().await);
    let _ = coro.resume();
}

#[test]
fn a_foreign_wait_in_a_later_step_panics_and_closes() {
    let log = Log::default();
    let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
        let _finally = Finally(&log, "finally");
        co.yield_(1).await?;
        // Even one that would be ready when asked again.
        let mut asked = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(())
    });
    let _ = coro.resume();
    assert!(catch_unwind(AssertUnwindSafe(|| coro.resume())).is_err());
    log.expect("finally");
    assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
}

#[test]
fn driving_one_coroutine_inside_another_is_no_foreign_wait() {
    let coro: Plain<'_, u32> = Coroutine::new(async |mut co| {
        let sum = count_up_to(4).into_iter().sum();
        co.yield_(sum).await.map(drop)
    });
    assert_eq!(coro.resume(), Ok(Yielded(6)));
}

#[test]
#[should_panic(expected = "a Co was used outside of the coroutine it was made for")]
fn a_co_that_left_its_body_panics_instead_of_hanging() {
    let coro: Plain<'_, u8, Co<u8>> = Coroutine::new(async |co| Ok(co));
    let Ok(Returned(mut co)) = coro.resume() else { unreachable!() };
    let yielding = pin!(co.yield_(1));
    let _ = yielding.poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn a_co_that_left_a_body_that_panicked_panics_too() {
    let stolen = RefCell::new(None);
    let coro: Plain<'_, u8> = Coroutine::new(async |co| {
        stolen.replace(Some(co));
        panic!("broken body")
    });
    assert!(catch_unwind(AssertUnwindSafe(|| coro.resume())).is_err());
    let mut co = stolen.take().unwrap();
    let poll_once = || pin!(co.yield_(1)).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(catch_unwind(AssertUnwindSafe(poll_once)).is_err());
}

#[test]
fn an_abandoned_yield_was_never_yielded() {
    let coro: Plain<'_, &str> = Coroutine::new(async |mut co| {
        {
            let mut abandoned = pin!(co.yield_("abandoned"));
            poll_fn(|cx| Poll::Ready(abandoned.as_mut().poll(cx).is_pending())).await;
        }
        co.yield_("kept").await.map(drop)
    });
    assert_eq!(coro.resume(), Ok(Yielded("kept")));
    assert_eq!(coro.resume(), Ok(Returned(())));
}

#[test]
fn a_yield_polled_twice_in_one_step_yields_once() {
    let coro: Coroutine<'_, &str, u8, Option<u8>> = Coroutine::new(async |mut co| {
        let mut yielding = pin!(co.yield_("once"));
        poll_fn(|cx| {
            let _ = yielding.as_mut().poll(cx).is_ready();
            Poll::Ready(())
        })
        .await;
        yielding.await
    });
    assert_eq!(coro.resume(), Ok(Yielded("once")));
    assert_eq!(coro.send(3), Ok(Returned(Some(3))));
}

#[test]
fn what_is_sent_to_an_abandoned_yield_does_not_reach_the_next() {
    let coro: Coroutine<'_, u8, u8, Option<u8>> = Coroutine::new(async |mut co| {
        let mut polls = 0;
        {
            let mut yielding = pin!(co.yield_(1));
            poll_fn(|cx| {
                polls += 1;
                if polls == 2 {
                    return Poll::Ready(());
                }
                yielding.as_mut().poll(cx).map(drop)
            })
            .await;
        }
        co.yield_(2).await
    });
    assert_eq!(coro.resume(), Ok(Yielded(1)));
    assert_eq!(coro.send(10), Ok(Yielded(2)));
    assert_eq!(coro.send(20), Ok(Returned(Some(20))));
}
