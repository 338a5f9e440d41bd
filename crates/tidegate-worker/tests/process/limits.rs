//! Time limits, revokes, stops and deaths: each run gets exactly one end, and the mode goes on.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tidegate_loop::{spawn, timeout};
use tidegate_worker::{Mode, Outcome, StopReason};

use crate::support::*;

#[test]
fn a_soft_limit_is_an_exception_in_the_function() {
    on_loop(async {
        let mode = started(python(1)).await;
        let pid = success(run(&mode, "pid", json!([])).await);
        let limit = Duration::from_millis(30);
        for name in ["soft", "async_soft"] {
            // Long enough for the handler to get to where it catches it.
            assert_eq!(success(mode.run(limited(name, json!([true]), Some(1_000), None)).await), json!("caught"));
            assert_eq!(mode.run(limited(name, json!([false]), Some(30), None)).await, Outcome::TimedOut { limit });
        }
        let own = Outcome::TimedOut { limit: Duration::from_millis(50) };
        assert_eq!(run(&mode, "own_soft", json!([])).await, own);
        assert_eq!(success(run(&mode, "pid", json!([])).await), pid);
        mode.stop().await;
    });
}

#[test]
fn a_hard_limit_ends_the_child_and_another_takes_its_place() {
    on_loop(async {
        let mode = started(python(1)).await;
        let child = success(run(&mode, "pid", json!([])).await).as_i64().unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(mode.run(limited("sleep", json!([]), None, Some(50))).await, Outcome::TimedOut { limit });
        ended(Pid::from_raw(child as i32).unwrap()).await;
        works(&mode).await;
        mode.stop().await;
        assert_eq!((mode.stats().started, mode.stats().died), (2, 0));
    });
}

#[test]
fn who_ignores_sigterm_is_killed_after_the_grace() {
    on_loop(async {
        let mut options = python(1);
        options.grace = Duration::from_millis(50);
        let mode = started(options).await;
        let limit = Duration::from_millis(50);
        assert_eq!(mode.run(limited("stubborn", json!([]), None, Some(50))).await, Outcome::TimedOut { limit });
        works(&mode).await;
        mode.stop().await;
    });
}

#[test]
fn what_a_handler_has_started_ends_with_it() {
    on_loop(async {
        let mut options = python(1);
        options.grace = Duration::from_millis(50);
        let mode = started(options).await;
        let mut note = Note::new();
        let job = job("grandchild", json!([note.path()]));
        let stop = job.stop.clone();
        let run = spawn(mode.run(job));
        let grandchild = note.pid().await;
        stop.set(StopReason::Revoked);
        assert_eq!(run.await.unwrap(), Outcome::Revoked);
        ended(grandchild).await;
        mode.stop().await;
    });
}

#[test]
fn a_revoked_run_ends_and_so_does_one_that_waits() {
    on_loop(async {
        let mode = started(python(1)).await;
        let mut note = Note::new();
        let (first, second) = (job("sleep", json!([600, note.path()])), job("add", json!([1, 2])));
        let stops = (first.stop.clone(), second.stop.clone());
        let (first, second) = (spawn(mode.run(first)), spawn(mode.run(second)));
        let child = note.pid().await;
        assert_eq!(mode.waiting(), 1);
        stops.1.set(StopReason::Revoked);
        assert_eq!(second.await.unwrap(), Outcome::Revoked);
        assert_eq!(mode.waiting(), 0);
        stops.0.set(StopReason::Revoked);
        assert_eq!(first.await.unwrap(), Outcome::Revoked);
        ended(child).await;
        works(&mode).await;
        mode.stop().await;
    });
}

#[test]
fn what_waits_behind_a_run_that_is_ended_runs_elsewhere() {
    on_loop(async {
        let mut options = python(1);
        options.pipeline = 4;
        let mode = started(options).await;
        let mut note = Note::new();
        let first = job("sleep", json!([600, note.path()]));
        let stop = first.stop.clone();
        let first = spawn(mode.run(first));
        let behind: Vec<_> = (0..3).map(|number| spawn(mode.run(job("add", json!([number, 1]))))).collect();
        note.pid().await;
        stop.set(StopReason::Revoked);
        assert_eq!(first.await.unwrap(), Outcome::Revoked);
        for (number, run) in behind.into_iter().enumerate() {
            assert_eq!(success(run.await.unwrap()), json!(number + 1));
        }
        mode.stop().await;
    });
}

