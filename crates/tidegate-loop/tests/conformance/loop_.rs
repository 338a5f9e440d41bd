//! Cases 1–23: ticks, callbacks, timers, descriptors, threads.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use tidegate_loop::{
    CloseError, Duration, EventLoop, LoopEvent, LoopHandle, OnLoop, ReportKind, RunError, TimerHandle, WrongLoop,
    interrupt, yield_now,
};

use crate::support::{Log, Reports, Tap, ms, one_tick, panic_of, strict, strict_real};

#[test]
fn c01_call_soon_is_fifo() {
    let (event_loop, log) = (strict(), Log::new());
    for line in ["a", "b", "c"] {
        event_loop.call_soon(log.teller(line));
    }
    one_tick(&event_loop);
    log.expect(["1 a", "1 b", "1 c"]);
}

#[test]
fn c02_what_a_callback_queues_runs_in_the_next_tick() {
    let (event_loop, log) = (strict(), Log::new());
    let (handle, said) = (event_loop.handle(), log.clone());
    event_loop.call_soon(move || {
        said.tick("outer");
        handle.call_soon(said.teller("inner"));
    });
    event_loop.call_soon(log.teller("other"));
    event_loop.run_until_idle().unwrap();
    log.expect(["1 outer", "1 other", "2 inner"]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn c03_in_one_tick_ready_handles_come_first_then_io_then_timers() {
    for event_loop in [strict(), strict_real()] {
        let log = Log::new();
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"x").unwrap();
        // In the opposite order, so that it is not the order of arrival that shows.
        event_loop.call_later(Duration::ZERO, log.teller("timer"));
        let said = log.clone();
        event_loop.add_reader(&near, move || said.tick("io")).unwrap();
        event_loop.call_soon(log.teller("soon"));
        one_tick(&event_loop);
        log.expect(["1 soon", "1 io", "1 timer"]);
    }
}

/// Polls and ticks of a loop as they come: `poll <time-out>`, `tick`.
fn polls_and_ticks(event_loop: &LoopHandle) -> Log {
    let log = Log::new();
    let said = log.clone();
    event_loop.set_observer(Tap(move |_, event: &LoopEvent<'_>| match event {
        LoopEvent::Polled { timeout, .. } => said.say(format_args!("poll {timeout:?}")),
        LoopEvent::Tick { .. } => said.say("tick"),
        _ => {}
    }));
    log
}

fn reschedule(handle: LoopHandle, times: u32) {
    handle.clone().call_soon(move || match times {
        1 => handle.stop(),
        _ => reschedule(handle, times - 1),
    });
}

#[test]
fn c04_strict_mode_polls_exactly_once_a_tick() {
    for event_loop in [strict(), strict_real()] {
        let log = polls_and_ticks(&event_loop);
        reschedule(event_loop.handle(), 50);
        event_loop.run_forever().unwrap();
        assert_eq!(log.lines(), ["poll Some(0ns)", "tick"].repeat(50));
        assert_eq!((event_loop.metrics().ticks, event_loop.metrics().polls), (50, 50));
    }
}

#[test]
fn c05_the_poll_does_not_wait_while_something_is_ready() {
    let event_loop = strict();
    let log = polls_and_ticks(&event_loop);
    let handle = event_loop.handle();
    event_loop.call_later(ms(5), move || handle.stop());
    event_loop.call_soon(|| ());
    event_loop.run_forever().unwrap();
    // Ready: look only. Then nothing is left but the timer: wait exactly until it is due.
    log.expect(["poll Some(0ns)", "tick", "poll Some(5ms)", "tick"]);
}

#[test]
fn c06_stop_lets_the_tick_finish_and_keeps_what_it_queued() {
    let (event_loop, log) = (strict(), Log::new());
    let (handle, said) = (event_loop.handle(), log.clone());
    event_loop.call_soon(move || {
        said.tick("a");
        handle.stop();
        handle.call_soon(said.teller("d"));
    });
    event_loop.call_soon(log.teller("b"));
    event_loop.call_soon(log.teller("c"));
    event_loop.run_forever().unwrap();
    log.expect(["1 a", "1 b", "1 c"]);
    one_tick(&event_loop);
    log.expect(["1 a", "1 b", "1 c", "2 d"]);
}

