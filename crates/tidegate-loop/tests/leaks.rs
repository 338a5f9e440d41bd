//! Nothing stays behind: whatever becomes of a task, a future, a timer or a whole loop, all of it is freed, and as early
//! as can be. Guards count what is dropped when; an allocator that counts says whether any byte was left.

#[path = "conformance/support.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Once;

use support::{Alive, Log, Reports, Tap, ms, strict};
use tidegate_loop::{
    ContextVars, Duration, EventLoop, JoinHandle, LoopEvent, LoopHandle, OnLoop, Outcome, ReportKind, Task, TaskGroup,
    When, as_completed, catch_cancel, gather, gather_all, shield, sleep, spawn, spawn_fallible, timeout, wait,
    yield_now,
};

struct Counting;

thread_local! {
    /// Bytes allocated by this thread and not freed by it. What a loop owns never leaves its thread.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn live() -> isize {
    LIVE.get()
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counter is a plain thread-local number that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Panics that are part of a scenario print nothing: what the test harness captures would count as memory.
fn silently<R>(f: impl FnOnce() -> R) -> R {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                default(info);
            }
        }));
        // Ids of loops, with their mailboxes, are made once and reused: make more than the tests use at a time, and few
        // enough that the list of free ones need not grow again.
        drop((0..100).map(|_| strict()).collect::<Vec<_>>());
    });
    QUIET.set(true);
    let result = f();
    QUIET.set(false);
    result
}

/// Repeated, the scenario must not cost a byte more.
#[track_caller]
fn leaves_nothing(scenario: impl Fn()) {
    let left = silently(|| {
        (0..3).for_each(|_| scenario());
        let before = live();
        (0..10).for_each(|_| scenario());
        live() - before
    });
    assert_eq!(left, 0, "bytes left by ten rounds");
}

/// A strict loop that does not report errors that were never fetched.
fn deaf() -> EventLoop {
    let event_loop = strict();
    event_loop.set_exception_handler(|_| ());
    event_loop
}

fn idle(event_loop: &EventLoop) {
    event_loop.run_until_idle().unwrap();
}

#[test]
fn however_a_task_ends_its_future_is_dropped_with_its_last_step() {
    let event_loop = deaf();
    let alive = Alive::new();
    let kept = || alive.clone();
    let mut handles: Vec<(&str, Task)> = Vec::new();
    let mut start = |how, task: JoinHandle<()>| handles.push((how, task.task()));
    let guard = kept();
    start("completes", event_loop.spawn(async move { drop(guard) }));
    let guard = kept();
    let panics = async move {
        let _guard = guard;
        panic!("boom");
    };
    start("panics", event_loop.spawn(panics));
    for how in ["cancelled before its first step", "cancelled at an await", "cancelled in its clean-up"] {
        let guard = kept();
        let body = async move {
            let _guard = guard;
            let _ = catch_cancel(pending::<()>()).await;
            pending::<()>().await;
        };
        start(how, event_loop.spawn(body));
    }
    handles[2].1.cancel();
    silently(|| idle(&event_loop));
    assert_eq!(alive.others(), 2, "the two that wait");
    handles[3].1.cancel();
    handles[4].1.cancel();
    idle(&event_loop);
    assert_eq!(alive.others(), 2, "both clean up");
    handles[4].1.cancel();
    idle(&event_loop);
    assert_eq!((alive.others(), event_loop.metrics().tasks), (1, 1));
    handles[3].1.cancel();
    idle(&event_loop);
    // The tasks themselves are still held here; their futures are not.
    assert_eq!((alive.others(), event_loop.metrics().tasks), (0, 0));
    assert_eq!(handles[1].1.outcome(), Some(Outcome::Panicked));
}

