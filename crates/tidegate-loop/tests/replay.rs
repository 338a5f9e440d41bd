//! A run can be repeated: the same seed gives the same events byte for byte, another seed another order; a run that
//! fails says which seed it was; and a virtual clock moves when it should and only then.

#[path = "conformance/support.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::future::{Future, IntoFuture, pending};
use std::process::{Command, Output};
use std::rc::Rc;

use support::{Log, Tap, ms, strict};
use tidegate_loop::{
    Duration, EventLoop, LoopEvent, LoopHandle, RunError, Runner, Task, TaskGroup, When, catch_cancel, explore,
    gather_all, shield, sleep, spawn, timeout, wait, yield_now,
};

/// An observer's event as a line; addresses, which no two runs share, are left out.
fn line(at: Duration, event: &LoopEvent<'_>) -> String {
    let name = |task: &Task| task.name().to_string();
    let kind = |event: &LoopEvent<'_>| {
        let text = format!("{event:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    let detail = match event {
        LoopEvent::Tick { number, ready } => format!("{number}, {ready} ready"),
        LoopEvent::Polled { timeout, events } => format!("{timeout:?}, {events} events"),
        LoopEvent::Created { task }
        | LoopEvent::Woken { task }
        | LoopEvent::StepStarted { task }
        | LoopEvent::CancelRequested { task } => name(task),
        LoopEvent::Suspended { task, on } => format!("{} on {on}", name(task)),
        LoopEvent::Finished { task, outcome } => format!("{} {outcome}", name(task)),
        LoopEvent::TimerFired { task } => task.map(name).unwrap_or_default(),
        LoopEvent::Note { text } => (*text).to_owned(),
        _ => String::new(),
    };
    format!("{at:?} {} {detail}\n", kind(event))
}

