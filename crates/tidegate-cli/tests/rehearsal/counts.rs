//! The counts of limits: one file per account, for all runs, whatever they write and however they end.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_rehearsal::{Handle, Latency, Server};

use crate::support::{Place, questions, text, tidegate};

/// A run with its output in a folder of its own.
fn batch(server: &Handle, place: &Place, folder: &str, requests: usize, args: &[&str]) -> Command {
    let base = format!("{}/v1", server.base_url());
    fs::create_dir_all(place.path(folder)).unwrap();
    let input = place.write(&format!("{folder}/in.jsonl"), &questions(requests));
    let mut command = tidegate(&["batch", &input, "--base-url", &base, "--progress", "json"]);
    command.args(args).env("XDG_DATA_HOME", place.path("data")).env_remove("OPENAI_API_KEY");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn done(mut command: Command) -> Output {
    let done = command.output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    done
}

/// Reads the events of a run until one is what is looked for.
fn read_until(child: &mut Child, mut is_it: impl FnMut(&Value) -> bool) {
    let mut said = String::new();
    for line in BufReader::new(child.stderr.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        if serde_json::from_str(&line).is_ok_and(|event| is_it(&event)) {
            return;
        }
        said.push_str(&line);
        said.push('\n');
    }
    panic!("the run has ended:\n{said}");
}

/// A run that has used up the day; returns how many it had answered by then.
fn run_until_blocked(mut command: Command) -> u64 {
    let mut child = command.spawn().unwrap();
    let (mut answered, mut blocked) = (0, 0);
    read_until(&mut child, |event| {
        if event["event"] == "progress" {
            answered = event["answered"].as_u64().unwrap();
            // While a reservation is written, it waits for a moment as well.
            blocked = if event["waiting_for"] == "rpd" && event["in_flight"] == 0 { blocked + 1 } else { 0 };
        }
        blocked == 3
    });
    child.kill().unwrap();
    child.wait().unwrap();
    answered
}

fn state_files(data: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(Path::new(data).join("tidegate/quotas")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|ext| ext == "db")).collect()
}

#[test]
fn two_folders_share_the_day() {
    for rpd in ["4", "4/24h"] {
        let (place, server) = (Place::new("two-folders"), Server::builder().start_in_thread().unwrap());
        done(batch(&server, &place, "q1", 3, &["--rpd", rpd]));
        assert_eq!(run_until_blocked(batch(&server, &place, "q2", 3, &["--rpd", rpd])), 1, "{rpd}");
        assert_eq!(run_until_blocked(batch(&server, &place, "q3", 3, &["--rpd", rpd])), 0, "{rpd}");
        assert_eq!(server.stats().accepted, 4, "{rpd}");
        assert_eq!(state_files(&place.path("data")).len(), 1);
        assert!(!Path::new(&place.path("q1/.tidegate")).exists(), "nothing is kept in the folder");
    }
}

