//! What the tests have in common.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode as Permissions, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tidegate_loop::pipe::PipeReader;
use tidegate_loop::stream::StreamReader;
use tidegate_loop::{EventLoop, LoopHandle, interrupt};
use tidegate_sync::Event;
use tidegate_worker::{Job, Mode, Outcome, ProcessMode, ProcessOptions, StopSignal, Task, TaskError};

/// Runs a test; one that hangs fails instead of being waited for.
pub(crate) fn on_loop<F: Future + 'static>(future: F) -> F::Output {
    let event_loop = EventLoop::new().unwrap();
    let limit = if std::env::var_os("TIDEGATE_SOAK").is_some() { 3_600.0 } else { 240.0 };
    event_loop.call_later(limit, || interrupt("the test takes too long"));
    event_loop.run_until_complete(future).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where Python finds the module and the tests' handlers.
pub(crate) fn python_path() -> std::ffi::OsString {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process");
    std::env::join_paths([root().join("clients/python"), tests]).unwrap()
}

/// Python children with the handlers of `handlers.py`.
pub(crate) fn python(children: usize) -> ProcessOptions {
    // Without what is installed beside it, which takes most of its start.
    let mut options = ProcessOptions::new(["python3", "-S", "-m", "tidegate", "worker", "handlers"]);
    options.environment.push(("PYTHONPATH".into(), python_path()));
    options.environment.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
    options.children = children;
    options
}

pub(crate) async fn started(options: ProcessOptions) -> Rc<ProcessMode> {
    let mode = Rc::new(ProcessMode::new(options));
    mode.start().await.unwrap();
    mode
}

pub(crate) fn task(name: &str, args: Value) -> Task {
    let Value::Array(args) = args else { panic!("arguments are an array, not {args}") };
    Task { args, ..Task::new(name) }
}

pub(crate) fn job(name: &str, args: Value) -> Job {
    Job { task: task(name, args), soft_limit: None, hard_limit: None, stop: Rc::new(StopSignal::default()) }
}

/// Limits in milliseconds.
pub(crate) fn limited(name: &str, args: Value, soft: Option<u64>, hard: Option<u64>) -> Job {
    let (soft_limit, hard_limit) = (soft.map(Duration::from_millis), hard.map(Duration::from_millis));
    Job { soft_limit, hard_limit, ..job(name, args) }
}

pub(crate) async fn run(mode: &ProcessMode, name: &str, args: Value) -> Outcome {
    mode.run(job(name, args)).await
}

#[track_caller]
pub(crate) fn success(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Success(value) => value,
        other => panic!("no success: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn failure(outcome: Outcome) -> TaskError {
    match outcome {
        Outcome::Failure(error) => error,
        other => panic!("no failure: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn crash(outcome: Outcome) -> String {
    match outcome {
        Outcome::Crashed { message } => message,
        other => panic!("no crash: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn rejection(outcome: Outcome) -> String {
    match outcome {
        Outcome::Rejected { reason } => reason,
        other => panic!("no rejection: {other:?}"),
    }
}

/// The mode still does what it should.
pub(crate) async fn works(mode: &ProcessMode) {
    assert_eq!(success(run(mode, "add", json!([1, 2])).await), json!(3));
}

/// Through which a handler says that it is at work, and in which process.
pub(crate) struct Note {
    _directory: tempfile::TempDir,
    path: PathBuf,
    reader: StreamReader<PipeReader>,
}

impl Note {
    pub(crate) fn new() -> Note {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("note");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Permissions::RWXU, 0).unwrap();
        // For both directions: so it has a writer from the start, and no end.
        let fd = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Permissions::empty()).unwrap();
        Note { _directory: directory, path, reader: StreamReader::new(PipeReader::from_fd(fd).unwrap()) }
    }

    pub(crate) fn path(&self) -> Value {
        self.path.to_str().unwrap().into()
    }

    /// The next process that was noted.
    pub(crate) async fn pid(&mut self) -> Pid {
        let line = self.reader.read_line().await.unwrap().unwrap();
        Pid::from_raw(String::from_utf8(line).unwrap().parse().unwrap()).unwrap()
    }
}

/// Holds a handler up until it is opened.
pub(crate) struct Barrier {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Barrier {
    pub(crate) fn new() -> Barrier {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("barrier");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Permissions::RWXU, 0).unwrap();
        Barrier { _directory: directory, path }
    }

    pub(crate) fn path(&self) -> Value {
        self.path.to_str().unwrap().into()
    }

    /// Opens the gate for current and later waiters, as long as the descriptor is held.
    pub(crate) fn open(&self) -> std::os::fd::OwnedFd {
        rustix::fs::open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Permissions::empty()).unwrap()
    }
}

/// Waits for the end of any process.
pub(crate) async fn ended(pid: Pid) {
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let over = Rc::new(Event::new());
    let set = over.clone();
    LoopHandle::current().add_reader(&fd, move || set.set()).unwrap();
    over.wait().await;
    LoopHandle::current().remove_reader(&fd);
}

/// What is logged on this thread while its guard lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn here() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
