//! What the program leaves on the disk: whose files it replaces, who can read them, what is left after a power cut, and files that
//! version 0.1.0 has made.

mod earlier;
mod mine;
#[path = "../common/pdf.rs"]
mod pdf;
mod power;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples")
}

/// The program in a folder, with nothing of the machine's user.
fn tidegate(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    command.env("XDG_DATA_HOME", folder.join("data")).env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

fn run(folder: &Path, words: &[&str]) -> Output {
    tidegate(folder, words).output().unwrap()
}

/// Runs it to a good end; what it printed.
fn ok(folder: &Path, words: &[&str]) -> String {
    let output = run(folder, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn mode(path: &Path) -> u32 {
    let about = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    about.permissions().mode() & 0o777
}

/// Every file and folder below, but for itself.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        all.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            all.extend(below(&entry.path()));
        }
    }
    all
}
