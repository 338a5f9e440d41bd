//! `tidegate worker` as a user meets it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn tidegate(place: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.args(words).current_dir(place).env("XDG_CONFIG_HOME", place.join("none")).env("XDG_DATA_HOME", place);
    command
}

fn output(place: &Path, words: &[&str]) -> Output {
    tidegate(place, words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A worker that has begun, with what it said at its start.
struct Worker {
    child: Child,
    banner: String,
    err: BufReader<ChildStderr>,
}

impl Worker {
    fn start(place: &Path, words: &[&str]) -> Worker {
        let mut command = tidegate(place, &["worker", "--json"]);
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("\n  stop ") {
            let before = banner.len();
            err.read_line(&mut banner).unwrap();
            assert!(banner.len() > before, "it ended before it began: {banner}");
        }
        Worker { child, banner, err }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for a line on standard error.
    fn hears(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.err.read_line(&mut line).unwrap() > 0, "it ended without saying {part:?}");
            if line.contains(part) {
                return line;
            }
        }
    }

    /// How it ended, by its own account.
    fn ended(mut self) -> Value {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let mut rest = String::new();
        self.err.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
        serde_json::from_str(out.trim()).unwrap()
    }
}

#[test]
fn a_worker_says_what_it_does_runs_tasks_and_stops_in_order() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let words = [
        "--handler=echo=exec:cat",
        "--handler=fail=exec:echo oops >&2; exit 3",
        "--handler=garbage=exec:echo not json",
        "--retries=0",
        "--limit=task:echo rps=1000",
        "--cron=yearly: @yearly => echo",
        "--metrics=127.0.0.1:0",
    ];
    let worker = Worker::start(place, &words);
    for part in
        ["queues    default", "coroutine, 1000 at a time; at 1000 no more until 800", "echo = exec:cat", "/metrics"]
    {
        assert!(worker.banner.contains(part), "{part} in {}", worker.banner);
    }
    let echoed = output(place, &["enqueue", "echo", "--args", "[1, 2]", "--wait"]);
    let value: Value = serde_json::from_slice(&echoed.stdout).unwrap_or_else(|_| panic!("{}", text(&echoed.stderr)));
    assert_eq!(value["args"], serde_json::json!([1, 2]));
    for (task, message) in [("fail", "oops"), ("garbage", "JSON"), ("nobody", "no handler is called 'nobody'")] {
        let failed = output(place, &["enqueue", task, "--wait"]);
        assert_eq!(failed.status.code(), Some(1));
        assert!(text(&failed.stderr).contains(message), "{}", text(&failed.stderr));
    }
    worker.signal("-TERM");
    let report = worker.ended();
    assert_eq!((&report["received"], &report["unsettled"]), (&Value::from(4), &Value::from(0)), "{report}");
    assert_eq!(report["settled"], serde_json::json!({"success": 1, "failure": 2, "rejected": 1}));
}

#[test]
fn options_may_stand_in_the_file_and_threads_run_commands_too() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let file = "[worker]\nmode = \"thread\"\nconcurrency = 2\nqueue = [\"a\", \"b\"]\nhandler = [\"echo=exec:cat\", \
                \"slow=exec:exec sleep 1000\"]\ntask = [\"slow retries=0 hard-limit=100ms\"]\n";
    std::fs::write(place.join("tidegate.toml"), file).unwrap();
    let worker = Worker::start(place, &[]);
    assert!(
        worker.banner.contains("queues    a, b") && worker.banner.contains("thread, 2 at a time"),
        "{}",
        worker.banner
    );
    assert!(output(place, &["enqueue", "echo", "--queue", "b", "--wait"]).status.success());
    let slow = output(place, &["enqueue", "slow", "--queue", "a", "--wait"]);
    assert!(text(&slow.stderr).contains("ran longer than its limit"), "{}", text(&slow.stderr));
    worker.signal("-TERM");
    worker.ended();
}

#[test]
fn a_second_interrupt_ends_what_runs_and_its_task_returns() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let mut worker = Worker::start(place, &["--handler=slow=exec:echo begun >&2; exec sleep 1000"]);
    assert!(output(place, &["enqueue", "slow"]).status.success());
    worker.hears("begun");
    worker.signal("-HUP");
    worker.hears("SIGHUP");
    worker.signal("-USR1");
    worker.hears("waits for");
    worker.signal("-INT");
    worker.hears("SIGINT; once more stops at once");
    worker.signal("-INT");
    let report = worker.ended();
    assert_eq!((&report["returned"], &report["cancelled"]), (&Value::from(1), &Value::from(true)), "{report}");
    let queues = output(place, &["queue", "ls", "--json"]);
    assert!(text(&queues.stdout).contains("\"ready\":1"), "{}", text(&queues.stdout));
}

#[test]
fn what_cannot_work_is_said_before_anything_happens() {
    let place = TempDir::new().unwrap();
    for (words, message) in [
        (&["worker"][..], "which handler?"),
        (&["worker", "--handler", "a=ftp://x"], "nothing that could be called"),
        (&["worker", "--handler", "a=exec:cat", "--cron", "x: 61 * * * * => a"], "the minute '61' is not in 0 to 59"),
        (&["worker", "--handler", "a=exec:cat", "--broker", "sqlite:/nowhere/at/all.db"], "/nowhere/at/all.db"),
        (&["worker", "--", "/no/such/program"], "/no/such/program"),
    ] {
        let refused = output(place.path(), words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(text(&refused.stderr).contains(message), "{words:?}: {}", text(&refused.stderr));
    }
}
