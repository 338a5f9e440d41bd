//! How a run shows itself: to programs, to logs, and to people at a terminal.

#[path = "common/data.rs"]
mod data;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use data::data_home;

/// Explains two samples and a broken one offline, in an environment without options of its own.
fn explain(progress: &str, out: &Path) -> Command {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("explain").args(["marees.pdf", "columns.pdf"].map(|name| samples.join(name)));
    command.arg(samples.join("../crates/tidegate-pdf/tests/data/broken.pdf"));
    command.arg("--out").arg(out).args(["--picture-px", "0", "--progress", progress]).stdin(Stdio::null());
    command
}

fn run(progress: &str) -> Output {
    let out = tempfile::tempdir().unwrap();
    let output = explain(progress, out.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "one of the files is broken: {output:?}");
    output
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn for_programs_everything_is_an_object_a_line_and_the_last_is_the_whole() {
    let output = run("json");
    let events: Vec<Value> = stderr(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((count("file_opened"), count("file_done"), count("file_failed")), (2, 2, 1), "{events:?}");
    let done = events.iter().filter(|event| event["event"] == "page" && event["status"] == "done").count();
    assert_eq!(done, 3);
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["progress"]["done"]), (&"progress".into(), &3.into()), "{last}");
}

#[test]
fn without_a_terminal_there_are_lines_and_not_one_escape() {
    let output = run("auto");
    let lines = stderr(&output);
    assert!(!lines.contains('\x1b'), "{lines}");
    assert!(lines.contains("marees.pdf: done, "), "{lines}");
    assert_eq!(lines.matches("broken.pdf is broken").count(), 1, "{lines}");
    assert!(lines.lines().last().unwrap().starts_with("open "), "{lines}");
}

#[test]
fn who_wants_to_hear_nothing_hears_nothing() {
    let output = run("none");
    assert_eq!(stderr(&output), "");
    assert!(!output.stdout.is_empty(), "the report is no progress");
}

/// In a terminal of `script`'s; everything that came out of it.
fn in_terminal(environment: &[(&str, &str)]) -> String {
    let out = tempfile::tempdir().unwrap();
    let explain = explain("auto", out.path());
    let words: Vec<String> = std::iter::once(explain.get_program())
        .chain(explain.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn in_a_terminal_the_display_is_drawn_in_place_and_gone_at_the_end() {
    let text = in_terminal(&[]);
    assert!(text.contains(" pages") && text.contains("in flight"), "nothing was drawn: {text:?}");
    assert!(text.contains("\x1b[32m━"), "without colours: {text:?}");
    let (_, end) = text.rsplit_once("\x1b[J").unwrap();
    assert!(!end.contains('━') && !end.contains('\x1b'), "it was left behind: {end:?}");
    assert!(end.contains("broken"), "the report comes after it: {end:?}");
    assert!(end.lines().last().unwrap().starts_with("open "), "the last line says what to do next: {end:?}");
    assert!(!text.contains("\x1b[?"), "nothing is switched on that would have to be switched off: {text:?}");
}

#[test]
fn who_wants_no_colour_gets_none() {
    let text = in_terminal(&[("NO_COLOR", "1")]);
    assert!(text.contains("━"), "{text:?}");
    let colours = text
        .split("\x1b[")
        .skip(1)
        .filter(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert_eq!(colours.count(), 0, "{text:?}");
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let text = in_terminal(&[("TERM", "dumb")]);
    assert!(!text.contains('\x1b') && text.contains("marees.pdf: done, "), "{text:?}");
}

/// A server that refuses every request, and asks for an absurd delay.
fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("--base-url=http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(
                b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1e20\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            );
        }
    });
    base
}

#[test]
fn a_pause_of_hours_is_announced_even_to_who_wants_no_progress() {
    let place = tempfile::tempdir().unwrap();
    let line = r#"{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}"#;
    std::fs::write(place.path().join("requests.jsonl"), line).unwrap();
    // `timeout` ends it where nothing is announced.
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_tidegate"), "batch", "requests.jsonl", "--rpm=9", "--progress=none"]);
    command.arg(refusing()).current_dir(place.path()).env("OPENAI_API_KEY", "none");
    command.env("XDG_CONFIG_HOME", "none").env("XDG_DATA_HOME", data_home());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    child.wait().unwrap();
    assert!(line.starts_with("rpm: the server asked for a pause of 24 h "), "{line:?}");
}

#[test]
fn for_programs_an_error_is_an_object_too() {
    let out = tempfile::tempdir().unwrap();
    let missing = out.path().join("missing.pdf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("explain").arg(missing).args(["--progress", "json"]).current_dir(out.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let event: Value = serde_json::from_str(stderr(&output)).unwrap();
    assert_eq!(event["event"], "error", "{event}");
    assert!(event["text"].as_str().unwrap().contains("missing.pdf"), "{event}");
}