#[test]
fn c07_stop_before_running_makes_one_tick_with_due_timers() {
    let (event_loop, log) = (strict(), Log::new());
    let polls = polls_and_ticks(&event_loop);
    let (handle, said) = (event_loop.handle(), log.clone());
    event_loop.call_later(ms(1), log.teller("not due"));
    event_loop.call_later(Duration::ZERO, log.teller("due"));
    event_loop.call_soon(move || {
        said.tick("soon");
        handle.call_soon(said.teller("too late"));
    });
    event_loop.stop();
    event_loop.run_forever().unwrap();
    log.expect(["1 soon", "1 due"]);
    polls.expect(["poll Some(0ns)", "tick"]);

    // With nothing ready it does not wait for the timer either.
    let idle = strict();
    idle.call_later(ms(1), || unreachable!());
    one_tick(&idle);
    assert_eq!(idle.metrics().ticks, 1);
}

#[test]
fn c08_negative_delays_are_due_at_once_the_earlier_first() {
    let (event_loop, log) = (strict(), Log::new());
    event_loop.call_later(-1.0, log.teller("-1"));
    event_loop.call_later(-2.0, log.teller("-2"));
    event_loop.call_soon(log.teller("soon"));
    one_tick(&event_loop);
    log.expect(["1 soon", "1 -2", "1 -1"]);
}

#[test]
fn c09_soon_comes_before_later_zero_in_the_next_tick() {
    for later_first in [false, true] {
        let (event_loop, log) = (strict(), Log::new());
        let (handle, said) = (event_loop.handle(), log.clone());
        event_loop.call_soon(move || {
            said.tick("outer");
            if later_first {
                handle.call_later(0.0, said.teller("later"));
            }
            handle.call_soon(said.teller("soon"));
            if !later_first {
                handle.call_later(0.0, said.teller("later"));
            }
        });
        event_loop.run_until_idle().unwrap();
        log.expect(["1 outer", "2 soon", "2 later"]);
    }
}

/// CPython's heap has no stable order for these; here it is that of arming.
#[test]
fn c10_equal_deadlines_fire_in_the_order_they_were_armed() {
    let event_loop = strict();
    let order = Rc::new(RefCell::new(Vec::new()));
    let start = event_loop.time();
    for number in 0..200_u64 {
        let order = order.clone();
        // Three deadlines, interleaved, the last one first.
        event_loop.call_at(start + ms(3 - number % 3), move || order.borrow_mut().push(number));
    }
    let handle = event_loop.handle();
    event_loop.call_later(ms(4), move || handle.stop());
    event_loop.run_forever().unwrap();
    let mut expected: Vec<u64> = (0..200).collect();
    expected.sort_by_key(|number| 3 - number % 3);
    assert_eq!(*order.borrow(), expected);
}

#[test]
fn c11_a_handle_cancelled_earlier_in_the_tick_does_not_run() {
    let (event_loop, log) = (strict(), Log::new());
    let victim = Rc::new(RefCell::new(None));
    let (said, target) = (log.clone(), victim.clone());
    event_loop.call_soon(move || {
        said.tick("first");
        let handle: tidegate_loop::Handle = target.take().unwrap();
        handle.cancel();
        assert!(handle.cancelled());
    });
    *victim.borrow_mut() = Some(event_loop.call_soon(log.teller("victim")));
    event_loop.call_soon(log.teller("last"));
    event_loop.run_until_idle().unwrap();
    log.expect(["1 first", "1 last"]);
}

#[test]
fn c12_a_due_timer_cancelled_by_an_earlier_one_does_not_run_and_does_not_count() {
    let (event_loop, log) = (strict(), Log::new());
    let victim = Rc::new(RefCell::new(None));
    let (said, target, handle) = (log.clone(), victim.clone(), event_loop.handle());
    event_loop.call_later(-2.0, move || {
        let timer: TimerHandle = target.take().unwrap();
        timer.cancel();
        said.tick(format_args!("first, cancelled count {}", handle.metrics().timers_cancelled));
    });
    *victim.borrow_mut() = Some(event_loop.call_later(-1.0, log.teller("victim")));
    one_tick(&event_loop);
    log.expect(["1 first, cancelled count 0"]);
    assert_eq!((event_loop.metrics().timers, event_loop.metrics().timers_cancelled), (0, 0));
}

/// (entries in the heap, cancelled ones among them)
fn heap(event_loop: &LoopHandle) -> (usize, usize) {
    (event_loop.metrics().timers, event_loop.metrics().timers_cancelled)
}

fn timers(event_loop: &LoopHandle, count: u64) -> Vec<TimerHandle> {
    (1..=count).map(|second| event_loop.call_later(second as f64, || unreachable!())).collect()
}

