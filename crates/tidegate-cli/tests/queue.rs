//! `enqueue`, `queue`, `result` and `revoke`, as a user meets them.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_worker::{
    Broker, Consumer, Delivery, Incoming, Settlement, SqliteBroker, Subscription, TaskResult, TaskState, Verdict,
};

/// A directory of its own, with a queue in it.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).current_dir(self.0.path());
        command.env("XDG_DATA_HOME", self.0.path().join("data")).env("XDG_CONFIG_HOME", self.0.path().join("none"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    fn feed(&self, words: &[&str], input: &str) -> Output {
        let mut child =
            self.command(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", err(&output));
        out(&output)
    }

    fn lines(&self, words: &[&str]) -> Vec<Value> {
        self.ok(words).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Takes everything from the queue and ends it as told.
    fn work(&self, count: usize, end: impl Fn(&Delivery) -> (Verdict, Option<TaskResult>) + 'static) {
        let path = self.0.path().join("data/tidegate/queue.db");
        tidegate_loop::run(async move {
            let broker = SqliteBroker::open(path).await.unwrap();
            let queues = vec!["default".into(), "mail".into()];
            let what = Subscription { queues, prefetch: 100, consumer: "test".into() };
            let consumer: Rc<dyn Consumer> = broker.subscribe(what).await.unwrap();
            let mut left = count;
            while left > 0 {
                for incoming in consumer.recv_all().await.unwrap() {
                    let Incoming::Delivery(delivery) = incoming else { panic!("{incoming:?}") };
                    let (verdict, result) = end(&delivery);
                    consumer.settle(vec![Settlement { tag: delivery.tag, verdict, result }]).await.unwrap();
                    left -= 1;
                }
            }
            broker.close().await.unwrap();
        })
        .unwrap();
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn succeeded(delivery: &Delivery) -> (Verdict, Option<TaskResult>) {
    let id = delivery.envelope.id.clone();
    let ttl = Duration::from_secs(600);
    (Verdict::Ack, Some(TaskResult { id, state: TaskState::Succeeded, value: json!({"sum": 3}), error: None, ttl }))
}

#[test]
fn a_task_is_enqueued_seen_run_and_its_result_shown() {
    let place = Place::new();
    let words = ["enqueue", "add", "--args", "[1, 2]", "--kwargs", r#"{"z": null}"#, "--priority", "3"];
    let id = place.ok(&words).trim().to_owned();
    let listed = place.lines(&["queue", "ls", "--json"]);
    assert_eq!((&listed[0]["queue"], &listed[0]["ready"]), (&json!("default"), &json!(1)));
    let table = place.ok(&["queue", "ls"]);
    assert!(table.starts_with("queue"), "{table}");
    let peeked = place.lines(&["queue", "peek", "--json"]);
    assert_eq!(peeked[0]["id"], json!(id));
    assert_eq!((&peeked[0]["task"], &peeked[0]["args"]), (&json!("add"), &json!([1, 2])));
    assert!(place.ok(&["queue", "peek"]).contains("add(1, 2, z=null)  priority 3"));
    let unknown = place.run(&["result", &id]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(err(&unknown).contains("nothing is known"), "{}", err(&unknown));
    place.work(1, succeeded);
    assert_eq!(place.ok(&["result", &id]), "{\"sum\":3}\n");
    assert_eq!(place.lines(&["result", &id, "--wait", "--json"])[0]["state"], json!("succeeded"));
    assert_eq!(place.ok(&["queue", "check"]).lines().count(), 1);
    assert!(place.ok(&["queue", "vacuum"]).contains("bytes given back"));
}

#[test]
fn waiting_ends_with_the_result() {
    let place = Place::new();
    place.ok(&["enqueue", "first"]);
    let child = place.command(&["enqueue", "add", "--wait"]).stdout(Stdio::piped()).spawn().unwrap();
    place.work(2, succeeded);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(out(&output), "{\"sum\":3}\n");
    let late = place.run(&["enqueue", "add", "--wait", "--timeout", "10ms"]);
    assert_eq!(late.status.code(), Some(2));
    assert!(err(&late).contains("has not ended within 10ms"), "{}", err(&late));
}

#[test]
fn many_tasks_come_from_standard_input_and_bad_lines_are_named() {
    let place = Place::new();
    let mut input: String = (0..2_500).map(|n| format!("{{\"task\":\"t\",\"args\":[{n}]}}\n")).collect();
    input += "\n{\"task\":\"m\",\"queue\":\"mail\",\"priority\":9,\"countdown\":\"1h\",\"unique\":\"k\"}\n";
    input += "{\"task\":\"m\",\"queue\":\"mail\",\"unique\":\"k\"}\n";
    input += "not json\n{\"task\":\"x\",\"tsk\":1}\n{\"args\":[]}\n{\"task\":\"x\",\"priority\":12}\n";
    let output = place.feed(&["enqueue", "-"], &input);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("2501 stored, 1 duplicates, 4 refused"), "{text}");
    assert!(text.contains("line 2504: no task: expected"), "{text}");
    assert!(text.contains("line 2505: no task: unknown field `tsk`"), "{text}");
    assert!(text.contains("line 2506: no task: its name is missing"), "{text}");
    assert!(text.contains("line 2507:") && text.contains("priority 12"), "{text}");
    let listed = place.lines(&["queue", "ls", "--json"]);
    assert_eq!((&listed[0]["ready"], &listed[1]["delayed"]), (&json!(2_500), &json!(1)));
    let output = place.feed(&["enqueue", "-", "--json", "--queue", "mail"], "{\"task\":\"a\",\"id\":\"mine\"}\n");
    let line: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(line, json!({"line": 1, "id": "mine", "state": "stored", "duplicate": false}));
}

#[test]
fn unique_tasks_are_answered_with_the_first_ones_id() {
    let place = Place::new();
    let first = place.ok(&["enqueue", "report", "--unique", "report-7"]);
    let second = place.lines(&["enqueue", "report", "--unique", "report-7", "--json"]);
    assert_eq!(second[0], json!({"id": first.trim(), "duplicate": true}));
}

#[test]
fn dead_tasks_are_listed_sent_back_and_forgotten() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.ok(&["enqueue", name, "--id", name]);
    }
    place.work(3, |_| (Verdict::Dead { reason: "no such file".into(), traceback: Some("line 7".into()) }, None));
    let listed = place.ok(&["queue", "dead", "ls", "--traceback"]);
    assert!(listed.contains("no such file") && listed.contains("      line 7"), "{listed}");
    assert_eq!(place.lines(&["queue", "dead", "ls", "--json"]).len(), 3);
    assert_eq!(place.ok(&["queue", "dead", "retry", "b"]), "1 sent back\n");
    let missing = place.run(&["queue", "dead", "retry", "b"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("no dead tasks"), "{}", err(&missing));
    let refused = place.run(&["queue", "dead", "drop", "--all"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("forget 2 dead tasks; say so with --yes"), "{}", err(&refused));
    assert_eq!(place.ok(&["queue", "dead", "drop", "--of", "default", "--yes"]), "2 forgotten\n");
}

#[test]
fn a_list_of_dead_tasks_that_was_cut_says_of_how_many() {
    let place = Place::new();
    let lines: String = (0..1_025).map(|n| format!("{{\"task\":\"a\",\"args\":[{n}]}}\n")).collect();
    assert!(place.feed(&["enqueue", "-"], &lines).status.success());
    place.ok(&["enqueue", "b", "--queue", "other"]);
    place.work(1_025, |_| (Verdict::Dead { reason: "no such file".into(), traceback: None }, None));
    for form in [&[][..], &["--json"]] {
        let listed = place.run(&[&["queue", "dead", "ls", "default"], form].concat());
        assert_eq!(err(&listed), "tidegate: 20 of 1,025 dead tasks shown; show more with --limit\n");
    }
    let all = place.run(&["queue", "dead", "ls", "--limit", "1025"]);
    assert_eq!((err(&all), out(&all).lines().count()), (String::new(), 2 * 1_025));
}

#[test]
fn dead_tasks_of_celery_and_dramatiq_are_shown_as_calls() {
    let place = Place::new();
    for codec in ["celery", "dramatiq"] {
        place.ok(&["enqueue", "shop.add", "--args", "[1, 2]", "--codec", codec, "--id", codec]);
    }
    place.work(2, |_| (Verdict::Dead { reason: "no such file".into(), traceback: None }, None));
    let listed = place.ok(&["queue", "dead", "ls"]);
    for codec in ["celery", "dramatiq"] {
        assert!(listed.contains(&format!("{codec}  shop.add(1, 2)")), "{listed}");
    }
    let codecs: Vec<Value> =
        place.lines(&["queue", "dead", "ls", "--json"]).iter().map(|line| line["codec"].clone()).collect();
    assert_eq!(codecs, ["celery", "dramatiq"]);
}

#[test]
fn purging_wants_a_word_and_a_queue_that_is_there() {
    let place = Place::new();
    place.ok(&["enqueue", "a"]);
    let refused = place.run(&["queue", "purge", "default"]);
    assert!(
        err(&refused).contains("drop 1 waiting tasks of queue \"default\"; say so with --yes"),
        "{}",
        err(&refused)
    );
    let misspelt = place.run(&["queue", "purge", "defualt", "--yes"]);
    assert_eq!(err(&misspelt), "tidegate: there is no queue \"defualt\"; there are: default\n");
    assert_eq!(place.ok(&["queue", "purge", "default", "--yes"]), "default: 1 dropped\n");
}

#[test]
fn a_revoked_task_does_not_run() {
    let place = Place::new();
    let id = place.ok(&["enqueue", "a", "--countdown", "1h"]).trim().to_owned();
    place.ok(&["revoke", &id, "unheard-of"]);
    let revoked = place.run(&["result", &id]);
    assert_eq!(revoked.status.code(), Some(1));
    assert_eq!(err(&revoked), format!("tidegate: task {id}: revoked\n"));
    assert_eq!(place.lines(&["queue", "ls", "--json"])[0]["delayed"], json!(0));
}

#[test]
fn wrong_arguments_say_what_is_wrong() {
    let place = Place::new();
    let error = |words: &[&str]| {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        err(&output)
    };
    assert!(error(&["enqueue", "a", "--args", "{}"]).contains("--args must be a JSON array"));
    assert!(error(&["enqueue", "a", "--kwargs", "[1]"]).contains("--kwargs must be a JSON object"));
    assert!(error(&["enqueue", "a", "--args", "[1"]).contains("--args is no JSON: EOF"));
    assert!(error(&["enqueue", "a", "--args", "@none.json"]).contains("cannot read none.json"));
    assert!(error(&["enqueue", "a", "--countdown", "soon"]).contains("not a duration"));
    assert!(error(&["enqueue", "a", "--eta", "2026-01-01T00:00:00"]).contains("offset"));
    assert!(error(&["enqueue", "a", "--priority", "12"]).contains("12 is not in 0..=9"));
    assert!(error(&["enqueue", "a", "--soft-limit", "2s", "--hard-limit", "1s"]).contains("soft limit"));
    assert!(error(&["enqueue", "a", "--broker", "jobs.db"]).contains("sqlite:jobs.db"));
    assert!(error(&["enqueue", "a", "--broker", "memory:"]).contains("within one process"));
    assert!(error(&["enqueue", "a", "--broker", "sqlite:none/queue.db"]).contains("no directory none: make it first"));
    assert!(error(&["queue", "ls"]).contains("there is no queue at"));
    fs::write(place.0.path().join("notes.db"), "these are notes, and no database at all. ".repeat(40)).unwrap();
    assert!(error(&["queue", "ls", "--broker", "sqlite:notes.db"]).contains("is not a SQLite database"));
}

#[test]
fn the_broker_may_stand_in_the_users_file_and_in_the_environment() {
    let place = Place::new();
    fs::create_dir_all(place.0.path().join("none/tidegate")).unwrap();
    fs::write(place.0.path().join("none/tidegate/tidegate.toml"), "broker = \"sqlite:from-file.db\"\n").unwrap();
    place.ok(&["enqueue", "a"]);
    assert!(place.0.path().join("from-file.db").exists());
    let output = place.command(&["enqueue", "a"]).env("TIDEGATE_BROKER", "sqlite:from-env.db").output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(place.0.path().join("from-env.db").exists());
}
