//! `tidegate worker` as a user meets it.

#[path = "common/idle.rs"]
mod idle;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
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
        command.args(words);
        Worker::begin(command)
    }

    fn begin(mut command: Command) -> Worker {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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
    let long =
        output(place, &["enqueue", "echo", "--args", "[1000000000000000000000000000001]", "--id=long", "--wait"]);
    for line in [long, output(place, &["result", "long"]), output(place, &["result", "long", "--json"])] {
        assert!(text(&line.stdout).contains(r#""args":[1000000000000000000000000000001],"#), "{}", text(&line.stdout));
    }
    let number = output(place, &["enqueue", "echo", "--kwargs", "1000000000000000000000000000001"]);
    assert!(text(&number.stderr).contains("--kwargs must be a JSON object"), "{}", text(&number.stderr));
    for (task, message) in [("fail", "oops"), ("garbage", "JSON"), ("nobody", "no handler is called 'nobody'")] {
        let failed = output(place, &["enqueue", task, "--wait"]);
        assert_eq!(failed.status.code(), Some(1));
        assert!(text(&failed.stderr).contains(message), "{}", text(&failed.stderr));
    }
    worker.signal("-TERM");
    let report = worker.ended();
    assert_eq!((&report["received"], &report["unsettled"]), (&Value::from(5), &Value::from(0)), "{report}");
    assert_eq!(report["settled"], serde_json::json!({"success": 2, "failure": 2, "rejected": 1}));
}

#[test]
fn a_signal_during_the_start_ends_a_worker() {
    let place = TempDir::new().unwrap();
    // A broker that takes the connection and never answers: the worker waits for it until it is stopped.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = format!("--broker=amqp://{}", silent.local_addr().unwrap());
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut command = tidegate(place.path(), &["worker", &broker, "--handler=echo=exec:cat"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let connection = silent.accept().unwrap();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
        drop(connection);
    }
}

#[test]
fn ctrl_c_ends_a_command_that_waits_for_a_broker() {
    let place = TempDir::new().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = format!("--broker=amqp://{}", silent.local_addr().unwrap());
    let mut command = tidegate(place.path(), &["queue", "ls", &broker]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let _connection = silent.accept().unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stderr).as_str()), (Some(130), "tidegate: interrupted\n"));
}

#[test]
fn options_may_stand_in_the_file_and_threads_run_commands_too() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let file = "[worker]\nmode = \"thread\"\nconcurrency = 2\nqueue = [\"a\", \"b\"]\nhandler = [\"echo=exec:cat\", \
                \"slow=exec:exec sleep 1000\"]\ntask = [\"slow retries=0 hard-limit=100ms\"]\n";
    // In the user's own directory: one in the current directory may not name handlers.
    std::fs::create_dir_all(place.join("none/tidegate")).unwrap();
    std::fs::write(place.join("none/tidegate/tidegate.toml"), file).unwrap();
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

/// A child of any language, by the protocol alone: its tasks are what one would rather not have.
const ROGUE: &str = r#"
import json, os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
number = int(os.environ["TIDEGATE_SOCKET"])
sock = socket.socket(fileno=number)
file = sock.makefile("rb")
def say(message):
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(4, "big") + data)
say({"type": "ready", "version": 1})
while header := file.read(4):
    order = json.loads(file.read(int.from_bytes(header, "big")))
    if order["type"] != "run":
        continue
    name = order["task"]
    if name == "garbage":
        sock.sendall(b"Traceback (most recent call last):\n")
        time.sleep(600)
    elif name == "forks" and os.fork() == 0:
        time.sleep(600)
    elif name == "hides":
        os.close(number)
        time.sleep(600)
    elif name == "mutters":
        os.close(1), os.close(2)
    elif name == "dies":
        os._exit(7)
    elif name == "stays":
        while True:
            time.sleep(600)
    say({"type": "done", "run": order["run"], "value": name})
"#;