#[test]
fn ended_tasks_leave_nothing() {
    leaves_nothing(|| {
        let event_loop = deaf();
        let done = event_loop.spawn(async { vec![1; 100] });
        let failed = event_loop.task().spawn_fallible(async { Err::<(), _>(String::from("failed")) });
        let panicked = event_loop.spawn(async { std::panic::panic_any(vec![1; 100]) });
        let early = event_loop.spawn(pending::<()>());
        let late = event_loop.task().name("late").spawn(sleep(ms(1000)));
        early.cancel();
        idle(&event_loop);
        late.cancel();
        idle(&event_loop);
        assert_eq!(event_loop.metrics().tasks, 0);
        drop((failed, panicked, early, late));
        assert_eq!(event_loop.run_until_complete(done).unwrap().unwrap().len(), 100);
    });
}

#[test]
fn an_output_goes_when_nobody_can_fetch_it_any_more() {
    let event_loop = strict();
    let alive = Alive::new();
    let (before, after) = (alive.clone(), alive.clone());
    drop(event_loop.spawn(async move { before }));
    let held = event_loop.spawn(async move { after });
    let task = held.task();
    idle(&event_loop);
    assert_eq!(alive.others(), 1, "the one whose handle is held");
    drop(held);
    assert_eq!(alive.others(), 0, "at once, though the task is still held");
    assert_eq!(task.outcome(), Some(Outcome::Completed));
}

#[test]
fn a_task_that_refers_to_itself_leaves_nothing() {
    // It holds its own task while it waits, until it is cancelled or the loop goes.
    for cancelled in [true, false] {
        leaves_nothing(move || {
            let event_loop = strict();
            let task = event_loop.spawn(async {
                let _own = Task::current();
                pending::<()>().await;
            });
            idle(&event_loop);
            if cancelled {
                task.cancel();
                idle(&event_loop);
            }
        });
    }
    // It returns its own task, and that is fetched, or not, before its end or after.
    for case in 0..3 {
        leaves_nothing(move || {
            let event_loop = strict();
            let handle = event_loop.spawn(async { Task::current() });
            match case {
                0 => drop(event_loop.run_until_complete(handle).unwrap().unwrap()),
                1 => {
                    drop(handle);
                    idle(&event_loop);
                }
                _ => {
                    idle(&event_loop);
                    drop(handle);
                }
            }
        });
    }
    // It holds its own join handle.
    leaves_nothing(|| {
        let event_loop = strict();
        let slot: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let own = slot.clone();
        let handle = event_loop.spawn(async move {
            let _own = own.take();
            yield_now().await;
        });
        *slot.borrow_mut() = Some(handle);
        idle(&event_loop);
    });
    // Its done-callback holds it.
    leaves_nothing(|| {
        let event_loop = strict();
        let task = event_loop.spawn(pending::<()>()).task();
        let own = task.clone();
        task.add_done_callback(move |_| drop(own));
    });
}

#[test]
fn tasks_that_refer_to_each_other_leave_nothing() {
    for cancelled in [true, false] {
        leaves_nothing(move || {
            let event_loop = strict();
            let slot: Rc<RefCell<Option<Task>>> = Rc::default();
            let other = slot.clone();
            let first = event_loop.spawn(async move {
                let _other = other;
                pending::<()>().await;
            });
            let first_task = first.task();
            let second = event_loop.spawn(async move { drop(first.await) });
            *slot.borrow_mut() = Some(second.task());
            idle(&event_loop);
            if cancelled {
                first_task.cancel();
                idle(&event_loop);
                assert!(second.is_finished());
            }
        });
    }
}

#[test]
fn a_future_whose_callbacks_hold_it_goes_when_it_is_settled() {
    for cancelled in [true, false] {
        leaves_nothing(move || {
            let event_loop = strict();
            let future = event_loop.create_future::<u32>();
            for _ in 0..3 {
                let own = future.clone();
                future.add_done_callback(move |_| drop(own));
            }
            let awaited = future.clone();
            drop(event_loop.spawn(async move { awaited.await }));
            idle(&event_loop);
            if cancelled {
                future.cancel();
            } else {
                future.set_result(1).unwrap();
            }
            idle(&event_loop);
        });
    }
    // Removed before it is settled, a callback goes at once.
    let event_loop = strict();
    let alive = Alive::new();
    let (future, kept) = (event_loop.create_future::<u32>(), alive.clone());
    let id = future.add_done_callback(move |_| drop(kept));
    future.remove_done_callback(id);
    assert_eq!(alive.others(), 0);
}

