//! Rows that another program wrote into the file and that cannot be read: each is quarantined, the queue goes on.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tidegate_loop::{EventLoop, Runner, explore, timeout};
use tidegate_worker::{
    Broker as _, Consumer, Delivery, Envelope, Incoming, Selection, Settled, Settlement, SqliteBroker, Subscription,
    TaskId, TaskState, Verdict, sqlite,
};

fn what() -> Subscription {
    Subscription { queues: vec!["q".into()], prefetch: 2, consumer: "garbage".into() }
}

fn task(id: &str) -> Envelope {
    let mut envelope = Envelope::new("q", b"body".to_vec());
    envelope.id = TaskId::from(id);
    envelope
}

fn options(directory: &Path) -> sqlite::Options {
    let mut options = sqlite::Options::new(directory.join("queue.db"));
    options.sync_publishes = false;
    options.ballast_bytes = 0;
    options
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(sqlite::Options) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let test = test(options(directory.path()));
    Runner::new(EventLoop::simulated(7))
        .run(async move { timeout(Duration::from_secs(600), test).await.expect("the queue stands still") })
        .unwrap();
}

async fn deliveries(consumer: &Rc<dyn Consumer>) -> Vec<Delivery> {
    let batch = consumer.recv_all().await.unwrap();
    let delivery = |incoming| match incoming {
        Incoming::Delivery(delivery) => Some(delivery),
        _ => None,
    };
    batch.into_iter().filter_map(delivery).collect()
}

fn ack(delivery: &Delivery) -> Settlement {
    Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None }
}

/// Another program, which does not care for constraints.
fn careless(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
    connection
}

/// A task of queue `q` with one column set to something else, ready to run.
fn insert(connection: &Connection, seq: i64, column: &str, value: &str) {
    let mut columns = vec![
        ("seq", seq.to_string()),
        ("id", format!("'bad-{seq}'")),
        ("queue", "(SELECT id FROM queue WHERE name = 'q')".into()),
        ("rank", "9".into()),
        ("published", "1700000000000".into()),
        ("headers", "NULL".into()),
        ("body", "x'6869'".into()),
    ];
    match columns.iter_mut().find(|(name, _)| *name == column) {
        Some(found) => value.clone_into(&mut found.1),
        None => columns.push((Box::leak(column.to_owned().into_boxed_str()), value.to_owned())),
    }
    let (names, values): (Vec<&str>, Vec<String>) = columns.into_iter().unzip();
    connection
        .execute_batch(&format!(
            "INSERT INTO task ({}) VALUES ({}); INSERT INTO ready (queue, rank, seq) \
             VALUES ((SELECT id FROM queue WHERE name = 'q'), {}, {seq})",
            names.join(", "),
            values.join(", "),
            if column == "rank" { value } else { "9" },
        ))
        .unwrap();
}

/// Column, value, and what the reason says of it.
const BAD: &[(&str, &str, &str)] = &[
    ("rank", "-1", "rank is -1"),
    ("rank", "10", "rank is 10"),
    ("rank", "'high'", "rank is \"high\""),
    ("published", "1700000000000.5", "published is the REAL 1700000000000.5"),
    ("id", "x'00ff'", "id is a BLOB of 2 bytes"),
    ("id", "CAST(x'ff' AS TEXT)", "expected text in UTF-8"),
    ("queue", "4711", "its queue does not exist"),
    ("eta", "'tomorrow'", "eta is \"tomorrow\""),
    ("expires", "x''", "expires is a BLOB of 0 bytes"),
    ("ukey", "x'01'", "ukey is a BLOB"),
    ("hold", "'long'", "hold is \"long\""),
    ("headers", "'no json'", "headers is \"no json\""),
    ("headers", "'[1]'", "expected a JSON object"),
    ("body", "7", "body is 7"),
];

#[test]
fn a_row_that_cannot_be_read_stops_neither_claims_nor_settlements() {
    for &(column, value, says) in BAD {
        run(move |options| async move {
            let path = options.path.clone();
            let broker = SqliteBroker::open_with(options).await.unwrap();
            let consumer = broker.subscribe(what()).await.unwrap();
            broker.publish(vec![task("before")]).await.unwrap();
            let before = deliveries(&consumer).await;
            insert(&careless(&path), 40, column, value);
            broker.publish(vec![task("after")]).await.unwrap();
            assert_eq!(consumer.settle(vec![ack(&before[0])]).await.unwrap(), [Settled::Done], "{column} = {value}");
            let after = deliveries(&consumer).await;
            assert_eq!(after[0].envelope.id.as_str(), "after");
            assert_eq!(consumer.settle(vec![ack(&after[0])]).await.unwrap(), [Settled::Done]);

            let letters = broker.dead(None, 10).await.unwrap();
            let [letter] = &letters[..] else { panic!("{column} = {value}: {letters:?}") };
            assert!(letter.reason.contains("seq 40") && letter.reason.contains(says), "{}", letter.reason);
            if column != "body" {
                assert_eq!(letter.envelope.body, b"hi");
            }
            if column != "id" {
                assert_eq!(letter.envelope.id.as_str(), "bad-40");
                let result = broker.wait_result(&TaskId::from("bad-40")).await.unwrap();
                assert_eq!(result.state, TaskState::Failed);
            }
            let original = letter.traceback.as_deref().unwrap();
            assert!(original.contains(&format!("{column} = ")), "{original}");
            assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
            assert_eq!(broker.dead_retry(Selection::All).await.unwrap(), 1);
            if column != "queue" {
                assert_eq!(deliveries(&consumer).await.len(), 1, "as far as it could be read, it can be run");
            }
        });
    }
}