#[test]
fn log_lines_are_chosen_by_level_and_target() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let mut worker = Worker::start(place, &["--handler=echo=exec:cat", "--log=warn,tidegate_worker=debug"]);
    assert_eq!(output(place, &["enqueue", "echo", "--wait"]).status.code(), Some(0));
    let line = worker.hears("succeeded");
    assert!(line.contains("DEBUG") && line.contains("echo"), "{line}");
    worker.signal("-TERM");
    worker.ended();

    let refused = output(place, &["worker", "--handler=echo=exec:cat", "--log=tidegate_worker=loud"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = "--log \"tidegate_worker=loud\" is not a level or a list such as info,tidegate_worker=debug";
    assert!(text(&refused.stderr).contains(message), "{}", text(&refused.stderr));
}

#[test]
fn whatever_a_child_does_is_an_outcome_and_the_worker_lives_on() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    std::fs::write(place.join("rogue.py"), ROGUE).unwrap();
    let words = [
        "--mode=process",
        "--concurrency=4",
        "--retries=0",
        "--crashes=1",
        "--task=stays hard-limit=50ms retries=0",
        "--",
        "python3",
        "rogue.py",
    ];
    let worker = Worker::start(place, &words);
    // All at once: each of their children ignores SIGTERM, and is killed after the grace.
    let waiting = [
        ("garbage", "broke the protocol: it announced a frame of"),
        ("hides", "it closed its socket and went on"),
        ("dies", "its child ended with exit code 7"),
        ("stays", "ran longer than its limit of 50ms"),
    ]
    .map(|(task, message)| {
        let mut enqueue = tidegate(place, &["enqueue", task, "--wait"]);
        (task, message, enqueue.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    });
    for (task, message, enqueue) in waiting {
        let failed = enqueue.wait_with_output().unwrap();
        assert_eq!(failed.status.code(), Some(1), "{task}");
        assert!(text(&failed.stderr).contains(message), "{task}: {}", text(&failed.stderr));
    }
    for task in ["forks", "mutters", "works"] {
        let done = output(place, &["enqueue", task, "--wait"]);
        assert_eq!(text(&done.stdout).trim(), format!("\"{task}\""), "{}", text(&done.stderr));
    }
    let dead = output(place, &["queue", "dead", "ls", "--json"]);
    assert_eq!(text(&dead.stdout).lines().count(), 4, "{}", text(&dead.stdout));
    worker.signal("-TERM");
    let report = worker.ended();
    assert_eq!(report["settled"], serde_json::json!({"success": 3, "timeout": 1, "crash": 3}));
}

#[test]
fn what_is_no_task_or_does_not_fit_is_given_up_with_its_reason() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    std::fs::write(
        place.join("jobs.py"),
        "from tidegate import task\n@task(name='add')\ndef add(x, y): return x + y\n",
    )
    .unwrap();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let mut command = tidegate(place, &["worker", "--json", "--concurrency=1", "--handler=python:jobs"]);
    command.env("PYTHONPATH", std::env::join_paths([client.as_path(), place]).unwrap());
    let worker = Worker::begin(command);
    for (words, message) in [
        (&["nobody"][..], "no handler is called 'nobody'"),
        (&["add", "--args", "[1]"], "the arguments do not fit add"),
        (&["add", "--kwargs", "{\"z\": 1}"], "the arguments do not fit add"),
    ] {
        let failed = output(place, &[&["enqueue", "--wait"], words].concat());
        assert_eq!(failed.status.code(), Some(1), "{words:?}");
        assert!(text(&failed.stderr).contains(message), "{words:?}: {}", text(&failed.stderr));
    }
    let done = output(place, &["enqueue", "add", "--args", "[1, 2]", "--wait"]);
    assert_eq!(text(&done.stdout).trim(), "3", "{}", text(&done.stderr));
    worker.signal("-TERM");
    assert_eq!(worker.ended()["settled"], serde_json::json!({"success": 1, "rejected": 3}));
}

/// What a handler says of its environment, by the names of three variables.
#[test]
fn handlers_see_no_secret_of_the_workers_environment_unless_it_is_named() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    std::fs::write(
        place.join("jobs.py"),
        "import os\nfrom tidegate import task\n@task(name='seen')\ndef seen():\n    \
         return ' '.join(os.environ.get(name, '-') for name in ('LANG', 'OPENAI_API_KEY', 'TIDEGATE_LIMITS', 'MYAPP_MODE'))\n",
    )
    .unwrap();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let shell =
        "--handler=seen=exec:echo \"\\\"${LANG--} ${OPENAI_API_KEY--} ${TIDEGATE_LIMITS--} ${MYAPP_MODE--}\\\"\"";
    let ways: [&[&str]; 3] = [&[shell], &[shell, "--mode=thread"], &["--handler=python:jobs", "--concurrency=1"]];
    for way in ways {
        for (more, seen) in
            [(&[][..], "C.UTF-8 - - -"), (&["--handler-env=OPENAI_API_KEY,MYAPP_*"], "C.UTF-8 sk-hush - fast")]
        {
            let mut command = tidegate(place, &[&["worker", "--json"], way, more].concat());
            command.env("PYTHONPATH", std::env::join_paths([client.as_path(), place]).unwrap());
            command.envs([("LANG", "C.UTF-8"), ("OPENAI_API_KEY", "sk-hush"), ("MYAPP_MODE", "fast")]);
            command.env("TIDEGATE_LIMITS", "unix:///nowhere/redis.sock");
            let worker = Worker::begin(command);
            let done = output(place, &["enqueue", "seen", "--wait"]);
            assert_eq!(text(&done.stdout).trim(), format!("\"{seen}\""), "{way:?} {}", text(&done.stderr));
            worker.signal("-TERM");
            worker.ended();
        }
    }
}