/// Everything that happens while `future` runs on `event_loop`, and its end.
fn trace_of<F: Future + 'static>(event_loop: EventLoop, future: F) -> String {
    let trace = Rc::new(RefCell::new(String::new()));
    let sink = trace.clone();
    event_loop.set_observer(Tap(move |at, event: &LoopEvent<'_>| sink.borrow_mut().push_str(&line(at, event))));
    let runner = Runner::new(event_loop);
    let _ = runner.run(future).unwrap();
    drop(runner);
    trace.take()
}

fn note(text: impl std::fmt::Display) {
    LoopHandle::current().note(&text.to_string());
}

/// A bit of everything, with many tasks ready at the same time.
async fn program() {
    let handle = LoopHandle::current();
    let future = handle.create_future::<u32>();
    let workers: Vec<_> = (0..6_u64)
        .map(|n| {
            let future = future.clone();
            handle.task().name(format!("worker-{n}")).spawn(async move {
                for round in 0..3 {
                    note(format_args!("{n} in round {round}"));
                    if round == 1 && n == 5 {
                        let _ = future.set_result(7);
                    }
                    if (n + round) % 2 == 0 { yield_now().await } else { sleep(ms(1)).await }
                }
                let _ = timeout(ms(n), future.clone().into_future()).await;
                n
            })
        })
        .collect();
    handle.call_later(ms(2), || note("a timer"));
    let victim = workers[2].task();
    handle.call_soon(move || note(format_args!("cancel {}", victim.cancel())));
    let results = gather_all(workers).await;
    note(format_args!("{} results", results.iter().filter(|result| result.is_ok()).count()));
    let failed = TaskGroup::scope(async |group| {
        for n in 0..4 {
            let child = async move {
                sleep(ms(n)).await;
                if n == 3 { Err("three") } else { Ok(()) }
            };
            drop(group.spawn(child).unwrap());
        }
        Ok(())
    });
    note(failed.await.is_err());
    let mut shielded = spawn(async { sleep(ms(3)).await });
    let _ = timeout(ms(1), shield(&mut shielded)).await;
    let left = [shielded.task(), spawn(pending::<()>()).task()];
    note(format_args!("{:?}", wait(&left, When::FirstCompleted, Some(ms(9))).await.unwrap()));
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    let mut traces = HashSet::new();
    for seed in 0..20 {
        let first = trace_of(EventLoop::simulated(seed), program());
        assert!(first.lines().count() > 100, "too little happens: {first}");
        // Loops and tasks made in between change nothing; neither does another thread.
        let others: Vec<EventLoop> = (0..3).map(|_| strict()).collect();
        assert_eq!(trace_of(EventLoop::simulated(seed), program()), first, "seed {seed}");
        drop(others);
        let elsewhere = std::thread::spawn(move || trace_of(EventLoop::simulated(seed), program()));
        assert_eq!(elsewhere.join().unwrap(), first, "seed {seed} on another thread");
        traces.insert(first);
    }
    assert!(traces.len() > 10, "{} different traces of 20 seeds", traces.len());
}

/// Runs a test of this file in a process of its own, as `part`.
fn child(test: &str, part: &str, seed: Option<u64>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("REPLAY_PART", part);
    match seed {
        Some(seed) => command.env("TIDEGATE_SEED", seed.to_string()),
        None => command.env_remove("TIDEGATE_SEED"),
    };
    command.output().unwrap()
}

fn part() -> Option<String> {
    std::env::var("REPLAY_PART").ok()
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn another_process_gives_the_same_trace() {
    let trace = trace_of(EventLoop::simulated(11), program());
    if part().is_some() {
        println!("<<<{trace}>>>");
        return;
    }
    let output = child("another_process_gives_the_same_trace", "trace", None);
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs = text.split("<<<").nth(1).and_then(|rest| rest.split(">>>").next()).unwrap();
    assert_eq!(theirs, trace);
}

/// The order in which five tasks that are ready at once take their steps, and five callbacks among them.
fn order(seed: u64) -> String {
    let event_loop = EventLoop::simulated(seed);
    let order = Rc::new(RefCell::new(String::new()));
    for (task, callback) in ["a", "b", "c", "d", "e"].into_iter().zip(1..) {
        let said = order.clone();
        drop(event_loop.spawn(async move { said.borrow_mut().push_str(task) }));
        let said = order.clone();
        event_loop.call_soon(move || write!(said.borrow_mut(), "{callback}").unwrap());
    }
    event_loop.run_until_idle().unwrap();
    order.take()
}

#[test]
fn different_seeds_give_different_orders_of_tasks_and_never_of_callbacks() {
    let orders: Vec<String> = (0..100).map(order).collect();
    let distinct: HashSet<&String> = orders.iter().collect();
    assert!(distinct.len() > 40, "{} of 120 orders in 100 seeds", distinct.len());
    let mut first = HashSet::new();
    for order in &orders {
        let callbacks: String = order.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(callbacks, "12345");
        first.insert(order.chars().next().unwrap());
        let mut tasks: Vec<char> = order.chars().filter(char::is_ascii_alphabetic).collect();
        tasks.sort_unstable();
        assert_eq!(tasks, ['a', 'b', 'c', 'd', 'e'], "each exactly once");
    }
    assert_eq!(first.len(), 5, "each of the five comes first under some seed");
}

#[test]
fn without_a_seed_virtual_time_keeps_the_usual_order() {
    let run = || {
        let log = Log::new();
        let event_loop = EventLoop::builder().virtual_time().build().unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            let said = log.clone();
            drop(event_loop.spawn(async move {
                said.say(name);
                sleep(ms(1)).await;
                said.say(name);
            }));
        }
        let handle = event_loop.handle();
        event_loop.call_later(ms(2), move || handle.stop());
        event_loop.run_forever().unwrap();
        log.lines()
    };
    assert_eq!(run(), ["a", "b", "c", "d", "e", "a", "b", "c", "d", "e"]);
    assert_eq!(trace_of(strict(), program()), trace_of(strict(), program()));
}

/// Fails under those seeds that let the second task go first.
fn race() {
    explore(0..50, |_seed| async {
        let winner = Rc::new(Cell::new(None));
        let tasks = [1, 2].map(|n| {
            let winner = winner.clone();
            spawn(async move { winner.set(winner.get().or(Some(n))) })
        });
        wait(&tasks, When::All, None).await.unwrap();
        assert_eq!(winner.get(), Some(1), "the race was lost");
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_failing_run_prints_the_seed_that_replays_it() {
    const TEST: &str = "a_failing_run_prints_the_seed_that_replays_it";
    match part().as_deref() {
        Some("race") => return race(),
        Some("run") => {
            EventLoop::simulated(77).run_until_complete(async { panic!("this run fails") }).unwrap();
        }
        Some("stall") => drop(EventLoop::simulated(78).run_until_complete(pending::<()>())),
        Some("fine") => EventLoop::simulated(79).run_until_complete(yield_now()).unwrap(),
        _ => {}
    }
    if part().is_some() {
        return;
    }
    let failed = child(TEST, "race", None);
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && text.contains("the race was lost"), "{text}");
    let (_, seed) = text.split_once("replay it with TIDEGATE_SEED=").unwrap();
    let seed: u64 = seed.lines().next().unwrap().parse().unwrap();
    assert!(text.contains(&format!("failed with seed {seed};")), "{text}");

    let replayed = child(TEST, "race", Some(seed));
    assert!(!replayed.status.success() && String::from_utf8_lossy(&replayed.stderr).contains("the race was lost"));
    let good = (0..50).find(|good| child(TEST, "race", Some(*good)).status.success());
    assert!(good.is_some(), "under other seeds it passes");

    let stderr = |part| String::from_utf8_lossy(&child(TEST, part, None).stderr).into_owned();
    assert!(stderr("run").contains("EventLoop::simulated(77) replays it"));
    assert!(stderr("stall").contains("EventLoop::simulated(78) replays it"));
    assert!(!stderr("fine").contains("replays it"));
}

#[test]
fn a_virtual_clock_jumps_to_the_next_deadline_and_nowhere_else() {
    let event_loop = EventLoop::simulated(1);
    let start = event_loop.time();
    let log = Log::new();
    let said = log.clone();
    event_loop
        .run_until_complete(async move {
            let now = move || LoopHandle::current().time() - start;
            let tasks = [86_400_000, 1, 2500].map(|after| {
                let said = said.clone();
                spawn(async move {
                    sleep(ms(after)).await;
                    said.say(format_args!("{:?}", now()));
                })
            });
            // Work that is ready takes no time.
            for _ in 0..1000 {
                yield_now().await;
            }
            said.say(format_args!("{:?}", now()));
            wait(&tasks, When::All, None).await.unwrap();
        })
        .unwrap();
    log.expect(["0ns", "1ms", "2.5s", "86400s"]);
    assert_eq!(event_loop.time() - start, Duration::from_secs(86_400));
    assert_eq!(event_loop.metrics().lag_max, Duration::ZERO, "nothing is ever late");
    assert_eq!(event_loop.metrics().poll_time, Duration::ZERO);
}

#[test]
fn deadlines_are_exact_to_the_nanosecond() {
    let event_loop = strict();
    let start = event_loop.time();
    let elapsed = event_loop.run_until_complete(async move {
        for nanos in [1, 999, 1_000_001, 123_456_789] {
            sleep(Duration::from_nanos(nanos)).await;
        }
        LoopHandle::current().time() - start
    });
    assert_eq!(elapsed.unwrap(), Duration::from_nanos(1 + 999 + 1_000_001 + 123_456_789));
}

#[test]
fn a_manual_clock_stands_still_until_it_is_moved() {
    let event_loop = EventLoop::builder().manual_clock().build().unwrap();
    let start = event_loop.time();
    let log = Log::new();
    let sleepers = [3, 1, 2].map(|n| {
        let said = log.clone();
        event_loop.spawn(async move {
            sleep(ms(n * 10)).await;
            said.say(format_args!("{n} at {:?}", LoopHandle::current().time() - start));
        })
    });
    for _ in 0..10 {
        event_loop.run_until_idle().unwrap();
    }
    assert_eq!(event_loop.time(), start);
    event_loop.advance(ms(9));
    event_loop.run_until_idle().unwrap();
    log.expect([]);
    event_loop.advance(ms(1));
    event_loop.run_until_idle().unwrap();
    log.expect(["1 at 10ms"]);
    // Past several deadlines at once: in their order, all at the time it is.
    event_loop.advance(ms(90));
    event_loop.run_until_idle().unwrap();
    log.expect(["1 at 10ms", "2 at 100ms", "3 at 100ms"]);
    assert!(sleepers.iter().all(|sleeper| sleeper.is_finished()));
    // Nothing would ever move it: waiting is an error, not a hang.
    let waiting = event_loop.run_until_complete(sleep(ms(1)));
    assert!(matches!(waiting, Err(RunError::Stalled(_))), "{waiting:?}");
}

#[test]
fn a_manual_clock_and_a_seed_go_together() {
    let run = |seed| {
        let event_loop = EventLoop::builder().manual_clock().simulated(seed).build().unwrap();
        let log = Log::new();
        for n in 0..5 {
            let said = log.clone();
            drop(event_loop.spawn(async move {
                sleep(ms(1)).await;
                said.say(n);
            }));
        }
        event_loop.run_until_idle().unwrap();
        assert_eq!(log.len(), 0, "the clock stands still");
        event_loop.advance(ms(1));
        event_loop.run_until_idle().unwrap();
        log.lines()
    };
    assert_eq!(run(4), run(4));
    assert!((0..20).map(run).collect::<HashSet<_>>().len() > 5);
}

#[test]
fn explore_runs_every_seed_and_cleans_up_after_each() {
    let (seeds, dropped) = (Rc::new(RefCell::new(Vec::new())), Log::new());
    let (seen, guards) = (seeds.clone(), dropped.clone());
    explore(3..8, move |seed| {
        seen.borrow_mut().push(seed);
        let guard = guards.guard(seed);
        async move {
            drop(spawn(async move {
                let _guard = guard;
                let _ = catch_cancel(pending::<()>()).await;
                sleep(ms(1)).await;
            }));
            yield_now().await;
        }
    });
    assert_eq!(*seeds.borrow(), [3, 4, 5, 6, 7]);
    dropped.expect(["3", "4", "5", "6", "7"]);
}