/// A queue without a worker: nothing is changed, and everything is named.
#[test]
fn check_names_rows_that_cannot_be_read_and_looking_survives_them() {
    for &(column, value, says) in BAD {
        run(move |options| async move {
            let path = options.path.clone();
            let broker = SqliteBroker::open_with(options).await.unwrap();
            broker.publish(vec![task("good")]).await.unwrap();
            insert(&careless(&path), 40, column, value);
            let problems = broker.check().await.unwrap().join("\n");
            assert!(problems.contains("task seq 40: ") && problems.contains(says), "{problems}");
            assert_eq!(broker.peek("q", 10).await.unwrap().len(), 2, "{column} = {value}");
            assert_eq!(broker.inspect().await.unwrap()[0].ready, 2);
            careless(&path)
                .execute_batch("DELETE FROM ready WHERE seq = 40; INSERT INTO dead VALUES (40, 0.5, -1, x'00', 7)")
                .unwrap();
            assert_eq!(broker.dead(None, 10).await.unwrap().len(), 1, "{column} = {value}");
            let problems = broker.check().await.unwrap().join("\n");
            assert!(problems.contains("dead seq 40: at is the REAL 0.5"), "{problems}");
            assert!(broker.repair().await.unwrap() > 0);
            assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
            assert_eq!(broker.dead(None, 10).await.unwrap().len(), 1, "{column} = {value}");
            assert_eq!(broker.peek("q", 10).await.unwrap().len(), 1);
        });
    }
}

#[test]
fn a_constraint_refuses_what_could_not_be_read() {
    run(|options| async move {
        let path = options.path.clone();
        let broker = SqliteBroker::open_with(options).await.unwrap();
        broker.publish(vec![task("good")]).await.unwrap();
        let other = Connection::open(&path).unwrap();
        for sql in [
            "INSERT INTO task (id, queue, rank, published, body) VALUES ('x', 1, -1, 0, x'')",
            "INSERT INTO task (id, queue, rank, published, body) VALUES ('x', 1, 9, 0.5, x'')",
            "INSERT INTO task (id, queue, rank, published, body) VALUES (x'01', 1, 9, 0, x'')",
            "INSERT INTO ready (queue, rank, seq) VALUES (1, 10, 1)",
            "INSERT INTO delayed (at, seq) VALUES (1.5, 1)",
            "INSERT INTO uniq VALUES ('k', 'x', 'later', 0)",
            "INSERT INTO result (id, until, state) VALUES ('x', 'later', 'failed')",
        ] {
            let error = other.execute(sql, []).unwrap_err().to_string();
            assert!(error.contains("CHECK constraint failed"), "{sql}: {error}");
        }
        let good = "INSERT INTO task (id, queue, rank, published, body) VALUES ('y', 1, 9, 0, 'text')";
        other.execute(good, []).expect("what can be read is taken");
    });
}

/// What a program may bind.
fn any_value(rng: &mut fastrand::Rng) -> Value {
    match rng.u8(..14) {
        0 => Value::Null,
        1 => Value::Real(1_700_000_000_000.5),
        2 => Value::Real(f64::INFINITY),
        3 => Value::Text("text".into()),
        4 => Value::Text(String::new()),
        5 => Value::Blob(vec![0xff, 0]),
        6 => Value::Blob(Vec::new()),
        7 => Value::Integer(i64::MAX),
        8 => Value::Integer(i64::MIN),
        9 => Value::Integer(-1),
        10 => Value::Integer(i64::from(u32::MAX)),
        11 => Value::Text("not a number: 9".into()),
        _ => Value::Integer(rng.i64(0..12)),
    }
}

