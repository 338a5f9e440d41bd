//! The peers that are written in Python: huey on SQLite; Celery and dramatiq on RabbitMQ, each with its own worker as its
//! documentation has it.
//!
//! Installed with pip into a private environment beside the build's output. What is not to be had is reported as unavailable,
//! with the reason.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::harness::Sample;
use crate::python::{Python, output};
use crate::rabbit::Broker;

use super::queue::scratch;
use super::{QUIET, memory};

/// How many workers were started on RabbitMQ.
static SAMPLES: AtomicU32 = AtomicU32::new(0);

/// Where this group's Python packages are.
#[derive(Clone)]
pub(super) struct Environment {
    python: Python,
}

impl Environment {
    pub(super) fn find() -> Environment {
        Environment { python: Python::find() }
    }

    /// CPython alone.
    pub(super) fn plain(&self) -> Result<PathBuf, String> {
        self.python.interpreter()
    }

    /// An interpreter that has this module; installs its package if need be.
    fn with(&self, module: &str, package: &str) -> Result<PathBuf, String> {
        let interpreter = self.python.interpreter()?;
        let executable = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
        let environment = target.join("bench-python-queues");
        let python = environment.join("bin/python");
        let imports = || output(Command::new(&python).args(["-c", &format!("import {module}")]));
        if imports().is_err() {
            eprintln!("      installing {package} into {}", environment.display());
            if !python.exists() {
                output(Command::new(interpreter).args(["-m", "venv"]).arg(&environment))?;
            }
            output(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
            imports()?;
        }
        Ok(python)
    }

    /// huey on SQLite, with fsync: microseconds a task. Without workers one loop publishes all, then runs all.
    pub(super) fn huey(&self, count: usize, pause: Duration, workers: usize) -> Sample {
        let python = self.with("huey", "huey==3.5.0")?;
        let directory = scratch("huey")?;
        let printed = output(
            Command::new(python).args(["-c", include_str!("huey_flow.py")]).arg(directory.join("huey.db")).args([
                count.to_string(),
                pause.as_secs_f64().to_string(),
                workers.to_string(),
            ]),
        )?;
        let _ = std::fs::remove_dir_all(&directory);
        figure(&printed)
    }
}

/// A worker on RabbitMQ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Two processes, a task at a time each.
    CeleryPrefork,
    /// 32 threads.
    CeleryThreads,
    /// Two processes of eight threads.
    Dramatiq,
}

impl Kind {
    fn program(self) -> &'static str {
        if self == Kind::Dramatiq { "dramatiq" } else { "celery" }
    }

    fn package(self) -> &'static str {
        if self == Kind::Dramatiq { "dramatiq[rabbitmq]==2.2.1" } else { "celery==5.7.0" }
    }

    fn arguments(self) -> &'static [&'static str] {
        // Without what workers say among each other, which only costs.
        match self {
            Kind::CeleryPrefork => &[
                "-A",
                "peer_app",
                "worker",
                "-P",
                "prefork",
                "-c",
                "2",
                "-l",
                "ERROR",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ],
            Kind::CeleryThreads => &[
                "-A",
                "peer_app",
                "worker",
                "-P",
                "threads",
                "-c",
                "32",
                "-l",
                "ERROR",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ],
            Kind::Dramatiq => &["peer_app", "-p", "2", "-t", "8"],
        }
    }
}

/// Celery or dramatiq and the RabbitMQ under it.
#[derive(Clone)]
pub(super) struct Peer {
    kind: Kind,
    environment: Environment,
    broker: Rc<Broker>,
}

impl Peer {
    pub(super) fn new(kind: Kind, environment: &Environment, broker: &Rc<Broker>) -> Peer {
        Peer { kind, environment: environment.clone(), broker: Rc::clone(broker) }
    }

    /// Microseconds a task, from the first publish until the last has begun.
    pub(super) fn flow(&self, count: usize, pause: Duration) -> Sample {
        let worker = self.start(pause)?;
        worker.produce(&[&count.to_string()])
    }

    /// Milliseconds from a publish to its start, one at a time.
    pub(super) fn latency(&self, count: usize) -> Sample {
        let worker = self.start(Duration::ZERO)?;
        worker.produce(&[&count.to_string(), "latency"])
    }

    /// Megabytes, after some tasks.
    pub(super) fn memory(&self) -> Sample {
        let worker = self.start(Duration::ZERO)?;
        worker.produce(&["500"])?;
        memory::of_group(worker.child.id())
    }

    /// Seconds from SIGTERM to the end, with nothing to do.
    pub(super) fn stop(&self) -> Sample {
        let mut worker = self.start(Duration::ZERO)?;
        worker.produce(&["1"])?;
        std::thread::sleep(QUIET);
        let began = Instant::now();
        kill_process(Pid::from_child(&worker.child), Signal::TERM).map_err(|error| error.to_string())?;
        worker.child.wait().map_err(|error| error.to_string())?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn start(&self, pause: Duration) -> Result<Running, String> {
        let python = self.environment.with(self.kind.program(), self.kind.package())?;
        let rabbit = self.broker.host()?;
        let directory = scratch(self.kind.program())?;
        for (name, text) in [("peer_app.py", include_str!("peer_app.py")), ("produce.py", include_str!("produce.py"))] {
            std::fs::write(directory.join(name), text).map_err(|error| error.to_string())?;
        }
        let log = File::create(directory.join("log")).map_err(|error| error.to_string())?;
        // A queue of its own: what the last worker had not acknowledged when it was killed comes back to nobody.
        let queue = format!("bench-{}-{}", std::process::id(), SAMPLES.fetch_add(1, Ordering::Relaxed));
        let variables = vec![
            ("BENCH_KIND", self.kind.program().to_owned()),
            ("BENCH_RABBIT", rabbit),
            ("BENCH_QUEUE", queue),
            ("BENCH_PAUSE", pause.as_secs_f64().to_string()),
            ("BENCH_SEEN", directory.join("seen").display().to_string()),
        ];
        let child = Command::new(&python)
            .args(["-m", self.kind.program()])
            .args(self.kind.arguments())
            .envs(variables.iter().cloned())
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        Ok(Running { child, python, directory, variables })
    }
}

/// A worker, in a process group of its own; ended with it.
struct Running {
    child: Child,
    python: PathBuf,
    directory: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl Running {
    fn produce(&self, arguments: &[&str]) -> Sample {
        let mut producer = Command::new(&self.python);
        producer.arg("produce.py").args(arguments).envs(self.variables.iter().cloned()).current_dir(&self.directory);
        let printed = output(&mut producer).map_err(|error| match last_words(&self.directory.join("log")) {
            Some(words) => format!("{error}; its worker said: {words}"),
            None => error,
        })?;
        figure(&printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn last_words(log: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(log).ok()?.read_to_string(&mut text).ok()?;
    text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned)
}

fn figure(printed: &str) -> Sample {
    printed.lines().last().unwrap_or("").parse().map_err(|_| format!("it printed {printed:?} and no figure"))
}
