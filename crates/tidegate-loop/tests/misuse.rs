//! Bad input and wrong use: a typed error, or a panic with a message that says what to do; never a hang, never silence.

#[path = "conformance/support.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{IntoFuture, pending};
use std::rc::Rc;
use std::task::{Context as PollContext, Waker};

use support::{Log, Reports, Tap, message_of, ms, one_tick, panic_of, run_strict, strict, strict_real};
use tidegate_loop::{
    ContextVar, ContextVars, Deadline, Duration, EventLoop, GroupClosed, Instant, JoinError, JoinHandle, LoopClosed,
    LoopEvent, LoopHandle, OnLoop, Outcome, ReportKind, ResetError, RunError, Task, TaskGroup, TaskState, WaitsFor,
    gather, run, sleep, sleep_until, spawn, spawn_fallible, timeout, yield_now,
};

const CLOSED: &str = "on a closed loop: a closed loop runs nothing more, make a new one";

#[test]
fn delays_that_are_no_numbers_are_refused() {
    let event_loop = strict();
    for delay in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let message = panic_of(|| event_loop.call_later(delay, || unreachable!()));
        assert!(message.starts_with("a delay must be a finite number of seconds, not "), "{message}");
        assert!(message.ends_with("for \"never\", arm no timer"), "{message}");
    }
    assert_eq!(event_loop.metrics().timers, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no selector to look at")]
fn the_most_negative_delays_are_due_at_once_and_in_order() {
    for event_loop in [strict(), strict_real()] {
        let log = Log::new();
        event_loop.call_later(-1e9, log.teller("-1e9"));
        event_loop.call_later(f64::MIN, log.teller("the least there is"));
        event_loop.call_later(-1e12, log.teller("-1e12"));
        let past = event_loop.time().checked_sub(Duration::from_secs(9_000_000_000));
        if let Some(past) = past {
            event_loop.call_at(past, log.teller("long ago"));
        }
        event_loop.call_later(-0.0, log.teller("now"));
        one_tick(&event_loop);
        let mut lines = log.lines();
        lines.retain(|line| line != "1 long ago");
        assert_eq!(lines, ["1 the least there is", "1 -1e12", "1 -1e9", "1 now"]);
    }
}

#[test]
fn delays_of_centuries_are_as_good_as_never() {
    let event_loop = strict();
    event_loop.advance(Duration::from_secs(1));
    for timer in [event_loop.call_later(f64::MAX, || ()), event_loop.call_later(Duration::MAX, || ())] {
        assert!(timer.when() > event_loop.time() + Duration::from_secs(200 * 365 * 86_400));
        timer.cancel();
    }
    let sleeper = event_loop.spawn(sleep(Duration::MAX));
    let limited = event_loop.spawn(timeout(Duration::MAX, pending::<()>()));
    one_tick(&event_loop);
    assert!(!sleeper.is_finished() && !limited.is_finished());
    event_loop.call_later(1.0, || LoopHandle::current().stop());
    event_loop.run_forever().unwrap();
    assert!(!sleeper.is_finished() && !limited.is_finished());
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn a_closed_loop_refuses_everything() {
    let event_loop = strict();
    let (handle, remote, now) = (event_loop.handle(), event_loop.remote(), event_loop.time());
    event_loop.close().unwrap();
    event_loop.close().unwrap();
    for message in [
        panic_of(|| handle.call_soon(|| unreachable!())),
        panic_of(|| handle.call_later(1.0, || unreachable!())),
        panic_of(|| handle.call_at(now, || unreachable!())),
    ] {
        assert!(message.ends_with(CLOSED), "{message}");
    }
    for message in [
        panic_of(|| handle.spawn(async { unreachable!() })),
        panic_of(|| handle.task().name("n").spawn(async { unreachable!() })),
    ] {
        assert!(message.starts_with("spawn on a closed loop (at ") && message.contains("misuse.rs"), "{message}");
    }
    assert!(matches!(event_loop.run_until_complete(async {}), Err(RunError::Closed)));
    assert!(matches!(event_loop.run_forever(), Err(RunError::Closed)));
    assert!(matches!(event_loop.run_until_idle(), Err(RunError::Closed)));
    assert_eq!(RunError::Closed.to_string(), "the loop is closed; make a new one");
    assert_eq!(remote.call_soon_threadsafe(|| unreachable!()), Err(LoopClosed));
    let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(handle.add_reader(&near, || ()).unwrap_err().to_string(), "the loop is closed; make a new one");
    assert!(!handle.remove_reader(&near));
    // What only looks goes on working.
    assert_eq!((handle.all_tasks().len(), handle.dump().tasks().len(), handle.metrics().tasks), (0, 0, 0));
    drop(event_loop);
    assert!(panic_of(|| handle.call_soon(|| ())).ends_with(CLOSED));
}

#[test]
fn destructors_that_use_the_loop_while_it_closes_are_reported_and_do_not_stop_it() {
    struct Late(LoopHandle);
    impl Drop for Late {
        fn drop(&mut self) {
            drop(self.0.spawn(async {}));
        }
    }
    let (event_loop, log) = (strict(), Log::new());
    let reports = Reports::of(&event_loop);
    let late = Late(event_loop.handle());
    drop(event_loop.spawn(async move {
        let _late = late;
        pending::<()>().await;
    }));
    let guard = log.guard("the next one is dropped too");
    drop(event_loop.spawn(async move {
        let _guard = guard;
        pending::<()>().await;
    }));
    drop(event_loop);
    log.expect(["the next one is dropped too"]);
    assert_eq!(reports.all().len(), 1);
    assert!(reports.all()[0].message().starts_with("spawn on a closed loop"));
}

#[test]
fn running_inside_of_a_run_is_refused_and_the_outer_one_goes_on() {
    let outer = Rc::new(strict());
    let (again, other) = (outer.clone(), strict());
    let after = outer.run_until_complete(async move {
        assert!(matches!(run(async { unreachable!() }), Err::<(), _>(RunError::Nested)));
        for event_loop in [&*again, &other] {
            assert!(matches!(event_loop.run_until_complete(async { unreachable!() }), Err::<(), _>(RunError::Nested)));
            assert!(matches!(event_loop.run_forever(), Err(RunError::Nested)));
            assert!(matches!(event_loop.run_until_idle(), Err(RunError::Nested)));
        }
        yield_now().await;
        (other.metrics().tasks, other.metrics().ticks, again.metrics().tasks)
    });
    assert_eq!(after.unwrap(), (0, 0, 1), "nothing was spawned for nothing, nothing ran");
    assert!(RunError::Nested.to_string().contains("await or spawn instead"));
    // From a callback too.
    let again = outer.clone();
    outer.call_soon(move || assert!(matches!(again.run_forever(), Err(RunError::Nested))));
    let reports = Reports::of(&outer);
    outer.run_until_idle().unwrap();
    reports.expect([]);
}

#[test]
fn a_virtual_loop_that_would_wait_for_ever_says_who_waits_for_what() {
    for event_loop in [strict(), EventLoop::builder().manual_clock().build().unwrap(), EventLoop::simulated(3)] {
        let never = event_loop.create_future::<u32>();
        let waiter = event_loop.task().name("waiter").spawn(async move { never.await.unwrap() });
        let line = waiter.task().location().line();
        let stalled = match event_loop.run_until_complete(waiter) {
            Err(RunError::Stalled(dump)) => dump,
            other => panic!("{:?}", other.map(|result| result.map_err(|error| error.to_string()))),
        };
        let entry = &stalled.tasks()[0];
        assert_eq!((&*entry.name, entry.location.line()), ("waiter", line));
        assert!(matches!(entry.state, TaskState::Waiting(WaitsFor::Future(_))), "{}", entry.state);
        let main = &stalled.tasks()[1];
        assert_eq!(main.state, TaskState::Waiting(WaitsFor::Task("waiter".into())));
        let text = RunError::Stalled(stalled).to_string();
        assert!(text.contains("this would wait for ever") && text.contains("waits for task waiter"), "{text}");
    }
}

#[test]
fn a_result_is_fetched_once() {
    let message = panic_of(|| {
        run_strict(async {
            let mut handle = spawn(async { 1 });
            yield_now().await;
            assert_eq!(handle.try_result().unwrap().unwrap(), 1);
            assert!(handle.try_result().is_none());
            handle.await.unwrap()
        })
    });
    assert_eq!(message, "this task's result was taken already");
}

#[test]
fn what_needs_a_running_loop_says_so() {
    fn poll(future: impl IntoFuture) {
        let future = std::pin::pin!(future.into_future());
        let _ = future.poll(&mut PollContext::from_waker(Waker::noop()));
    }
    let says = |message: String, part: &str| assert!(message.contains(part), "{message:?} does not say {part:?}");
    says(panic_of(|| spawn(async {})), "call it inside run(...), or use LoopHandle::spawn");
    says(panic_of(|| spawn_fallible(async { Ok::<(), String>(()) })), "call it inside run(...)");
    says(panic_of(LoopHandle::current), "call this inside run(...)");
    says(panic_of(Task::current), "Task::current() is for code inside a task");
    says(panic_of(|| OnLoop::new(1)), "call this inside run(...)");
    says(panic_of(|| gather::<()>([])), "call this inside run(...)");
    says(panic_of(|| poll(sleep(ms(1)))), "await it inside run(...)");
    says(panic_of(|| poll(sleep_until(Instant::now()))), "await it inside run(...)");
    says(panic_of(|| poll(timeout(ms(1), pending::<()>()))), "await it inside run(...)");
    says(panic_of(|| poll(Deadline::never().scope(async {}))), "await its scope inside run(...)");
    says(panic_of(|| poll(tidegate_loop::Cancelled.propagate())), "inside a task");
    says(panic_of(|| poll(TaskGroup::<()>::scope(async |_| Ok(())))), "inside a task");
    assert!(LoopHandle::try_current().is_none() && Task::try_current().is_none());
    // On the loop, but in no task.
    let event_loop = strict();
    let reports = Reports::of(&event_loop);
    event_loop.call_soon(|| poll(timeout(ms(1), pending::<()>())));
    one_tick(&event_loop);
    reports.expect([(ReportKind::CallbackPanic, "a time-out needs a task to cancel: await it inside one")]);
}

#[test]
fn a_deadline_is_used_once() {
    let message = panic_of(|| {
        run_strict(async {
            let deadline = Deadline::after(ms(1));
            assert_eq!(deadline.scope(async { 1 }).await, Ok(1));
            deadline.scope(async { 2 }).await
        })
    });
    assert_eq!(message, "a deadline is used once; make another for the next scope");
    let message = panic_of(|| {
        run_strict(async {
            let deadline = Deadline::after(ms(1));
            let inside = deadline.clone();
            deadline.scope(async move { inside.scope(async {}).await }).await
        })
    });
    assert_eq!(message, "a deadline is used once; make another for the next scope");
    // Moving one that is not in force moves nothing.
    run_strict(async {
        let deadline = Deadline::after(ms(1));
        deadline.reschedule(Some(LoopHandle::current().time()));
        assert_eq!(deadline.scope(async { sleep(Duration::ZERO).await }).await, Ok(()));
        deadline.reschedule(Some(LoopHandle::current().time()));
        sleep(ms(2)).await;
        assert!(!deadline.expired());
    });
}

#[test]
fn a_token_is_good_where_it_was_made() {
    static ONE: ContextVar<u32> = ContextVar::new("one");
    static TWO: ContextVar<u32> = ContextVar::new("two");
    run_strict(async {
        let token = ONE.set(1);
        let child = spawn(async move { ONE.reset(token) });
        assert_eq!(child.await.unwrap(), Err(ResetError::OtherContext));
        assert_eq!(ONE.get(), Some(1), "nothing was reset");
        let token = ONE.set(2);
        assert_eq!(TWO.reset(token), Err(ResetError::OtherVariable));
        let inside = ContextVars::current().run(|| ONE.set(3));
        assert_eq!(ONE.reset(inside), Err(ResetError::OtherContext));
        let token = ONE.set(4);
        yield_now().await;
        assert_eq!(ONE.reset(token), Ok(()), "the same task, another step");
        assert_eq!(ONE.get(), Some(2));
    });
    assert!(ResetError::OtherContext.to_string().ends_with("reset where you set"));
    let context = ContextVars::current();
    let message = panic_of(|| context.run(|| context.run(|| ())));
    assert!(message.starts_with("this context is entered already; take another copy with ContextVars::current()"));
}

#[test]
fn only_a_virtual_clock_can_be_moved() {
    let message = panic_of(|| EventLoop::new().unwrap().advance(ms(1)));
    assert_eq!(message, "advance needs a virtual clock: make the loop with Builder::virtual_time");
}

#[test]
fn a_task_that_waits_for_its_own_end_is_told_so() {
    let event_loop = strict();
    let outcome = event_loop.run_until_complete(async {
        let task = spawn(async {
            Task::current().finished().await;
        });
        task.await.map_err(|error| error.to_string())
    });
    match outcome {
        Ok(Err(message)) => assert!(message.contains("a task cannot await itself"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_id_of_another_futures_callback_removes_nothing() {
    let event_loop = strict();
    let (mine, other) = (event_loop.create_future::<u32>(), event_loop.create_future::<u32>());
    let awaited = other.clone();
    let waiter = event_loop.spawn(async move { awaited.await.unwrap() });
    one_tick(&event_loop);
    let id = mine.add_done_callback(|_| ());
    assert_eq!(other.remove_done_callback(id), 0, "it was taken for the waiter, which now waits for ever");
    other.set_result(1).unwrap();
    event_loop.run_until_idle().unwrap();
    assert!(waiter.is_finished());
}

#[test]
fn a_group_that_has_ended_takes_no_more_tasks() {
    run_strict(async {
        let kept: Rc<RefCell<Option<TaskGroup<()>>>> = Rc::default();
        let slot = kept.clone();
        TaskGroup::scope(async move |group| {
            *slot.borrow_mut() = Some(group.clone());
            Ok(())
        })
        .await
        .unwrap();
        let group = kept.take().unwrap();
        assert_eq!(group.spawn(async { Ok(()) }).unwrap_err(), GroupClosed);
    });
}

#[test]
fn more_uncancels_than_cancels_stay_at_zero() {
    run_strict(async {
        let task = Task::current();
        assert_eq!((task.uncancel(), task.uncancel(), task.cancelling()), (0, 0, 0));
        task.cancel();
        assert_eq!(task.uncancel(), 0);
        yield_now().await;
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn what_cannot_be_watched_is_refused() {
    let event_loop = strict();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert!(event_loop.add_reader(&file, || unreachable!()).is_err(), "a regular file is always ready");
    assert!(!event_loop.remove_reader(&file));
    one_tick(&event_loop);
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn signals_that_cannot_be_handled_are_refused() {
    let event_loop = strict();
    const SIGKILL: i32 = 9;
    for signal in [SIGKILL, 19, 9999, -1] {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| event_loop.dump_on_signal(signal, |_| ())));
        match result {
            Ok(refused) => assert!(refused.is_err(), "{signal}"),
            Err(panic) => panic!("{signal}: documented as an error, but it panics: {}", message_of(&*panic)),
        }
    }
}

#[test]
fn an_exception_handler_that_panics_does_not_end_the_run() {
    let (event_loop, log) = (strict(), Log::new());
    event_loop.set_exception_handler(|_| panic!("in the handler"));
    event_loop.call_soon(|| panic!("boom"));
    event_loop.call_soon(log.teller("next"));
    one_tick(&event_loop);
    log.expect(["1 next"]);
}

#[test]
fn an_observer_may_use_the_loop_it_observes() {
    let event_loop = strict();
    let (handle, spawned) = (event_loop.handle(), Rc::new(Cell::new(0)));
    let count = spawned.clone();
    event_loop.set_observer(Tap(move |_, event: &LoopEvent<'_>| {
        if matches!(event, LoopEvent::Woken { .. }) && count.get() < 3 {
            count.set(count.get() + 1);
            drop(handle.spawn(async {}));
            handle.call_soon(|| ());
            let _ = (handle.metrics(), handle.dump(), handle.all_tasks());
        }
    }));
    drop(event_loop.spawn(yield_now()));
    event_loop.run_until_idle().unwrap();
    assert_eq!((spawned.get(), event_loop.metrics().tasks), (2, 0), "once for each wake of the task");
}

#[test]
fn an_observer_may_take_itself_off() {
    let event_loop = strict();
    let (handle, seen) = (event_loop.handle(), Rc::new(Cell::new(0)));
    let count = seen.clone();
    event_loop.set_observer(Tap(move |_, _: &LoopEvent<'_>| {
        count.set(count.get() + 1);
        handle.clear_observer();
    }));
    event_loop.run_until_complete(yield_now()).unwrap();
    assert_eq!(seen.get(), 1);
}

/// An error that knows whether it is still whole when it is read.
struct Watched {
    intact: Rc<Cell<bool>>,
    _first: Spoils,
    _second: Asks,
}

struct Spoils(Rc<Cell<bool>>);
impl Drop for Spoils {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

struct Asks(Rc<RefCell<Option<Task>>>);
impl Drop for Asks {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.error();
        }
    }
}

thread_local!(static READ_WHILE_DROPPED: Cell<bool> = const { Cell::new(false) });

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        READ_WHILE_DROPPED.set(READ_WHILE_DROPPED.get() || !self.intact.get());
        f.write_str("watched")
    }
}

#[test]
fn an_error_that_is_being_dropped_is_not_read() {
    let event_loop = strict();
    let (intact, slot) = (Rc::new(Cell::new(true)), Rc::new(RefCell::new(None)));
    let error = Watched { intact: intact.clone(), _first: Spoils(intact), _second: Asks(slot.clone()) };
    let handle: JoinHandle<Result<(), Watched>> = event_loop.task().spawn_fallible(async move { Err(error) });
    event_loop.run_until_idle().unwrap();
    let task = handle.task();
    assert_eq!(task.error().as_deref(), Some("watched"));
    *slot.borrow_mut() = Some(task);
    drop(handle);
    assert!(!READ_WHILE_DROPPED.get(), "its Display ran when it was half dropped");
}

#[test]
fn an_error_whose_display_fetches_it_away_is_read_to_the_end() {
    thread_local!(static HANDLE: RefCell<Option<JoinHandle<Result<(), Fetches>>>> = const { RefCell::new(None) });
    struct Fetches(Rc<Cell<u32>>);
    impl Drop for Fetches {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    impl fmt::Display for Fetches {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            drop(HANDLE.take());
            write!(f, "dropped {} times while it was read", self.0.get())
        }
    }
    let (event_loop, drops) = (strict(), Rc::new(Cell::new(0)));
    let error = Fetches(drops.clone());
    let handle = event_loop.task().spawn_fallible(async move { Err(error) });
    let task = handle.task();
    event_loop.run_until_idle().unwrap();
    HANDLE.set(Some(handle));
    assert_eq!(task.error().as_deref(), Some("dropped 0 times while it was read"));
    drop(HANDLE.take());
    assert_eq!(drops.get(), 1);
}

/// Panics in the loop's hands when it is formatted.
struct Bomb;

impl fmt::Display for Bomb {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("in fmt");
    }
}

/// The same when it is dropped.
struct BombOnDrop;

impl Drop for BombOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in drop");
        }
    }
}

