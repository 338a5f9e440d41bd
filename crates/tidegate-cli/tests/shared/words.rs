//! What cannot be used is said before anything happens.

use std::process::{Command, Output, Stdio};

use crate::redis::Redis;

fn tidegate(words: &[&str]) -> Output {
    let place = tempfile::tempdir().unwrap();
    let requests = place.path().join("requests.jsonl");
    std::fs::write(&requests, "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words).current_dir(place.path()).env("XDG_CONFIG_HOME", place.path().join("none"));
    command.env("XDG_DATA_HOME", place.path()).stdin(Stdio::null()).output().unwrap()
}

/// Every command that keeps to limits, with these words behind it.
fn refused(words: &[&str], part: &str) {
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
    let commands: [&[&str]; 3] = [
        &["explain", samples, "--progress", "none"],
        &["batch", "requests.jsonl", "--base-url", "http://127.0.0.1:9/v1"],
        &["worker", "--handler", "explain"],
    ];
    for command in commands {
        let output = tidegate(&[command, words].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
        assert!(said.contains(part), "{command:?}: {said}");
        assert!(!said.contains("hush"), "a password is shown: {said}");
    }
}

#[test]
fn no_redis_a_wrong_password_and_other_limits_are_refused_in_words() {
    refused(&["--limits", "localhost"], "redis://");
    refused(&["--limits", "redis://127.0.0.1:1"], "redis://127.0.0.1:1 does not answer");
    let locked = Redis::start(&["--requirepass", "hush hush"]);
    refused(&["--limits", &locked.url()], "refused to log in");
    let redis = Redis::start(&[]);
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
    let first =
        ["explain", samples, "--progress", "none", "--picture-px", "0", "--limits", &redis.url(), "--rpm", "100"];
    assert!(tidegate(&first).status.success());
    refused(&["--limits", &redis.url(), "--rpm", "200"], "There: global 200 at once, rpm 100 in any 60s");
    refused(&["--limits", &redis.url(), "--limits-lost", "half"], "share=0.5");
}

#[test]
fn without_redis_a_share_is_enough_if_that_is_wanted() {
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
    let words = ["explain", samples, "--progress", "none", "--picture-px", "0", "--limits", "redis://127.0.0.1:1"];
    let output = tidegate(&[&words[..], &["--limits-lost", "share=0.5"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("going on with the local share"));
}