#[test]
fn each_key_has_counts_of_its_own_and_stands_nowhere_in_them() {
    let (place, server) = (Place::new("keys"), Server::builder().start_in_thread().unwrap());
    let run = |folder, key: &str| {
        let mut command = batch(&server, &place, folder, 2, &["--rpd", "2"]);
        command.env("OPENAI_API_KEY", key);
        command
    };
    done(run("a", "sk-the-first-of-two"));
    done(run("b", "sk-the-second-of-two"));
    assert_eq!(run_until_blocked(run("c", "sk-the-first-of-two")), 0);
    assert_eq!(server.stats().accepted, 4);
    let data = place.path("data");
    assert_eq!(state_files(&data).len(), 2);
    for entry in fs::read_dir(Path::new(&data).join("tidegate/quotas")).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("openai-"), "{}", path.display());
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(10).any(|bytes| bytes == b"sk-the-fir" || bytes == b"sk-the-sec"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    let folder = fs::metadata(Path::new(&data).join("tidegate/quotas")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
}

#[test]
fn each_run_obeys_the_amount_that_it_states() {
    let (place, server) = (Place::new("amounts"), Server::builder().start_in_thread().unwrap());
    done(batch(&server, &place, "a", 3, &["--rpd", "3"]));
    assert_eq!(run_until_blocked(batch(&server, &place, "b", 9, &["--rpd", "5/24h"])), 2);
    assert_eq!(run_until_blocked(batch(&server, &place, "c", 9, &["--rpd", "3"])), 0);
    assert_eq!(server.stats().accepted, 5);
}

#[test]
fn after_kill_9_another_folder_goes_on_with_the_same_day() {
    let place = Place::new("killed");
    let latency = Latency::Fixed(Duration::from_millis(20));
    let server = Server::builder().latency(latency).start_in_thread().unwrap();
    let args = ["--rpd", "20", "--max-in-flight", "2"];
    let mut killed = batch(&server, &place, "a", 30, &args).spawn().unwrap();
    read_until(&mut killed, |event| event["event"] == "answered" && event["id"] == "r6");
    killed.kill().unwrap();
    killed.wait().unwrap();
    run_until_blocked(batch(&server, &place, "b", 30, &args));
    let sent = server.stats().accepted;
    // Those in flight may have been counted and not have come.
    assert!((18..=20).contains(&sent), "{sent}");
}

/// Two processes at once, each with enough to do for the whole quota, at a server that counts on arrival.
#[cfg(feature = "pdf")]
#[test]
fn two_processes_at_once_share_a_window() {
    crate::machine::judge(Duration::from_millis(50), two_processes);
}

#[cfg(feature = "pdf")]
fn two_processes() -> Result<(), String> {
    let place = Place::new("at-once");
    let per = Duration::from_secs(2);
    let server = Server::builder().rpm(tidegate_rehearsal::Limit::new(40).per(per)).start_in_thread().unwrap();
    let args = ["--rpm", "40/2s"];
    let runs = ["a", "b"].map(|folder| batch(&server, &place, folder, 100, &args).spawn().unwrap());
    for run in runs {
        let done = run.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    }
    let stats = server.stats();
    assert_eq!(stats.answered, 200);
    crate::strict::strict(&stats)
}

#[test]
fn what_an_earlier_version_counted_in_the_folder_is_moved_once() {
    let (place, server) = (Place::new("moved"), Server::builder().start_in_thread().unwrap());
    let args = ["--rpd", "4"];
    // Without a data directory the counts are where earlier versions had them.
    let mut first = batch(&server, &place, "a", 3, &args);
    first.env_remove("XDG_DATA_HOME").env_remove("HOME");
    let first = done(first);
    assert!(text(&first.stderr).contains("neither XDG_DATA_HOME nor HOME is set"), "{}", text(&first.stderr));
    assert!(Path::new(&place.path("a/.tidegate/quota.db")).exists());

    fs::rename(place.path("a/in.results.jsonl"), place.path("a/other.results.jsonl")).unwrap();
    assert_eq!(run_until_blocked(batch(&server, &place, "a", 3, &args)), 1);
    assert_eq!(run_until_blocked(batch(&server, &place, "b", 3, &args)), 0, "they count for other folders, too");
    assert_eq!(run_until_blocked(batch(&server, &place, "a", 9, &["--rpd", "6"])), 2, "and once: 4 of 6 were used");
    assert_eq!(server.stats().accepted, 6);
}

#[test]
fn a_link_in_the_folder_does_not_lead_to_other_counts() {
    let (place, server) = (Place::new("link"), Server::builder().start_in_thread().unwrap());
    let with_key = |folder, key: &str, rpd| {
        let mut command = batch(&server, &place, folder, 2, &["--rpd", rpd]);
        command.env("OPENAI_API_KEY", key);
        command
    };
    done(with_key("a", "sk-the-first-of-two", "2"));
    let counts = state_files(&place.path("data")).remove(0);
    fs::create_dir_all(place.path("b/.tidegate")).unwrap();
    std::os::unix::fs::symlink(&counts, place.path("b/.tidegate/quota.db")).unwrap();
    done(with_key("b", "sk-the-second-of-two", "2"));
    assert_eq!(run_until_blocked(with_key("c", "sk-the-first-of-two", "2")), 0, "its counts are still there");
}

#[test]
fn a_data_directory_that_cannot_be_used_is_reported_and_the_folder_serves() {
    let (place, server) = (Place::new("no-data"), Server::builder().start_in_thread().unwrap());
    let in_the_way = place.write("file", "");
    let run = |folder| {
        let mut command = batch(&server, &place, folder, 3, &["--rpd", "4"]);
        command.env("XDG_DATA_HOME", &in_the_way);
        command
    };
    let said = text(&done(run("a")).stderr);
    assert!(said.contains("cannot make the folder") && said.contains("a/.tidegate/quota.db"), "{said}");
    fs::remove_file(place.path("a/in.results.jsonl")).unwrap();
    assert_eq!(run_until_blocked(run("a")), 1, "the folder's own counts go on");
    done(run("b"));
    // Where nothing can be kept at all, the run goes on.
    fs::create_dir(place.path("c")).unwrap();
    fs::write(place.path("c/.tidegate"), "in the way, too").unwrap();
    let said = text(&done(run("c")).stderr);
    assert!(said.contains("are not kept"), "{said}");
}

#[test]
fn counts_that_cannot_be_read_end_the_run_before_anything_is_sent() {
    let (place, server) = (Place::new("garbage"), Server::builder().start_in_thread().unwrap());
    done(batch(&server, &place, "a", 2, &["--rpd", "9"]));
    let file = state_files(&place.path("data")).remove(0);
    for garbage in [&b"half a state fi"[..], b"", &[0; 8192]] {
        fs::write(&file, garbage).unwrap();
        let refused = batch(&server, &place, "b", 2, &["--rpd", "9"]).output().unwrap();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        assert_eq!(fs::read(&file).unwrap(), garbage, "it is left as it is");
    }
    assert_eq!(server.stats().accepted, 2);
    fs::remove_file(&file).unwrap();
    done(batch(&server, &place, "b", 2, &["--rpd", "9"]));
}
