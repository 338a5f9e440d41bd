//! `explain --broker` and the workers that answer it, as processes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use serde_json::Value;

/// Whom everybody asks, and through which queue.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) place: PathBuf,
    /// The broker's address, and whatever else says which queue.
    pub(crate) broker: Vec<String>,
    pub(crate) base_url: String,
    /// The limits, for everybody.
    pub(crate) limits: Vec<String>,
}

impl Crew {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).arg("--broker").args(&self.broker).args([
            "--provider",
            "openai",
            "--base-url",
            &self.base_url,
        ]);
        command.args(&self.limits).current_dir(&self.place).stdin(Stdio::null());
        // What the machine's user has set must not decide a test.
        command.env("XDG_CONFIG_HOME", self.place.join("none")).env("XDG_DATA_HOME", self.place.join("data"));
        command.env_remove("OPENAI_API_KEY");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A worker that has begun.
    pub(crate) fn worker(&self, name: &str, concurrency: usize, words: &[&str]) -> Process {
        let mut command = self.command(&["worker", "--handler", "explain", "--name", name, "--json"]);
        command.args(["--concurrency", &concurrency.to_string()]).args(words);
        let worker = Process::start(command);
        worker.hears("\n  stop ");
        worker
    }

    /// The one who asks, about every PDF in the place.
    pub(crate) fn explain(&self, words: &[&str]) -> Process {
        let mut command =
            self.command(&["explain", "pdf", "--out", "out", "--model", "m", "--picture-px", "0", "--json"]);
        command.args(["--progress", "plain"]).args(words);
        Process::start(command)
    }
}

/// What a process has written to standard error.
#[derive(Default)]
struct Said {
    text: Mutex<Text>,
    more: Condvar,
}

#[derive(Default)]
struct Text {
    so_far: String,
    /// Nothing more will come.
    is_all: bool,
}

impl Said {
    fn text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap()
    }

    fn add(&self, line: Option<String>) {
        let mut text = self.text();
        match line {
            Some(line) => text.so_far.extend([&line, "\n"]),
            None => text.is_all = true,
        }
        drop(text);
        self.more.notify_all();
    }
}

/// A process of ours: killed with its test.
pub(crate) struct Process {
    child: Option<Child>,
    said: Arc<Said>,
    listening: Option<JoinHandle<()>>,
}

impl Process {
    fn start(mut command: Command) -> Process {
        let mut child = command.spawn().unwrap();
        let said = Arc::<Said>::default();
        let (heard, err) = (Arc::clone(&said), BufReader::new(child.stderr.take().unwrap()));
        let listening = std::thread::spawn(move || {
            err.lines().for_each(|line| heard.add(Some(line.unwrap_or_default())));
            heard.add(None);
        });
        Process { child: Some(child), said, listening: Some(listening) }
    }

    pub(crate) fn said(&self) -> String {
        self.said.text().so_far.clone()
    }

    /// Until it has said so on standard error.
    pub(crate) fn hears(&self, part: &str) {
        let mut text = self.said.text();
        while !text.so_far.contains(part) {
            assert!(!text.is_all, "it ended without saying {part:?}: {}", text.so_far);
            text = self.said.more.wait(text).unwrap();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// At once, and without a word.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Its exit code, and what it printed as JSON.
    pub(crate) fn ended(mut self) -> (Option<i32>, Value, String) {
        let mut child = self.child.take().expect("it runs");
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let Output { status, .. } = child.wait_with_output().unwrap();
        self.listening.take().expect("once").join().unwrap();
        (status.code(), serde_json::from_str(&out).unwrap_or_default(), self.said())
    }

    /// A worker's end, in order.
    pub(crate) fn stop(self) -> Value {
        self.signal("-TERM");
        let (code, report, said) = self.ended();
        assert_eq!(code, Some(0), "{said}");
        report
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// So many files of so many pages, in `pdf/`.
pub(crate) fn files(place: &Path, files: usize, pages: usize, pdf: impl Fn(&str, usize) -> Vec<u8>) {
    std::fs::create_dir_all(place.join("pdf")).unwrap();
    for file in 0..files {
        let name = format!("pdf/{file}.pdf");
        std::fs::write(place.join(&name), pdf(&name, pages)).unwrap();
    }
}
