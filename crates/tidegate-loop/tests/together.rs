//! Several futures in one task (`race`, `zip`, `select!`, `join!`), sets of tasks, intervals, tasks started from other
//! threads.

use std::cell::Cell;
use std::future::{pending, ready};
use std::pin::pin;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use tidegate_loop::{
    Either, EventLoop, JoinError, JoinSet, LoopHandle, Task, catch_cancel, interval, join, now, race, run, select,
    sleep, sleep_until, spawn, timeout, yield_now, zip,
};

fn simulated<F: Future + 'static>(future: F) -> F::Output {
    EventLoop::simulated(1).run_until_complete(future).unwrap()
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Counts down when it is dropped.
struct Held(Rc<Cell<usize>>);

impl Held {
    fn new(held: &Rc<Cell<usize>>) -> Held {
        held.set(held.get() + 1);
        Held(held.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[test]
fn the_first_of_a_race_wins_a_tie_and_the_loser_is_dropped() {
    simulated(async {
        assert_eq!(race(ready(1), ready("two")).await, Either::Left(1));
        let held = Rc::new(Cell::new(0));
        let slow = Held::new(&held);
        let loser = async move {
            let _slow = slow;
            pending::<()>().await;
        };
        assert_eq!(race(loser, sleep(ms(5))).await, Either::Right(()));
        assert_eq!(held.get(), 0, "dropped as soon as the race is over");
    });
}

#[test]
fn a_race_takes_what_can_be_awaited() {
    simulated(async {
        let future = LoopHandle::current().create_future();
        future.set_result(7).unwrap();
        assert_eq!(race(pending::<()>(), &future).await.right().unwrap().unwrap(), 7);
    });
}

#[test]
fn a_cancellation_reaches_both_sides_of_a_race() {
    simulated(async {
        let held = Rc::new(Cell::new(0));
        let (one, two) = (Held::new(&held), Held::new(&held));
        let task = spawn(async move {
            let wait = async |held: Held| {
                let _held = held;
                sleep(ms(100)).await;
            };
            race(wait(one), wait(two)).await
        });
        yield_now().await;
        task.cancel();
        assert!(matches!(task.await, Err(JoinError::Cancelled)));
        assert_eq!(held.get(), 0);
    });
}

#[test]
fn both_of_a_zip_wait_at_the_same_time() {
    simulated(async {
        let before = now();
        let nap = async |length, value| {
            sleep(ms(length)).await;
            value
        };
        assert_eq!(zip(nap(30, 'a'), nap(10, 'b')).await, ('a', 'b'));
        assert_eq!(now() - before, ms(30));
    });
}

#[test]
fn join_takes_any_number() {
    simulated(async {
        assert_eq!(join!(ready(1)), (1,));
        assert_eq!(join!(ready(1), ready("2"), ready('3'), ready(4.0)), (1, "2", '3', 4.0));
    });
}

#[test]
fn select_runs_one_arm_which_may_break_and_await() {
    let (beats, took) = simulated(async {
        let before = now();
        let mut beats = 0;
        let mut clock = interval(ms(10));
        let mut end = pin!(sleep(ms(35)));
        let last = loop {
            select! {
                () = end.as_mut() => {
                    sleep(ms(1)).await;
                    break beats;
                },
                _at = clock.tick() => beats += 1,
                never = pending::<u32>() => assert_eq!(never, 0),
            }
        };
        (last, now() - before)
    });
    assert_eq!((beats, took), (4, ms(36)));
}

#[test]
fn select_prefers_the_upper_arm() {
    simulated(async {
        let mut upper = 0;
        for _ in 0..10 {
            select! {
                () = ready(()) => upper += 1,
                () = ready(()) => unreachable!(),
            }
        }
        assert_eq!(upper, 10);
    });
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_time_out_polled_after_it_was_ready_panics_and_does_not_hang() {
    simulated(async {
        let mut limited = pin!(timeout(ms(5), ready(1)));
        assert_eq!(limited.as_mut().await, Ok(1));
        let _ = limited.as_mut().await;
    });
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_time_out_that_has_run_out_panics_when_polled_again() {
    simulated(async {
        let mut limited = pin!(timeout(ms(5), pending::<()>()));
        assert!(limited.as_mut().await.is_err());
        let _ = limited.as_mut().await;
    });
}

#[test]
fn now_is_the_loops_time_and_outside_the_machines() {
    let before = std::time::Instant::now();
    assert!(now() >= before);
    let event_loop = EventLoop::builder().manual_clock().build().unwrap();
    let handle = event_loop.handle();
    let passed = event_loop.run_until_complete(async move {
        let before = now();
        handle.advance(Duration::from_secs(7));
        now() - before
    });
    assert_eq!(passed.unwrap(), Duration::from_secs(7));
}

#[test]
fn a_set_hands_out_results_as_they_come_and_failures_leave_the_others_alone() {
    std::panic::set_hook(Box::new(|_| ()));
    simulated(async {
        let mut set = JoinSet::new();
        assert!(set.join_next().await.is_none());
        let ended = set.spawn(async {
            sleep(ms(20)).await;
            "last"
        });
        set.spawn(async {
            sleep(ms(10)).await;
            panic!("out of paper")
        });
        set.spawn(async { "first" });
        assert_eq!(set.len(), 3);
        assert_eq!(set.join_next().await.unwrap().unwrap(), "first");
        assert!(matches!(set.join_next().await, Some(Err(JoinError::Panicked(_)))));
        assert!(!ended.is_finished() && set.try_join_next().is_none());
        assert_eq!(set.join_next().await.unwrap().unwrap(), "last");
        assert!(set.is_empty() && set.join_next().await.is_none());
    });
}

#[test]
fn a_set_that_is_dropped_cancels_its_tasks() {
    simulated(async {
        let mut set = JoinSet::new();
        let task = set.spawn(pending::<()>());
        yield_now().await;
        drop(set);
        assert_eq!(task.finished().await, tidegate_loop::Outcome::Cancelled);
    });
}

#[test]
fn a_set_is_waited_for_until_its_tasks_have_cleaned_up() {
    simulated(async {
        let mut set = JoinSet::new();
        for n in 0..3 {
            set.spawn(async move {
                let _ = catch_cancel(pending::<()>()).await;
                sleep(ms(n)).await;
            });
        }
        yield_now().await;
        yield_now().await;
        set.cancel_all();
        let before = now();
        set.wait_empty().await;
        assert_eq!(now() - before, ms(2));
    });
}

#[test]
fn a_join_next_that_is_given_up_loses_no_result() {
    simulated(async {
        let mut set = JoinSet::new();
        set.spawn(async {
            sleep(ms(10)).await;
            1
        });
        assert!(timeout(ms(5), set.join_next()).await.is_err());
        assert_eq!(set.join_next().await.unwrap().unwrap(), 1);
    });
}

#[test]
fn an_interval_does_not_drift_and_leaves_missed_ticks_out() {
    simulated(async {
        let start = now();
        let mut clock = interval(ms(10));
        assert_eq!(clock.tick().await - start, ms(0));
        assert_eq!(clock.tick().await - start, ms(10));
        sleep_until(start + ms(37)).await;
        assert_eq!((clock.tick().await - start, now() - start), (ms(20), ms(37)), "the first one missed comes late");
        assert_eq!((clock.tick().await - start, now() - start), (ms(40), ms(40)));
        sleep(ms(3)).await;
        clock.reset();
        assert_eq!(clock.tick().await - start, ms(53));
    });
}

#[test]
fn a_task_started_from_a_thread_brings_its_result_there() {
    let event_loop = EventLoop::new().unwrap();
    let remote = event_loop.remote();
    let asking = thread::spawn(move || {
        // The future is not `Send`: it is made on the loop.
        let value = remote.spawn(|| {
            let shared = Rc::new(20);
            async move {
                yield_now().await;
                *shared + 1
            }
        });
        let panicking = remote.spawn(|| async { std::panic::resume_unwind(Box::new("no paper")) });
        let ended: (Result<i32, JoinError>, Result<(), JoinError>) = (value.wait(), panicking.wait());
        remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
        ended
    });
    event_loop.run_forever().unwrap();
    let (value, panicked) = asking.join().unwrap();
    assert_eq!(value.unwrap(), 21);
    assert_eq!(panicked.unwrap_err().to_string(), "the task panicked: no paper");
}

#[test]
fn a_remote_task_can_be_awaited_on_another_loop() {
    let (send, receive) = std::sync::mpsc::channel();
    let other = thread::spawn(move || {
        run(async move {
            send.send((LoopHandle::current().remote(), tidegate_loop::OnLoop::new(Task::current()))).unwrap();
            let _ = catch_cancel(pending::<()>()).await;
        })
        .unwrap();
    });
    let (remote, main) = receive.recv().unwrap();
    run(async move {
        assert_eq!(remote.spawn(|| async { 5 }).await.unwrap(), 5);
        let cancel = move || {
            main.with(Task::cancel).unwrap();
        };
        remote.call_soon_threadsafe(cancel).unwrap();
    })
    .unwrap();
    other.join().unwrap();
}

#[test]
fn a_task_for_a_loop_that_is_closed_is_cancelled() {
    let event_loop = EventLoop::new().unwrap();
    let remote = event_loop.remote();
    let before = remote.spawn(|| async {});
    let started = remote.spawn(pending::<()>);
    event_loop.run_until_idle().unwrap();
    drop(event_loop);
    let after = remote.spawn(|| async {});
    assert!(before.wait().is_ok());
    assert!(matches!(started.wait(), Err(JoinError::Cancelled)));
    assert!(matches!(after.wait(), Err(JoinError::Cancelled)));
}
