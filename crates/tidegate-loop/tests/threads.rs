//! Other threads: they wake tasks, post calls, hold stand-ins and late wakers, and none of that is lost, repeated or
//! delivered to a stranger. What would hang if it were wrong runs under a watchdog that interrupts the loop.

#[path = "conformance/support.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use support::{Alive, Log, Reports, ms, one_tick, strict};
use tidegate_loop::{
    EventLoop, Instant, LoopClosed, LoopHandle, OnLoop, RemoteHandle, ReportKind, Task, WrongLoop, interrupt, sleep,
    spawn, yield_now,
};

/// A loop in real time whose run ends with an error, not never.
fn watched() -> EventLoop {
    let event_loop = EventLoop::new().unwrap();
    event_loop.call_later(120.0, || interrupt("nothing happened for two minutes"));
    event_loop
}

/// The waker of the task that is running.
async fn own_waker() -> Waker {
    poll_fn(|cx| Poll::Ready(cx.waker().clone())).await
}

#[test]
fn a_waker_works_from_any_thread() {
    let event_loop = watched();
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    let waiting = poll_fn(move |cx| {
        if flag.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let (waker, flag) = (cx.waker().clone(), flag.clone());
        thread::spawn(move || {
            flag.store(true, Ordering::SeqCst);
            waker.wake();
        });
        Poll::Pending
    });
    event_loop.run_until_complete(waiting).unwrap();
}

#[test]
fn of_many_wakes_from_many_threads_none_is_lost() {
    const THREADS: usize = 4;
    const WAKES: u64 = if cfg!(miri) { 50 } else { 100_000 };
    let event_loop = watched();
    let sum = event_loop.run_until_complete(async {
        let waker = own_waker().await;
        let counters: Arc<[AtomicU64; THREADS]> = Arc::default();
        let threads: Vec<_> = (0..THREADS)
            .map(|at| {
                let (waker, counters) = (waker.clone(), counters.clone());
                thread::spawn(move || {
                    for _ in 0..WAKES {
                        counters[at].fetch_add(1, Ordering::Relaxed);
                        waker.wake_by_ref();
                    }
                })
            })
            .collect();
        let sum = || counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>();
        // Looks only when it is woken: were the last wake lost, it would wait for ever.
        poll_fn(|_| if sum() == THREADS as u64 * WAKES { Poll::Ready(()) } else { Poll::Pending }).await;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        sum()
    });
    assert_eq!(sum.unwrap(), THREADS as u64 * WAKES);
}

/// Each wake is waited for before the next, so every one of them finds the loop asleep or about to be.
#[test]
fn each_of_many_single_wakes_is_seen() {
    const WAKES: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let event_loop = watched();
    event_loop
        .run_until_complete(async {
            let waker = own_waker().await;
            let (sent, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (sends, sees) = (sent.clone(), seen.clone());
            let thread = thread::spawn(move || {
                for number in 1..=WAKES {
                    sends.store(number, Ordering::Relaxed);
                    waker.wake_by_ref();
                    while sees.load(Ordering::Acquire) < number {
                        thread::yield_now();
                    }
                }
            });
            poll_fn(|_| {
                let number = sent.load(Ordering::Relaxed);
                seen.store(number, Ordering::Release);
                if number == WAKES { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            thread.join().unwrap();
        })
        .unwrap();
}

#[test]
fn two_loops_on_two_threads_wake_each_other() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 10_000 };
    let turn = Arc::new((AtomicU64::new(0), Mutex::new([const { None::<Waker> }; 2])));
    let play = move |turn: Arc<(AtomicU64, Mutex<[Option<Waker>; 2]>)>, side: u64| {
        watched()
            .run_until_complete(poll_fn(move |cx| {
                turn.1.lock().unwrap()[side as usize] = Some(cx.waker().clone());
                loop {
                    let now = turn.0.load(Ordering::SeqCst);
                    if now >= ROUNDS {
                        return Poll::Ready(());
                    }
                    if now % 2 != side {
                        return Poll::Pending;
                    }
                    turn.0.store(now + 1, Ordering::SeqCst);
                    let other = turn.1.lock().unwrap()[1 - side as usize].clone();
                    if let Some(other) = other {
                        other.wake();
                    }
                }
            }))
            .unwrap();
    };
    let theirs = turn.clone();
    let thread = thread::spawn(move || play(theirs, 1));
    play(turn, 0);
    thread.join().unwrap();
}

#[test]
fn calls_from_one_thread_run_in_their_order_whatever_the_others_do() {
    const THREADS: usize = 4;
    const CALLS: usize = if cfg!(miri) { 20 } else { 10_000 };
    thread_local!(static SEEN: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) });
    let event_loop = watched();
    let running = Arc::new(AtomicUsize::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (remote, running) = (event_loop.remote(), running.clone());
            thread::spawn(move || {
                for call in 0..CALLS {
                    let say = move || SEEN.with_borrow_mut(|seen| seen.push((thread, call)));
                    remote.call_soon_threadsafe(say).unwrap();
                }
                if running.fetch_sub(1, Ordering::SeqCst) == 1 {
                    remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
                }
            })
        })
        .collect();
    event_loop.run_forever().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seen = SEEN.take();
    for thread in 0..THREADS {
        let calls: Vec<_> = seen.iter().filter(|(by, _)| *by == thread).map(|(_, call)| *call).collect();
        assert_eq!(calls, (0..CALLS).collect::<Vec<_>>(), "thread {thread}");
    }
}

