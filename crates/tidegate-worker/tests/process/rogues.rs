//! Children that break every rule: each is a defined outcome, and the mode lives on.

use std::time::Duration;

use serde_json::json;
use tidegate_worker::{Mode, Outcome, ProcessMode, ProcessOptions};

use crate::support::*;

/// A child that greets, and at its first task does `misdeed`; the task's arguments are `args`. If a file named by its
/// argument exists it behaves from the start, so that its successor answers.
fn rogue(misdeed: &str) -> (tempfile::TempDir, ProcessOptions) {
    let script = r#"
import json, os, signal, socket, struct, subprocess, sys, time
number = int(os.environ["TIDEGATE_SOCKET"])
sock = socket.socket(fileno=number)
file = sock.makefile("rb")
def raw(data): sock.sendall(data)
def say(message):
    data = json.dumps(message).encode()
    raw(len(data).to_bytes(4, "big") + data)
reformed = os.path.exists(sys.argv[1])
open(sys.argv[1], "w").close()
say({"type": "ready", "version": 1})
while header := file.read(4):
    order = json.loads(file.read(int.from_bytes(header, "big")))
    if order["type"] != "run": continue
    run, args = order["run"], order["args"]
    if not reformed:
        MISDEED; reformed = True
    say({"type": "done", "run": run, "value": sum(args)})
"#;
    let directory = tempfile::tempdir().unwrap();
    let script = script.replace("MISDEED", misdeed);
    let seen = directory.path().join("seen");
    let mut options =
        ProcessOptions::new(["python3".into(), "-S".into(), "-c".into(), script.into(), seen.into_os_string()]);
    options.children = 1;
    options.grace = Duration::from_millis(100);
    options.max_frame = 1 << 20;
    (directory, options)
}

/// What becomes of the task at which the child does it; afterwards all must be well.
fn after(misdeed: &'static str) -> Outcome {
    let (directory, options) = rogue(misdeed);
    let outcome = on_loop(async move {
        let mode = started(options).await;
        assert_eq!(mode.handlers(), None);
        let outcome = run(&mode, "add", json!([1, 2])).await;
        works(&mode).await;
        mode.stop().await;
        assert_eq!(mode.stats().children, 0);
        outcome
    });
    drop(directory);
    outcome
}

#[test]
fn a_child_that_writes_without_end_is_ended_at_its_limit() {
    let (directory, options) = rogue("while True: os.write(2, b'y\\n' * 30_000)");
    on_loop(async move {
        let mode = started(options).await;
        let limit = Duration::from_millis(500);
        let outcome = mode.run(limited("add", json!([1, 2]), None, Some(500))).await;
        assert_eq!(outcome, Outcome::TimedOut { limit });
        works(&mode).await;
        mode.stop().await;
    });
    drop(directory);
}

#[test]
fn garbage_on_the_socket_is_a_crash() {
    let message = crash(after("raw(b'\\x00\\x00\\x00\\x07garbage'); time.sleep(600)"));
    assert!(message.contains("it sent a frame that is no message") && message.contains("garbage"), "{message}");
}

#[test]
fn text_instead_of_frames_is_a_frame_too_long() {
    let message = crash(after("raw(b'Traceback (most recent call last)'); time.sleep(600)"));
    assert!(message.contains("it announced a frame of 1416782179 bytes; 1048576 are allowed"), "{message}");
}

#[test]
fn a_huge_frame_is_refused_before_it_is_read() {
    let message = crash(after("raw(struct.pack('>I', 1 << 30)); raw(b'x' * (64 << 20))"));
    assert!(message.contains("it announced a frame of 1073741824 bytes"), "{message}");
}

#[test]
fn an_answer_to_what_was_not_asked_is_a_crash() {
    let message = crash(after("say({'type': 'done', 'run': run + 1})"));
    assert!(message.contains("it answered run 2, but 1 was due"), "{message}");
}

#[test]
fn a_second_answer_ends_the_child_but_the_first_counts() {
    let twice = "data = json.dumps({'type': 'done', 'run': run, 'value': 1}).encode(); \
                 raw((len(data).to_bytes(4, 'big') + data) * 2); time.sleep(600)";
    assert_eq!(success(after(twice)), json!(1));
}

#[test]
fn a_run_that_was_not_recalled_is_not_given_to_another_child() {
    let message = crash(after("say({'type': 'returned', 'run': run}); time.sleep(600)"));
    assert!(message.contains("it gave back run 1, which was not recalled"), "{message}");
}

/// It gives each run back and is given it again, in which the time limit would begin anew for ever.
#[test]
fn giving_runs_back_does_not_escape_the_time_limit() {
    let (_directory, options) = rogue("say({'type': 'returned', 'run': run}); continue");
    on_loop(async move {
        let mode = started(options).await;
        let outcome = mode.run(limited("add", json!([1, 2]), None, Some(60_000))).await;
        assert!(crash(outcome).contains("it gave back run 1"));
        works(&mode).await;
        assert_eq!((mode.stats().started, mode.stats().died), (2, 1));
        mode.stop().await;
    });
}

/// It answers runs whose numbers it has guessed while the first one, too large for the socket, is still on its way.
#[test]
fn an_answer_to_a_run_that_is_not_sent_as_a_whole_is_a_crash() {
    let script = r#"
import json, os, socket, sys, time
sock = socket.socket(fileno=int(os.environ["TIDEGATE_SOCKET"]))
def say(message):
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(4, "big") + data)
file = sock.makefile("rb")
reformed = os.path.exists(sys.argv[1])
open(sys.argv[1], "w").close()
say({"type": "ready", "version": 1})
if not reformed:
    file.read(int.from_bytes(file.read(4), "big") + 1)  # the greeting, and the first byte of the run
    say({"type": "done", "run": 1, "value": 3})
    time.sleep(600)
