//! The binary as its users meet it.

use std::io::Read as _;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const EXAMPLES: [&str; 5] = ["sleep", "await-task", "await-coro", "await-future", "timeline"];

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = tidegate(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it says when it cannot run.
fn refusal(args: &[&str]) -> String {
    let output = tidegate(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn every_example_prints_in_every_format() {
    for example in EXAMPLES {
        assert!(stdout(&["trace", example]).contains("tick 1"));
        let chrome = stdout(&["trace", example, "--format", "chrome"]);
        assert!(serde_json::from_str::<serde_json::Value>(&chrome).unwrap()["traceEvents"].is_array());
        assert!(stdout(&["trace", example, "--format", "html"]).starts_with("<!doctype html>"));
    }
}

/// The loop's crate has no SHA-256, so the hash stands in its template; after a change of the script, put the one from
/// this test's message there.
#[test]
fn the_policy_of_the_timeline_allows_its_script_alone() {
    let html = stdout(&["trace", "timeline", "--format", "html"]);
    let between = |from: &str, to: &str| html.split_once(from).unwrap().1.split_once(to).unwrap().0;
    let policy = between("<meta http-equiv=\"Content-Security-Policy\" content=\"", "\">");
    assert_eq!(html.matches("<script>").count(), 1);
    let hash = STANDARD.encode(Sha256::digest(between("<script>", "</script>")));
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert!(policy.contains(&format!("script-src 'sha256-{hash}';")), "{policy} needs sha256-{hash}");
}

#[test]
fn the_list_describes_every_example() {
    let list = stdout(&["trace", "--list"]);
    let names: Vec<&str> = list.lines().map(|line| line.split_once("  ").unwrap().0.trim()).collect();
    assert_eq!(names, EXAMPLES);
}

#[test]
fn the_same_seed_prints_the_same_bytes() {
    for format in ["text", "chrome", "html"] {
        let args = ["trace", "timeline", "--seed", "5", "--format", format];
        assert_eq!(stdout(&args), stdout(&args));
    }
}

#[test]
fn a_relaxed_run_says_so() {
    assert!(stdout(&["trace", "sleep", "--relaxed"]).contains("polls when it must"));
    assert!(stdout(&["trace", "sleep", "--relaxed", "--strict"]).contains("one poll a tick"));
}

#[test]
fn the_program_comes_before_its_trace() {
    assert!(stdout(&["trace", "sleep", "--code"]).starts_with("use tidegate_loop::"));
}

#[test]
fn an_unknown_example_is_answered_with_the_known_ones() {
    let said = refusal(&["trace", "slep"]);
    assert!(EXAMPLES.iter().all(|example| said.contains(example)), "{said}");
}

#[test]
fn an_unknown_format_is_answered_with_the_known_ones() {
    let said = refusal(&["trace", "sleep", "--format", "pdf"]);
    assert!(["text", "chrome", "html"].iter().all(|format| said.contains(format)), "{said}");
}

#[test]
fn no_example_at_all_is_answered_with_the_way_out() {
    let said = refusal(&["trace"]);
    assert!(said.contains("timeline") && said.contains("--list"), "{said}");
}

#[test]
fn a_file_that_cannot_be_written_is_named_with_the_way_out() {
    let said = refusal(&["trace", "sleep", "--out", "/no/such/folder/trace.txt"]);
    assert!(said.contains("/no/such/folder/trace.txt") && said.contains("--out"), "{said}");
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn out_writes_what_would_have_been_printed() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sleep.html");
    let path = path.to_str().unwrap();
    assert_eq!(stdout(&["trace", "sleep", "--format", "html", "--out", path]), "");
    assert_eq!(std::fs::read_to_string(path).unwrap(), stdout(&["trace", "sleep", "--format", "html"]));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn a_full_disk_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["trace", "sleep"])
        .stdout(full)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&["completions", shell]).contains("trace"), "{shell}");
    }
    // These two complete the examples' names too.
    for shell in ["bash", "zsh"] {
        assert!(stdout(&["completions", shell]).contains("await-future"), "{shell}");
    }
}
