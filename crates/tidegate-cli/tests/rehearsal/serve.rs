//! `tidegate serve` as a process: killed in the middle, started again, stopped in order.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_rehearsal::{Handle, Latency, Server};

use crate::pdf::pdf;
use crate::support::{Place, text, tidegate};

/// A server that is up; killed when it is dropped.
struct Serving {
    child: Child,
    /// `127.0.0.1:PORT`
    host: String,
}

impl Serving {
    fn start(directory: &str, mock: &Handle) -> Serving {
        let base = format!("{}/v1", mock.base_url());
        let mut child = tidegate(&["serve", "--dir", directory, "--listen", "127.0.0.1:0", "--provider", "openai"])
            .args(["--base-url", &base, "--model", "any", "--global-concurrency", "4"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut link = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut link).unwrap();
        let host = link.trim().strip_prefix("http://").unwrap_or_else(|| panic!("it printed {link:?}"));
        Serving { host: host.trim_end_matches('/').to_owned(), child }
    }

    /// One request; its status and its body.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let host = &self.host;
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\ncontent-type: {kind}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer[end + 4..].to_vec();
        (status, if head.to_lowercase().contains("transfer-encoding: chunked") { unchunk(&body) } else { body })
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let (status, answer) = self.send(method, &format!("/api/v1{path}"), "application/json", &body);
        assert_eq!(status, 200, "{method} {path}: {}", text(&answer));
        serde_json::from_slice(&answer).unwrap()
    }

    fn upload(&self, name: &str, data: &[u8]) -> i64 {
        let mut body =
            format!("--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}\"\r\n\r\n").into_bytes();
        body.extend(data);
        body.extend(b"\r\n--b--\r\n");
        let (status, answer) = self.send("POST", "/api/v1/jobs", "multipart/form-data; boundary=b", &body);
        assert_eq!(status, 200, "{}", text(&answer));
        serde_json::from_slice::<Value>(&answer).unwrap()["id"].as_i64().unwrap()
    }

    fn until(&self, id: i64, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let job = self.json("GET", &format!("/jobs/{id}"), &Value::Null);
            if is_so(&job) {
                return job;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "still {job:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGTERM; its exit code.
    fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(&String::from_utf8_lossy(&body[..end]), 16).unwrap();
        whole.extend(&body[end + 2..end + 2 + len]);
        body = &body[end + 4 + len..];
        if len == 0 {
            break;
        }
    }
    whole
}

#[test]
fn a_job_goes_on_by_itself_after_kill_9_and_pays_twice_for_at_most_what_was_in_flight() {
    let place = Place::new("serve-kill");
    let mock = Server::builder().latency(Latency::Fixed(Duration::from_millis(40))).start_in_thread().unwrap();
    let directory = place.path("serve");
    let mut up = Serving::start(&directory, &mock);
    let id = up.upload("book.pdf", &pdf("book", 60));
    up.until(id, |job| job["files"][0]["status"] == "readable");
    up.json("POST", &format!("/jobs/{id}/start"), &Value::Null);
    for done in [10, 30] {
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(done));
        drop(up);
        up = Serving::start(&directory, &mock);
    }
    let job = up.until(id, |job| job["state"] == "done");
    assert_eq!((&job["pages"]["done"], &job["pages"]["failed"]), (&json!(60), &json!(0)), "{job:#}");
    let answered = mock.stats().answered;
    assert!((60..=60 + 2 * 4).contains(&answered), "{answered} answers for 60 pages");
    let mode =
        |path: &str| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777;
    assert_eq!(mode(&format!("{directory}/jobs.db")), 0o600);
    assert_eq!(mode(&format!("{directory}/jobs/{id}/files")), 0o700);
    assert!(Path::new(&format!("{directory}/audit.jsonl")).exists());
    assert_eq!(up.terminate(), Some(143));
}

