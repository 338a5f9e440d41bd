//! Batches on two machines within one account's limits.

use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_rehearsal::{Latency, Limit, Server};

use crate::machine::judge;
use crate::redis::Redis;
use crate::strict::strict;

const MINUTE: Duration = Duration::from_secs(2);

#[test]
fn two_batches_together_never_exceed_the_quota() {
    // What the gate allows for the way to the server.
    judge(MINUTE / 100, two_batches);
}

fn two_batches() -> Result<(), String> {
    let (place, redis) = (tempfile::tempdir().unwrap(), Redis::start(&[]));
    let server = Server::builder()
        .rpm(Limit::new(100).per(MINUTE))
        .tpm(Limit::new(20_000).per(MINUTE))
        .concurrency(20)
        .latency(Latency::Uniform(Duration::from_millis(10), Duration::from_millis(50)))
        .start_in_thread()
        .unwrap();
    let base_url = format!("{}/v1", server.base_url());
    let start = |name: &str| {
        let line = |number: usize| {
            let text = format!("Question {number} of {name}: why do tides turn?");
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
            format!(
                "{{\"custom_id\":\"{number}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{body}}}\n"
            )
        };
        std::fs::write(place.path().join(name), (0..150).map(line).collect::<String>()).unwrap();
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["batch", name, "--base-url", &base_url, "--limits", &redis.url(), "--limits-name", "batches"])
            .args(["--rpm", "100", "--tpm", "20000", "--rpd", "10000", "--minute", "2s", "--global-concurrency", "20"])
            .args(["--progress", "none", "--json"])
            .current_dir(place.path())
            .env("XDG_DATA_HOME", place.path())
            .env("XDG_CONFIG_HOME", place.path().join("none"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    for batch in ["one.jsonl", "two.jsonl"].map(start) {
        let output = batch.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&summary["answered"], &summary["failed"]), (&150.into(), &0.into()), "{summary}");
    }
    let stats = server.stats();
    println!("    {stats}");
    assert_eq!((stats.answered, stats.refused.concurrency, stats.repeated), (300, 0, 0), "{stats}");
    assert!(stats.in_flight_peak <= 20, "{stats}");
    assert!(!place.path().join(".tidegate").exists(), "the day is counted in Redis, not in a file");
    strict(&stats)
}