#[test]
fn an_error_that_cannot_be_formatted_is_still_an_error() {
    let event_loop = strict();
    let reports = Reports::of(&event_loop);
    let awaited = event_loop.task().spawn_fallible(async { Err::<(), _>(Bomb) });
    let seen = event_loop.run_until_complete(async move {
        let failed = awaited.await.unwrap().is_err();
        drop(spawn_fallible(async { Err::<(), _>(Bomb) }));
        yield_now().await;
        failed
    });
    assert!(seen.unwrap());
    assert_eq!(reports.all().iter().filter(|report| report.kind() == ReportKind::UnseenError).count(), 1);
}

#[test]
fn an_output_whose_destructor_panics_is_reported_and_the_loop_goes_on() {
    let (event_loop, log) = (strict(), Log::new());
    let reports = Reports::of(&event_loop);
    let detached = event_loop.spawn(async { BombOnDrop });
    let (watched, said) = (detached.task(), log.clone());
    drop(detached);
    drop(event_loop.spawn(async move { said.say(watched.finished().await) }));
    event_loop.call_soon(log.teller("next"));
    event_loop.run_until_idle().unwrap();
    log.expect(["completed", "1 next"]);
    assert_eq!(reports.all().len(), 1);
    assert_eq!(reports.all()[0].message(), "in drop");
}