/// Rows with one or two wrong columns, or with nothing but chance in them, in every table.
fn spoil(connection: &Connection, rng: &mut fastrand::Rng, rows: usize) {
    let tables: &[(&str, &[&str])] = &[
        ("queue", &["id", "name"]),
        ("task", &["seq", "id", "queue", "rank", "published", "eta", "expires", "ukey", "hold", "headers", "body"]),
        ("ready", &["queue", "rank", "seq", "retries", "crashes"]),
        ("delayed", &["at", "seq", "retries", "crashes"]),
        ("consumer", &["id", "name", "until", "lease"]),
        ("subscription", &["consumer", "queue"]),
        ("running", &["consumer", "seq", "retries", "crashes"]),
        ("dead", &["seq", "at", "retries", "reason", "traceback"]),
        ("uniq", &["key", "id", "until", "past_settle"]),
        ("revoked", &["n", "id", "until"]),
        ("result", &["id", "until", "state", "value", "error"]),
    ];
    for _ in 0..rows {
        let (table, columns) = tables[rng.usize(..tables.len())];
        let chance = if rng.bool() { 1.0 } else { 0.2 };
        let values: Vec<Value> = columns
            .iter()
            .map(|&column| match column {
                _ if rng.f64() < chance => any_value(rng),
                "seq" | "id"
                    if matches!(table, "task" | "dead" | "consumer") && column == "seq" || table == "consumer" =>
                {
                    Value::Integer(rng.i64(1..30))
                }
                "id" | "name" | "key" | "ukey" => Value::Text(format!("garbage-{}", rng.u32(..20))),
                "state" => Value::Text("succeeded".into()),
                "reason" | "value" | "error" | "traceback" | "headers" => Value::Null,
                "body" => Value::Blob(b"{}".to_vec()),
                "queue" => Value::Integer(rng.i64(1..3)),
                _ => Value::Integer(rng.i64(0..9)),
            })
            .collect();
        let marks = vec!["?"; columns.len()].join(", ");
        let sql = format!("INSERT OR IGNORE INTO {table} ({}) VALUES ({marks})", columns.join(", "));
        // A constraint may refuse it: then nothing has happened.
        let _ = connection.execute(&sql, params_from_iter(values));
        if table == "task" {
            let seq = connection.last_insert_rowid();
            let place = [
                "INSERT OR IGNORE INTO ready (queue, rank, seq) VALUES (1, 5, ?1)",
                "INSERT OR IGNORE INTO delayed (at, seq) VALUES (0, ?1)",
                "INSERT OR IGNORE INTO running VALUES (3, ?1, 0, 0)",
            ][rng.usize(..3)];
            let _ = connection.execute(place, [seq]);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Writer {
    /// Writes before there were constraints; the file is migrated.
    Before,
    /// Constraints refuse some of it.
    Checked,
    /// Has switched them off.
    Careless,
}

/// Whatever stands in the file, good tasks run and are settled, looking works, and a repair leaves the file sound.
async fn ride(seed: u64, writer: Writer) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let path = options.path.clone();
    let good: BTreeSet<String> = (0..6).map(|n| format!("good-{n}")).collect();
    let publish = |broker: &Rc<SqliteBroker>, from: usize| {
        let broker = Rc::clone(broker);
        let batch: Vec<Envelope> = good.iter().skip(from).take(3).map(|id| task(id)).collect();
        async move { broker.publish(batch).await }
    };
    if matches!(writer, Writer::Before) {
        let old = Connection::open(&path).unwrap();
        old.execute_batch(include_str!("layout_1.sql")).unwrap();
        old.execute_batch("INSERT INTO queue (name) VALUES ('q')").unwrap();
        spoil(&old, &mut rng, 40);
    }
    let broker = Rc::new(SqliteBroker::open_with(options).await.unwrap());
    if matches!(writer, Writer::Before) {
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new(), "a migrated file is sound");
    }
    let consumer = broker.subscribe(what()).await.unwrap();
    let mut open = good.clone();
    for from in [0, 3] {
        publish(&broker, from).await.unwrap();
        match writer {
            Writer::Before => {}
            Writer::Checked => spoil(&Connection::open(&path).unwrap(), &mut rng, 30),
            Writer::Careless => spoil(&careless(&path), &mut rng, 30),
        }
    }
    while !open.is_empty() {
        let batch = deliveries(&consumer).await;
        let settled = consumer.settle(batch.iter().map(ack).collect()).await.unwrap();
        for (delivery, settled) in batch.iter().zip(settled) {
            if settled == Settled::Done {
                open.remove(delivery.envelope.id.as_str());
            }
        }
    }
    for queue in broker.inspect().await.unwrap() {
        broker.peek(&queue.queue, 100).await.unwrap();
    }
    broker.dead(None, 1000).await.unwrap();
    broker.check().await.unwrap();
    broker.repair().await.unwrap();
    assert_eq!(broker.check().await.unwrap(), Vec::<String>::new(), "after a repair");
    assert_eq!(broker.repair().await.unwrap(), 0, "there is nothing more to repair");
    broker.expire_leases().await.unwrap();
    broker.dead_retry(Selection::All).await.unwrap();
    broker.close().await.unwrap();
}

/// Other seeds each time; `TIDEGATE_SEED` replays one.
fn seeds() -> std::ops::Range<u64> {
    let first = u64::from(std::process::id()) << 20;
    first..first + if std::env::var_os("TIDEGATE_SOAK").is_some() { 500 } else { 25 }
}

async fn bounded(seed: u64, writer: Writer) {
    timeout(Duration::from_secs(600), ride(seed, writer)).await.expect("the queue stands still");
}

#[test]
fn garbage_of_before_there_were_constraints_is_quarantined_when_the_file_is_migrated() {
    explore(seeds(), |seed| bounded(seed, Writer::Before));
}

#[test]
fn garbage_that_no_constraint_sees_stops_nothing() {
    explore(seeds(), |seed| bounded(seed, Writer::Checked));
}

#[test]
fn garbage_past_the_constraints_stops_nothing() {
    explore(seeds(), |seed| bounded(seed, Writer::Careless));
}
