//! `tidegate serve` as a child, and the least of a client that is needed to ask it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::batch::tidegate;
use crate::io::cpu_of;

/// A server with a directory of its own. Dropped, it is killed.
pub(super) struct Served {
    child: Child,
    address: String,
    _directory: TempDir,
}

/// An answer.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Served {
    pub(super) fn start(options: &[&str]) -> Result<Served, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut child = Command::new(tidegate()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
            .arg(directory.path().join("jobs"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("tidegate serve: {error}"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        let mut served = Served { child, address: String::new(), _directory: directory };
        read.map_err(|error| error.to_string())?;
        let link = line.split_whitespace().find_map(|word| word.strip_prefix("http://"));
        let link = link.ok_or("tidegate serve ended before it listened")?;
        served.address = link.trim_end_matches('/').to_owned();
        Ok(served)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request as a browser does, and reads the whole answer.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Answer, String> {
        let exchange = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            let gzip = if path.starts_with("/api/") { "" } else { "accept-encoding: gzip\r\n" };
            let mut request =
                format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{gzip}connection: close\r\n", self.address);
            if method != "GET" {
                request.push_str(&format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len()));
            }
            request.push_str("\r\n");
            stream.write_all(&[request.as_bytes(), body].concat())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|error| format!("{method} {path}: {error}"))?;
        let head =
            answer.windows(4).position(|part| part == b"\r\n\r\n").ok_or_else(|| format!("{path}: no answer"))?;
        let status = String::from_utf8_lossy(&answer[..head]).split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Answer { status: status.unwrap_or(0), body: answer[head + 4..].to_vec() })
    }

    /// The body of a page or a file, compressed.
    pub(super) fn get(&self, path: &str) -> Result<Vec<u8>, String> {
        match self.ask("GET", path, "", b"")? {
            Answer { status: 200, body } => Ok(body),
            Answer { status, .. } => Err(format!("GET {path}: {status}")),
        }
    }

    /// Calls the API.
    pub(super) fn api(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Value, String> {
        let answer = self.ask(method, &format!("/api/v1{path}"), kind, body)?;
        let text = String::from_utf8_lossy(&answer.body);
        match answer.status {
            200 => serde_json::from_str(&text).map_err(|error| format!("{path}: {error}")),
            status => Err(format!("{method} {path}: {status} {text}")),
        }
    }

    /// Uploads a file with a page's form: `/jobs/new` makes a draft of it, `/jobs/1/files` adds it to one.
    pub(super) fn upload(&self, form: &str, name: &str, content: &[u8]) -> Result<(), String> {
        let head = format!("--edge\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}\"\r\n\r\n");
        let body = [head.as_bytes(), content, b"\r\n--edge--\r\n"].concat();
        match self.ask("POST", form, "multipart/form-data; boundary=edge", &body)?.status {
            303 => Ok(()),
            status => Err(format!("uploading {name}: {status}")),
        }
    }

    pub(super) fn cpu(&self) -> Result<Duration, String> {
        cpu_of(self.child.id())
    }

    /// How often its threads have gone to sleep so far, or were made to.
    pub(super) fn switches(&self) -> Result<u64, String> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut switches = 0;
        for entry in fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?.flatten() {
            let Ok(text) = fs::read_to_string(entry.path().join("status")) else { continue };
            switches += text
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .sum::<u64>();
        }
        Ok(switches)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns explanations of `pages` pages, without the PDF: a job that is done as soon as it is started.
pub(super) fn explanations(pages: u32) -> Vec<u8> {
    let pages: Vec<Value> = (1..=pages)
        .map(
            |page| serde_json::json!({"page": page, "status": "done", "explanation": "The tide comes in twice a day."}),
        )
        .collect();
    let file = serde_json::json!({"schema": "tidegate.explanations/1", "file": "book.pdf", "explanations": pages});
    file.to_string().into_bytes()
}
