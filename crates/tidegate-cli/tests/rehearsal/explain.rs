use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tidegate_rehearsal::{Latency, Limit, Server};

use crate::machine::judge;
use crate::pdf::pdf;
use crate::strict::strict;
use crate::support::{Place, text, tidegate};

#[test]
fn ten_files_of_fifty_pages_are_explained_without_a_refusal() {
    // A fortieth of the five seconds is what the way to the server may differ by.
    judge(Duration::from_millis(125), ten_files);
}

fn ten_files() -> Result<(), String> {
    let place = Place::new("explain");
    for file in 0..10 {
        std::fs::write(place.path(&format!("{file}.pdf")), pdf(&format!("file {file}"), 50)).unwrap();
    }
    let minute = Duration::from_secs(5);
    let server = Server::builder()
        .rpm(Limit::new(200).per(minute))
        .tpm(Limit::new(200_000).per(minute))
        .concurrency(200)
        .latency(Latency::Uniform(Duration::from_millis(50), Duration::from_millis(150)))
        .start_in_thread()
        .unwrap();
    let (base, folder, out) = (format!("{}/v1", server.base_url()), place.path(""), place.path("out"));
    let done =
        tidegate(&["explain", &folder, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"])
            .args([
                "--rpm",
                "200",
                "--tpm",
                "200000",
                "--minute",
                "5s",
                "--page-concurrency",
                "50",
                "--file-concurrency",
                "10",
            ])
            .args(["--picture-px", "0", "--progress", "none"])
            .output()
            .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let stats = server.stats();
    assert_eq!((stats.answered, stats.refused.concurrency, stats.repeated), (500, 0, 0), "{stats}");
    assert!(stats.in_flight_peak <= 200);
    assert!(stats.used_share().is_some(), "a limit bound");
    strict(&stats)
}

#[test]
fn answers_that_anthropic_limits_apart_are_waited_for_and_nobody_is_refused() {
    // Answers that all take as long leave the margin near its floor.
    judge(Duration::from_millis(10), limited_answers);
}

fn limited_answers() -> Result<(), String> {
    let place = Place::new("anthropic");
    std::fs::write(place.path("book.pdf"), pdf("book", 60)).unwrap();
    let server = Server::builder()
        .otpm(Limit::new(1_500).per(Duration::from_secs(2)))
        .latency(Latency::Fixed(Duration::from_millis(20)))
        .start_in_thread()
        .unwrap();
    let (base, file, out) = (server.base_url(), place.path("book.pdf"), place.path("out"));
    let done =
        tidegate(&["explain", &file, "--out", &out, "--provider", "anthropic", "--base-url", &base, "--model", "m"])
            .args([
                "--max-tokens",
                "100",
                "--otpm",
                "1500",
                "--minute",
                "2s",
                "--picture-px",
                "0",
                "--progress",
                "none",
            ])
            .env("ANTHROPIC_API_KEY", "any")
            .output()
            .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let stats = server.stats();
    assert_eq!((stats.answered, stats.repeated), (60, 0), "{stats}");
    assert!(stats.limit("otpm").unwrap().used_share.is_some(), "{stats}");
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("out/report.json")).unwrap()).unwrap();
    assert!(report["limits"].as_array().unwrap().iter().any(|limit| limit["name"] == "otpm"), "{report}");
    strict(&stats)
}