#[test]
fn a_job_of_requests_goes_on_by_itself_after_kill_9_and_has_one_result_for_each() {
    let place = Place::new("serve-kill-requests");
    let mock = Server::builder().latency(Latency::Fixed(Duration::from_millis(40))).start_in_thread().unwrap();
    let directory = place.path("serve");
    let mut up = Serving::start(&directory, &mock);
    let line = |number: usize| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": format!("Question {number}?")}]});
        json!({"custom_id": format!("r{number}"), "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    let id = up.upload("requests.jsonl", (1..=60).map(line).collect::<String>().as_bytes());
    up.until(id, |job| job["files"][0]["status"] == "readable");
    up.json("POST", &format!("/jobs/{id}/start"), &Value::Null);
    for done in [10, 30] {
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(done));
        drop(up);
        up = Serving::start(&directory, &mock);
    }
    let job = up.until(id, |job| job["state"] == "done");
    assert_eq!(
        (&job["kind"], &job["pages"]["done"], &job["pages"]["failed"]),
        (&json!("batch"), &json!(60), &json!(0))
    );
    // Killed twice with four in flight: what was on its way and what was being written.
    let repeated = mock.stats().repeated;
    assert!(repeated <= 2 * 4, "{repeated} requests were paid for twice");
    let (status, results) = up.send("GET", &format!("/api/v1/jobs/{id}/download/results.jsonl"), "text/plain", b"");
    let ids: std::collections::BTreeSet<String> = text(&results)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((status, text(&results).lines().count(), ids.len()), (200, 60, 60));
    // Each has its answer here, too: those that were stored and not recorded when the server was killed.
    for line in 1..=60 {
        let page = up.json("GET", &format!("/jobs/{id}/files/1/pages/{line}"), &Value::Null);
        assert!(page["versions"][0]["explanation"].is_string(), "{page:#}");
    }
    assert_eq!(up.terminate(), Some(143));
}

#[test]
fn a_port_in_use_and_a_directory_in_use_are_named() {
    let place = Place::new("serve-twice");
    let mock = Server::builder().start_in_thread().unwrap();
    let directory = place.path("serve");
    let up = Serving::start(&directory, &mock);
    let same_port = tidegate(&["serve", "--dir", &place.path("other"), "--listen", &up.host]).output().unwrap();
    let said = text(&same_port.stderr);
    assert_eq!(same_port.status.code(), Some(2), "{said}");
    assert!(said.contains("another program listens at") && said.contains("--listen"), "{said}");
    let same_directory = tidegate(&["serve", "--dir", &directory, "--listen", "127.0.0.1:0"]).output().unwrap();
    let said = text(&same_directory.stderr);
    assert_eq!(same_directory.status.code(), Some(2), "{said}");
    assert!(said.contains("another server has") && said.contains("--dir"), "{said}");
}

#[test]
fn upstreams_of_a_trusted_file_are_offered_and_one_of_the_current_directory_is_refused() {
    let place = Place::new("serve-upstreams");
    let config = place.path("tidegate.toml");
    let upstream = "[[upstream]]\nname = \"team\"\nprovider = \"openai\"\nbase-url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\nrpm = 5\n";
    std::fs::write(&config, upstream).unwrap();
    let refused = tidegate(&["serve", "--dir", &place.path("d"), "--listen", "127.0.0.1:0"])
        .current_dir(place.path(""))
        .output()
        .unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("'upstream'") && said.contains("--config"), "{said}");

    let mut child = tidegate(&["--config", &config, "serve", "--dir", &place.path("d"), "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut link = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut link).unwrap();
    let host = link.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let up = Serving { child, host };
    let list = up.json("GET", "/upstreams", &Value::Null);
    let names: Vec<&str> =
        list["upstreams"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["team", "local"]);
    assert!(!list.to_string().contains("127.0.0.1:9"), "the address is shown: {list}");
    assert_eq!(up.terminate(), Some(143));
}

#[test]
fn a_token_is_printed_if_it_was_made_and_not_if_it_is_from_a_file() {
    let place = Place::new("serve-token");
    let token = place.write("token", "a-token-that-others-have\n");
    for from_file in [true, false] {
        let mut command = tidegate(&["serve", "--dir", &place.path("serve"), "--listen", "0.0.0.0:0"]);
        if from_file {
            command.args(["--token-file", &token]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut link = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut link).unwrap();
        let mut up = Serving { child, host: String::new() };
        let mut lines = BufReader::new(up.child.stderr.take().unwrap());
        let mut said = String::new();
        // The last that it says at the start.
        while !said.contains("put a proxy with TLS in front") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
        }
        assert_eq!(link.contains("?token="), !from_file, "{link}");
        assert!(!link.contains("a-token-that") && !said.contains("a-token-that"), "{link}{said}");
        assert_eq!(said.contains(&format!("the token in {token}")), from_file, "{said}");
    }
}
