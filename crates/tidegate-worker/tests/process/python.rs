//! The Python module as a child.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_loop::{gather_all, spawn};
use tidegate_worker::{Mode, Outcome, ProcessMode};

use crate::support::*;

#[test]
fn functions_answer_with_values_failures_retries_and_rejections() {
    on_loop(async {
        let mode = started(python(2)).await;
        assert!(mode.handlers().unwrap().contains(&"async_add".to_owned()));
        assert_eq!(success(run(&mode, "add", json!([1, 2])).await), json!(3));
        assert_eq!(success(run(&mode, "async_add", json!([1, 2])).await), json!(3));
        let mut with_names = job("echo", json!(["ä\u{0}\u{1f600}", 1.5, null]));
        with_names.task.kwargs.insert("key".into(), json!([{}]));
        let echoed = json!({"args": ["ä\u{0}\u{1f600}", 1.5, null], "kwargs": {"key": [{}]}});
        assert_eq!(success(mode.run(with_names).await), echoed);

        let long: Value = tidegate_worker::json::from_slice(b"[1000000000000000000000000000000]").unwrap();
        let sum = success(run(&mode, "add", json!([long[0], 1])).await);
        assert_eq!(tidegate_worker::json::integer(&sum), Some("1000000000000000000000000000001"));

        let error = failure(run(&mode, "fail", json!(["so it is"])).await);
        assert_eq!((&*error.kind, &*error.message), ("ValueError", "so it is"));
        let traceback = error.traceback.unwrap();
        assert!(traceback.contains("in fail") && !traceback.contains("_serve.py"), "{traceback}");
        assert_eq!(failure(run(&mode, "sys_exit", json!([])).await).kind, "SystemExit");

        let Outcome::Retry { after, error } = run(&mode, "retry", json!([2.5])).await else { panic!("no retry") };
        assert_eq!((after, &*error.message), (Some(Duration::from_millis(2500)), "not yet"));
        assert_eq!(rejection(run(&mode, "reject", json!([])).await), "never");
        assert!(rejection(run(&mode, "nobody", json!([])).await).contains("no handler is named 'nobody'"));
        let misfit = rejection(run(&mode, "add", json!([1, 2, 3])).await);
        assert!(misfit.contains("the arguments do not fit add: too many positional arguments"), "{misfit}");
        // A type error inside of the function is its failure.
        assert_eq!(failure(run(&mode, "add", json!([1, "2"])).await).kind, "TypeError");
        mode.stop().await;
        assert_eq!((mode.stats().children, mode.stats().died), (0, 0));
    });
}

#[test]
fn a_handler_with_retries_asks_for_them_until_they_are_used_up() {
    on_loop(async {
        let mode = started(python(1)).await;
        for retries in 0..2 {
            let mut job = job("three_tries", json!([]));
            job.task.retries = retries;
            let Outcome::Retry { after, error } = mode.run(job).await else { panic!("no retry") };
            assert_eq!((after, &*error.kind), (Some(Duration::from_millis(1500)), "KeyError"));
        }
        let mut last = job("three_tries", json!([]));
        last.task.retries = 2;
        let reason = rejection(mode.run(last).await);
        assert!(reason.starts_with("KeyError: 'nothing'; its handler wants no further try\nTraceback"), "{reason}");
        mode.stop().await;
    });
}

#[test]
fn results_that_do_not_travel_are_failures_of_their_task() {
    on_loop(async {
        let mut options = python(1);
        options.max_frame = 100_000;
        let mode = started(options).await;
        let pid = success(run(&mode, "pid", json!([])).await);
        assert!(failure(run(&mode, "not_json", json!([])).await).message.contains("cannot be written as JSON"));
        assert!(failure(run(&mode, "not_a_number", json!([])).await).message.contains("cannot be written as JSON"));
        assert_eq!(failure(run(&mode, "large", json!([200_000])).await).kind, "ResultTooLarge");
        assert_eq!(failure(run(&mode, "deep", json!([500])).await).kind, "UnreadableResult");
        assert!(failure(run(&mode, "deep", json!([100_000])).await).message.contains("cannot be written as JSON"));
        assert_eq!(success(run(&mode, "large", json!([90_000])).await), "x".repeat(90_000));
        let rejected = rejection(run(&mode, "echo", json!(["x".repeat(200_000)])).await);
        assert!(rejected.contains("a child takes 100000 at most"), "{rejected}");
        // None of this was its child's fault.
        assert_eq!(success(run(&mode, "pid", json!([])).await), pid);
        mode.stop().await;
    });
}

#[test]
fn megabytes_go_to_and_fro() {
    on_loop(async {
        let mode = started(python(1)).await;
        let text = Value::from("y".repeat(20 << 20));
        let value = success(mode.run(job("echo", json!([text]))).await);
        assert_eq!(value["args"][0], text);
        mode.stop().await;
    });
}