#[test]
fn one_that_is_revoked_while_it_waits_in_a_child_does_not_end_the_child() {
    on_loop(async {
        let mut options = python(1);
        options.pipeline = 2;
        let mode = started(options).await;
        let mut note = Note::new();
        let barrier = Barrier::new();
        let first = spawn(mode.run(job("until_told", json!([note.path(), barrier.path()]))));
        let second = job("fail", json!(["it must not run"]));
        let stop = second.stop.clone();
        let second = spawn(mode.run(second));
        note.pid().await;
        stop.set(StopReason::Revoked);
        assert_eq!(second.await.unwrap(), Outcome::Revoked);
        let _open = barrier.open();
        assert_eq!(success(first.await.unwrap()), json!("told"));
        mode.stop().await;
        assert_eq!(mode.stats().started, 1);
    });
}

#[test]
fn a_dropped_run_ends_its_handler() {
    on_loop(async {
        let mode = started(python(1)).await;
        let mut note = Note::new();
        let run = spawn(mode.run(job("sleep", json!([600, note.path()]))));
        let child = note.pid().await;
        run.task().cancel();
        ended(child).await;
        works(&mode).await;
        mode.stop().await;
    });
}

#[test]
fn a_death_is_told_with_its_cause_and_the_last_words() {
    on_loop(async {
        let mode = started(python(1)).await;
        for (how, expected) in [
            ("exit", "its child ended with exit code 7"),
            ("SIGKILL", "its child was killed by signal 9 (SIGKILL)"),
            ("SIGSEGV", "its child was killed by signal 11 (SIGSEGV)"),
        ] {
            let message = crash(run(&mode, "die", json!([how])).await);
            assert!(message.starts_with(expected), "{message}");
            assert!(message.contains("these are my last words"), "{message}");
            works(&mode).await;
        }
        mode.stop().await;
        assert_eq!(mode.stats().died, 3);
    });
}

#[test]
fn a_child_that_is_killed_is_noticed_at_once_and_its_waiting_runs_go_on() {
    on_loop(async {
        let mut options = python(1);
        options.pipeline = 3;
        let mode = started(options).await;
        let mut note = Note::new();
        let first = spawn(mode.run(job("sleep", json!([600, note.path()]))));
        let behind = [spawn(mode.run(job("add", json!([1, 1])))), spawn(mode.run(job("add", json!([2, 2]))))];
        kill_process(note.pid().await, Signal::KILL).unwrap();
        assert!(crash(first.await.unwrap()).starts_with("its child was killed by signal 9"));
        for (run, sum) in behind.into_iter().zip([2, 4]) {
            assert_eq!(success(run.await.unwrap()), json!(sum));
        }
        mode.stop().await;
    });
}

#[test]
fn an_idle_child_that_dies_is_replaced() {
    on_loop(async {
        let mode = started(python(1)).await;
        let pid = success(run(&mode, "pid", json!([])).await).as_i64().unwrap();
        let pid = Pid::from_raw(pid as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        ended(pid).await;
        works(&mode).await;
        mode.stop().await;
        assert_eq!((mode.stats().started, mode.stats().died), (2, 1));
    });
}

#[test]
fn a_stop_cancels_what_runs_and_what_waits_and_ends_within_the_grace() {
    on_loop(async {
        let mut options = python(1);
        options.pipeline = 2;
        options.grace = Duration::from_millis(50);
        let mode = started(options).await;
        let mut note = Note::new();
        let runs: Vec<_> = (0..4).map(|_| spawn(mode.run(job("stubborn", json!([note.path()]))))).collect();
        let child = note.pid().await;
        timeout(Duration::from_secs(60), mode.stop()).await.unwrap();
        for run in runs {
            assert_eq!(run.await.unwrap(), Outcome::Cancelled);
        }
        ended(child).await;
        assert_eq!(run(&mode, "add", json!([1, 2])).await, Outcome::Cancelled);
    });
}
