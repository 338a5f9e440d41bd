//! A full disk, a locked file, a file that goes away, files that are not ours: clear words, and nothing lost.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use tidegate_worker::{
    Broker as _, BrokerError, Consumer, Delivery, Envelope, Incoming, Settled, Settlement, SqliteBroker, Subscription,
    Verdict, sqlite,
};

use crate::children::task;

const NOBODY: u32 = 65_534;

fn what(prefetch: usize) -> Subscription {
    Subscription { queues: vec!["q".into()], prefetch, consumer: "trouble".into() }
}

async fn next(consumer: &Rc<dyn Consumer>) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for incoming in consumer.recv_all().await.unwrap() {
        let Incoming::Delivery(delivery) = incoming else { panic!("{incoming:?}") };
        deliveries.push(delivery);
    }
    deliveries
}

fn refused(error: &BrokerError) -> &str {
    match error {
        BrokerError::Refused { message } => message,
        other => panic!("{other:?}"),
    }
}

/// A small disk of its own, taken away with the test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<SmallDisk> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=40m", "tidegate-test"])
            .arg(at)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        mounted.then(|| SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Fills the disk, then empties the queue although it is full.
pub(crate) fn a_full_disk_refuses_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    match SmallDisk::mount(directory.path()) {
        Some(_disk) => full_disk(directory.path().join("queue.db")),
        None => full_file(&directory.path().join("queue.db")),
    }
}

fn full_disk(file: PathBuf) {
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open(&file).await.unwrap();
        let ballast = PathBuf::from(format!("{}-ballast", file.display()));
        assert!(ballast.exists());
        let mut stored = 0;
        let error = loop {
            let mut large = task("large", stored);
            large.body = vec![7; 50_000];
            match broker.publish(vec![large]).await {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(refused(&error).contains("queue.db") && refused(&error).contains("the disk is full"), "{error}");
        assert!(stored > 20, "{stored}");
        let consumer = broker.subscribe(what(10)).await.unwrap();
        let mut seen = 0;
        while seen < stored {
            let batch = next(&consumer).await;
            seen += batch.len();
            let acks = batch
                .iter()
                .map(|delivery| Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None })
                .collect();
            assert!(consumer.settle(acks).await.unwrap().iter().all(|settled| *settled == Settled::Done));
        }
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
        broker.publish(vec![task("small", 0)]).await.expect("there is room in the file again");
        assert_eq!(next(&consumer).await[0].envelope.id.as_str(), "small-0");
        broker.close().await.unwrap();
    })
    .unwrap();
}

/// Without the right to mount: files that must not grow beyond 3 MB. What was stored before is there, and whole.
fn full_file(file: &Path) {
    let script = format!(
        "trap '' XFSZ; ulimit -f 6000; exec {} --child produce=1000000 {} big",
        std::env::current_exe().unwrap().display(),
        file.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(!output.status.success());
    let stored = String::from_utf8(output.stdout).unwrap().lines().count() as u64 * 50;
    let file = file.to_owned();
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open(&file).await.unwrap();
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
        assert!(broker.inspect().await.unwrap()[0].ready >= stored);
    })
    .unwrap();
}

/// Another process leaves a transaction open.
pub(crate) fn a_locked_file_is_waited_for_then_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    tidegate_loop::run(async move {
        let mut options = sqlite::Options::new(&file);
        options.busy_timeout = Duration::from_millis(50);
        let broker = SqliteBroker::open_with(options).await.unwrap();
        let other = rusqlite::Connection::open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = broker.publish(vec![task("a", 0)]).await.unwrap_err();
        assert!(matches!(&error, BrokerError::Retry { message } if message.contains("is locked")), "{error:?}");
        assert_eq!(broker.inspect().await.unwrap(), [], "looking needs no lock");
        other.execute_batch("ROLLBACK").unwrap();
        broker.publish(vec![task("a", 0)]).await.unwrap();
        let consumer = broker.subscribe(what(1)).await.unwrap();
        assert_eq!(next(&consumer).await.len(), 1);
    })
    .unwrap();
}

/// What would be written is lost, so every call fails.
pub(crate) fn a_deleted_file_ends_everything() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open(&file).await.unwrap();
        let consumer = broker.subscribe(what(1)).await.unwrap();
        fs::remove_file(&file).unwrap();
        let error = consumer.recv_all().await.unwrap_err();
        assert!(matches!(&error, BrokerError::Damaged { message } if message.contains("was deleted")), "{error:?}");
        let error = broker.publish(vec![task("a", 0)]).await.unwrap_err();
        assert!(matches!(&error, BrokerError::Damaged { message } if message.contains("queue.db")), "{error:?}");
        broker.close().await.unwrap();
    })
    .unwrap();
}