#[test]
fn every_child_takes_part_and_none_has_two_at_a_time() {
    on_loop(async {
        let mode = started(python(3)).await;
        assert_eq!(mode.slots(), 3);
        let mut notes = Note::new();
        let sleepers: Vec<_> = (0..3).map(|_| mode.run(job("sleep", json!([0.01, notes.path()])))).collect();
        let tasks: Vec<_> = sleepers.into_iter().map(spawn).collect();
        let pids: HashSet<_> = [notes.pid().await, notes.pid().await, notes.pid().await].into();
        assert_eq!(pids.len(), 3);
        for outcome in gather_all(tasks).await {
            success(outcome.unwrap());
        }
        mode.stop().await;
    });
}

#[test]
fn a_flood_through_a_pipeline_is_answered_in_full() {
    for pipeline in [1, 8] {
        on_loop(async move {
            let mut options = python(2);
            options.pipeline = pipeline;
            let mode = started(options).await;
            let runs = (0..2_000).map(|number| {
                let run = mode.run(job("add", json!([number, 1])));
                spawn(async move { (number, run.await) })
            });
            for answer in gather_all(runs.collect::<Vec<_>>()).await {
                let (number, outcome) = answer.unwrap();
                assert_eq!(success(outcome), json!(number + 1));
            }
            assert_eq!((mode.stats().started, mode.waiting()), (2, 0));
            mode.stop().await;
        });
    }
}

#[test]
fn a_child_is_replaced_after_its_tasks() {
    on_loop(async {
        let mut options = python(1);
        options.max_tasks = Some(3);
        options.pipeline = 2;
        let mode = started(options).await;
        let mut pids = Vec::new();
        for _ in 0..9 {
            pids.push(success(run(&mode, "pid", json!([])).await).as_u64().unwrap());
        }
        assert!(pids.chunks(3).all(|chunk| chunk[0] == chunk[1] && chunk[1] == chunk[2]), "{pids:?}");
        assert_eq!(pids.iter().collect::<HashSet<_>>().len(), 3);
        mode.stop().await;
        assert_eq!(mode.stats().died, 0);
    });
}

#[test]
fn a_child_that_has_grown_is_replaced() {
    on_loop(async {
        let mut options = python(1);
        options.max_rss = Some(100 << 20);
        let mode = started(options).await;
        let small = success(run(&mode, "grow", json!([1000])).await);
        assert_eq!(success(run(&mode, "grow", json!([150 << 20])).await), small);
        assert_ne!(success(run(&mode, "grow", json!([1000])).await), small);
        mode.stop().await;
        assert_eq!(mode.stats().died, 0);
    });
}

#[test]
fn recycling_replaces_every_child_once_its_task_is_done() {
    on_loop(async {
        let mode = started(python(2)).await;
        let mut note = Note::new();
        let busy = spawn(mode.run(job("sleep", json!([0.05, note.path()]))));
        let old = note.pid().await;
        mode.recycle();
        assert_eq!(success(busy.await.unwrap()), Value::Null);
        ended(old).await;
        works(&mode).await;
        works(&mode).await;
        mode.stop().await;
        assert_eq!((mode.stats().started, mode.stats().died), (4, 0));
    });
}

#[test]
fn what_a_handler_prints_is_logged_with_its_child_and_task() {
    let (log, guard) = Log::here();
    on_loop(async move {
        let mode = started(python(1)).await;
        let spoken = job("say", json!(["hello"]));
        let id = spoken.task.id.to_string();
        assert_eq!(success(mode.run(spoken).await), json!(id));
        works(&mode).await;
        mode.stop().await;
        let lines: Vec<String> = log.lines().into_iter().filter(|line| line.contains("hello")).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines.iter().all(|line| line.contains(&format!("task={id:?}")) && line.contains("child=1")),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line.contains(" hello ") && line.contains("stream=\"stdout\"")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("hello (error)")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains(&format!("INFO [{id}] handlers: logged hello"))), "{lines:?}");
    });
    drop(guard);
}

#[test]
fn threads_and_forks_in_a_handler_do_not_disturb_its_answer() {
    on_loop(async {
        let mode = started(python(1)).await;
        assert_eq!(success(run(&mode, "thread", json!([])).await), json!("done"));
        for _ in 0..3 {
            assert_eq!(success(run(&mode, "fork_and_return", json!([])).await), json!("one answer"));
        }
        works(&mode).await;
        mode.stop().await;
        assert_eq!(mode.stats().died, 0);
    });
}

#[test]
fn a_dropped_mode_ends_its_children() {
    on_loop(async {
        let mode = started(python(1)).await;
        let mut note = Note::new();
        let run = spawn(mode.run(job("sleep", json!([600, note.path()]))));
        let child = note.pid().await;
        assert_eq!(Rc::strong_count(&mode), 1);
        drop::<Rc<ProcessMode>>(mode);
        ended(child).await;
        assert_eq!(run.await.unwrap(), Outcome::Cancelled);
    });
}
