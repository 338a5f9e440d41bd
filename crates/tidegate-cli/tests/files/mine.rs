//! Files of the user's stay; files of the program's are for its user alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::{below, mode, ok, run, samples};

/// A folder with a PDF that is called as a text of the user's own.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(samples().join("tides.pdf"), folder.path().join("thesis.pdf")).unwrap();
    folder
}

#[test]
fn a_file_that_the_program_did_not_write_is_not_replaced() {
    for name in ["thesis.md", "thesis.html", "thesis.json", "report.json"] {
        let folder = folder();
        let mine = folder.path().join(name);
        fs::write(&mine, "my own words\n").unwrap();
        let output = run(folder.path(), &["explain", ".", "--out", "."]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(name) && said.contains("tidegate did not write"), "{said}");
        assert_eq!(fs::read_to_string(&mine).unwrap(), "my own words\n");
        for other in ["thesis.md", "thesis.html", "thesis.json", "report.json"] {
            assert!(other == name || !folder.path().join(other).exists(), "nothing was begun: {other}");
        }
    }
}

#[test]
fn rebuild_replaces_its_own_outputs_only() {
    let folder = folder();
    ok(folder.path(), &["explain", "thesis.pdf", "--out", "out"]);
    ok(folder.path(), &["explain", "thesis.pdf", "--out", "out", "--fresh"]);
    ok(folder.path(), &["rebuild", "out/thesis.json"]);
    let mine = folder.path().join("out/thesis.md");
    fs::write(&mine, "my own words\n").unwrap();
    let output = run(folder.path(), &["rebuild", "out/thesis.json"]);
    assert_eq!(output.status.code(), Some(1));
    let said = [output.stdout, output.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("tidegate did not write"));
    assert_eq!(fs::read_to_string(&mine).unwrap(), "my own words\n");
}

/// Whether there is something to write or not.
#[test]
fn drafts_of_a_run_that_was_killed_are_removed_by_the_next() {
    let folder = folder();
    for _ in 0..2 {
        ok(folder.path(), &["explain", "thesis.pdf", "--out", "out"]);
        let drafts = ["thesis.json", "thesis.md", "thesis.html", "report.json"]
            .map(|name| folder.path().join(format!("out/.{name}.00ff00ff00ff00ff.tmp")));
        drafts.iter().for_each(|draft| fs::write(draft, "half").unwrap());
        ok(folder.path(), &["explain", "thesis.pdf", "--out", "out"]);
        assert_eq!(drafts.iter().filter(|draft| draft.exists()).collect::<Vec<_>>(), Vec::<&std::path::PathBuf>::new());
    }
}

#[test]
fn batch_throws_away_no_file_that_holds_no_results() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), "").unwrap();
    fs::write(folder.path().join("notes"), "my own words\n").unwrap();
    let words = ["batch", "in.jsonl", "--out", "notes", "--fresh", "--base-url", "http://127.0.0.1:9/v1"];
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(folder.path().join("notes")).unwrap(), "my own words\n");
}

#[test]
fn what_is_written_is_for_its_user_alone_unless_a_file_has_another_mode() {
    let folder = folder();
    ok(folder.path(), &["explain", "thesis.pdf", "--out", "deep/out", "--rpd", "100"]);
    ok(folder.path(), &["enqueue", "add", "--args", "[1]"]);
    let made: Vec<_> = below(folder.path()).into_iter().filter(|path| !path.ends_with("thesis.pdf")).collect();
    for name in [
        "thesis.json",
        "thesis.md",
        "thesis.html",
        "report.json",
        "results.db",
        "quota.db",
        "queue.db",
        "queue.db-bell",
    ] {
        assert!(made.iter().any(|path| path.ends_with(name)), "{name} is not among {made:?}");
    }
    for path in &made {
        assert_eq!(mode(path), if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
    let page = folder.path().join("deep/out/thesis.html");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
    ok(folder.path(), &["rebuild", "deep/out/thesis.json"]);
    assert_eq!(mode(&page), 0o644, "a mode that was set once stays");
}

#[test]
fn no_link_leads_a_write_elsewhere() {
    let folder = folder();
    let victim = folder.path().join("victim");
    fs::write(&victim, "my own words\n").unwrap();
    fs::create_dir_all(folder.path().join("data/tidegate")).unwrap();
    symlink(&victim, folder.path().join("data/tidegate/queue.db-bell")).unwrap();
    let output = run(folder.path(), &["enqueue", "add", "--args", "[1]"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("queue.db-bell is a symbolic link"), "{said}");
    // The names that version 0.1.0 gave its drafts could be guessed.
    fs::create_dir(folder.path().join("out")).unwrap();
    for pid in std::process::id()..std::process::id() + 200 {
        symlink(&victim, folder.path().join(format!("out/.thesis.json.{pid}.tmp"))).unwrap();
    }
    ok(folder.path(), &["explain", "thesis.pdf", "--out", "out"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "my own words\n");
    assert!(fs::symlink_metadata(folder.path().join("out/thesis.json")).unwrap().is_file());
}
