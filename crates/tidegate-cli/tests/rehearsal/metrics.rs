//! `--metrics`: the figures of a run, read while it runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_rehearsal::{Latency, Server};

use crate::idle;
use crate::support::{Place, questions, text, tidegate};

/// A run with `--metrics`.
struct Run {
    child: Child,
    lines: BufReader<ChildStderr>,
    /// Host and port of the page.
    address: String,
    /// What was said before the run began.
    said: String,
}

impl Run {
    /// Starts it and waits until it says where the page is and its first progress.
    fn start(command: &mut Command) -> Run {
        let mut child =
            command.args(["--progress", "json"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let (mut said, mut address) = (String::new(), None);
        loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended: {said}");
            let event: Value = serde_json::from_str(&line).expect("every line is JSON");
            if event["event"] == "progress" {
                break;
            }
            let text = event["text"].as_str().unwrap_or_default();
            if let Some(url) = text.strip_prefix("metrics: http://") {
                address = Some(url.strip_suffix("/metrics").unwrap().to_owned());
            }
            said += text;
        }
        Run { child, lines, address: address.expect("the address is said"), said }
    }

    /// Returns the status and the body of a page.
    fn get(&self, path: &str, header: &str) -> (String, String) {
        let (_, port) = self.address.rsplit_once(':').unwrap();
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split_whitespace().nth(1).unwrap().to_owned(), body.to_owned())
    }

    /// Reads the page until it has this line.
    fn until(&self, line: &str) -> String {
        loop {
            let (status, page) = self.get("/metrics", "");
            assert_eq!(status, "200");
            if page.lines().any(|it| it == line) {
                return page;
            }
            std::thread::yield_now();
        }
    }

    fn interrupt(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }
}

#[test]
fn a_batch_serves_its_counts_and_the_limit_that_blocks() {
    let place = Place::new("metrics-batch");
    let requests = place.write("requests.jsonl", &questions(75));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", &requests, "--base-url", &base, "--rpm", "20", "--metrics", "127.0.0.1:0"]);
    let run = Run::start(&mut command);
    assert!(!run.said.contains("warning"), "{}", run.said);
    let page = run.until("tidegate_run_items_done_total 20");
    for line in [
        "tidegate_run_info{command=\"batch\"} 1",
        "tidegate_run_items 75",
        "tidegate_run_items_counted 1",
        "tidegate_run_answered_last_minute 20",
        "tidegate_run_limit_amount{limit=\"rpm\"} 20",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is missing:\n{page}");
    }
    let blocked = |line: &str| line.strip_prefix("tidegate_run_limit_blocked_total{limit=\"rpm\"} ")?.parse().ok();
    let blocked: f64 = page.lines().find_map(blocked).unwrap();
    assert!(blocked >= 1.0, "{page}");
    assert_eq!(run.get("/healthz", "").0, "200");
    assert_eq!(run.interrupt(), Some(130));
}

#[test]
fn idle_connections_to_the_page_are_bounded() {
    let place = Place::new("metrics-idle");
    let requests = place.write("requests.jsonl", &questions(1));
    let server = Server::builder().latency(Latency::Fixed(Duration::from_secs(600))).start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut run = Run::start(&mut tidegate(&["batch", &requests, "--base-url", &base, "--metrics", "127.0.0.1:0"]));
    idle::takes_64_connections(run.address.rsplit_once(':').unwrap().1.parse().unwrap());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
}

#[test]
fn a_page_that_others_reach_is_warned_of_and_asks_for_its_token() {
    let place = Place::new("metrics-token");
    let (requests, token) = (place.write("requests.jsonl", &questions(3)), place.write("token", "s3cret\n"));
    let server = Server::builder().latency(Latency::Fixed(Duration::from_secs(600))).start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", &requests, "--base-url", &base, "--metrics", "0.0.0.0:0"]);
    let mut run = Run::start(command.args(["--metrics-token-file", &token]));
    assert!(run.said.contains("can be reached from other machines"), "{}", run.said);
    for path in ["/metrics", "/healthz"] {
        assert_eq!(run.get(path, "").0, "401");
        assert_eq!(run.get(path, "authorization: Bearer s3cret\r\n").0, "200");
    }
    run.child.kill().unwrap();
    run.child.wait().unwrap();
}

#[test]
fn an_address_in_use_is_reported_before_anything_is_sent() {
    let place = Place::new("metrics-in-use");
    let requests = place.write("requests.jsonl", &questions(3));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = tidegate(&["batch", &requests, "--base-url", &base, "--metrics", &address]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains(&format!("--metrics: cannot listen on {address}")), "{}", text(&done.stderr));
    assert_eq!(server.stats().accepted, 0);
}

#[cfg(feature = "pdf")]
#[test]
fn explain_serves_its_pages_and_files() {
    let place = Place::new("metrics-explain");
    std::fs::write(place.path("book.pdf"), crate::pdf::pdf("book", 9)).unwrap();
    let server = Server::builder().start_in_thread().unwrap();
    let (base, file, out) = (format!("{}/v1", server.base_url()), place.path("book.pdf"), place.path("out"));
    let mut command =
        tidegate(&["explain", &file, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"]);
    let run = Run::start(command.args(["--rpm", "4", "--metrics", "127.0.0.1:0"]));
    let page = run.until("tidegate_run_items_done_total 4");
    for line in [
        "tidegate_run_info{command=\"explain\"} 1",
        "tidegate_run_items 9",
        "tidegate_run_limit_used{limit=\"rpm\"} 4",
        "tidegate_run_files{state=\"running\"} 1",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is missing:\n{page}");
    }
    assert_eq!(run.interrupt(), Some(130));
}
