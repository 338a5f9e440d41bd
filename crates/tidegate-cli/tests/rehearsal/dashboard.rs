//! `--dashboard`: the web page of a run, read while it runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;
use tidegate_rehearsal::Server;

use crate::support::{Place, questions, text, tidegate};

/// A run with `--dashboard`; killed when it is dropped.
struct Run {
    child: Child,
    lines: BufReader<ChildStderr>,
    /// Host and port of the page.
    address: String,
    /// The token of the link, if it has one.
    token: Option<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    /// Starts it and waits for the link.
    fn start(command: &mut Command) -> Run {
        let mut child =
            command.args(["--progress", "json"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the run ended without a link");
            let event: Value = serde_json::from_str(&line).expect("every line is JSON");
            let Some(link) = event["text"].as_str().and_then(|text| text.strip_prefix("dashboard: http://")) else {
                continue;
            };
            let (address, rest) = link.split_once('/').unwrap();
            let token = rest.strip_prefix("?token=").map(str::to_owned);
            return Run { child, lines, address: address.to_owned(), token };
        }
    }

    /// Returns the status and the body of a page.
    fn get(&self, path: &str, header: &str) -> (String, String) {
        let (_, port) = self.address.rsplit_once(':').unwrap();
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{header}connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split_whitespace().nth(1).unwrap().to_owned(), body.to_owned())
    }
}

#[test]
fn a_batch_shows_its_limits_and_its_loop() {
    let place = Place::new("dashboard-batch");
    let requests = place.write("requests.jsonl", &questions(75));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let words = ["batch", &requests, "--base-url", &base, "--rpm", "20", "--dashboard=127.0.0.1:0"];
    let run = Run::start(&mut tidegate(&words));
    assert_eq!(run.token, None, "the loopback interface needs none");
    let bound = loop {
        let limits: Value = serde_json::from_str(&run.get("/api/v1/limits", "").1).unwrap();
        let upstream = &limits["upstreams"][0];
        let rpm = upstream["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "rpm").unwrap().clone();
        if upstream["bound_by"] == "rpm" {
            break rpm;
        }
        std::thread::yield_now();
    };
    assert_eq!((&bound["allowed"], &bound["used"], &bound["peak"]), (&20.into(), &20.into(), &20.into()));
    let (status, page) = run.get("/limits", "");
    assert_eq!(status, "200");
    assert!(page.contains("<strong>rpm binds. </strong>"), "{page}");
    let (status, page) = run.get("/loop", "");
    assert_eq!(status, "200");
    assert!(page.contains("Event loop of tidegate batch"), "{page}");
    assert_eq!(run.get("/limits", "origin: http://evil.example\r\n").0, "403");
}

#[test]
fn an_address_that_others_reach_has_a_token_in_its_link() {
    let place = Place::new("dashboard-token");
    let requests = place.write("requests.jsonl", &questions(75));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let words = ["batch", &requests, "--base-url", &base, "--rpm", "20", "--dashboard=0.0.0.0:0"];
    let run = Run::start(&mut tidegate(&words));
    let token = run.token.clone().expect("the link has the token");
    assert_eq!(run.get("/limits", "").0, "401");
    assert_eq!(run.get("/limits", &format!("authorization: Bearer {token}\r\n")).0, "200");
}

#[test]
fn the_token_of_a_file_is_not_printed() {
    let place = Place::new("dashboard-token-file");
    let requests = place.write("requests.jsonl", &questions(75));
    let token = place.write("token", "a-token-that-others-have\n");
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let option = format!("--dashboard={address}");
        let words = ["batch", &requests, "--base-url", &base, "--rpm", "20", &option, "--dashboard-token-file", &token];
        let mut run = Run::start(&mut tidegate(&words));
        assert_eq!(run.token, None, "it is in the link");
        let mut line = String::new();
        run.lines.read_line(&mut line).unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert!(event["text"].as_str().unwrap().contains(&token), "{line}");
        assert_eq!(run.get("/limits", "").0, "401");
        assert_eq!(run.get("/limits", "authorization: Bearer a-token-that-others-have\r\n").0, "200");
    }
}

#[test]
fn a_dashboard_that_cannot_listen_ends_the_run_before_it_begins() {
    let place = Place::new("dashboard-taken");
    let requests = place.write("requests.jsonl", &questions(3));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--dashboard={}", taken.local_addr().unwrap());
    let done = tidegate(&["batch", &requests, "--base-url", &base, &option]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(
        said.contains("cannot listen at") && said.contains("choose another address with --dashboard=ADDR"),
        "{said}"
    );
    assert_eq!(server.stats().answered, 0);
    let weak = place.write("token", "short\n");
    let done = tidegate(&["batch", &requests, "--base-url", &base, "--dashboard", "--dashboard-token-file", &weak])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("at least 16 characters"), "{}", text(&done.stderr));
}
