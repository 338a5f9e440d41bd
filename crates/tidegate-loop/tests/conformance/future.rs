//! Cases 24–29: the settable future and its done-callbacks.

use std::rc::Rc;

use tidegate_loop::{FutureError, ReportKind};

use crate::support::{Log, Reports, one_tick, run_strict, strict};

#[test]
fn c24_set_result_queues_the_callbacks_in_order() {
    let (event_loop, log) = (strict(), Log::new());
    let future = event_loop.create_future();
    for line in ["first", "second", "third"] {
        let said = log.clone();
        future.add_done_callback(move |future| said.tick(format_args!("{line} {:?}", future.result().unwrap().ok())));
    }
    let said = log.clone();
    event_loop.call_soon(move || {
        future.set_result(7).unwrap();
        said.tick("set");
    });
    event_loop.run_until_idle().unwrap();
    log.expect(["1 set", "2 first Some(7)", "2 second Some(7)", "2 third Some(7)"]);
}

#[test]
fn c25_a_callback_added_when_it_is_done_runs_in_the_next_tick() {
    let (event_loop, log) = (strict(), Log::new());
    let future = event_loop.create_future();
    future.set_result(1).unwrap();
    let (handle, said) = (event_loop.handle(), log.clone());
    event_loop.call_soon(move || {
        handle.call_soon(said.teller("queued before"));
        let told = said.clone();
        future.add_done_callback(move |_| told.tick("callback"));
        handle.call_soon(said.teller("queued after"));
        said.tick("added");
    });
    event_loop.run_until_idle().unwrap();
    log.expect(["1 added", "2 queued before", "2 callback", "2 queued after"]);
}

/// A Rust closure has no identity, so each adding has a number of its own: Python's 2 is two times 1.
#[test]
fn c26_a_callback_added_twice_is_removed_twice() {
    let (event_loop, log) = (strict(), Log::new());
    let future = event_loop.create_future();
    let said = log.clone();
    let callback: Rc<dyn Fn()> = Rc::new(move || said.say("called"));
    let add = || {
        let callback = callback.clone();
        future.add_done_callback(move |_| callback())
    };
    let (first, second, third) = (add(), add(), add());
    assert_eq!(future.remove_done_callback(first) + future.remove_done_callback(second), 2);
    assert_eq!(future.remove_done_callback(first) + future.remove_done_callback(second), 0);
    future.set_result(()).unwrap();
    one_tick(&event_loop);
    log.expect(["called"]);
    assert_eq!(future.remove_done_callback(third), 0);
}

#[test]
fn c27_removing_after_completion_is_too_late() {
    let (event_loop, log) = (strict(), Log::new());
    let future = event_loop.create_future();
    let said = log.clone();
    let id = future.add_done_callback(move |_| said.say("still called"));
    future.set_result(()).unwrap();
    assert_eq!(future.remove_done_callback(id), 0);
    one_tick(&event_loop);
    log.expect(["still called"]);
}

#[test]
fn c28_a_callback_that_panics_does_not_stop_the_later_ones() {
    let (event_loop, log) = (strict(), Log::new());
    let reports = Reports::of(&event_loop);
    let future = event_loop.create_future();
    let said = log.clone();
    future.add_done_callback(move |_| said.say("before"));
    future.add_done_callback(|_| panic!("boom"));
    let said = log.clone();
    future.add_done_callback(move |_| said.say("after"));
    future.set_result(()).unwrap();
    one_tick(&event_loop);
    log.expect(["before", "after"]);
    reports.expect([(ReportKind::CallbackPanic, "boom")]);
}

#[test]
fn c29_a_future_is_set_once() {
    let event_loop = strict();
    let future = event_loop.create_future();
    future.set_result("kept").unwrap();
    assert_eq!(future.set_result("refused").unwrap_err().value, "refused");
    assert_eq!(future.set_exception("refused too").unwrap_err().value.to_string(), "refused too");
    assert!(!future.cancel());
    assert_eq!(future.result().unwrap().unwrap(), "kept");

    let cancelled = event_loop.create_future::<u32>();
    assert!(cancelled.cancel());
    assert!(!cancelled.cancel());
    assert_eq!(cancelled.set_result(1).unwrap_err().value, 1);
    assert!(cancelled.is_cancelled());
}

#[test]
fn c29_every_waiter_gets_what_was_set() {
    run_strict(async {
        let handle = tidegate_loop::LoopHandle::current();
        let future = handle.create_future::<u32>();
        let waiters = [1, 2].map(|_| {
            let future = future.clone();
            handle.spawn(async move { future.await.map_err(|error| error.to_string()) })
        });
        tidegate_loop::yield_now().await;
        future.set_exception("lost").unwrap();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), Err("lost".to_owned()));
        }
        let future = handle.create_future::<u32>();
        future.cancel();
        assert!(matches!(future.await, Err(FutureError::Cancelled)));
    });
}
