//! What version 0.1.0 has left is opened, brought to today's layout, and goes on.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{ok, run, samples};

fn made(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/0.1.0").join(name)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(text: &str) -> Vec<String> {
    lines(text).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

const BROKER: [&str; 2] = ["--broker", "sqlite:queue.db"];

fn queue() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(made("queue.db"), folder.path().join("queue.db")).unwrap();
    folder
}

fn on_queue(folder: &Path, words: &[&str]) -> String {
    ok(folder, &[words, &BROKER].concat())
}

#[test]
fn a_queue_is_migrated_with_everything_that_is_in_it() {
    let folder = queue();
    let folder = folder.path();
    assert!(on_queue(folder, &["queue", "check"]).contains("is sound"));
    assert_eq!(ids(&on_queue(folder, &["queue", "peek", "--json"])), ["ready-1", "unique-1", "delayed-1"]);
    let dead = lines(&on_queue(folder, &["queue", "dead", "ls", "--json"]));
    assert_eq!(dead[0]["id"], "dead-1");
    assert!(dead[0]["reason"].as_str().unwrap().contains("exit code 1"), "{dead:?}");
    assert_eq!(on_queue(folder, &["result", "done-1"]).trim(), "7");
    let again = on_queue(folder, &["enqueue", "add", "--unique", "key-1", "--json"]);
    assert!(again.contains("unique-1"), "its key still holds: {again}");
    let database = rusqlite::Connection::open(folder.join("queue.db")).unwrap();
    let version: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 2);
    let error = database.execute("UPDATE task SET rank = -1", []).unwrap_err().to_string();
    assert!(error.contains("CHECK"), "{error}");
}

#[test]
fn rows_of_a_queue_that_cannot_be_read_are_quarantined_when_it_is_migrated() {
    let folder = queue();
    let folder = folder.path();
    let old = rusqlite::Connection::open(folder.join("queue.db")).unwrap();
    old.execute_batch(
        "INSERT INTO task (seq, id, queue, rank, published, body) SELECT 100, 'high', id, -1, 0.5, '{}' FROM queue WHERE name = 'default';
         INSERT INTO ready (queue, rank, seq) SELECT id, -1, 100 FROM queue WHERE name = 'default';",
    )
    .unwrap();
    drop(old);
    assert!(on_queue(folder, &["queue", "check"]).contains("is sound"));
    let dead = lines(&on_queue(folder, &["queue", "dead", "ls", "--json"]));
    let high = dead.iter().find(|letter| letter["id"] == "high").expect("it is kept");
    assert!(high["reason"].as_str().unwrap().contains("seq 100: rank is -1"), "{high}");
    assert!(high["traceback"].as_str().unwrap().contains("published = 0.5"), "{high}");
    assert_eq!(ids(&on_queue(folder, &["queue", "peek", "--json"])), ["ready-1", "unique-1", "delayed-1"]);
}

/// A program can switch the constraints off; `check` names what it wrote, and mends it on request.
#[test]
fn check_names_a_row_that_cannot_be_read_and_repairs_it() {
    let folder = queue();
    let folder = folder.path();
    on_queue(folder, &["queue", "check"]);
    let careless = rusqlite::Connection::open(folder.join("queue.db")).unwrap();
    careless
        .execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE task SET rank = -1 WHERE id = 'unique-1'")
        .unwrap();
    drop(careless);
    let output = run(folder, &[&["queue", "check"], &BROKER[..]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rank is -1, expected an integer from 0 to 9"), "{said}");
    assert_eq!(ids(&on_queue(folder, &["queue", "peek", "--json"])).len(), 3, "looking survives it");
    let said = on_queue(folder, &["queue", "check", "--repair"]);
    assert!(said.contains("rows repaired") && said.contains("is sound"), "{said}");
    let dead = ids(&on_queue(folder, &["queue", "dead", "ls", "--json"]));
    assert!(dead.contains(&"unique-1".to_owned()), "{dead:?}");
}

/// Nothing is asked again, the day's count goes on, and the outputs are replaced.
#[test]
fn results_counts_and_outputs_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::copy(samples().join("tides.pdf"), folder.join("tides.pdf")).unwrap();
    fs::create_dir_all(folder.join("out/.tidegate")).unwrap();
    for name in ["results.db", "quota.db"] {
        fs::copy(made(name), folder.join("out/.tidegate").join(name)).unwrap();
    }
    for name in ["tides.json", "tides.md", "tides.html", "report.json"] {
        fs::copy(made(name), folder.join("out").join(name)).unwrap();
    }
    let words =
        ["explain", "tides.pdf", "--out", "out", "--pages", "1-3", "--picture-px", "0", "--rpd", "100", "--json"];
    let report: Value = serde_json::from_str(&ok(folder, &words)).unwrap();
    assert_eq!((&report["totals"]["kept"], &report["totals"]["done"]), (&2.into(), &3.into()), "{report}");
    assert!(fs::read_to_string(folder.join("out/tides.md")).unwrap().contains("## Page 3"));
    let output = run(folder, &["rebuild", "out/tides.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let quota = rusqlite::Connection::open(folder.join("out/.tidegate/quota.db")).unwrap();
    let runs: i64 = quota.query_row("SELECT runs FROM state", [], |row| row.get(0)).unwrap();
    assert!(runs > 2, "{runs}");
}
