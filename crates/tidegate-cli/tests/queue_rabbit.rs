//! The commands about queues on a real RabbitMQ, as a user meets them; `./test --only rabbitmq` starts it and runs this.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crew::{Crew, files};
use pdf::pdf;
use redis::Redis;
use tidegate_rehearsal::Server;

#[path = "common/crew.rs"]
mod crew;
#[path = "common/pdf.rs"]
mod pdf;
#[path = "../../tidegate-worker/tests/rabbit/redis.rs"]
mod redis;

/// A directory without configuration, and the broker.
struct Place {
    dir: TempDir,
    broker: String,
}

fn host() -> String {
    std::env::var("TIDEGATE_RABBIT_PLAIN").expect("TIDEGATE_RABBIT_PLAIN is not set; run: ./test --only rabbitmq")
}

impl Place {
    fn new() -> Place {
        Place::at(&format!("amqp://guest:guest@{}", host()))
    }

    fn at(broker: &str) -> Place {
        Place { dir: tempfile::tempdir().unwrap(), broker: broker.to_owned() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).current_dir(self.dir.path()).env("TIDEGATE_BROKER", &self.broker).stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", self.dir.path().join("none")).env("XDG_DATA_HOME", self.dir.path().join("data"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// What it says when it cannot run.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    /// The figures of a queue.
    fn stats(&self, queue: &str) -> Value {
        let listed = self.ok(&["queue", "ls", "--json"]);
        let mut lines = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.find(|stats| stats["queue"] == queue).unwrap_or_else(|| panic!("{queue} is not in {listed}"))
    }
}

/// A worker, ended with the test.
struct Worker(Child);

impl Worker {
    /// Returns once it takes tasks.
    fn start(place: &Place, words: &[&str]) -> Worker {
        Worker::start_in(place, words, place.dir.path())
    }

