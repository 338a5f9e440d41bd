//! The README's commands about `samples/`, as they stand there.

#[path = "common/data.rs"]
mod data;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_rehearsal::Server;

use data::data_home;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words behind `start` in each line of the README that begins with it.
fn lines(start: &str) -> Vec<Vec<String>> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let rest = readme.lines().filter_map(|line| line.strip_prefix(start));
    rest.map(|rest| rest.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Runs the program where the README's commands are run.
fn tidegate(words: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    // What the machine's user has set must not decide a test.
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_DATA_HOME", data_home()).env_remove("OPENAI_API_KEY");
    command.args(words).current_dir(root()).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_first_command_succeeds_and_a_bad_file_fails_alone() {
    let commands = lines("cargo run --release -- ");
    assert_eq!(commands.len(), 2, "{commands:?}");
    let expected = [(0, "13 of 15 pages", "index.html"), (1, "4 of 4 pages", "tides.html")];
    for (words, (code, explained, page)) in commands.iter().zip(expected) {
        let out = TempDir::new().unwrap();
        let place = out.path().to_str().unwrap();
        let output = tidegate(&[&words[..], &["--out", place, "--picture-px", "0"].map(str::to_owned)].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(text(&output.stdout).starts_with(explained), "{words:?}: {output:?}");
        let page = out.path().join(page);
        let last = said.lines().last().unwrap();
        assert!(last.starts_with(&format!("open {} in a browser", page.display())), "{words:?}: {last}");
        assert!(page.is_file());
    }
}

#[test]
fn what_the_commands_write_is_ignored_by_git() {
    if !root().join(".git").exists() {
        return; // not a clone
    }
    let written = ["explanations/tides.html", "results.jsonl", "samples/requests.results.jsonl"];
    let ignored = Command::new("git").arg("check-ignore").args(written).current_dir(root()).output().unwrap();
    assert_eq!(text(&ignored.stdout).lines().collect::<Vec<_>>(), written, "{ignored:?}");
}

#[test]
fn the_sample_requests_are_planned_and_answered_offline() {
    let plan = lines("tidegate plan samples/");
    assert_eq!(plan.len(), 1, "{plan:?}");
    let place = TempDir::new().unwrap();
    let words = |command: &str, words: &[String]| -> Vec<String> {
        let first = format!("samples/{}", words[0]);
        [command.to_owned(), first].into_iter().chain(words[1..].iter().cloned()).collect()
    };
    let planned = tidegate(&[&words("plan", &plan[0])[..], &["--json".to_owned()]].concat());
    assert_eq!(planned.status.code(), Some(0), "{}", text(&planned.stderr));
    let requests = std::fs::read_to_string(root().join("samples/requests.jsonl")).unwrap().lines().count();
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(plan["answered"], requests);

    let batch = lines("tidegate batch samples/");
    assert_eq!(batch.len(), 1, "{batch:?}");
    let server = Server::builder().start_in_thread().unwrap();
    let results = place.path().join("results.jsonl");
    // Another port and another place for the results: several tests may run at once.
    let here = |word: &String| match word.as_str() {
        "results.jsonl" => results.to_str().unwrap().to_owned(),
        "http://127.0.0.1:7879/v1" => format!("{}/v1", server.base_url()),
        _ => word.clone(),
    };
    let batch: Vec<String> = words("batch", &batch[0]).iter().map(here).collect();
    assert!(batch.contains(&results.to_str().unwrap().to_owned()), "{batch:?}");
    let done = tidegate(&batch);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let lines = std::fs::read_to_string(&results).unwrap();
    let answers: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), requests);
    for answer in &answers {
        assert_eq!(answer["response"]["status_code"], 200, "{answer}");
        let said = &answer["response"]["body"]["choices"][0]["message"]["content"];
        assert!(said.as_str().is_some_and(|said| !said.is_empty()), "{answer}");
    }
    assert_eq!(server.stats().accepted as usize, requests);
}
