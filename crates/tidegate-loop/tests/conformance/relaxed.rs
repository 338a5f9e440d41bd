//! Without strict mode the loop may skip polls while something is ready, but never for longer than
//! [`STEPS_BETWEEN_POLLS`] steps: timers, descriptors and other threads are served within that and one tick.

use std::cell::Cell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use tidegate_loop::{Duration, EventLoop, LoopHandle, STEPS_BETWEEN_POLLS, yield_now};

/// Keeps `tasks` tasks ready for ever. After some steps `cause` is called; the steps taken until `served` says that
/// it has had its effect are measured against the bound.
fn served_within_the_bound(event_loop: &EventLoop, cause: impl Fn(), served: &Rc<Cell<bool>>, tasks: u32) {
    let steps = Rc::new(Cell::new(0_u32));
    for _ in 0..tasks {
        let (steps, served) = (steps.clone(), served.clone());
        drop(event_loop.spawn(async move {
            while !served.get() {
                steps.set(steps.get() + 1);
                yield_now().await;
            }
        }));
    }
    // Wherever between two polls the cause falls.
    let offset = tasks * 7;
    while steps.get() < offset {
        event_loop.stop();
        event_loop.run_forever().unwrap();
    }
    cause();
    let before = steps.get();
    let bound = STEPS_BETWEEN_POLLS + tasks;
    while !served.get() {
        event_loop.stop();
        event_loop.run_forever().unwrap();
        let waited = steps.get() - before;
        assert!(waited <= bound, "not served within {bound} steps, {tasks} tasks being ready");
    }
    event_loop.run_until_idle().unwrap();
}

/// `stop` makes every run a tick of its own, and a tick looks without waiting; steps are counted across runs.
fn relaxed() -> EventLoop {
    EventLoop::builder().virtual_time().build().unwrap()
}

#[test]
fn a_due_timer_is_served_while_tasks_are_always_ready() {
    for tasks in [1, 10, STEPS_BETWEEN_POLLS, 100] {
        let event_loop = relaxed();
        let served = Rc::new(Cell::new(false));
        let mark = served.clone();
        event_loop.call_later(Duration::from_secs(1), move || mark.set(true));
        let handle = event_loop.handle();
        served_within_the_bound(&event_loop, || handle.advance(Duration::from_secs(1)), &served, tasks);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn a_ready_descriptor_is_served_while_tasks_are_always_ready() {
    for tasks in [1, 10, STEPS_BETWEEN_POLLS, 100] {
        let event_loop = EventLoop::new().unwrap();
        let served = Rc::new(Cell::new(false));
        let (near, far) = UnixStream::pair().unwrap();
        let mark = served.clone();
        event_loop.add_reader(&near, move || mark.set(true)).unwrap();
        let write = || assert_eq!((&far).write(b"x").unwrap(), 1);
        served_within_the_bound(&event_loop, write, &served, tasks);
    }
}

#[test]
fn another_thread_is_served_while_tasks_are_always_ready() {
    thread_local!(static SERVED: Rc<Cell<bool>> = Rc::new(Cell::new(false)));
    let event_loop = EventLoop::new().unwrap();
    let remote = event_loop.remote();
    let post = move || {
        let remote = remote.clone();
        let call = || SERVED.with(|served| served.set(true));
        std::thread::spawn(move || remote.call_soon_threadsafe(call).unwrap()).join().unwrap();
    };
    served_within_the_bound(&event_loop, post, &SERVED.with(Rc::clone), 10);
}

#[test]
fn polls_are_skipped_while_something_is_ready() {
    let event_loop = relaxed();
    let rounds = 10 * u64::from(STEPS_BETWEEN_POLLS);
    event_loop
        .run_until_complete(async move {
            for _ in 0..rounds {
                yield_now().await;
            }
        })
        .unwrap();
    let metrics = event_loop.metrics();
    assert!(metrics.ticks > rounds, "one tick a yield: {metrics:?}");
    assert!(metrics.polls >= 10 && metrics.polls <= 12, "one poll in {STEPS_BETWEEN_POLLS} steps: {metrics:?}");
}

/// A batch that is longer than the bound is run to its end: asyncio's ticks do that too.
#[test]
fn a_long_batch_is_followed_by_a_poll() {
    let event_loop = relaxed();
    for _ in 0..1000 {
        drop(event_loop.spawn(async { LoopHandle::current().advance(Duration::from_nanos(1)) }));
    }
    let fired = Rc::new(Cell::new(0));
    let mark = fired.clone();
    let handle = event_loop.handle();
    event_loop.call_later(Duration::from_nanos(1), move || mark.set(handle.metrics().ticks));
    event_loop.run_until_idle().unwrap();
    assert_eq!(fired.get(), 2);
}