#[test]
fn cancelled_callbacks_and_timers_drop_what_they_captured_at_once() {
    let event_loop = strict();
    let alive = Alive::new();
    let (soon, later) = (alive.clone(), alive.clone());
    let handle = event_loop.call_soon(move || drop(soon));
    let timer = event_loop.call_later(ms(1000), move || drop(later));
    handle.cancel();
    assert_eq!(alive.others(), 1);
    timer.cancel();
    assert_eq!(alive.others(), 0);
    assert_eq!(event_loop.metrics().timers, 1, "only the entry in the heap waits for its time");
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn a_replaced_or_removed_reader_is_dropped_at_once() {
    let event_loop = strict();
    let alive = Alive::new();
    let (near, _far) = UnixStream::pair().unwrap();
    for _ in 0..2 {
        let kept = alive.clone();
        event_loop.add_reader(&near, move || drop(kept.clone())).unwrap();
        assert_eq!(alive.others(), 1);
    }
    event_loop.remove_reader(&near);
    assert_eq!(alive.others(), 0);
}

/// Everything a loop can be left with, each holding a handle to the loop itself.
fn fill(event_loop: &EventLoop, alive: &Alive) {
    let hold = || (event_loop.handle(), alive.clone());
    let held = hold();
    event_loop.call_soon(move || drop(held));
    let held = hold();
    event_loop.call_later(ms(1000), move || drop(held));
    for napping in [true, false] {
        let held = hold();
        drop(event_loop.spawn(async move {
            let _held = held;
            if napping { sleep(ms(1000)).await } else { pending().await }
        }));
    }
    let (held, future) = (hold(), event_loop.create_future::<u32>());
    future.add_done_callback(move |_| drop(held));
    drop(event_loop.spawn(async move { future.await }));
    let (held, (near, mut far)) = (hold(), UnixStream::pair().unwrap());
    let near = Rc::new(near);
    let reader = near.clone();
    event_loop.add_reader(&*near, move || drop((held.clone(), &reader))).unwrap();
    far.write_all(b"x").unwrap();
    let held = hold();
    event_loop.set_observer(Tap(move |_, _: &LoopEvent<'_>| drop(held.clone())));
    let held = alive.clone();
    drop(event_loop.spawn(async move {
        let _stand_in = OnLoop::new((LoopHandle::current(), held));
        pending::<()>().await;
    }));
    // From this thread, so that what it allocates is counted where it is freed.
    event_loop.remote().call_soon_threadsafe(|| ()).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn a_dropped_loop_drops_everything_that_is_left() {
    for ran in [false, true] {
        let (event_loop, alive) = (strict(), Alive::new());
        fill(&event_loop, &alive);
        if ran {
            event_loop.stop();
            event_loop.run_forever().unwrap();
        }
        assert!(alive.others() > 3);
        let handle = event_loop.handle();
        drop(event_loop);
        assert_eq!(alive.others(), 0, "though a handle is still there");
        assert_eq!((handle.metrics().tasks, handle.metrics().timers, handle.metrics().ready), (0, 0, 0));
        leaves_nothing(move || {
            let event_loop = strict();
            fill(&event_loop, &Alive::new());
            if ran {
                event_loop.stop();
                event_loop.run_forever().unwrap();
            }
        });
    }
}

#[test]
fn an_exception_handler_that_holds_its_loop_does_not_keep_it() {
    leaves_nothing(|| {
        let event_loop = strict();
        let handle = event_loop.handle();
        event_loop.set_exception_handler(move |_| handle.stop());
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn what_a_reader_does_when_it_is_dropped_with_its_loop_is_dropped_too() {
    struct SetsOnDrop(tidegate_loop::Deferred<u32>);
    impl Drop for SetsOnDrop {
        fn drop(&mut self) {
            let _ = self.0.set_result(1);
        }
    }
    leaves_nothing(|| {
        let event_loop = strict();
        let (near, _far) = UnixStream::pair().unwrap();
        let (handle, future) = (event_loop.handle(), event_loop.create_future());
        future.add_done_callback(move |_| handle.stop());
        let setter = SetsOnDrop(future);
        event_loop.add_reader(&near, move || assert!(!setter.0.is_done())).unwrap();
    });
}

#[test]
fn a_done_callback_added_on_a_closed_loop_is_dropped() {
    let (event_loop, alive) = (strict(), Alive::new());
    let (future, task) = (event_loop.create_future(), event_loop.spawn(async {}).task());
    future.set_result(1).unwrap();
    event_loop.close().unwrap();
    let (on_future, on_task) = (alive.clone(), alive.clone());
    future.add_done_callback(move |_| drop(on_future));
    task.add_done_callback(move |_| drop(on_task));
    assert_eq!(alive.others(), 0, "nothing is left to call it");
    leaves_nothing(|| {
        let event_loop = strict();
        let (handle, future) = (event_loop.handle(), event_loop.create_future());
        future.set_result(1).unwrap();
        drop(event_loop);
        let held = handle.clone();
        future.add_done_callback(move |_| drop(held));
    });
}

/// Starts what `make` makes of two sleeping tasks, drops it midway, and lets the tasks end.
fn dropped_midway<F: IntoFuture<IntoFuture: 'static> + 'static>(make: fn([JoinHandle<Alive>; 2]) -> F) {
    let (event_loop, alive) = (strict(), Alive::new());
    let outputs = [alive.clone(), alive.clone()];
    let ended = Rc::new(Cell::new(0));
    let count = ended.clone();
    let driver = event_loop.spawn(async move {
        let tasks = outputs.map(|output| {
            let count = count.clone();
            spawn(async move {
                let _ = catch_cancel(sleep(ms(5))).await;
                count.set(count.get() + 1);
                output
            })
        });
        let future = make(tasks).into_future();
        // The time-out's request goes to whatever is awaited; dropping it without one is what is wanted here.
        support::select(sleep(ms(2)), future).await;
    });
    idle(&event_loop);
    event_loop.advance(ms(2));
    idle(&event_loop);
    assert!(driver.is_finished(), "it was dropped midway");
    event_loop.advance(ms(3));
    idle(&event_loop);
    assert_eq!(ended.get(), 2, "the tasks went on");
    assert_eq!((alive.others(), event_loop.metrics().tasks), (0, 0));
    event_loop.call_soon(|| ());
    idle(&event_loop);
    assert_eq!(event_loop.metrics().timers, 0, "no timer stays armed");
}

#[test]
fn combinators_dropped_midway_leave_nothing() {
    let all: [fn(); 6] = [
        || dropped_midway(gather),
        || dropped_midway(gather_all),
        || dropped_midway(|tasks| async move { wait(&tasks, When::All, Some(ms(1000))).await.map(|_| tasks) }),
        || dropped_midway(|[mut a, _b]| async move { shield(&mut a).await }),
        || dropped_midway(|[a, b]| timeout(ms(1000), async move { (a.await, b.await) })),
        || dropped_midway(|tasks| async move { as_completed(tasks).next().await.map(|_| ()) }),
    ];
    for scenario in all {
        leaves_nothing(scenario);
    }
    leaves_nothing(|| {
        dropped_midway(|[a, b]| async move {
            TaskGroup::<()>::scope(async |group| {
                drop(group.spawn(async move { a.await.map_err(drop) }).unwrap());
                drop(group.spawn(async move { b.await.map_err(drop) }).unwrap());
                Ok(())
            })
            .await
            .map_err(drop)
        });
    });
}

#[test]
fn what_nobody_fetched_is_reported_once_when_the_task_goes() {
    silently(|| {
        let event_loop = strict();
        let reports = Reports::of(&event_loop);
        let expect = |expected: &[(ReportKind, &str)]| {
            let found = reports.all();
            let found: Vec<_> = found.iter().map(|report| (report.kind(), report.message())).collect();
            assert_eq!(found, expected);
        };
        // The handle goes before the task ends: reported with its end.
        drop(event_loop.task().name("first").spawn(async { panic!("one") }));
        idle(&event_loop);
        expect(&[(ReportKind::UnseenPanic, "one")]);
        assert_eq!(reports.all()[0].name(), Some("first"));
        assert!(reports.all()[0].location().unwrap().file().ends_with("leaks.rs"));
        // The handle goes after: reported then.
        let handle = event_loop.task().spawn_fallible(async { Err::<(), _>("two") });
        idle(&event_loop);
        assert_eq!(reports.all().len(), 1);
        drop(handle);
        expect(&[(ReportKind::UnseenPanic, "one"), (ReportKind::UnseenError, "two")]);
        // A `Task` is still there and could be asked: reported when that is dropped.
        let task = event_loop.task().spawn_fallible(async { Err::<(), _>("three") }).task();
        idle(&event_loop);
        assert_eq!(reports.all().len(), 2);
        drop(task);
        assert_eq!(reports.all().len(), 3);
        // A settable future that was given an error.
        let future = event_loop.create_future::<()>();
        future.set_exception("four").unwrap();
        drop(future);
        assert_eq!(reports.all().len(), 4);
        drop(event_loop);
        assert_eq!(reports.all().len(), 4, "each exactly once");
    });
}

#[test]
fn what_was_fetched_is_not_reported() {
    silently(|| {
        let event_loop = strict();
        let reports = Reports::of(&event_loop);
        event_loop
            .run_until_complete(async {
                assert!(spawn(async { panic!("awaited") }).await.is_err());
                assert!(spawn_fallible(async { Err::<(), _>("awaited") }).await.unwrap().is_err());
                let mut asked = spawn_fallible(async { Err::<(), _>("asked") });
                let looked_at = spawn(async { panic!("looked at") }).task();
                let cancelled = spawn(pending::<()>());
                yield_now().await;
                assert!(asked.try_result().unwrap().unwrap().is_err());
                assert_eq!(looked_at.error().as_deref(), Some("looked at"));
                cancelled.cancel();
                yield_now().await;
                let future = LoopHandle::current().create_future::<()>();
                future.set_exception("awaited").unwrap();
                assert!(future.await.is_err());
            })
            .unwrap();
        drop(event_loop);
        reports.expect([]);
    });
}

#[test]
fn contexts_go_with_those_who_hold_them() {
    static VAR: tidegate_loop::ContextVar<Alive> = tidegate_loop::ContextVar::local("var");
    let alive = Alive::new();
    let event_loop = strict();
    ContextVars::current().run(|| {
        VAR.set(alive.clone());
        let soon = event_loop.call_soon(|| ());
        let later = event_loop.call_later(Duration::from_secs(1), || ());
        drop(event_loop.spawn(yield_now()));
        soon.cancel();
        later.cancel();
    });
    idle(&event_loop);
    assert_eq!(alive.others(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "too long for Miri")]
fn a_million_tasks_leave_the_memory_as_ten_thousand_did() {
    silently(|| {
        let event_loop = EventLoop::new().unwrap();
        let rounds = |count: u32| {
            let joined = event_loop.run_until_complete(async move {
                for round in 0..count {
                    assert_eq!(spawn(async move { round }).await.unwrap(), round);
                }
            });
            joined.unwrap();
            assert_eq!(event_loop.metrics().tasks, 0);
            live()
        };
        let early = rounds(10_000);
        let late = rounds(990_000);
        assert_eq!(late, early);
    });
}

#[test]
fn a_log_of_drops_shows_children_before_parents() {
    let log = Log::new();
    let event_loop = strict();
    let (outer, inner) = (log.guard("outer"), log.guard("inner"));
    let task = event_loop.spawn(async move {
        let _outer = outer;
        let child = spawn(async move {
            let _inner = inner;
            pending::<()>().await;
        });
        let _ = child.await;
    });
    idle(&event_loop);
    task.cancel();
    idle(&event_loop);
    log.expect(["inner", "outer"]);
}