    /// With Python's modules from there besides.
    fn start_in(place: &Place, words: &[&str], modules: &Path) -> Worker {
        let mut command = place.command(&["worker"]);
        command.env("PYTHONPATH", std::env::join_paths([place.dir.path(), modules]).unwrap());
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("  stop ")), "it ended before it began");
        // Somebody must read on, or it would wait for a reader.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Worker(child)
    }

    fn stop(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(what: &str) -> String {
    format!("cli-{what}-{}", std::process::id())
}

#[test]
fn a_task_is_enqueued_run_and_its_result_comes_back() {
    let (place, queue) = (Place::new(), name("run"));
    let worker = Worker::start(&place, &["--queue", &queue, "--handler", "echo=exec:cat", "--retries", "0"]);
    let result = place.ok(&["enqueue", "echo", "--queue", &queue, "--args", "[7]", "--wait", "--timeout", "60s"]);
    let result: Value = serde_json::from_str(&result).unwrap();
    assert!(result.to_string().contains('7'), "{result}");
    let id = place.ok(&["enqueue", "echo", "--queue", &queue, "--countdown", "300ms"]);
    place.ok(&["result", id.trim(), "--wait", "--timeout", "60s"]);
    let stats = place.stats(&queue);
    assert_eq!((&stats["ready"], &stats["consumers"], &stats["dead"]), (&json!(0), &json!(1), &json!(0)), "{stats}");
    worker.stop();
    assert_eq!(place.stats(&queue)["consumers"], 0);
}

#[test]
fn what_waits_what_is_delayed_and_what_died_is_shown_and_put_in_order() {
    let (place, queue) = (Place::new(), name("look"));
    let enqueue = |task: &str, more: &[&str]| {
        let words = [&["enqueue", task, "--queue", &queue], more].concat();
        place.ok(&words).trim().to_owned()
    };
    let (first, second) = (enqueue("a", &[]), enqueue("b", &["--priority", "1"]));
    enqueue("later", &["--countdown", "1h"]);
    let stats = place.stats(&queue);
    assert_eq!((&stats["ready"], &stats["delayed"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!((&stats["running"], &stats["oldest_ms"]), (&Value::Null, &Value::Null), "it is not known: {stats}");
    let table = place.ok(&["queue", "ls"]);
    assert!(table.lines().any(|line| line.starts_with(&queue) && line.trim_end().ends_with('-')), "{table}");
    let peeked = place.ok(&["queue", "peek", &queue, "--limit", "1"]);
    assert!(peeked.contains("b()") && !peeked.contains(&first), "{peeked}");
    place.ok(&["revoke", &first]);
    // Nobody knows these tasks, so they die; the revoked one does not get that far.
    let worker = Worker::start(&place, &["--queue", &queue, "--handler", "echo=exec:cat"]);
    assert_eq!(place.run(&["result", &first, "--wait", "--timeout", "60s"]).status.code(), Some(1));
    assert_eq!(place.run(&["result", &second, "--wait", "--timeout", "60s"]).status.code(), Some(1));
    worker.stop();
    let dead = place.ok(&["queue", "dead", "ls", &queue]);
    assert!(dead.contains("b()") && dead.contains("no handler"), "{dead}");
    assert_eq!(place.ok(&["queue", "dead", "retry", "--of", &queue]), "1 sent back\n");
    assert_eq!(place.ok(&["queue", "purge", &queue, "--yes"]), format!("{queue}: 2 dropped\n"));
    let stats = place.stats(&queue);
    assert_eq!((&stats["ready"], &stats["delayed"], &stats["dead"]), (&json!(0), &json!(0), &json!(0)), "{stats}");
}

#[test]
fn dead_tasks_of_celery_and_dramatiq_are_shown_as_calls_and_a_list_that_was_cut_says_of_how_many() {
    let place = Place::new();
    for (codec, kind) in [("celery", "plain"), ("dramatiq", "dramatiq")] {
        let queue = name(&format!("dead-{codec}"));
        let lines: String =
            (0..5).map(|n| format!("{{\"task\":\"shop.add\",\"args\":[{n}, 2],\"id\":\"{queue}-{n}\"}}\n")).collect();
        let mut enqueue = place.command(&["enqueue", "-", "--queue", &queue, "--codec", codec]);
        let mut enqueue = enqueue.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        enqueue.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(enqueue.wait().unwrap().success());
        // No handler has that name, so they die.
        let worker = Worker::start(&place, &["--queue", &queue, "--codec", codec, "--handler", "echo=exec:cat"]);
        for n in 0..5 {
            place.run(&["result", &format!("{queue}-{n}"), "--wait", "--timeout", "60s"]);
        }
        worker.stop();
        let listed = place.run(&["queue", "dead", "ls", &queue, "--queue-kind", kind, "--limit", "3"]);
        assert!(text(&listed.stdout).contains("shop.add(0, 2)\n"), "{}", text(&listed.stdout));
        assert_eq!(text(&listed.stderr), "tidegate: 3 of 5 dead tasks shown; show more with --limit\n", "{codec}");
    }
}

#[test]
fn what_is_wrong_with_a_broker_is_said_with_the_way_out() {
    let away = Place::at("amqp://shop:secret@127.0.0.1:1").refused(&["queue", "ls"]);
    assert!(away.contains("127.0.0.1:1") && away.contains("is it running"), "{away}");
    let stranger = Place::at(&format!("amqp://shop:secret@{}", host())).refused(&["enqueue", "a"]);
    assert!(stranger.contains("\"shop\"") && stranger.contains("check the name and the password"), "{stranger}");
    let vhost = Place::at(&format!("amqp://guest:guest@{}/nowhere", host())).refused(&["revoke", "x"]);
    assert!(vhost.contains("\"nowhere\"") && vhost.contains("rabbitmqctl add_vhost"), "{vhost}");
    let option = Place::at(&format!("amqp://shop:secret@{}?hartbeat=1", host())).refused(&["queue", "ls"]);
    assert!(option.contains("hartbeat") && option.contains("heartbeat"), "{option}");
    for told in [away, stranger, vhost, option] {
        assert!(!told.contains("secret"), "{told}");
    }
}

#[test]
fn a_queue_of_another_kind_is_named_with_the_option_that_fits() {
    let (place, queue) = (Place::new(), name("kind"));
    place.ok(&["enqueue", "a", "--queue", &queue, "--codec", "celery"]);
    let told = place.refused(&["enqueue", "a", "--queue", &queue]);
    assert!(told.contains(&queue) && told.contains("x-") && told.contains("--queue-kind plain"), "{told}");
    let told = place.refused(&["worker", "--queue", &queue, "--queue-kind", "quorum", "--handler", "a=exec:cat"]);
    assert!(told.contains("--queue-kind plain"), "{told}");
    // Looking needs no such option: the queue is listed with its kind.
    assert!(place.ok(&["queue", "peek", &queue]).contains("  a()"));
    assert_eq!(place.stats(&queue)["ready"], 1);
}

#[test]
fn a_worker_warns_at_start_of_a_queue_without_dead_letters() {
    let place = Place::new();
    for (kind, warned) in [("plain", true), ("classic", false)] {
        let queue = name(&format!("warned-{kind}"));
        let words = ["worker", "--queue", &queue, "--queue-kind", kind, "--handler", "echo=exec:cat"];
        let worker = place.command(&words).stderr(Stdio::piped()).spawn().unwrap();
        place.ok(&["enqueue", "echo", "--queue", &queue, "--queue-kind", kind, "--wait"]);
        assert!(Command::new("kill").arg(worker.id().to_string()).status().unwrap().success());
        let log = text(&worker.wait_with_output().unwrap().stderr);
        assert_eq!(log.contains("without a dead-letter exchange"), warned, "{log}");
    }
}

fn directory() -> String {
    std::env::var("TIDEGATE_RABBIT_DIR").expect("TIDEGATE_RABBIT_DIR is not set; run: ./test --only rabbitmq")
}

/// Lines of the broker's log about connections to a vhost: those that were opened, and those that were closed.
fn connections(vhost: &str) -> (usize, Vec<String>) {
    let logs = std::fs::read_dir(Path::new(&directory()).join("log")).unwrap();
    let logs: String = logs.map(|log| text(&std::fs::read(log.unwrap().path()).unwrap())).collect();
    let opened = logs.lines().filter(|line| line.ends_with(&format!("granted access to vhost '{vhost}'"))).count();
    let of_vhost =
        |line: &&str| line.contains("closing AMQP connection") && line.contains(&format!("vhost: '{vhost}'"));
    (opened, logs.lines().filter(of_vhost).map(ToOwned::to_owned).collect())
}

#[test]
fn every_connection_ends_with_the_closing_handshake_whatever_becomes_of_the_command() {
    let vhost = name("vhost");
    ctl(&["add_vhost", &vhost]);
    ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"]);
    let place = Place::at(&format!("amqp://guest:guest@{}/{vhost}", host()));
    for (words, code) in [
        (&["enqueue", "a", "--queue", "q"][..], 0),
        (&["enqueue", "a", "--queue", "q", "--countdown", "1h"], 0),
        (&["enqueue", "a", "--queue", "q", "--unique", "key"], 0),
        (&["enqueue", "a", "--queue", "q", "--unique", "key"], 0),
        (&["queue", "ls"], 0),
        (&["queue", "peek", "q"], 0),
        (&["queue", "upgrade", "q"], 0),
        (&["queue", "dead", "ls"], 0),
        (&["result", "unknown"], 1),
        (&["revoke", "unknown"], 0),
        (&["enqueue", "a", "--queue", "q", "--queue-kind", "quorum"], 2),
        (&["enqueue", "a", "--queue", "q", "--wait", "--timeout", "1ms"], 2),
        (&["result", "unknown", "--wait", "--timeout", "1ms"], 2),
        (&["queue", "purge", "unknown", "--yes"], 2),
    ] {
        assert_eq!(place.run(words).status.code(), Some(code), "{words:?}");
    }
    for codec in ["native", "celery"] {
        let worker = Worker::start(
            &place,
            &["--queue", "q", "--queue-kind", "classic", "--codec", codec, "--handler", "a=exec:cat"],
        );
        worker.stop();
    }
    // An asker of pages, and the worker that answers.
    let server = Server::builder().start_in_thread().unwrap();
    let crew = Crew {
        place: place.dir.path().into(),
        broker: vec![place.broker.clone(), "--queue".into(), "pages".into()],
        base_url: format!("{}/v1", server.base_url()),
        limits: vec!["--global-concurrency".into(), "4".into()],
    };
    files(&crew.place, 1, 2, pdf);
    let worker = crew.worker("answers", 2, &[]);
    assert_eq!(crew.explain(&[]).ended().0, Some(0));
    worker.stop();
    // The broker writes its log in its own time.
    let deadline = Instant::now() + Duration::from_secs(60);
    let (opened, closed) = loop {
        let (opened, closed) = connections(&vhost);
        if (opened > 0 && closed.len() >= opened) || Instant::now() > deadline {
            break (opened, closed);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(closed.len(), opened);
    // The others are warnings: the client has closed the TCP connection unexpectedly.
    let cut: Vec<&String> = closed.iter().filter(|line| !line.contains("[info]")).collect();
    assert!(cut.is_empty(), "{cut:#?}");
    ctl(&["delete_vhost", &vhost]);
}

#[test]
fn what_is_for_files_only_says_so() {
    let told = Place::new().refused(&["queue", "check"]);
    assert!(told.contains("is no file"), "{told}");
}

/// A script of the worker's tests, with Celery or dramatiq from PyPI.
fn peer(script: &str, arguments: &[&str]) -> Command {
    let python = std::env::var("TIDEGATE_PYTHON").expect("TIDEGATE_PYTHON is not set; run: ./test --only rabbitmq");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate-worker/tests/rabbit/peers").join(script);
    let mut command = Command::new(python);
    command.arg(path).arg(format!("amqp://guest:guest@{}//", host())).args(arguments).stdin(Stdio::null());
    command
}

/// A worker of somebody else's, from PyPI, that says what it has run once it was so many.
fn stranger(script: &str, queue: &str, count: usize) -> Vec<Value> {
    let output = peer(script, &[queue, &count.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut seen: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    seen.sort_by_key(ToString::to_string);
    seen
}

/// Enqueues one that takes everything, one that is delayed, one that has expired by then, and one from a line; their ids.
fn enqueue_all(place: &Place, codec: &str, queue: &str) {
    let enqueue = |more: &[&str]| {
        place.ok(&[&["enqueue", "join", "--queue", queue, "--codec", codec], more].concat());
    };
    let kwargs = r#"{"to": "a@example.org"}"#;
    enqueue(&["--id", "1-plain", "--args", "[1, [2]]", "--kwargs", kwargs, "--hard-limit", "30s", "--expires", "10m"]);
    enqueue(&["--id", "2-late", "--args", r#"["late"]"#, "--countdown", "1500ms"]);
    enqueue(&["--id", "3-expired", "--expires", "1ms"]);
    let mut lines =
        place.command(&["enqueue", "-", "--queue", queue, "--codec", codec]).stdin(Stdio::piped()).spawn().unwrap();
    lines.stdin.take().unwrap().write_all(br#"{"id": "4-line", "task": "join", "args": ["line"]}"#).unwrap();
    assert!(lines.wait().unwrap().success());
}

#[test]
fn what_is_enqueued_for_celery_is_run_by_a_worker_of_celerys() {
    let (place, queue) = (Place::new(), name("for-celery"));
    enqueue_all(&place, "celery", &queue);
    let seen = stranger("celery_note.py", &queue, 3);
    assert_eq!(
        seen,
        [
            json!(["1-plain", [1, [2]], {"to": "a@example.org"}, [30.0, null]]),
            json!(["2-late", ["late"], {}, [null, null]]),
            json!(["4-line", ["line"], {}, [null, null]]),
        ]
    );
}

#[test]
fn what_is_enqueued_for_dramatiq_is_run_by_a_worker_of_dramatiqs() {
    let (place, queue) = (Place::new(), name("for-dramatiq"));
    enqueue_all(&place, "dramatiq", &queue);
    let seen = stranger("dramatiq_worker.py", &queue, 3);
    assert_eq!(
        seen,
        [
            json!(["1-plain", [1, [2]], {"to": "a@example.org"}, 0]),
            json!(["2-late", ["late"], {}, 0]),
            json!(["4-line", ["line"], {}, 0]),
        ]
    );
}

#[test]
fn a_result_backend_that_is_not_there_is_said_with_the_way_out() {
    let place = Place::new();
    let worker = ["worker", "--codec", "celery", "--handler", "a=exec:cat", "--result-backend"];
    let told = place.refused(&[&worker[..], &["redis://:hush@127.0.0.1:1/0"]].concat());
    assert!(told.contains("--result-backend") && told.contains("127.0.0.1:1"), "{told}");
    assert!(told.contains("is Redis running") && !told.contains("hush"), "{told}");
    // From the user's file as from the command line.
    let own = place.dir.path().join("none/tidegate");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("tidegate.toml"), "[worker]\nresult-backend = \"redis://127.0.0.1:1\"\n").unwrap();
    let told = place.refused(&worker[..5]);
    assert!(told.contains("127.0.0.1:1"), "{told}");
}

/// Handlers that note what they run, a byte each.
const SUMS: &str = r#"
import os
from tidegate import task


def note(name):
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b".")
    os.close(file)


@task(name="square")
def square(n):
    note("parts")
    return n * n


@task(name="total")
def total(numbers):
    note("bodies")
    return sum(numbers)
"#;

#[test]
fn every_chord_comes_to_its_end_whichever_worker_is_killed() {
    const CHORDS: usize = 20;
    const KILLS: usize = 6;
    let (redis, place, queue) = (Redis::start(), Place::new(), name("chords"));
    std::fs::write(place.dir.path().join("sums.py"), SUMS).unwrap();
    let noted = |file: &str| std::fs::metadata(place.dir.path().join(file)).map_or(0, |file| file.len() as usize);
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let backend = redis.address();
    let start = || {
        let words = ["--codec", "celery", "--queue", &queue, "--handler", "python:sums", "--concurrency", "2"];
        let more = ["--prefetch", "4", "--crashes", "1000", "--retries", "0", "--result-backend", &backend];
        Worker::start_in(&place, &[&words[..], &more].concat(), &clients)
    };
    let producer = peer("celery_chords.py", &[&queue, &backend, &CHORDS.to_string()]).stdout(Stdio::piped()).spawn();
    for kill in 1..=KILLS {
        let worker = start();
        while noted("parts") < kill * 25 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Without a word, as the machine would die.
        drop(worker);
    }
    let worker = start();
    let output = producer.unwrap().wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sums: Vec<usize> = (0..CHORDS).map(|at| (at..at + 10).map(|n| n * n).sum()).collect();
    assert_eq!(told, json!([sums, []]));
    // Only what a worker had in hand when it died is run again, and at most what had followed from that.
    let (parts, bodies) = (noted("parts") - 10 * CHORDS, noted("bodies") - CHORDS);
    println!("{KILLS} kills: {parts} parts and {bodies} bodies run again");
    assert!(parts + bodies <= KILLS * (4 + 4), "{parts} parts and {bodies} bodies run again");
    worker.stop();
}

/// rabbitmqctl of the broker that the tests have.
fn ctl(words: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rabbit/node.sh");
    let dir =
        std::env::var("TIDEGATE_RABBIT_DIR").expect("TIDEGATE_RABBIT_DIR is not set; run: ./test --only rabbitmq");
    assert!(Command::new(script).arg("ctl").arg(dir).args(words).status().unwrap().success());
}

#[test]
fn a_batch_that_half_fits_is_reported_task_by_task() {
    let (place, queue) = (Place::new(), name("full"));
    let limit = r#"{"max-length": 10, "overflow": "reject-publish"}"#;
    ctl(&["set_policy", &queue, &format!("^{queue}$"), limit, "--apply-to", "queues"]);
    let mut child = place
        .command(&["enqueue", "-", "--queue", &queue, "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = (0..30).map(|number| format!("{{\"task\":\"echo\",\"id\":\"full-{number}\"}}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    ctl(&["clear_policy", &queue]);
    let told: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_state = |state: &str| told.iter().filter(|line| line["state"] == state).count();
    assert_eq!((told.len(), of_state("stored"), of_state("refused")), (30, 10, 20), "{told:?}");
    assert!(told.iter().filter(|line| line["state"] == "stored").all(|line| line.get("error").is_none()));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("10 stored, 20 refused"), "{stderr}");
    assert_eq!(stderr.matches("the queue is full").count(), 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(place.stats(&queue)["ready"], json!(10));
    place.ok(&["queue", "purge", &queue, "--yes"]);
}

#[test]
fn an_upgrade_deletes_the_empty_delay_queues_of_0_1_0_and_needs_rabbitmq() {
    let place = Place::new();
    let queue = name("upgrade");
    // A queue of that name with a task in it.
    let old = format!("{queue}.delay.0");
    place.ok(&["enqueue", "mail.send", "--queue", &old, "--queue-kind", "plain"]);
    let output = place.run(&["queue", "upgrade", &queue]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with(&format!("{queue}: 0 old delay queues deleted, 1 left")));
    place.ok(&["queue", "purge", &old, "--yes"]);
    assert_eq!(place.ok(&["queue", "upgrade", &queue]), format!("{queue}: 1 old delay queues deleted\n"));
    let said = place.refused(&["queue", "upgrade", &queue, "--broker", "sqlite:queue.db"]);
    assert!(said.contains("use amqp://HOST"), "{said}");
}

#[test]
fn pages_that_a_killed_asker_has_queued_are_answered_once() {
    let place = Place::new();
    let server = Server::builder().start_in_thread().unwrap();
    let queue = name("asker");
    let crew = Crew {
        place: place.dir.path().into(),
        broker: vec![place.broker.clone(), "--queue".into(), queue.clone()],
        base_url: format!("{}/v1", server.base_url()),
        limits: vec!["--global-concurrency".into(), "40".into()],
    };
    files(&crew.place, 1, 5, pdf);
    for _ in 0..2 {
        let asker = crew.explain(&[]);
        asker.hears("no worker takes from the queue; start some: tidegate worker");
        asker.kill();
    }
    let worker = crew.worker("late", 2, &[]);
    let (code, report, said) = crew.explain(&[]).ended();
    assert_eq!((code, &report["totals"]["done"]), (Some(0), &5.into()), "{said}");
    worker.stop();
    assert_eq!(server.stats().answered, 5);
    assert_eq!(place.stats(&queue)["ready"], json!(0));
}

#[test]
fn a_policy_that_removes_tasks_is_reported_at_start_if_the_management_api_is_named() {
    let (place, directory) = (Place::new(), std::env::var("TIDEGATE_RABBIT_DIR").unwrap());
    let management = std::env::var("TIDEGATE_RABBIT_MANAGEMENT").unwrap();
    let url = format!("http://guest:guest@{management}");
    let node = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rabbit/node.sh");
    let ctl = |words: &[&str]| {
        let output = Command::new(&node).args(["ctl", &directory]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    };
    // The lines of a worker up to the one that has `last`, or the one that says why policies are not known.
    let lines = |words: &[&str], last: &str| {
        let mut command = place.command(&["worker", "--handler", "echo=exec:cat"]);
        let mut worker = Worker(command.args(words).stderr(Stdio::piped()).spawn().unwrap());
        let mut all = String::new();
        for line in BufReader::new(worker.0.stderr.take().unwrap()).lines() {
            all += &(line.unwrap() + "\n");
            if all.contains(last) || all.contains("are not known") {
                return all;
            }
        }
        panic!("it ended: {all}");
    };
    for kind in ["classic", "quorum"] {
        let queue = name(&format!("policy-{kind}"));
        ctl(&["set_policy", &queue, &format!("^{queue}$"), r#"{"max-length":7,"overflow":"reject-publish"}"#]);
        let words = ["--queue", &queue, "--queue-kind", kind, "--management", &url];
        let told = lines(&words, "max-length");
        let warning = told.lines().find(|line| line.contains("max-length")).unwrap_or_else(|| panic!("{told}"));
        assert!(warning.contains("7 messages") && warning.contains("new tasks are refused"), "{warning}");
        assert!(
            warning.contains(&format!("queue={queue:?}")) || warning.contains(&format!("queue={queue}")),
            "{warning}"
        );
        ctl(&["clear_policy", &queue]);
    }
    // What is wrong with the API is a warning, and the worker runs.
    let queue = name("policy-away");
    for (url, cause) in [
        (format!("http://guest:hush@{management}"), "answers 401"),
        ("http://guest:hush@127.0.0.1:1".to_owned(), "127.0.0.1:1"),
        (format!("http://guest:hush@{management}/elsewhere"), "answers 400"),
    ] {
        let told = lines(&["--queue", &queue, "--management", &url], cause);
        assert!(told.contains("are not known") && told.contains(cause) && !told.contains("hush"), "{told}");
        let worker = Worker::start(&place, &["--queue", &queue, "--handler", "echo=exec:cat", "--management", &url]);
        place.ok(&["enqueue", "echo", "--queue", &queue, "--wait", "--timeout", "60s"]);
        worker.stop();
    }
}