#[test]
fn a_task_of_another_loop_of_the_thread_can_be_awaited() {
    let (near, far) = (strict(), strict());
    let go = far.create_future::<u32>();
    let awaited = go.clone();
    let handle = far.spawn(async move { awaited.await.unwrap() });
    let task = handle.task();
    let waiting = near.spawn(handle);
    let watching = near.spawn(task.finished());
    near.run_until_idle().unwrap();
    far.run_until_idle().unwrap();
    go.set_result(5).unwrap();
    far.run_until_idle().unwrap();
    near.run_until_idle().unwrap();
    assert!(watching.is_finished());
    assert!(waiting.is_finished(), "its wake went to the wrong loop");
}

#[test]
fn waking_what_has_ended_does_nothing() {
    let event_loop = strict();
    let waker = Rc::new(RefCell::new(None));
    let slot = waker.clone();
    let task = event_loop.spawn(std::future::poll_fn(move |cx| {
        *slot.borrow_mut() = Some(cx.waker().clone());
        std::task::Poll::Ready(())
    }));
    event_loop.run_until_idle().unwrap();
    assert_eq!(task.task().outcome(), Some(Outcome::Completed));
    let before = event_loop.metrics();
    let waker = waker.take().unwrap();
    let again = waker.clone();
    waker.wake_by_ref();
    again.wake();
    one_tick(&event_loop);
    assert_eq!(event_loop.metrics().steps, before.steps);
    drop(event_loop);
    waker.wake();
}

#[test]
fn a_panic_in_the_main_future_comes_out_of_the_run() {
    let event_loop = strict();
    let message = panic_of(|| event_loop.run_until_complete(async { panic!("main") }));
    assert_eq!(message, "main");
    assert!(!event_loop.is_running());
    assert_eq!(event_loop.run_until_complete(async { 1 }).unwrap(), 1, "the loop is as good as before");
    let cancelled = event_loop.run_until_complete(async {
        Task::current().cancel();
        yield_now().await;
    });
    assert!(matches!(cancelled, Err(RunError::Cancelled)));
    assert!(matches!(event_loop.run_until_complete(spawn_cancelled(&event_loop)), Ok(Err(JoinError::Cancelled))));
}

fn spawn_cancelled(event_loop: &EventLoop) -> JoinHandle<()> {
    let handle = event_loop.spawn(pending());
    handle.cancel();
    handle
}