#[test]
fn after_ctrl_c_programs_are_told_that_it_is_stopping() {
    let place = Place::new("stopping");
    std::fs::write(place.path("book.pdf"), pdf("book", 50)).unwrap();
    let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(700))).start_in_thread().unwrap();
    let (base, file, out) = (format!("{}/v1", server.base_url()), place.path("book.pdf"), place.path("out"));
    let mut child =
        tidegate(&["explain", &file, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"])
            .args(["--page-concurrency", "2", "--picture-px", "0", "--progress", "json"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut progress = || {
        lines.find_map(|line| {
            let mut line: Value = serde_json::from_str(&line.unwrap()).expect("every line is JSON");
            (line["event"] == "progress").then(|| line["progress"].take())
        })
    };
    let under_way = std::iter::from_fn(&mut progress).find(|progress| progress["gate"]["current"] == 2).unwrap();
    assert_eq!(under_way["stopping"], false, "{under_way}");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let last = std::iter::from_fn(&mut progress).last().unwrap();
    assert_eq!(last["stopping"], true, "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Explains `folder` within 6,000 requests per minute, from a server whose answers take a second. Returns the most requests that
/// were in flight, and what was said.
fn peak_in_flight(place: &Place, options: &[&str]) -> (u64, String) {
    let latency = Latency::Fixed(Duration::from_secs(1));
    let server = Server::builder().latency(latency).start_in_thread().unwrap();
    let (base, folder, out) = (format!("{}/v1", server.base_url()), place.path(""), place.path("out"));
    let done =
        tidegate(&["explain", &folder, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"])
            .args(["--rpm", "6000", "--picture-px", "0", "--progress", "plain"])
            .args(options)
            .output()
            .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    (server.stats().in_flight_peak, text(&done.stderr))
}

/// Of the second that an answer takes, pages may be read and sent this much late.
const READING_MARGIN: Duration = Duration::from_millis(200);

#[test]
fn one_large_file_has_as_many_pages_in_flight_as_the_quota_needs() {
    judge(READING_MARGIN, || {
        let place = Place::new("large");
        std::fs::write(place.path("book.pdf"), pdf("book", 400)).unwrap();
        // 100 per second that take a second each; by its size the file would have 20.
        let (peak, said) = peak_in_flight(&place, &[]);
        assert!(!said.contains("--page-concurrency"), "{said}");
        if peak >= 80 { Ok(()) } else { Err(format!("{peak} in flight")) }
    });
}

#[test]
fn as_many_small_files_are_open_as_the_quota_needs() {
    judge(READING_MARGIN, || {
        let place = Place::new("small");
        for file in 0..40 {
            std::fs::write(place.path(&format!("{file}.pdf")), pdf(&format!("file {file}"), 10)).unwrap();
        }
        // By their size five of them would be open, with 50 pages.
        let (peak, _) = peak_in_flight(&place, &[]);
        if peak > 60 { Ok(()) } else { Err(format!("{peak} in flight")) }
    });
}

#[test]
fn a_stated_page_concurrency_stays_and_is_named_as_what_holds_the_run_back() {
    let place = Place::new("stated");
    std::fs::write(place.path("book.pdf"), pdf("book", 120)).unwrap();
    let (peak, said) = peak_in_flight(&place, &["--page-concurrency", "20"]);
    assert_eq!(peak, 20);
    assert!(said.contains("raise --page-concurrency"), "{said}");
}

#[test]
fn a_window_of_two_seconds_is_stated_with_its_limit() {
    // Answers that all take as long leave the margin near its floor.
    judge(Duration::from_millis(10), window_of_two_seconds);
}

fn window_of_two_seconds() -> Result<(), String> {
    let place = Place::new("window");
    std::fs::write(place.path("book.pdf"), pdf("book", 90)).unwrap();
    let server = Server::builder()
        .rpm(Limit::new(30).per(Duration::from_secs(2)))
        .latency(Latency::Fixed(Duration::from_millis(20)))
        .start_in_thread()
        .unwrap();
    let (base, file, out) = (format!("{}/v1", server.base_url()), place.path("book.pdf"), place.path("out"));
    let done =
        tidegate(&["explain", &file, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"])
            .args(["--rpm", "30/2s", "--picture-px", "0", "--progress", "none"])
            .output()
            .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let stats = server.stats();
    assert_eq!((stats.answered, stats.repeated), (90, 0), "{stats}");
    strict(&stats)
}

#[test]
fn a_plan_of_pdfs_has_the_pages_and_files_in_flight_that_explain_has() {
    let peak = |place: &Place, options: &[&str]| {
        let done = tidegate(&["plan", &place.path(""), "--rpm", "6000", "--latency", "1s", "--json"])
            .args(options)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let plan: Value = serde_json::from_slice(&done.stdout).unwrap();
        plan["in_flight_peak"].as_u64().unwrap()
    };
    let large = Place::new("plan-large");
    std::fs::write(large.path("book.pdf"), pdf("book", 400)).unwrap();
    // 100 per second that take a second each, and half as many again.
    assert_eq!(peak(&large, &[]), 150);
    assert_eq!(peak(&large, &["--page-concurrency", "20"]), 20, "stated");
    let small = Place::new("plan-small");
    for file in 0..40 {
        std::fs::write(small.path(&format!("{file}.pdf")), pdf(&format!("file {file}"), 10)).unwrap();
    }
    assert_eq!(peak(&small, &[]), 150);
    assert_eq!(peak(&small, &["--file-concurrency", "3"]), 30, "stated");
}