/// Larger than any task should be, and than anybody takes unasked.
#[test]
fn a_body_of_a_hundred_megabytes_or_without_json_ends_as_a_dead_letter_or_before() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let worker = Worker::start(place, &["--handler=length=exec:wc -c"]);
    let body = |bytes: usize| format!("[\"{}\"]", "x".repeat(bytes));
    std::fs::write(place.join("huge.json"), body(100_000_000)).unwrap();
    let refused = output(place, &["enqueue", "length", "--args", "@huge.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("16 MiB"), "{}", text(&refused.stderr));
    std::fs::write(place.join("large.json"), body(10_000_000)).unwrap();
    let taken = output(place, &["enqueue", "length", "--args", "@large.json", "--wait"]);
    assert!(text(&taken.stdout).trim().parse::<u64>().unwrap() > 10_000_000, "{}", text(&taken.stderr));

    std::fs::write(place.join("tidegate.toml"), "max-body = 32\n").unwrap();
    std::fs::write(place.join("large.json"), body(20_000_000)).unwrap();
    let allowed = output(place, &["enqueue", "length", "--args", "@large.json", "--wait"]);
    assert!(text(&allowed.stdout).trim().parse::<u64>().unwrap() > 20_000_000, "{}", text(&allowed.stderr));

    let path = place.join("tidegate/queue.db");
    tidegate_loop::run(async move {
        let broker = tidegate_worker::SqliteBroker::open(&path).await.unwrap();
        let envelope = tidegate_worker::Envelope::new("default", b"\xff no JSON at all".to_vec());
        let id = envelope.id.clone();
        tidegate_worker::Broker::publish(&broker, vec![envelope]).await.unwrap();
        let result = tidegate_worker::Broker::wait_result(&broker, &id).await.unwrap();
        assert_eq!(result.error.unwrap().kind, "Rejected");
    })
    .unwrap();
    assert!(output(place, &["enqueue", "length", "--wait"]).status.success(), "it lives on");
    worker.signal("-TERM");
    worker.ended();
}

/// The status of a page, with this header or none.
fn page(address: &str, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn idle_connections_to_the_status_pages_are_bounded() {
    let place = TempDir::new().unwrap();
    let worker = Worker::start(place.path(), &["--handler=echo=exec:cat", "--metrics=127.0.0.1:0"]);
    let (_, port) = worker.banner.split_once("http://127.0.0.1:").unwrap();
    idle::takes_64_connections(port.split('/').next().unwrap().parse().unwrap());
    worker.signal("-TERM");
    worker.ended();
}

#[test]
fn the_status_pages_ask_for_a_token_and_warn_where_others_reach_them() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    std::fs::write(place.join("token"), "s3cret\n").unwrap();
    std::fs::write(place.join("empty"), "\n").unwrap();
    let words = ["--handler=echo=exec:TOKEN=hush cat", "--metrics=0.0.0.0:0", "--metrics-token-file=token"];
    let worker = Worker::start(place, &words);
    assert!(worker.banner.contains("status pages can be reached from other machines"), "{}", worker.banner);
    assert!(!worker.banner.contains("hush") && worker.banner.contains("echo = exec:…"), "{}", worker.banner);
    let (_, port) = worker.banner.split_once("http://0.0.0.0:").unwrap();
    let address = format!("127.0.0.1:{}", port.split('/').next().unwrap());
    for path in ["/metrics", "/healthz"] {
        assert_eq!(page(&address, path, ""), "401");
        assert_eq!(page(&address, path, "authorization: Bearer s3cre\r\n"), "401");
        assert_eq!(page(&address, path, "authorization: Bearer s3cret\r\n"), "200");
    }
    worker.signal("-TERM");
    worker.ended();

    let words = ["worker", "--handler=echo=exec:cat", "--metrics=127.0.0.1:0"];
    for (option, why) in [
        ("--metrics-token-file=empty", "empty has no usable token"),
        ("--metrics-token-file=none", "cannot read none"),
        ("--metrics-token-env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ] {
        let refused = output(place, &[&words[..], &[option]].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
}
