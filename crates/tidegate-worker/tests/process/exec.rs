//! Commands that are started for every task.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_loop::{LoopHandle, spawn};
use tidegate_worker::{Exec, Handler, HandlerError, TaskContext, TaskError};

use crate::support::*;

async fn call(exec: Exec, args: Value, soft_limit: Option<Duration>) -> Result<Value, HandlerError> {
    let task = task("name", args);
    let context = TaskContext::new(&task, soft_limit, None, LoopHandle::current().time());
    exec.call(task, context).await
}

fn shell(line: &'static str, args: Value) -> Result<Value, HandlerError> {
    on_loop(call(Exec::shell(line), args, None))
}

#[track_caller]
fn failed(result: Result<Value, HandlerError>) -> TaskError {
    match result {
        Err(HandlerError::Failed(error)) => error,
        other => panic!("no failure: {other:?}"),
    }
}

#[test]
fn the_task_comes_on_standard_input_and_the_result_from_standard_output() {
    let echoed = shell("cat", json!([1, "ä"])).unwrap();
    assert_eq!(echoed["args"], json!([1, "ä"]));
    assert_eq!((&echoed["task"], &echoed["kwargs"], &echoed["retries"]), (&json!("name"), &json!({}), &json!(0)));
    assert_eq!(shell("echo \"\\\"$TIDEGATE_TASK\\\"\"", json!([])).unwrap(), json!("name"));
    assert_eq!(shell("true", json!([])).unwrap(), Value::Null);
}

#[test]
fn much_goes_in_and_out_at_the_same_time_or_is_not_read_at_all() {
    let large = "x".repeat(4 << 20);
    assert_eq!(shell("cat", json!([large])).unwrap()["args"][0], json!(large));
    assert_eq!(shell("echo 1", json!([large])).unwrap(), json!(1));
}

#[test]
fn failures_have_their_exit_code_and_what_was_written_to_standard_error() {
    let error = failed(shell("echo first >&2; printf second >&2; exit 3", json!([])));
    assert_eq!(error.kind, "ExitCode");
    assert_eq!(error.message, "the command ended with exit code 3: second");
    assert_eq!(error.traceback.unwrap(), "first\nsecond");
    let error = failed(shell("kill -9 $$", json!([])));
    assert_eq!((&*error.kind, &*error.message), ("Signal", "the command was killed by signal 9 (SIGKILL)"));
    assert_eq!(failed(shell("echo no json", json!([]))).kind, "UnreadableResult");
    let retry = shell("echo later >&2; exit 75", json!([]));
    assert!(matches!(retry, Err(HandlerError::Retry { after: None, .. })), "{retry:?}");
    let missing = on_loop(call(Exec::new(["no-such-program"]), json!([]), None));
    assert!(failed(missing).message.contains("cannot run `no-such-program`"));
}

#[test]
fn output_without_end_is_cut_short() {
    let error = failed(on_loop(call(Exec::shell("yes").max_output(100_000), json!([]), None)));
    assert_eq!(error.kind, "OutputTooLarge");
}

#[test]
fn a_command_that_writes_errors_without_end_stops_neither_its_limit_nor_other_commands() {
    on_loop(async {
        let flood = spawn(call(Exec::shell("yes 1>&2"), json!([]), Some(Duration::from_secs(2))));
        assert_eq!(call(Exec::shell("echo 1"), json!([]), None).await, Ok(json!(1)));
        assert!(!flood.is_finished());
        assert_eq!(flood.await.unwrap(), Err(HandlerError::SoftLimit));
    });
}

#[test]
fn a_background_process_does_not_keep_the_result() {
    assert_eq!(shell("sleep 600 & echo 5", json!([])).unwrap(), json!(5));
}

#[test]
fn at_the_soft_limit_the_group_is_told() {
    on_loop(async {
        let limit = Some(Duration::from_millis(50));
        let told = call(Exec::shell("sleep 600 & wait"), json!([]), limit).await;
        assert_eq!(told, Err(HandlerError::SoftLimit));
        // Long enough for the shell to get to its trap.
        let limit = Some(Duration::from_secs(2));
        let caught = call(Exec::shell("trap 'echo 7; exit 0' TERM; sleep 600 & wait"), json!([]), limit).await;
        assert_eq!(caught, Ok(json!(7)));
    });
}

#[test]
fn a_dropped_run_kills_the_whole_group() {
    on_loop(async {
        let mut note = Note::new();
        let line = format!(
            "trap '' TERM; (trap '' TERM; sh -c 'echo $$ >{0}; exec sleep 600') & wait",
            note.path().as_str().unwrap()
        );
        let run = spawn(call(Exec::shell(line), json!([]), None));
        let sleeper = note.pid().await;
        run.task().cancel();
        ended(sleeper).await;
    });
}
