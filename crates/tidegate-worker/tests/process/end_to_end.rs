//! The whole way: a Python program enqueues into a SQLite file, a worker runs Python children, the program reads the results.

use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::process::Command;
use tidegate_loop::spawn;
use tidegate_worker::codec::native;
use tidegate_worker::{
    Backoff, Broker as _, Envelope, Master, OutcomeKind, Policies, Policy, Settings, SqliteBroker, Stop,
};

use crate::support::*;

/// A program that uses the client; what it prints.
async fn program(script: &str, path: &std::path::Path) -> String {
    let mut command = Command::new("python3");
    command.args(["-S", "-c", script]).arg(path).env("PYTHONPATH", python_path()).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_python_program_and_python_handlers_meet_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queue.db");
    on_loop(async move {
        let broker = Rc::new(SqliteBroker::open(&path).await.unwrap());
        let mut settings = Settings::new(["default"]);
        let backoff = Backoff { min: Duration::from_millis(1), max: Duration::from_millis(10) };
        settings.policies = Policies::new(Policy { retries_max: 1, backoff, ..Policy::default() });
        let master = Master::new(broker, Rc::new(tidegate_worker::ProcessMode::new(python(2))), settings);
        let handle = master.handle();
        let worker = spawn(master.run());
        let script = r#"
import sys
from tidegate import Client, TaskFailed
client = Client("sqlite:" + sys.argv[1])
sums = client.enqueue_many({"task": "add", "args": [number, 1]} for number in range(200))
print(sum(client.result(task, 100) for task in sums))
print(client.result(client.enqueue("async_add", 1, 2, priority=9, countdown=0.01), 100))
for name, args in (("fail", ["so it is"]), ("die", ["SIGKILL"]), ("nobody", [])):
    try:
        client.result(client.enqueue(name, *args), 100)
    except TaskFailed as error:
        print(error.state, error.kind, error.message.splitlines()[0], sep="|")
later = client.enqueue("add", 1, 2, countdown=3600)
client.revoke(later)
try:
    client.result(later, 100)
except TaskFailed as error:
    print(error.state)
"#;
        let printed = program(script, &path).await;
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[..3], ["20100", "3", "failed|ValueError|so it is"], "{printed}");
        assert!(lines[3].starts_with("failed|Crash|its child was killed by signal 9 (SIGKILL)"), "{printed}");
        assert!(lines[4].starts_with("failed|Rejected|"), "{printed}");
        assert_eq!(lines[5], "revoked");
        handle.stop(Stop::Warm);
        let report = worker.await.unwrap().unwrap();
        assert_eq!((report.lost, report.unsettled), (0, 0));
        let broker = SqliteBroker::open(&path).await.unwrap();
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_child_that_dies_is_a_crash_of_its_task_and_no_retry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queue.db");
    on_loop(async move {
        let broker = Rc::new(SqliteBroker::open(&path).await.unwrap());
        let mut settings = Settings::new(["default"]);
        let backoff = Backoff { min: Duration::from_millis(1), max: Duration::from_millis(10) };
        settings.policies = Policies::new(Policy { retries_max: 0, crashes_max: 3, backoff, ..Policy::default() });
        let mode = Rc::new(tidegate_worker::ProcessMode::new(python(1)));
        let master = Master::new(broker, mode.clone(), settings);
        let handle = master.handle();
        let worker = spawn(master.run());
        let client = SqliteBroker::open(&path).await.unwrap();
        let killer = task("die", serde_json::json!(["SIGKILL"]));
        client.publish(vec![Envelope::of(&killer, "default", native::encode(&killer))]).await.unwrap();
        let result = client.wait_result(&killer.id).await.unwrap();
        assert_eq!(result.error.unwrap().kind, "Crash");
        let letter = client.dead(None, 10).await.unwrap().pop().unwrap();
        assert_eq!(letter.retries, 0);
        assert!(letter.reason.ends_with("; crashed 3 times"), "{}", letter.reason);
        assert_eq!(mode.stats().died, 3);
        handle.stop(Stop::Warm);
        let report = worker.await.unwrap().unwrap();
        assert_eq!(report.settled, [(OutcomeKind::Crashed, 3)]);
    });
}

#[test]
fn a_running_python_task_is_revoked_from_python() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queue.db");
    on_loop(async move {
        let broker = Rc::new(SqliteBroker::open(&path).await.unwrap());
        let mode = Rc::new(tidegate_worker::ProcessMode::new(python(1)));
        let master = Master::new(broker, mode.clone(), Settings::new(["default"]));
        let handle = master.handle();
        let worker = spawn(master.run());
        let mut note = Note::new();
        let script = format!(
            "import sys; from tidegate import Client; print(Client(sys.argv[1]).enqueue('sleep', 600, {:?}))",
            note.path().as_str().unwrap()
        );
        let task = program(&script, &path).await;
        let child = note.pid().await;
        let script = format!("import sys; from tidegate import Client; Client(sys.argv[1]).revoke({:?})", task.trim());
        program(&script, &path).await;
        ended(child).await;
        handle.stop(Stop::Warm);
        worker.await.unwrap().unwrap();
    });
}

#[test]
fn a_file_made_by_the_python_client_is_like_one_made_here() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (directory.path().join("ours.db"), directory.path().join("theirs.db"));
    on_loop(async move {
        drop(SqliteBroker::open(&ours).await.unwrap());
        let script = "import sys; from tidegate import Client; Client(sys.argv[1]).enqueue('add')";
        program(script, &theirs).await;
        let layout = |path: &std::path::Path| {
            let connection = rusqlite::Connection::open(path).unwrap();
            let mut select = connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").unwrap();
            let words = |sql: Option<String>| sql.map(|sql| sql.split_whitespace().collect::<Vec<_>>().join(" "));
            let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, words(row.get(1)?)))).unwrap();
            let mut rows: Vec<_> = rows.map(Result::unwrap).collect();
            for pragma in ["application_id", "user_version", "journal_mode"] {
                let value = connection.pragma_query_value(None, pragma, |row| row.get::<_, rusqlite::types::Value>(0));
                rows.push((pragma.to_owned(), Some(format!("{:?}", value.unwrap()))));
            }
            // Made by SQLite itself once statistics are asked for.
            rows.retain(|(name, _)| !name.starts_with("sqlite_stat"));
            rows
        };
        assert_eq!(layout(&theirs), layout(&ours));
        // And it is taken over as it is.
        let broker = SqliteBroker::open(&theirs).await.unwrap();
        assert_eq!(tidegate_worker::Broker::inspect(&broker).await.unwrap()[0].ready, 1);
    });
}