while header := file.read(4):
    order = json.loads(file.read(int.from_bytes(header, "big")))
    if order["type"] == "run": say({"type": "done", "run": order["run"], "value": sum(order["args"])})
"#;
    let (_directory, mut options) = rogue("pass");
    options.command[3] = script.into();
    options.max_frame = 32 << 20;
    on_loop(async move {
        let mode = started(options).await;
        // More than any socket pair holds.
        let message = crash(run(&mode, "add", json!(["x".repeat(24 << 20)])).await);
        assert!(message.contains("it answered run 1 before that was sent to it"), "{message}");
        works(&mode).await;
        mode.stop().await;
    });
}

#[test]
fn an_unknown_message_is_a_crash() {
    assert!(crash(after("say({'type': 'sing', 'run': run})")).contains("unknown type `sing`"));
}

#[test]
fn a_child_that_closes_its_socket_and_goes_on_is_ended() {
    let message = crash(after("os.close(number); time.sleep(600)"));
    assert!(message.contains("it closed its socket and went on"), "{message}");
}

#[test]
fn a_child_that_closes_its_output_works_on() {
    assert_eq!(success(after("os.close(1); os.close(2)")), json!(3));
}

#[test]
fn a_child_that_floods_its_output_is_read_and_answered() {
    let flood = "sys.stdout.write('line\\n' * 200000); sys.stderr.write('x' * (1 << 20)); sys.stdout.flush()";
    assert_eq!(success(after(flood)), json!(3));
}

#[test]
fn a_message_that_is_cut_off_is_a_crash() {
    let message = crash(after("raw(b'\\x00\\x00\\x00\\x63{'); os._exit(3)"));
    assert!(message.starts_with("its child ended with exit code 3"), "{message}");
}

#[test]
fn a_descendant_that_keeps_the_socket_open_does_not_hide_the_death() {
    let fork = "child = os.fork(); child or time.sleep(600); os._exit(4)";
    assert!(crash(after(fork)).starts_with("its child ended with exit code 4"));
}

#[test]
fn a_child_that_does_not_read_is_ended_by_the_limit() {
    let (_directory, options) = rogue("time.sleep(600)");
    on_loop(async move {
        let mode = started(options).await;
        let large = "x".repeat(1_000_000);
        let outcome = mode.run(limited("add", json!([large]), None, Some(100))).await;
        assert_eq!(outcome, Outcome::TimedOut { limit: Duration::from_millis(100) });
        works(&mode).await;
        mode.stop().await;
    });
}

#[test]
fn children_without_a_handler_for_signals_are_not_sent_any() {
    let (_directory, options) = rogue("time.sleep(0.3)");
    on_loop(async move {
        let mode = started(options).await;
        assert_eq!(success(mode.run(limited("add", json!([1, 2]), Some(10), None)).await), json!(3));
        mode.stop().await;
        assert_eq!(mode.stats().died, 0);
    });
}

#[test]
fn a_child_that_is_killed_while_it_starts_is_started_again() {
    let (directory, mut options) = rogue("pass");
    let once = "[ -e \"$0\" ] && exec \"$@\"; : > \"$0\"; kill -9 $$";
    let mark = directory.path().join("killed").into_os_string();
    let wrapped = ["sh".into(), "-c".into(), once.into(), mark];
    options.command = wrapped.into_iter().chain(options.command).collect();
    on_loop(async move {
        let mode = started(options).await;
        works(&mode).await;
        assert_eq!((mode.stats().started, mode.stats().died), (2, 1));
        mode.stop().await;
    });
    let always = refused(&["sh", "-c", "kill -9 $$"], Duration::from_secs(60));
    assert!(always.contains("was not ready: was killed by signal 9 (SIGKILL)"), "{always}");
}

/// Why a mode with this command does not start.
fn refused(command: &[&str], ready_limit: Duration) -> String {
    let mut options = ProcessOptions::new(command);
    options.children = 2;
    options.ready_limit = ready_limit;
    options.grace = Duration::from_millis(100);
    on_loop(async move {
        let mode = ProcessMode::new(options);
        let error = mode.start().await.unwrap_err();
        assert_eq!(mode.stats().children, 0);
        error.message
    })
}

#[test]
fn a_command_that_cannot_start_is_a_clear_error() {
    let enough = Duration::from_secs(60);
    let missing = refused(&["no-such-program", "--flag"], enough);
    assert!(missing.starts_with("cannot run `no-such-program`: not found in PATH"), "{missing}");
    assert!(missing.contains("`no-such-program --flag`"), "{missing}");
    let dead = refused(&["sh", "-c", "echo nothing to import >&2; exit 3"], enough);
    assert!(dead.contains("was not ready: ended with exit code 3; its last words:\nnothing to import"), "{dead}");
    let silent = refused(&["sleep", "600"], Duration::from_millis(300));
    assert!(silent.contains("it was not ready within 300ms"), "{silent}");
    let old = "import os,socket;s=socket.socket(fileno=int(os.environ['TIDEGATE_SOCKET']));\
               m=b'{\"type\":\"ready\",\"version\":7}';s.sendall(len(m).to_bytes(4,'big')+m);s.recv(1<<20);s.recv(1)";
    let newer = refused(&["python3", "-c", old], enough);
    assert!(newer.contains("it speaks version 7 of the protocol, this worker version 1"), "{newer}");
}