/// Waits until the thread sleeps in the kernel.
fn until_asleep(thread: &str) {
    let stat = format!("/proc/self/task/{thread}/stat");
    loop {
        let line = std::fs::read_to_string(&stat).unwrap();
        let state = line.rsplit(") ").next().unwrap().chars().next();
        if state == Some('S') {
            return;
        }
        thread::yield_now();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no /proc")]
fn a_call_wakes_a_loop_that_sleeps() {
    let event_loop = watched();
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_str().unwrap().to_owned();
    let (started, has_started) = mpsc::channel();
    let remote = event_loop.remote();
    let thread = thread::spawn(move || {
        has_started.recv().unwrap();
        for _ in 0..100 {
            until_asleep(&own);
            let (ran, has_run) = mpsc::channel();
            remote.call_soon_threadsafe(move || ran.send(()).unwrap()).unwrap();
            has_run.recv().unwrap();
        }
        remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
    });
    event_loop.call_soon(move || started.send(()).unwrap());
    event_loop.run_forever().unwrap();
    thread.join().unwrap();
}

#[test]
fn a_loop_that_is_not_running_keeps_what_it_is_sent() {
    let (event_loop, log) = (strict(), Log::new());
    let (future, said) = (event_loop.create_future::<u32>(), log.clone());
    let waker = Rc::new(RefCell::new(None));
    let slot = waker.clone();
    drop(event_loop.spawn(async move {
        *slot.borrow_mut() = Some(own_waker().await);
        let mut polls = 0;
        poll_fn(|_| {
            polls += 1;
            if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        said.say("woken");
        drop(future);
    }));
    event_loop.run_until_idle().unwrap();
    let (waker, remote) = (waker.take().unwrap(), event_loop.remote());
    thread_local!(static CALLED: Cell<bool> = const { Cell::new(false) });
    thread::spawn(move || {
        waker.wake();
        remote.call_soon_threadsafe(|| CALLED.set(true)).unwrap();
    })
    .join()
    .unwrap();
    event_loop.run_until_idle().unwrap();
    log.expect(["woken"]);
    assert!(CALLED.get());
}

/// The loop a waker belongs to: the topmost bits of the name it carries. White box, but there is no other way to see
/// that an id has come back.
fn loop_of(waker: &Waker) -> usize {
    waker.data().addr() >> 52
}

/// A waker of a task of that loop that waits for ever, and the task.
fn waiting(event_loop: &EventLoop) -> (Waker, Task, Rc<Cell<u32>>) {
    let (slot, polls) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(0)));
    let (place, count) = (slot.clone(), polls.clone());
    let handle = event_loop.spawn(poll_fn(move |cx| {
        count.set(count.get() + 1);
        *place.borrow_mut() = Some(cx.waker().clone());
        Poll::<()>::Pending
    }));
    let task = handle.task();
    drop(handle);
    event_loop.run_until_idle().unwrap();
    let waker = slot.take().unwrap();
    (waker, task, polls)
}

/// Makes a loop, has `leave` keep something of it, drops it, and makes others until one of them has its id.
fn reused<L>(leave: impl FnOnce(&EventLoop) -> L) -> (L, Waker, RemoteHandle, EventLoop) {
    let first = strict();
    let (waker, ..) = waiting(&first);
    let (left, remote) = (leave(&first), first.remote());
    drop(first);
    let mut others = Vec::new();
    loop {
        assert!(others.len() < 1000, "ids are reused");
        let candidate = strict();
        let (theirs, ..) = waiting(&candidate);
        if loop_of(&theirs) == loop_of(&waker) {
            return (left, waker, remote, candidate);
        }
        others.push(candidate);
    }
}

#[test]
fn a_waker_that_outlives_its_loop_wakes_nobody() {
    let (stale, waker, remote, event_loop) = reused(|first| (0..10).map(|_| waiting(first).0).collect::<Vec<_>>());
    // Tasks in the same places of the table as those of the loop before.
    let tasks: Vec<_> = (0..20).map(|_| waiting(&event_loop)).collect();
    let before = event_loop.metrics().steps;
    for waker in stale.iter().chain([&waker]) {
        waker.wake_by_ref();
        let elsewhere = waker.clone();
        thread::spawn(move || elsewhere.wake()).join().unwrap();
    }
    event_loop.run_until_idle().unwrap();
    assert_eq!(event_loop.metrics().steps, before);
    assert!(tasks.iter().all(|(_, _, polls)| polls.get() == 1));
    // A living one in between still works.
    tasks[3].0.wake_by_ref();
    event_loop.run_until_idle().unwrap();
    assert_eq!(tasks[3].2.get(), 2);
    assert_eq!(remote.call_soon_threadsafe(|| unreachable!()), Err(LoopClosed));
    event_loop.run_until_idle().unwrap();
}

#[test]
fn what_is_left_of_a_loop_does_not_speak_to_the_next_one_of_its_id() {
    let alive = Alive::new();
    let (left, _waker, _remote, event_loop) = reused(|first| {
        let panicked = first.spawn(async { panic!("of the first loop") });
        first.run_until_idle().unwrap();
        (waiting(first).1, panicked)
    });
    let reports = Reports::of(&event_loop);
    let (task, panicked) = left;
    assert!(!task.cancel(), "it ended with its loop");
    let kept = alive.clone();
    task.add_done_callback(move |_| drop(kept));
    assert_eq!(event_loop.metrics().ready, 0, "a callback of another loop's task was queued here");
    assert_eq!(alive.others(), 0);
    drop(panicked);
    reports.expect([]);
}

#[test]
fn a_task_that_has_ended_is_not_woken_in_the_place_of_the_next_one() {
    let event_loop = strict();
    let stale: Vec<Waker> = (0..100)
        .map(|_| {
            let (waker, task, _) = waiting(&event_loop);
            task.cancel();
            event_loop.run_until_idle().unwrap();
            waker
        })
        .collect();
    let next: Vec<_> = (0..10).map(|_| waiting(&event_loop)).collect();
    let thread = thread::spawn(move || stale.into_iter().for_each(Waker::wake));
    thread.join().unwrap();
    event_loop.run_until_idle().unwrap();
    assert!(next.iter().all(|(_, _, polls)| polls.get() == 1));
}

#[test]
fn every_call_posted_while_the_loop_closes_is_run_refused_or_dropped() {
    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
        let (ran, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        struct Count(Arc<AtomicUsize>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let event_loop = strict();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (remote, ran, dropped) = (event_loop.remote(), ran.clone(), dropped.clone());
                thread::spawn(move || {
                    let mut posted = 0;
                    loop {
                        let (ran, count) = (ran.clone(), Count(dropped.clone()));
                        posted += 1;
                        let call = move || {
                            ran.fetch_add(1, Ordering::SeqCst);
                            drop(count);
                        };
                        if remote.call_soon_threadsafe(call).is_err() {
                            return posted;
                        }
                        thread::yield_now();
                    }
                })
            })
            .collect();
        while ran.load(Ordering::SeqCst) < 10 {
            one_tick(&event_loop);
        }
        let before = ran.load(Ordering::SeqCst);
        drop(event_loop);
        let posted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(ran.load(Ordering::SeqCst), before, "none runs after the close");
        assert_eq!(dropped.load(Ordering::SeqCst), posted, "what each captured is dropped exactly once");
    }
}

/// Knows where it is dropped.
struct Homebody(Rc<Cell<Option<thread::ThreadId>>>);

impl Drop for Homebody {
    fn drop(&mut self) {
        self.0.set(Some(thread::current().id()));
    }
}

#[test]
fn a_stand_in_dropped_elsewhere_drops_its_value_on_the_loop() {
    let event_loop = watched();
    let dropped = Rc::new(Cell::new(None));
    let value = Homebody(dropped.clone());
    event_loop
        .run_until_complete(async move {
            let stand_in = OnLoop::new(value);
            thread::spawn(move || {
                assert_eq!(stand_in.with(|_| ()), Err(WrongLoop));
                drop(stand_in);
            })
            .join()
            .unwrap();
            while dropped.get().is_none() {
                yield_now().await;
            }
            assert_eq!(dropped.get(), Some(thread::current().id()));
        })
        .unwrap();
}

#[test]
fn a_stand_in_does_not_outlive_its_loop() {
    let event_loop = strict();
    let dropped = Rc::new(Cell::new(None));
    let value = Homebody(dropped.clone());
    let stand_in = event_loop.run_until_complete(async move { OnLoop::new(value) }).unwrap();
    assert_eq!(stand_in.with(|_| ()), Err(WrongLoop), "its loop is not running here");
    let other = strict();
    let stand_in = other
        .run_until_complete(async move {
            assert_eq!(stand_in.with(|_| ()), Err(WrongLoop), "another loop of the same thread");
            stand_in
        })
        .unwrap();
    drop(event_loop);
    assert!(dropped.get().is_some());
    thread::spawn(move || drop(stand_in)).join().unwrap();
}

fn raise_usr1() {
    let kill = format!("kill -USR1 {}", std::process::id());
    let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(status.success() && status.signal().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_signal_dumps_the_tasks() {
    const SIGUSR1: i32 = 10;
    let (event_loop, log) = (watched(), Log::new());
    let (handle, said) = (event_loop.handle(), log.clone());
    let dump = move |dump: &tidegate_loop::TaskDump| {
        for task in dump.tasks() {
            said.say(format_args!("{}: {}", task.name, task.state));
        }
        handle.stop();
    };
    event_loop.dump_on_signal(SIGUSR1, dump).unwrap();
    let sleeper = event_loop.task().name("sleeper").spawn(sleep(ms(600_000)));
    drop(event_loop.task().name("joiner").spawn(sleeper));
    drop(event_loop.task().name("stuck").spawn(pending::<()>()));
    let expected = [
        "sleeper: waits for a timer",
        "joiner: waits for task sleeper",
        "stuck: waits for something outside of the loop",
    ];
    event_loop.run_until_idle().unwrap();
    for round in 1..=2 {
        raise_usr1();
        event_loop.run_forever().unwrap();
        assert_eq!(log.lines(), expected.repeat(round), "once for each signal");
    }
    drop(event_loop);
    raise_usr1();
    assert_eq!(log.len(), 6, "a closed loop is not asked any more");
}

#[test]
fn a_step_that_blocks_in_real_time_is_reported() {
    let event_loop = EventLoop::builder().debug(true).build().unwrap();
    event_loop.set_slow_callback_duration(ms(2));
    let reports = Reports::of(&event_loop);
    let task = event_loop.task().name("blocker").spawn(async {
        let start = Instant::now();
        while start.elapsed() < ms(3) {
            std::hint::spin_loop();
        }
    });
    event_loop.run_until_idle().unwrap();
    let reports = reports.all();
    let report = reports.iter().find(|report| report.name() == Some("blocker")).expect("it took longer than 2 ms");
    assert_eq!((report.kind(), report.location()), (ReportKind::Slow, Some(task.task().location())));
}

#[test]
fn a_loop_may_end_with_its_thread() {
    thread_local!(static LAST: RefCell<Option<EventLoop>> = const { RefCell::new(None) });
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = Flag(dropped.clone());
    thread::spawn(move || {
        LAST.set(Some(strict()));
        LAST.with_borrow(|event_loop| {
            let event_loop = event_loop.as_ref().unwrap();
            drop(event_loop.spawn(async move {
                let _flag = flag;
                let child = spawn(sleep(ms(1000)));
                let _ = child.await;
            }));
            event_loop.run_until_idle().unwrap();
        });
    })
    .join()
    .unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}