#[test]
fn c13_cancelling_twice_counts_once() {
    let event_loop = strict();
    let timers = timers(&event_loop, 2);
    timers[1].cancel();
    timers[1].cancel();
    assert_eq!(heap(&event_loop), (2, 1));
}

#[test]
fn c14_the_heap_is_compacted_when_more_than_half_of_more_than_100_are_cancelled() {
    let event_loop = strict();
    let timers = timers(&event_loop, 101);
    timers[51..].iter().for_each(TimerHandle::cancel);
    one_tick(&event_loop);
    assert_eq!(heap(&event_loop), (101, 50), "50 of 101 is not more than half");
    timers[50].cancel();
    assert_eq!(heap(&event_loop), (101, 51), "it is the tick that compacts, not the cancelling");
    one_tick(&event_loop);
    assert_eq!(heap(&event_loop), (50, 0));
}

#[test]
fn c15_a_heap_of_100_is_never_compacted() {
    let event_loop = strict();
    let timers = timers(&event_loop, 100);
    timers[1..].iter().for_each(TimerHandle::cancel);
    one_tick(&event_loop);
    assert_eq!(heap(&event_loop), (100, 99));
}

#[test]
fn c16_a_cancelled_head_is_popped_every_tick() {
    let event_loop = strict();
    let timers = timers(&event_loop, 4);
    timers[0].cancel();
    timers[2].cancel();
    one_tick(&event_loop);
    assert_eq!(heap(&event_loop), (3, 1), "the head went, the one behind a live head stays");
    timers[1].cancel();
    one_tick(&event_loop);
    assert_eq!(heap(&event_loop), (1, 0), "both had come to the top");
}

#[test]
fn c17_a_callback_that_panics_is_reported_and_the_next_one_runs() {
    let (event_loop, log) = (strict(), Log::new());
    let reports = Reports::of(&event_loop);
    event_loop.call_soon(|| panic!("boom"));
    event_loop.call_soon(log.teller("next"));
    one_tick(&event_loop);
    log.expect(["1 next"]);
    reports.expect([(ReportKind::CallbackPanic, "boom")]);
    assert!(reports.all()[0].location().unwrap().file().ends_with("loop_.rs"));
}

#[test]
fn c18_an_interrupt_leaves_the_loop_and_the_rest_runs_next_time() {
    let (event_loop, log) = (strict(), Log::new());
    let reports = Reports::of(&event_loop);
    let handle = event_loop.handle();
    let said = log.clone();
    event_loop.call_soon(move || {
        said.tick("a");
        handle.call_soon(said.teller("d"));
    });
    event_loop.call_soon(|| interrupt("ctrl-c"));
    event_loop.call_soon(log.teller("b"));
    event_loop.call_soon(log.teller("c"));
    match event_loop.run_forever() {
        Err(RunError::Interrupted(interrupt)) => assert_eq!(interrupt.reason(), "ctrl-c"),
        other => panic!("{other:?}"),
    }
    log.expect(["1 a"]);
    one_tick(&event_loop);
    log.expect(["1 a", "2 b", "2 c", "2 d"]);
    reports.expect([]);
}

#[test]
fn c18_an_interrupt_inside_a_task_leaves_the_loop_too() {
    let (event_loop, log) = (strict(), Log::new());
    let task = event_loop.spawn(async { interrupt("ctrl-c") });
    event_loop.call_soon(log.teller("left over"));
    assert!(matches!(event_loop.run_forever(), Err(RunError::Interrupted(_))));
    assert!(task.is_finished());
    log.expect([]);
    one_tick(&event_loop);
    log.expect(["2 left over"]);
}

#[test]
fn c19_using_a_closed_loop_and_closing_a_running_one_are_errors() {
    let event_loop = Rc::new(strict());
    let (inside, log) = (event_loop.clone(), Log::new());
    let said = log.clone();
    event_loop.call_soon(move || {
        assert_eq!(inside.close(), Err(CloseError::Running));
        said.say("still running");
    });
    one_tick(&event_loop);
    log.expect(["still running"]);
    event_loop.close().unwrap();
    let message = panic_of(|| event_loop.call_soon(|| unreachable!()));
    assert_eq!(message, "call_soon on a closed loop: a closed loop runs nothing more, make a new one");
}