/// SQLite needs to make files beside the database.
pub(crate) fn a_directory_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    let made = file.clone();
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open(&made).await.unwrap();
        broker.publish(vec![task("a", 0)]).await.unwrap();
        broker.close().await.unwrap();
    })
    .unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    if rustix::process::geteuid().is_root() {
        // Root may write anywhere, so another user runs this; that user cannot read this program's directory.
        let program = std::env::temp_dir().join(format!("tidegate-queue-file-{}", std::process::id()));
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY);
        let output = command.args(["--child", "produce=1"]).arg(&file).arg("x").output().unwrap();
        fs::remove_file(&program).unwrap();
        return assert_read_only(&output.stdout, directory.path());
    }
    let output = command.args(["--child", "produce=1"]).arg(&file).arg("x").output().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_read_only(&output.stdout, directory.path());
}

fn assert_read_only(said: &[u8], directory: &Path) {
    let said = String::from_utf8_lossy(said);
    assert!(said.contains("cannot be written to"), "{said}");
    assert!(said.contains(&directory.display().to_string()), "{said}");
}

/// Each by what it is, with the way out; and untouched.
pub(crate) fn files_that_are_none_of_ours_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("notes.txt"), "a letter to my mother, longer than a header of a database. ".repeat(50)).unwrap();
    rusqlite::Connection::open(path("cookies.db")).unwrap().execute_batch("CREATE TABLE cookies (x)").unwrap();
    fs::create_dir(path("folder")).unwrap();
    let cases = [
        (path("notes.txt"), "is not a SQLite database"),
        (path("cookies.db"), "of another program"),
        (path("folder"), "is a directory"),
        (path("none/queue.db"), "make it first"),
    ];
    let newer = path("newer.db");
    tidegate_loop::run(async move {
        for (file, words) in cases {
            let error = SqliteBroker::open(&file).await.unwrap_err();
            assert!(refused(&error).contains(words), "{error}");
            assert!(refused(&error).contains(&file.display().to_string()), "{error}");
        }
        SqliteBroker::open(&newer).await.unwrap().close().await.unwrap();
        rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let error = SqliteBroker::open(&newer).await.unwrap_err();
        assert!(refused(&error).contains("has layout 99") && refused(&error).contains("newer tidegate"), "{error}");
    })
    .unwrap();
    assert!(fs::read_to_string(path("notes.txt")).unwrap().starts_with("a letter"));
}

/// The recipe of `docs/sqlite-queue.md`, in Python without any package.
const PYTHON: &str = r#"
import json, os, sqlite3, sys, time
path = sys.argv[1]
db = sqlite3.connect(path, timeout=10, isolation_level=None)
assert db.execute("PRAGMA user_version").fetchone()[0] == 2
db.execute("PRAGMA journal_mode=WAL"); db.execute("PRAGMA synchronous=FULL")
now = int(time.time() * 1000)
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT OR IGNORE INTO queue (name) VALUES (?)", ("q",))
queue = db.execute("SELECT id FROM queue WHERE name = ?", ("q",)).fetchone()[0]
body = json.dumps({"task": "add", "args": [1, 2]}).encode()
task = ("from-python", queue, 9 - 4, now, None, None, None, None, None, body)
seq = db.execute("INSERT INTO task (id, queue, rank, published, eta, expires, ukey, hold, headers, body) "
                 "VALUES (?,?,?,?,?,?,?,?,?,?)", task).lastrowid
db.execute("INSERT INTO ready (queue, rank, seq) VALUES (?,?,?)", (queue, 5, seq))
db.execute("COMMIT")
bell = os.open(path + "-bell", os.O_RDWR | os.O_CREAT)
os.pwrite(bell, b"!", 0)
"#;

/// A waiting worker is woken by it.
pub(crate) fn what_another_language_writes_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open(&file).await.unwrap();
        let consumer = broker.subscribe(what(1)).await.unwrap();
        let python = Command::new("python3").args(["-c", PYTHON]).arg(&file).status().unwrap();
        assert!(python.success());
        let got = next(&consumer).await.pop().unwrap();
        let expected = Envelope { priority: 4, ..Envelope::new("q", got.envelope.body.clone()) };
        assert_eq!(*got.envelope, Envelope { id: got.envelope.id.clone(), ..expected });
        let task = tidegate_worker::codec::native::decode(&got.envelope, 0).unwrap();
        assert_eq!((task.id.as_str(), task.name.as_str(), task.args.len()), ("from-python", "add", 2));
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
    })
    .unwrap();
}
