//! The README's commands about `samples/`, as they stand there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

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
    command.env("XDG_CONFIG_HOME", "/nonexistent").env_remove("OPENAI_API_KEY");
    command.args(words).current_dir(root()).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_first_command_succeeds_and_a_bad_file_fails_alone() {
    let commands = lines("cargo run --release -- ");
    assert_eq!(commands.len(), 2, "{commands:?}");
    for (words, (code, explained)) in commands.iter().zip([(0, "13 of 15 pages"), (1, "4 of 4 pages")]) {
        let out = TempDir::new().unwrap();
        let place = out.path().to_str().unwrap();
        let output = tidegate(&[&words[..], &["--out", place, "--picture-px", "0"].map(str::to_owned)].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(text(&output.stdout).starts_with(explained), "{words:?}: {output:?}");
        let page = out.path().join("tides.html");
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
    let written = ["explanations/tides.html"];
    let ignored = Command::new("git").arg("check-ignore").args(written).current_dir(root()).output().unwrap();
    assert_eq!(text(&ignored.stdout).lines().collect::<Vec<_>>(), written, "{ignored:?}");
}