#[test]
fn c20_thread_safe_calls_are_fifo_and_wake_the_loop() {
    let event_loop = EventLoop::new().unwrap();
    // Without the wake-up only this would end it.
    event_loop.call_later(120.0, || interrupt("the loop was not woken"));
    let remote = event_loop.remote();
    let thread = std::thread::spawn(move || {
        for number in 0..1000 {
            remote.call_soon_threadsafe(move || SEEN.with_borrow_mut(|seen| seen.push(number))).unwrap();
        }
        remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
    });
    thread_local!(static SEEN: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
    event_loop.run_forever().unwrap();
    thread.join().unwrap();
    assert_eq!(SEEN.take(), (0..1000).collect::<Vec<_>>());
}

/// A call from the wrong thread does not compile (see `LoopHandle`); what can be sent there says so when it is used.
#[test]
fn c21_what_belongs_to_the_loop_is_refused_elsewhere() {
    strict()
        .run_until_complete(async {
            let stand_in = OnLoop::new(Cell::new(1));
            assert_eq!(stand_in.with(Cell::get), Ok(1));
            let (stand_in, elsewhere) = std::thread::spawn(move || {
                let found = stand_in.with(Cell::get);
                (stand_in, found)
            })
            .join()
            .unwrap();
            assert_eq!(elsewhere, Err(WrongLoop));
            assert_eq!(stand_in.with(Cell::get), Ok(1));
        })
        .unwrap();
}

#[test]
fn c21_a_slow_step_is_reported_with_its_culprit() {
    let event_loop = EventLoop::builder().strict(true).debug(true).virtual_time().build().unwrap();
    let reports = Reports::of(&event_loop);
    // The clock is virtual, so these "take" exactly as long as they say.
    let handle = event_loop.handle();
    let task = event_loop.task().name("hog").spawn({
        let handle = handle.clone();
        async move {
            handle.advance(ms(99));
            yield_now().await;
            handle.advance(ms(100));
        }
    });
    let callback_line = line!() + 1;
    event_loop.call_soon(move || handle.advance(ms(150)));
    event_loop.run_until_idle().unwrap();

    let found: Vec<_> = reports
        .all()
        .iter()
        .map(|r| (r.kind(), r.name().map(str::to_owned), r.location().unwrap().line(), r.to_string()))
        .collect();
    assert_eq!(found.len(), 2, "99 ms is below the threshold: {found:?}");
    assert_eq!((found[0].0, &found[0].1, found[0].2), (ReportKind::Slow, &None, callback_line));
    assert!(found[0].3.contains("150ms"), "{}", found[0].3);
    assert_eq!((found[1].0, found[1].1.as_deref()), (ReportKind::Slow, Some("hog")));
    assert_eq!(found[1].2, task.task().location().line());
    assert!(found[1].3.starts_with("hog blocked the loop: one step took 100ms (from "), "{}", found[1].3);
    assert_eq!(event_loop.metrics().slow_steps, 2);
}

#[test]
fn c21_without_debug_mode_nothing_is_slow() {
    let event_loop = strict();
    let reports = Reports::of(&event_loop);
    let handle = event_loop.handle();
    event_loop.call_soon(move || handle.advance(ms(1000)));
    event_loop.run_until_idle().unwrap();
    reports.expect([]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn c22_a_reader_removed_earlier_in_the_tick_does_not_run() {
    let (event_loop, log) = (strict(), Log::new());
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    let near = Rc::new(near);
    let said = log.clone();
    event_loop.add_reader(&*near, move || said.tick("reader")).unwrap();
    let (handle, said, descriptor) = (event_loop.handle(), log.clone(), near.clone());
    // Ready before the poll, so it runs before the reader that the same tick's poll finds ready.
    event_loop.call_soon(move || said.tick(format_args!("removed {}", handle.remove_reader(&*descriptor))));
    one_tick(&event_loop);
    assert_eq!(event_loop.metrics().steps, 2, "the reader had been ready in that tick");
    one_tick(&event_loop);
    log.expect(["1 removed true"]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows edge-triggered epoll only")]
fn c23_a_second_reader_replaces_the_first() {
    let (event_loop, log) = (strict(), Log::new());
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Rc::new(near);
    for line in ["old", "new"] {
        let (said, descriptor) = (log.clone(), near.clone());
        let read = move || {
            (&*descriptor).read_exact(&mut [0]).unwrap();
            said.tick(line);
        };
        event_loop.add_reader(&*near, read).unwrap();
    }
    far.write_all(b"x").unwrap();
    one_tick(&event_loop);
    one_tick(&event_loop);
    log.expect(["1 new"]);
    assert!(event_loop.remove_reader(&*near));
    assert!(!event_loop.remove_reader(&*near));
}
